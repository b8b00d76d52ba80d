"""logits -> tokens, log-probabilities"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from minnow.core.request import SamplingParams
from minnow.core.step import RowResult, RowStep, TokenLogprobs
from minnow.engine.rows import Row, send
from minnow.kernels.registry import Kernels
from minnow.kernels.sample import NONE_OPEN

_LEAST = -9999.0  # log-probabilities are clipped here: minus infinity is no JSON
_ROWS_AT_ONCE = 64  # a softmax holds as much again as the logits that it is of
_NOT_FINITE = "the model's logits are not finite"
_NONE_OPEN = "no token may be drawn: allowed_token_ids, logit_bias and min_tokens leave none"
_MASK = (1 << 64) - 1


def random_uniform(seed: int, position: int, stream: int = 0) -> float:
    """A number in [0, 1) that depends on its arguments alone, so neighbours never change a draw.

    Args:
        seed: of the sequence; position: of the token to be drawn; stream: keeps uses apart.

    Source: the SplitMix64 mixing function, applied to each argument in turn.
    """
    state = 0
    for word in (seed, position, stream):
        state = (state ^ (word & _MASK)) + 0x9E3779B97F4A7C15 & _MASK
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
    return (state >> 11) / (1 << 53)


def sample(kernels: Kernels, logits: Tensor, rows: Sequence[tuple[int, Row]]) -> list[RowResult]:
    """Draw one token for each row.

    Args:
        logits: f32 [S V], one row a sequence.
        rows: the sequences' row numbers and rows, in the order of the logits.

    Returns:
        One RowResult each; a row whose logits are not finite fails alone. Minus infinity is finite enough: such a token
        is never drawn. A row of nothing else fails.
    """
    drawable = adjust(logits, [(row, ()) for _, row in rows])
    numbers = [random_uniform(row.seed, len(row.token_ids)) for _, row in rows]
    ids = kernels.sample(
        drawable.logits,
        *settings([row.sampling for _, row in rows], logits.device),
        send(numbers, torch.float64, logits.device),
    ).tolist()
    results = []
    for s, (number, row) in enumerate(rows):
        error = drawable.error(s, ids[s])
        results.append(RowResult(row=number, error=error) if error else answer(number, row, logits, [ids[s]], first=s))
    return results


def answer(number: int, row: Row, logits: Tensor, ids: list[int], *, first: int) -> RowResult:
    """The result of a row that drew tokens; logits f32 [.. V] are the model's, row `first` that of the first token."""
    wanted = row.sampling.logprobs
    logprobs = () if wanted is None else tuple(_logprobs(logits[first : first + len(ids)], ids, wanted))
    return RowResult(row=number, token_ids=tuple(ids), logprobs=logprobs)


def settings(
    params: Sequence[SamplingParams], device: torch.device, most: int | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Temperature f32, top-k i64, top-p f32, min-p f32, as the operations want them; top-k is `most` at most."""
    return (
        send([p.temperature for p in params], torch.float32, device),
        send([p.top_k if most is None else min(p.top_k, most) for p in params], torch.int64, device),
        send([p.top_p for p in params], torch.float32, device),
        send([p.min_p for p in params], torch.float32, device),
    )


@dataclass(frozen=True, slots=True)
class Drawable:
    """Logits with masks, bias and penalties.

    Attributes:
        logits: f32 [R V]; those that nothing had to be done to are the model's own.
        adjusted: rows that something was done to; broken: those whose logits were not finite before.
    """

    logits: Tensor
    adjusted: frozenset[int]
    broken: frozenset[int]

    def error(self, r: int, found: int) -> str | None:
        """Why nothing could be drawn from a row, where an operation found an id below 0, or None."""
        if found >= 0 and r not in self.broken:
            return None
        return _NONE_OPEN if found == NONE_OPEN and r in self.adjusted - self.broken else _NOT_FINITE


def adjust(logits: Tensor, places: Sequence[tuple[Row, Sequence[int]]]) -> Drawable:
    """Apply what requests ask for to the model's logits.

    Args:
        logits: f32 [R V].
        places: of each row of logits the sequence, and the drafts that stand between its tokens and that place.
    """
    drawable, adjusted, broken = logits, set[int](), set[int]()
    for r, (row, drafts) in enumerate(places):
        if not _is_adjusting(row, len(drafts)):
            continue
        if not adjusted:
            drawable = logits.clone()
        adjusted.add(r)
        if _is_broken(logits[r : r + 1]):  # a ban must not hide it
            broken.add(r)
        _adjust(drawable[r], row, drafts)
    return Drawable(drawable, frozenset(adjusted), frozenset(broken))


def score_prompts(logits: Tensor, steps: Sequence[tuple[RowStep, Row]]) -> list[RowResult]:
    """Log-probabilities of prompt tokens, by the tokens before them.

    Args:
        logits: f32 [Q V], of the first num_prompt_logprobs tokens of each step, one step after the other.
        steps: those of a plan that score a prompt, and their rows.

    Returns:
        One RowResult each; a row with logits that are not finite fails alone, as in `sample`.
    """
    results, first = [], 0
    for step, row in steps:
        last = first + step.num_prompt_logprobs
        found = _score(logits[first:last], row, step.start + 1)
        error = _NOT_FINITE if found is None else None
        results.append(RowResult(row=step.row, prompt_logprobs=tuple(found or ()), error=error))
        first = last
    return results


def _score(logits: Tensor, row: Row, position: int) -> list[TokenLogprobs] | None:
    """Of the row's tokens from a position on, by a row of logits each; None where one is not finite."""
    found: list[TokenLogprobs] = []
    for part in torch.split(logits, _ROWS_AT_ONCE):
        if _is_broken(part):
            return None
        first = position + len(found)
        found += _logprobs(part, row.token_ids[first : first + len(part)], row.sampling.prompt_logprobs or 0)
    return found


def _is_broken(logits: Tensor) -> bool:
    """Whether a row of f32 [R V] is no distribution; a largest value is NaN where any is."""
    return not bool(torch.isfinite(logits.amax(-1)).all())


def _is_adjusting(row: Row, num_drafts: int) -> bool:
    """Whether `_adjust` would change the row's logits."""
    sampling = row.sampling
    return (
        sampling.allowed_token_ids is not None
        or bool(sampling.logit_bias)
        or (row.num_output_tokens + num_drafts < sampling.min_tokens and bool(row.stop_token_ids))
        or sampling.repetition_penalty != 1.0
        or sampling.frequency_penalty != 0
        or sampling.presence_penalty != 0
    )


def _adjust(logits: Tensor, row: Row, drafts: Sequence[int]) -> None:
    """Masks, bias and penalties, in place; order as in vLLM."""
    sampling = row.sampling
    if sampling.allowed_token_ids is not None or sampling.logit_bias:
        if row.bias is None:
            row.bias = _bias(sampling, logits)
        logits += row.bias
    if row.num_output_tokens + len(drafts) < sampling.min_tokens and row.stop_token_ids:
        logits[list(row.stop_token_ids)] = -torch.inf
    _penalise(logits, row, drafts)


def _bias(sampling: SamplingParams, logits: Tensor) -> Tensor:
    """f32 [V], what a request adds to its logits in every step."""
    bias = torch.zeros_like(logits)
    if sampling.allowed_token_ids is not None:
        bias.fill_(-torch.inf)
        bias[list(sampling.allowed_token_ids)] = 0.0
    if sampling.logit_bias:
        ids, values = zip(*sampling.logit_bias, strict=True)
        device = logits.device
        bias.index_add_(0, torch.tensor(ids, device=device), torch.tensor(values, dtype=bias.dtype, device=device))
    return bias


def _penalise(logits: Tensor, row: Row, drafts: Sequence[int]) -> None:
    sampling = row.sampling
    repetition = sampling.repetition_penalty
    if repetition != 1.0:
        seen = torch.tensor(sorted({*row.token_ids, *drafts}), device=logits.device)
        values = logits[seen]
        logits[seen] = torch.where(values > 0, values / repetition, values * repetition)
    if sampling.frequency_penalty or sampling.presence_penalty:
        generated = [*row.token_ids[row.num_prompt_tokens :], *drafts]
        output = torch.tensor(generated, dtype=torch.int64, device=logits.device)
        counts = torch.bincount(output, minlength=len(logits)).to(logits.dtype)
        logits -= sampling.frequency_penalty * counts + sampling.presence_penalty * (counts > 0)


def _logprobs(logits: Tensor, token_ids: Sequence[int], num_top: int) -> list[TokenLogprobs]:
    """Of one token for each row, in the raw distribution, before masks, penalties and temperature."""
    values = logits.log_softmax(-1)
    own = values.gather(-1, torch.tensor(token_ids, device=logits.device)[:, None])
    rank = (values > own).sum(-1) + 1
    best = values.topk(min(num_top, values.shape[-1]))
    clipped = own[:, 0].clamp(min=_LEAST).tolist(), best.values.clamp(min=_LEAST).tolist()
    return [
        TokenLogprobs(logprob=logprob, rank=place, top=tuple(zip(top_ids, top, strict=True)))
        for logprob, place, top_ids, top in zip(
            clipped[0], rank.tolist(), best.indices.tolist(), clipped[1], strict=True
        )
    ]
