"""StepInputs, StepOutput, StepFunction: what the network takes and gives"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from minnow.cache.pool import LayerCache


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInputs:
    """The tokens of a step, of all its sequences, in one row of T.

    Attributes:
        ids: i32 [T].
        positions: i32 [T], in the sequence, from 0.
        slots: i64 [T], where K/V go: block * L + place; -1 writes nothing.
        query_start: i32 [S + 1]; sequence s has tokens [query_start[s], query_start[s + 1]).
        block_table: i32 [S M], pool blocks of each sequence in order of position.
        logits_rows: i64 [Q], the tokens whose logits are needed.
        prompt_end: i32 [S], the position from which on a sequence was generated, or None: kernels may compute such
            tokens in a way of their own, which depends on nothing else.
        tap_layers: layers whose output residuals the drafter wants.
        embeddings: [X D] that replace token embeddings at embedding_rows i64 [X] (images), or None.
        adapter_slots: i32 [S], LoRA slot of each sequence, or None where no adapter is loaded.
    """

    ids: Tensor
    positions: Tensor
    slots: Tensor
    query_start: Tensor
    block_table: Tensor
    logits_rows: Tensor
    prompt_end: Tensor | None = None
    tap_layers: tuple[int, ...] = ()
    embeddings: Tensor | None = None
    embedding_rows: Tensor | None = None
    adapter_slots: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutput:
    """What a step yields: hidden [Q D] before the head, logits f32 [Q V], taps [T D] each."""

    hidden: Tensor
    logits: Tensor
    taps: tuple[Tensor, ...] = ()


class StepFunction(Protocol):
    """One way to run a step: the decoder itself, later a captured graph of it or a native call."""

    def __call__(self, inputs: StepInputs, caches: Sequence[LayerCache]) -> StepOutput:
        """Write the step's K/V into the caches and return its logits."""
        ...
