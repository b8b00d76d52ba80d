"""the words of `decoder_step`'s structs, in the order of cpu.cpp, and the call"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from minnow.formats.quantized import Weight
from minnow.kernels import native, words
from minnow.kernels.words import Matrix

_NO_WEIGHT = (0,) * 7
_NO_CACHE = (0,) * 13
_MAX_PROJECTIONS = 5
Expert = tuple[Matrix, Matrix, Matrix]
Words = ctypes.Array[ctypes.c_int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerParts:
    """What a layer is made of, for the native call.

    Attributes:
        projections: q, k, v, and on a sparse layer index q and index k.
        head_norms: of each projection; None where there is none.
        head_dims: width of a head of each projection.
        mixing: of queries and of keys, f32 [G H H], see qk_norm_rope; None where there is none.
        caches: k, v, and the index keys or None.
        gate, bias, experts: of the router and its experts; None and empty on a dense layer.
        shared: the shared expert, or the dense feed-forward part.
    """

    attention_norm: Tensor
    projections: tuple[Matrix, ...]
    head_norms: tuple[Tensor | None, ...]
    head_dims: tuple[int, ...]
    mixing: tuple[Tensor | None, Tensor | None]
    project_out: Matrix
    feed_forward_norm: Tensor
    caches: tuple[Weight, Weight, Weight | None]
    gate: Matrix | None
    bias: Weight | None
    experts: tuple[Expert, ...]
    shared: Expert | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelParts:
    """What the decoder is made of; the constants are those of the operations' arguments.

    Attributes:
        activation: of all its experts, as `words.of_activation` has it.
    """

    layers: tuple[LayerParts, ...]
    embedding: Matrix
    norm: Tensor
    head: Matrix
    inv_freq: Tensor
    eps: float
    offset: float
    scale: float
    num_blocks: int
    num_local_blocks: int
    num_init_blocks: int
    num_experts_per_token: int
    routed_scaling: float
    activation: tuple[int, ...]
    dtype: torch.dtype


class NativeModel:
    """The structs of a model: pointers into tensors, which live as long as this does."""

    def __init__(self, parts: ModelParts) -> None:
        self.parts = parts
        self._tables = [
            words.pack(*(w for expert in _table(layer) for w in words.of_weights(expert))) for layer in parts.layers
        ]
        layers = zip(parts.layers, self._tables, strict=True)
        self._layers = words.pack(*(w for layer, table in layers for w in _layer_words(layer, table)))
        self._model = words.pack(
            len(parts.layers), ctypes.addressof(self._layers),
            *words.of_weights((parts.embedding, parts.norm, parts.head)),
            parts.norm.shape[0], parts.inv_freq.data_ptr(), parts.inv_freq.shape[0],
            words.double(parts.eps), words.double(parts.offset), words.double(parts.scale),
            parts.num_blocks, parts.num_local_blocks, parts.num_init_blocks,
            parts.num_experts_per_token, words.double(parts.routed_scaling),
            *parts.activation, parts.dtype == torch.bfloat16,
        )  # fmt: skip
        self._call = native.function("decoder_step", "pp")

    @property
    def address(self) -> int:
        """Of `struct Model`."""
        return ctypes.addressof(self._model)

    def step(
        self,
        ids: Tensor,
        positions: Tensor,
        slots: Tensor,
        query_start: Tensor,
        block_table: Tensor,
        prompt_end: Tensor | None,
        logits_rows: Tensor,
        taps: Sequence[tuple[int, Tensor]],
        embeddings: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Run a step; K/V go to the caches, the residual after a layer to its tap.

        Args:
            ids, positions, query_start, prompt_end: i32; slots, logits_rows: i64; block_table: i32 [S M], whose rows
                may lie apart.
            taps: layer (-1 is the embedding) and f32 [T D] to be filled.
            embeddings: rows i64 [X] and f32 [X D] that replace those of the ids.

        Returns:
            hidden f32 [Q D] after the last norm, logits f32 [Q V].
        """
        hidden = torch.empty(len(logits_rows), self.parts.norm.shape[0])
        logits = torch.empty(len(logits_rows), self.parts.head.shape[0])
        step = self.step_words(
            ids, positions, slots, query_start, block_table, prompt_end, (logits_rows, hidden, logits), taps, embeddings
        )
        self._call(self._model, words.pack(*step))
        return hidden, logits

    def step_words(
        self,
        ids: Tensor,
        positions: Tensor,
        slots: Tensor,
        query_start: Tensor,
        block_table: Tensor,
        prompt_end: Tensor | None,
        results: tuple[Tensor, Tensor, Tensor],
        taps: Sequence[tuple[int, Tensor]] = (),
        embeddings: tuple[Tensor, Tensor] | None = None,
        block: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[int, ...]:
        """`struct Step`, which holds until the next one is made.

        Args:
            results: rows i64 [Q], and what they get: hidden f32 [Q D], logits f32 [Q V].
            block: of a drafter's step: i32 [T] the last key and i32 [T] the first one that a token sees, instead of its
                own position and 0.
            others: as of `step`.
        """
        last_keys, first_keys = (positions, None) if block is None else block
        self._taps = (words.pack(*(layer for layer, _ in taps)), words.pack(*(tap.data_ptr() for _, tap in taps)))
        rows, values = (None, None) if embeddings is None else embeddings
        logits_rows, hidden, logits = results
        return (
            *words.of_sequences(block_table, query_start, last_keys, prompt_end, first_keys),
            ids.data_ptr(), slots.data_ptr(), 0 if block is None else positions.data_ptr(),
            len(logits_rows), logits_rows.data_ptr(), hidden.data_ptr(), logits.data_ptr(),
            len(taps), *(ctypes.addressof(part) for part in self._taps),
            0 if rows is None else len(rows),
            0 if rows is None else rows.data_ptr(), 0 if values is None else values.data_ptr(),
        )  # fmt: skip


def _layer_words(layer: LayerParts, table: Words) -> tuple[int, ...]:
    missing = _MAX_PROJECTIONS - len(layer.projections)
    norms = zip(layer.head_norms, layer.head_dims, strict=True)
    k, v, index = layer.caches
    return (
        *words.of_weight(layer.attention_norm),
        *words.of_weights(layer.projections), *_NO_WEIGHT * missing,
        *(w for norm, width in norms for w in _head_norm_words(norm, width)), *_NO_WEIGHT * missing,
        *words.of_weights((layer.project_out, layer.feed_forward_norm)),
        *words.of_cache(k), *words.of_cache(v), *(_NO_CACHE if index is None else words.of_cache(index)),
        *words.of_optional(*layer.mixing),
        index is not None, len(layer.experts), layer.bias is not None,
        *(_NO_WEIGHT if layer.gate is None else words.of_weight(layer.gate)),
        *(_NO_WEIGHT if layer.bias is None else words.of_weight(layer.bias)),
        ctypes.addressof(table), _shared_kind(layer),
        *(_NO_WEIGHT * 3 if layer.shared is None else words.of_weights(layer.shared)),
    )  # fmt: skip


def _shared_kind(layer: LayerParts) -> int:
    """What cpu.cpp does with a shared expert: 2 where it is like the routed ones, 1 apart, 0 without one."""
    if layer.shared is None:
        return 0
    # Format and shape, the first three words; on a dense layer there is nothing to be like.
    likes = [[words.of_weight(matrix)[:3] for matrix in expert] for expert in (layer.shared, *layer.experts[:1])]
    return 2 if len(likes) == 2 and likes[0] == likes[1] else 1


def _table(layer: LayerParts) -> tuple[Expert, ...]:
    return (*layer.experts, layer.shared) if layer.shared and _shared_kind(layer) == 2 else layer.experts


def _head_norm_words(norm: Tensor | None, width: int) -> tuple[int, ...]:
    return (0, 1, width, 0, 0, 0, words.double(1.0)) if norm is None else words.of_weight(norm)
