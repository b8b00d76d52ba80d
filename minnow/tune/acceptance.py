"""how long a drafter's rounds are on held-out answers, without an engine"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from minnow.model.dspark import Drafter
from minnow.tune import blocks, calibration
from minnow.tune.blocks import Blocks, Part
from minnow.tune.features import FeatureStore

_CHUNK_ANCHORS = 96  # run at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A conversation whose end is an answer of the target.

    Attributes:
        index: its number in the feature store.
        ids: i64 [T].
        start: its first answer token.
    """

    index: int
    ids: Tensor
    start: int

    @property
    def num_anchors(self) -> int:
        """Places of the answer with a token after them."""
        return max(len(self.ids) - 1 - self.start, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """By position of the draft, or by how many are made, from 1 to the block's size.

    Attributes:
        drawn_by_position: chance that a draft is kept if those before it are, at temperature 1.
        drawn_lengths: tokens a round at temperature 1, one for each number of drafts.
        greedy_by_position: share of places where that draft and all before it are right, at temperature 0.
        greedy_lengths: tokens a round when greedy answers are written again, one for each number of drafts.
        confidence_temperatures: that calibrate the confidence head at temperature 1.
        confidence_errors: of what it then says about drafts so far all being kept.
    """

    drawn_by_position: tuple[float, ...]
    drawn_lengths: tuple[float, ...]
    greedy_by_position: tuple[float, ...]
    greedy_lengths: tuple[float, ...]
    confidence_temperatures: tuple[float, ...]
    confidence_errors: tuple[float, ...]


@torch.no_grad()
def measure(
    drafter: Drafter,
    store: FeatureStore,
    drawn: Sequence[Text],
    greedy: Sequence[Text],
    *,
    stride: int = 1,
    is_markov_only: bool = False,
) -> Acceptance:
    """Measure on answers that the target drew at temperature 1, and on its greedy ones.

    At temperature 1 a round's length is expected from the distributions: 1 + the sum over drafts of the product of
    1 - TV so far, along the text. Greedy answers are written again in rounds: drafts count up to the first that is
    not the text's.

    Args:
        stride: tokens between two places where drafts are drawn.
        is_markov_only: leave the backbone out, which is what an order-1 table of tokens can do.
    """
    num_slots = drafter.config.block_size
    accepted, predicted = [], []
    for _, made in _blocks(drafter, store, drawn, stride, num_slots, is_markov_only):
        worth = blocks.weigh(drafter, made)
        accepted.append(worth.accepted.view(-1, num_slots))
        predicted.append(worth.predicted.view(-1, num_slots))
    accepted_AP, predicted_AP = torch.cat(accepted), torch.cat(predicted)
    kept_by_text: dict[int, list[int]] = {}
    for text, made in _blocks(drafter, store, greedy, 1, 1, is_markov_only):
        drafts_AP = blocks.greedy(drafter, made)
        is_right = (drafts_AP == made.labels.view_as(drafts_AP)) & made.is_valid.view_as(drafts_AP)
        kept_by_text.setdefault(text.index, []).extend(is_right.long().cumprod(-1).sum(-1).tolist())
    all_kept = [count for kept in kept_by_text.values() for count in kept]
    numbers, survival_AP, logits_AP = range(1, num_slots + 1), accepted_AP.cumprod(-1), torch.logit(predicted_AP)
    temperatures = calibration.temperatures(logits_AP, survival_AP)
    said_AP = torch.sigmoid(logits_AP / torch.tensor(temperatures)).cumprod(-1)
    errors = [calibration.calibration_error(*pair) for pair in zip(said_AP.T, survival_AP.T, strict=True)]
    return Acceptance(
        drawn_by_position=_rounded(accepted_AP.mean(0)),
        drawn_lengths=tuple(round(float(expected_length(accepted_AP, n).mean()), 4) for n in numbers),
        greedy_by_position=tuple(round(sum(kept >= n for kept in all_kept) / len(all_kept), 4) for n in numbers),
        greedy_lengths=tuple(round(_rewritten(list(kept_by_text.values()), n), 4) for n in numbers),
        confidence_temperatures=temperatures,
        confidence_errors=tuple(round(error, 4) for error in errors),
    )


def expected_length(accepted_AP: Tensor, num_drafts: int) -> Tensor:
    """1 + the sum of the chances that the first 1, 2, ... drafts are all kept: f32 [A]."""
    return 1 + accepted_AP[:, :num_drafts].cumprod(-1).sum(-1)


def walk(num_kept: Sequence[int], num_drafts: int) -> int:
    """In how many rounds an answer is written, whose first token is there.

    Args:
        num_kept: for each of its tokens but the last, as an anchor, how many drafts after it are right.
    """
    place = rounds = 0
    while place < len(num_kept):
        place += min(num_kept[place], num_drafts) + 1
        rounds += 1
    return rounds


def _rewritten(kept_by_text: Sequence[Sequence[int]], num_drafts: int) -> float:
    """Tokens a round."""
    return sum(map(len, kept_by_text)) / sum(walk(kept, num_drafts) for kept in kept_by_text)


def _blocks(
    drafter: Drafter, store: FeatureStore, texts: Sequence[Text], stride: int, least: int, is_markov_only: bool
) -> Iterator[tuple[Text, Blocks]]:
    """Blocks at every `stride`th place of the answers that has at least so many tokens after it, some at a time."""
    for text in texts:
        last = max(len(text.ids) - least, text.start + 1)
        for start in range(text.start, last, stride * _CHUNK_ANCHORS):
            anchors = torch.arange(start, min(start + stride * _CHUNK_ANCHORS, last), stride)
            part = Part(features=store.take(text.index, text.ids), ids=text.ids, anchors=anchors)
            yield text, blocks.run(drafter, [part], is_markov_only=is_markov_only)


def _rounded(values: Tensor) -> tuple[float, ...]:
    return tuple(round(value, 4) for value in values.tolist())
