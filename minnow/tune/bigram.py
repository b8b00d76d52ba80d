"""what follows a token whatever stood before it, as the two tables of a Markov head"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from minnow.tune.acceptance import Text
from minnow.tune.features import FeatureStore

_PRIOR_TOKENS = 1.0  # how often a token counts as seen before what is usual after any other
_LEAST_SHARE = 1e-5  # of a token, where errors are weighed by how frequent it is
_OVERSAMPLING = 16  # ranks that the random projection has more


@torch.no_grad()
def tables(
    store: FeatureStore, texts: Sequence[Text], draft_ids: Tensor, rank: int, seed: int
) -> tuple[Tensor, Tensor]:
    """Tables whose product is about log p(next token | this token), p being the target's own expectation in the texts.

    It is the closest product of that rank where errors count as the root of how frequent both tokens are. A token
    that was not seen, or cannot be drafted, is followed by what follows any token.

    Args:
        draft_ids: i64 [W], what can be drafted.

    Returns:
        f32 [V r] and [W r].
    """
    count_W, sum_WW = _counts(store, texts, draft_ids)
    share_W = sum_WW.sum(0) / count_W.sum() + 1e-7
    log_WW = ((sum_WW + _PRIOR_TOKENS * share_W) / (count_W + _PRIOR_TOKENS)[:, None]).log()
    row_W, column_W = (count_W + 1).sqrt(), (share_W + _LEAST_SHARE).sqrt()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        width = min(rank + _OVERSAMPLING, len(draft_ids))
        left, size, right = torch.svd_lowrank(log_WW * row_W[:, None] * column_W, q=width, niter=3)
    first, second = left[:, :rank] * size[:rank].sqrt(), right[:, :rank] * size[:rank].sqrt()
    first, second = (functional.pad(part, (0, rank - part.shape[1])) for part in (first, second))
    first, second = first / row_W[:, None], second / column_W[:, None]
    balance = (second.square().mean() / first.square().mean()) ** 0.25
    first, second = first * balance, second / balance
    table = (first * count_W[:, None]).sum(0).div(count_W.sum()).repeat(len(store.head), 1)
    table[draft_ids] = torch.where(count_W[:, None] > 0, first, table[draft_ids])
    return table, second


def _counts(store: FeatureStore, texts: Sequence[Text], draft_ids: Tensor) -> tuple[Tensor, Tensor]:
    """How often each token that can be drafted stood in the answers, f32 [W]; what was expected then, summed, [W W]."""
    head_WD, num_ids = store.head[draft_ids], len(draft_ids)
    draft_id_V = torch.full((len(store.head),), -1)
    draft_id_V[draft_ids] = torch.arange(num_ids)
    count_W, sum_WW = torch.zeros(num_ids), torch.zeros(num_ids, num_ids)
    for text in texts:
        features, rows = store.take(text.index, text.ids), slice(text.start, len(text.ids) - 1)
        drafts_T = draft_id_V[text.ids[rows]]
        is_known = drafts_T >= 0
        logits_TW = functional.linear(features.hidden[rows][is_known], head_WD)
        p_TW = (logits_TW - features.normaliser[rows][is_known][:, None]).exp()
        count_W += torch.bincount(drafts_T[is_known], minlength=num_ids)
        sum_WW.index_add_(0, drafts_T[is_known], p_TW)
    return count_W, sum_WW
