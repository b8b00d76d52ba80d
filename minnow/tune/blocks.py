"""blocks of a drafter over a known text: what it drafts there, and what that is worth"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from minnow.model.dspark import Drafter
from minnow.tune.features import Features

LOSS_DECAY = 4.0  # slots between two weights that differ by e


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One text, and where it is drafted.

    Attributes:
        ids: i64 [T], the text.
        anchors: i64 [A], places with at least one token after each.
    """

    features: Features
    ids: Tensor
    anchors: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """Anchors of one or more texts, each with its block of P slots: R = A P rows, block by block.

    Attributes:
        before: i64 [R], the token before the one that a slot drafts: the anchor, then the text.
        labels: i64 [R], the token of the text that a slot should draft.
        is_valid: bool [R], whether the text goes so far.
        hidden: f32 [R D] of the drafter.
        base: f32 [R W] of the drafter, before the Markov head.
        wanted: f32 [R D], the target's hidden states of what a slot should draft.
        normaliser: f32 [R], of their probabilities.
    """

    before: Tensor
    labels: Tensor
    is_valid: Tensor
    hidden: Tensor
    base: Tensor
    wanted: Tensor
    normaliser: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """What each slot is worth where the text before it is given; f32 [R] each.

    Attributes:
        cross_entropy: of the text's token, in nats; 0 where the drafter cannot say it.
        distance: sum over the vocabulary of |q - p|, 0 to 2.
        confidence: the confidence head's cross-entropy against the true chance.
        predicted: the chance that the confidence head sees.
    """

    cross_entropy: Tensor
    distance: Tensor
    confidence: Tensor
    predicted: Tensor

    @property
    def accepted(self) -> Tensor:
        """The chance that a draft of the slot is kept, f32 [R]."""
        return 1 - self.distance.detach() / 2


def run(drafter: Drafter, parts: Sequence[Part], *, is_markov_only: bool = False) -> Blocks:
    """Run the drafter for blocks at some places of texts.

    A row sees the context before its anchor, as far as its window, and the whole of its own block.

    Args:
        is_markov_only: leave the backbone out: hidden states and base logits are zero.
    """
    config = drafter.config
    slot = torch.arange(config.block_size)
    places = [(part.anchors[:, None] + slot).flatten() for part in parts]
    lasts = [len(part.ids) - 1 for part in parts]
    at = [place.clamp(max=last) for place, last in zip(places, lasts, strict=True)]
    wanted = torch.cat([part.features.hidden[rows] for part, rows in zip(parts, at, strict=True)])
    if is_markov_only:
        hidden, base = torch.zeros_like(wanted), wanted.new_zeros(len(wanted), config.draft_vocab_size)
    else:
        hidden = _hidden(drafter, parts, places)
        base = drafter.base(hidden)
    return Blocks(
        before=torch.cat([part.ids[rows] for part, rows in zip(parts, at, strict=True)]),
        labels=torch.cat(
            [part.ids[(rows + 1).clamp(max=len(part.ids) - 1)] for part, rows in zip(parts, at, strict=True)]
        ),
        is_valid=torch.cat([place < last for place, last in zip(places, lasts, strict=True)]),
        hidden=hidden,
        base=base,
        wanted=wanted,
        normaliser=torch.cat([part.features.normaliser[rows] for part, rows in zip(parts, at, strict=True)]),
    )


def _hidden(drafter: Drafter, parts: Sequence[Part], places: Sequence[Tensor]) -> Tensor:
    """f32 [R D]; all texts go through the layers together, and each attends for itself."""
    config = drafter.config
    taps = [torch.cat(tap) for tap in zip(*(part.features.taps for part in parts), strict=True)]
    lengths, counts = [len(part.ids) for part in parts], [len(rows) for rows in places]
    context = drafter.context(taps, torch.cat([torch.arange(length, dtype=torch.int32) for length in lengths]))
    biases = [
        torch.where(_visible(part.anchors, rows, len(part.ids), config.window), 0.0, -torch.inf)
        for part, rows in zip(parts, places, strict=True)
    ]

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        own = zip(*(torch.split(rows, counts) for rows in (q, k, v)), strict=True)
        before = zip(*(torch.split(rows, lengths) for rows in context[layer]), strict=True)
        return torch.cat(
            [
                _attend(q_RNH, torch.cat((past_k, k_RGH)), torch.cat((past_v, v_RGH)), bias_RK)
                for (q_RNH, k_RGH, v_RGH), (past_k, past_v), bias_RK in zip(own, before, biases, strict=True)
            ]
        )

    positions_R = torch.cat(list(places))
    is_anchor_R = torch.arange(len(positions_R)) % config.block_size == 0
    known_R = torch.cat([part.ids[part.anchors].repeat_interleave(config.block_size) for part in parts])
    return drafter.block(torch.where(is_anchor_R, known_R, config.mask_token_id), positions_R.int(), attend)


def _attend(q_RNH: Tensor, k_KGH: Tensor, v_KGH: Tensor, bias_RK: Tensor) -> Tensor:
    """Softmax attention of rows over keys: [R N H]."""
    num_rows, num_heads, width = q_RNH.shape
    keys_GKH, values_GKH = k_KGH.transpose(0, 1), v_KGH.transpose(0, 1)
    num_groups = len(keys_GKH)
    q_GMH = q_RNH.reshape(num_rows, num_groups, -1, width).transpose(0, 1).flatten(1, 2)  # M: rows and their heads
    scores_GRSK = (q_GMH @ keys_GKH.mT).view(num_groups, num_rows, -1, keys_GKH.shape[1]) * width**-0.5
    weights_GMK = (scores_GRSK + bias_RK[:, None]).softmax(-1).flatten(1, 2)
    out_GRSH: Tensor = (weights_GMK @ values_GKH).view(num_groups, num_rows, -1, width)
    return out_GRSH.transpose(0, 1).reshape(num_rows, num_heads, width)


def weigh(drafter: Drafter, blocks: Blocks) -> Worth:
    """Compare what the slots would draft after the text with what the target expects there.

    Source: DSpark's loss (DeepSpec): teacher forcing, total variation against the target at temperature 1.
    """
    logits_RW, _ = drafter.logits(blocks.base, blocks.hidden, blocks.before, None)
    log_q_RW = logits_RW.log_softmax(-1)
    p_RW, outside_R = _expected(drafter, blocks)
    distance = (log_q_RW.exp() - p_RW).abs().sum(-1) + outside_R
    draft_id_R = _draft_ids(drafter)[blocks.labels]
    likelihood = log_q_RW.gather(1, draft_id_R.clamp(min=0)[:, None])[:, 0]
    assert drafter.confidence is not None
    seen = drafter.confidence(blocks.hidden, drafter.markov.look_up(blocks.before))
    accepted = 1 - distance.detach() / 2
    return Worth(
        cross_entropy=torch.where(draft_id_R >= 0, -likelihood, 0.0),
        distance=distance,
        confidence=functional.binary_cross_entropy_with_logits(seen, accepted, reduction="none"),
        predicted=torch.sigmoid(seen.detach()),
    )


def greedy(drafter: Drafter, blocks: Blocks) -> Tensor:
    """Draft the likeliest tokens, each after the one before: target ids, i64 [A P]."""
    num_slots = drafter.config.block_size
    base_APW, hidden_APD = (rows.view(-1, num_slots, rows.shape[1]) for rows in (blocks.base, blocks.hidden))
    before, state, target_ids = blocks.before[::num_slots], None, drafter.vocabulary.target_ids
    drafts: list[Tensor] = []
    for slot in range(num_slots):
        logits, state = drafter.logits(base_APW[:, slot], hidden_APD[:, slot], before, state)
        best = logits.argmax(-1)
        before = best if target_ids is None else target_ids[best]
        drafts.append(before)
    return torch.stack(drafts, dim=1)


def slot_weights(num_slots: int) -> Tensor:
    """f32 [P]: later slots count less."""
    return torch.exp(-torch.arange(num_slots) / LOSS_DECAY)


def _visible(anchors: Tensor, positions_R: Tensor, num_tokens: int, window: int) -> Tensor:
    """bool [R, T + R]: which keys, of the text and then of all blocks, a row sees."""
    num_slots = len(positions_R) // len(anchors)
    place_T, own_R = torch.arange(num_tokens), torch.arange(len(anchors)).repeat_interleave(num_slots)
    is_before = place_T < anchors[own_R][:, None]
    is_near = place_T > positions_R[:, None] - window if window else is_before
    return torch.cat((is_before & is_near, own_R[:, None] == own_R), dim=1)


@torch.no_grad()
def _expected(drafter: Drafter, blocks: Blocks) -> tuple[Tensor, Tensor]:
    """The target's probabilities of what can be drafted, f32 [R W], and their rest, f32 [R]."""
    logits_RW = drafter.base(blocks.wanted)  # the drafter's head is the target's, as far as it goes
    p_RW = (logits_RW - blocks.normaliser[:, None]).exp()
    return p_RW, (1 - p_RW.sum(-1)).clamp(min=0)


def _draft_ids(drafter: Drafter) -> Tensor:
    """i64 [V]: target id -> draft id, -1 where it cannot be drafted."""
    ids, num_ids = drafter.vocabulary.target_ids, drafter.config.backbone.vocab_size
    if ids is None:
        return torch.arange(num_ids)
    found = torch.full((num_ids,), -1)
    found[ids] = torch.arange(len(ids))
    return found
