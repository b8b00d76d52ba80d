"""blocks of a drafter over a known text: what it drafts there, and what that is worth"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from minnow.model.dspark import Drafter
from minnow.tune.features import Features


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
        slot: i64 [R], from 0 in each block.
        before: i64 [R], the token before the one that a slot drafts: the anchor, then the text.
        labels: i64 [R], the token of the text that a slot should draft.
        is_valid: bool [R], whether the text goes so far.
        hidden: f32 [R D] of the drafter.
        wanted: f32 [R D], the target's hidden states of what a slot should draft.
        normaliser: f32 [R], of their probabilities.
    """

    slot: Tensor
    before: Tensor
    labels: Tensor
    is_valid: Tensor
    hidden: Tensor
    wanted: Tensor
    normaliser: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """What each slot is worth where the text before it is given; f32 [R] each.

    Attributes:
        accepted: the chance that a draft of the slot is kept: what the distributions of both share.
        predicted: the chance that the confidence head sees.
    """

    accepted: Tensor
    predicted: Tensor


def run(
    drafter: Drafter, parts: Sequence[Part], *, num_slots: int | None = None, is_markov_only: bool = False
) -> Blocks:
    """Run the drafter for blocks at some places of texts.

    A row sees the context before its anchor, as far as its window, and the whole of its own block.

    Args:
        num_slots: of a block; None is the drafter's own size.
        is_markov_only: leave the backbone out: hidden states are zero.
    """
    slot = torch.arange(num_slots or drafter.config.block_size)
    places = [(part.anchors[:, None] + slot).flatten() for part in parts]
    lasts = [len(part.ids) - 1 for part in parts]
    at = [place.clamp(max=last) for place, last in zip(places, lasts, strict=True)]
    wanted = torch.cat([part.features.hidden[rows] for part, rows in zip(parts, at, strict=True)])
    hidden = torch.zeros_like(wanted) if is_markov_only else _hidden(drafter, parts, places)
    return Blocks(
        slot=slot.repeat(sum(len(part.anchors) for part in parts)),
        before=torch.cat([part.ids[rows] for part, rows in zip(parts, at, strict=True)]),
        labels=torch.cat(
            [part.ids[(rows + 1).clamp(max=len(part.ids) - 1)] for part, rows in zip(parts, at, strict=True)]
        ),
        is_valid=torch.cat([place < last for place, last in zip(places, lasts, strict=True)]),
        hidden=hidden,
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
    num_slots = counts[0] // len(parts[0].anchors)
    is_anchor_R = torch.arange(len(positions_R)) % num_slots == 0
    known_R = torch.cat([part.ids[part.anchors].repeat_interleave(num_slots) for part in parts])
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


@torch.no_grad()
def weigh(drafter: Drafter, blocks: Blocks) -> Worth:
    """Compare what the slots would draft after the text with what the target expects there, at temperature 1."""
    logits_RW, _ = drafter.logits(drafter.base(blocks.hidden), blocks.hidden, blocks.before, None)
    expected_RW = (
        drafter.base(blocks.wanted) - blocks.normaliser[:, None]
    )  # the head is the target's, as far as it goes
    assert drafter.confidence is not None
    seen_R = drafter.confidence(blocks.hidden, drafter.markov.look_up(blocks.before))
    return Worth(
        accepted=torch.minimum(logits_RW.softmax(-1), expected_RW.exp()).sum(-1), predicted=torch.sigmoid(seen_R)
    )


def greedy(drafter: Drafter, blocks: Blocks) -> Tensor:
    """Draft the likeliest tokens, each after the one before: target ids, i64 [A P]."""
    num_slots = drafter.config.block_size
    base_RW = drafter.base(blocks.hidden)
    base_APW, hidden_APD = (rows.view(-1, num_slots, rows.shape[1]) for rows in (base_RW, blocks.hidden))
    before, state, target_ids = blocks.before[::num_slots], None, drafter.vocabulary.target_ids
    drafts: list[Tensor] = []
    for slot in range(num_slots):
        logits, state = drafter.logits(base_APW[:, slot], hidden_APD[:, slot], before, state)
        best = logits.argmax(-1)
        before = best if target_ids is None else target_ids[best]
        drafts.append(before)
    return torch.stack(drafts, dim=1)


def _visible(anchors: Tensor, positions_R: Tensor, num_tokens: int, window: int) -> Tensor:
    """bool [R, T + R]: which keys, of the text and then of all blocks, a row sees."""
    num_slots = len(positions_R) // len(anchors)
    place_T, own_R = torch.arange(num_tokens), torch.arange(len(anchors)).repeat_interleave(num_slots)
    is_before = place_T < anchors[own_R][:, None]
    is_near = place_T > positions_R[:, None] - window if window else is_before
    return torch.cat((is_before & is_near, own_R[:, None] == own_R), dim=1)
