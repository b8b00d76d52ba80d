"""the words of the structs in cpu.cpp beside this file, and the two calls"""

import ctypes
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from minnow.kernels import native, words
from minnow.kernels.words import Matrix


class StepModel(Protocol):
    """What decoder_step/cpu.py makes of a network."""

    @property
    def address(self) -> int:
        """Of its `struct Model`."""
        ...

    @property
    def step_words(self) -> Callable[..., tuple[int, ...]]:
        """Makes the `struct Step` of some blocks."""
        ...


class NativeDrafter:
    """A drafter with a vanilla Markov head: pointers into tensors, which live as long as this does."""

    def __init__(
        self,
        model: StepModel,
        fuse: Matrix,
        context_norm: Tensor,
        markov: tuple[Matrix, Matrix],
        target_ids: Tensor | None,
        confidence: tuple[Tensor, float] | None,
    ) -> None:
        """Take over its parts.

        Args:
            model: its layers, with the target's embedding and head (or rows of it).
            fuse: [D K*D]; context_norm: [D].
            markov: [V r] of the tokens before, [W r] of the drafts.
            target_ids: i64 [W], or None where they are the target's.
            confidence: [1 D + r] or [1 D] and its bias, or None.
        """
        self._parts = (model, fuse, context_norm, markov, target_ids, confidence)
        self._has_confidence = confidence is not None
        self._num_ids = markov[1].shape[0]
        self._width = context_norm.shape[0]
        self._model = model
        self._words = words.pack(
            model.address, *words.of_weights((fuse, context_norm, *markov)),
            0 if target_ids is None else target_ids.data_ptr(),
            *((0,) * 8 if confidence is None else (*words.of_weight(confidence[0]), words.double(confidence[1]))),
        )  # fmt: skip
        self._scratch = self._new_scratch(16)
        self._context = native.function("draft_context", "pp")
        self._round = native.function("draft_round", "pp")

    def _new_scratch(self, num_tokens: int) -> tuple[Tensor, Tensor, Tensor]:
        """Row numbers, and room for hidden states and logits of so many tokens of blocks."""
        size = num_tokens
        return torch.arange(size), torch.empty(size, self._width), torch.empty(size, self._num_ids)

    def remember(self, taps: Sequence[Tensor], positions: Tensor, slots: Tensor) -> None:
        """Write keys and values of context tokens.

        Args:
            taps: f32 [T D] each, dense; positions: i32 [T]; slots: i64 [T], -1 writes nothing.
        """
        places = words.pack(*(tap.data_ptr() for tap in taps))
        self._context(
            self._words,
            words.pack(len(positions), len(taps), ctypes.addressof(places), positions.data_ptr(), slots.data_ptr()),
        )

    def draft(
        self,
        blocks: tuple[Tensor, Tensor, Tensor, Tensor, Tensor],
        keys: tuple[Tensor, Tensor],
        counts: Tensor,
        anchors: Tensor,
        settings: tuple[Tensor, Tensor, Tensor, Tensor],
        uniform: Tensor,
        *,
        is_judged: bool,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Run the blocks and draw from them, one draft after the other.

        Args:
            blocks: ids, positions, slots, query_start, block_table; keys: last and first ones; see model.dspark.Block.
            counts: i64 [S], descending; anchors: i32 [S].
            settings: temperature f32, top_k i64, top_p f32, min_p f32, [S] each; temperature 0 takes the likeliest.
            uniform: f64 [P S]; is_judged: whether to ask the confidence head.

        Returns:
            i64 [P S], ids of the target; f32 [P S W], what was drawn from, or None where nothing was; f32 [P S], logits
            of the confidence head, or None where it was not asked.
        """
        num_tokens, (num_slots, num_sequences) = blocks[0].shape[0], uniform.shape
        if num_tokens > self._scratch[0].shape[0]:
            self._scratch = self._new_scratch(num_tokens)
        rows, hidden, logits = self._scratch
        rows = rows[:num_tokens]
        found = torch.zeros(num_slots, num_sequences, dtype=torch.int64)
        temperatures = settings[0].tolist()
        # Zeros are for places without a draft of their own.
        new = torch.empty if num_tokens == num_slots * num_sequences and min(temperatures) > 0 else torch.zeros
        q = new(num_slots, num_sequences, self._num_ids) if max(temperatures) > 0 else None
        confidence = torch.zeros(num_slots, num_sequences) if self._has_confidence and is_judged else None
        step = self._model.step_words(*blocks, None, (rows, hidden, logits), block=keys)
        self._round(
            self._words,
            words.pack(
                *step, num_sequences, counts.data_ptr(), anchors.data_ptr(),
                *(setting.data_ptr() for setting in settings), 0, uniform.data_ptr(), found.data_ptr(),
                0 if q is None else q.data_ptr(), 0 if confidence is None else confidence.data_ptr(),
            ),
        )  # fmt: skip
        return found, q, confidence
