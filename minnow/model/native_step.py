"""a decoder as one native call: the same weights, caches and constants, handed over once"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from minnow.cache.pool import LayerCache
from minnow.checkpoint.resident import ResidentWeights
from minnow.config.model import ModelConfig
from minnow.core.errors import ConfigError
from minnow.formats.quantized import Quantized, Weight
from minnow.kernels import words
from minnow.kernels.decoder_step.cpu import LayerParts, ModelParts, NativeModel
from minnow.kernels.draft_step.cpu import NativeDrafter
from minnow.kernels.registry import Kernels
from minnow.kernels.tiles import Tiled, can_tile, tile
from minnow.kernels.words import Matrix
from minnow.model.decoder import Decoder, DecoderLayer
from minnow.model.dspark import Block, Drafter, Drawn, Draws
from minnow.model.experts import GatedExperts, MixtureOfExperts
from minnow.model.layers import HeadNormRope
from minnow.model.step import StepInputs, StepOutput

# The operations that the native call chains; where one of them was bound to something else, that is what is wanted.
CHAINED = (
    "embed norm linear qk_norm_rope kv_write index_score block_topk sparse_attention dense_attention route experts"
).split()


def refusal(kernels: Kernels) -> str | None:
    """Why the native call cannot stand for the decoder; None where it can."""
    if kernels.target.kind != "cpu":
        return f"it computes on the CPU, this device is {kernels.target.kind}"
    backend_by_op = {choice.op: choice.backend for choice in kernels.choices}
    others = [f"{op}={backend_by_op[op]}" for op in CHAINED if backend_by_op[op] != "cpu"]
    return f"--kernel-backends asks for {', '.join(others)}" if others else None


class NativeStep:
    """A StepFunction: one call into C++ for all layers; equal to the decoder it was made from but for rounding."""

    def __init__(
        self, decoder: Decoder, caches: Sequence[LayerCache], *, is_resident: bool = False, digits: int = 3
    ) -> None:
        """Take over a decoder's weights, which must be loaded, and the caches of all its layers.

        Args:
            is_resident: copy the weights into memory of huge pages, in tiles where that is faster; else they are read
                where they are.
            digits: bytes that activations have in tiles; 3 is as exact as FP32.
        """
        self._caches = caches
        self._dtype = decoder.embed.dtype
        hold = _resident(decoder, digits) if is_resident else _in_place
        self._model = _native_model(decoder, decoder.config, caches, hold)

    def __call__(self, inputs: StepInputs, caches: Sequence[LayerCache]) -> StepOutput:
        """Run one step; see Decoder.forward."""
        assert caches is self._caches, "the native step writes to the caches that it was made with"
        width = self._model.parts.norm.shape[0]
        taps: tuple[Tensor, ...] = ()
        if inputs.tap_layers:
            taps = torch.empty(len(inputs.tap_layers), len(inputs.ids), width).unbind()
        overrides = None
        if inputs.embeddings is not None:
            assert inputs.embedding_rows is not None
            overrides = (inputs.embedding_rows, inputs.embeddings.to(self._dtype).float().contiguous())
        hidden, logits = self._model.step(
            inputs.ids,
            inputs.positions,
            inputs.slots,
            inputs.query_start,
            inputs.block_table,
            inputs.prompt_end,
            inputs.logits_rows,
            tuple(zip(inputs.tap_layers, taps, strict=True)),
            overrides,
        )
        if self._dtype != torch.float32:
            hidden, taps = hidden.to(self._dtype), tuple(tap.to(self._dtype) for tap in taps)
        return StepOutput(hidden=hidden, logits=logits, taps=taps)


class NativeDrafts:
    """A DraftFunction: the context, and a round of drafts, in one native call each; see engine/drafting.py."""

    def __init__(self, drafter: Drafter, caches: Sequence[LayerCache], *, is_resident: bool = False) -> None:
        """Take over a drafter that is loaded and shares the target's embedding and head; see NativeStep."""
        assert draft_refusal(drafter) is None
        hold = _resident(drafter, digits=3) if is_resident else _in_place
        model = _native_model(drafter, drafter.config.backbone, caches, hold)
        markov = drafter.markov.weights
        head = None if drafter.confidence is None else drafter.confidence.weights
        self._drafter = NativeDrafter(
            model,
            hold(drafter.fuse.weights[0]),
            drafter.context_norm.weights[0],  # type: ignore[arg-type]
            (hold(markov[0]), hold(markov[1])),
            drafter.vocabulary.target_ids,
            None if head is None else (head[0], float(head[1])),  # type: ignore[arg-type]
        )

    def remember(self, taps: Sequence[Tensor], positions: Tensor, slots: Tensor) -> None:
        """Write keys and values of context tokens; see DraftFunction."""
        plain = taps if taps[0].dtype == torch.float32 else [tap.float() for tap in taps]
        self._drafter.remember(plain, positions, slots)

    def draft(self, block: Block, draws: Draws) -> Drawn:
        """Drafts, and what they were drawn from; see DraftFunction."""
        ids, q, confidence = self._drafter.draft(
            (block.ids, block.positions, block.slots, block.query_start, block.block_table),
            (block.last_keys, block.first_keys),
            draws.counts, draws.anchors, draws.settings, draws.uniform, is_judged=draws.is_judged,
        )  # fmt: skip
        return Drawn(ids=ids, q=q, confidence=confidence)


def draft_refusal(drafter: Drafter) -> str | None:
    """Why the native calls cannot stand for a drafter; None where they can."""
    config = drafter.config
    if config.markov_head_type != "vanilla":
        return f"its Markov head is {config.markov_head_type}"
    return "it drafts from the likeliest tokens alone" if config.draft_topk else None


def _native_model(
    network: Decoder | Drafter, config: ModelConfig, caches: Sequence[LayerCache], hold: Callable[[Weight], Matrix]
) -> NativeModel:
    layers = [layer for layer in network.layers if isinstance(layer, DecoderLayer)]
    return NativeModel(
        ModelParts(
            layers=tuple(_layer_parts(layer, cache, hold) for layer, cache in zip(layers, caches, strict=True)),
            embedding=hold(network.embed.weights[0]),
            norm=network.norm.weights[0],  # type: ignore[arg-type]
            head=hold(network.head.weights[0]),
            inv_freq=layers[0].attention.turn_q.inv_freq,
            eps=config.rms_norm_eps,
            offset=config.norm_offset,
            scale=config.head_dim**-0.5,
            num_blocks=config.sparse.num_blocks,
            num_local_blocks=config.sparse.num_local_blocks,
            num_init_blocks=config.sparse.num_init_blocks,
            num_experts_per_token=config.num_experts_per_tok,
            routed_scaling=config.routed_scaling_factor,
            activation=words.of_activation(_any_experts(layers[0]).activation),
            dtype=network.embed.dtype,
        )
    )


def _in_place(weight: Weight) -> Matrix:
    return weight


def _resident(decoder: Decoder | Drafter, digits: int) -> Callable[[Weight], Matrix]:
    """Matrices of the decoder -> the same in one stretch of memory, in tiles where there are any."""
    weights = {id(weight): weight for module in decoder.modules() for weight in getattr(module, "weights", ())}
    if isinstance(decoder, Drafter):  # the target's table, of which it reads a few rows, and offsets
        for weight in (*decoder.embed.weights, *decoder.vocabulary.weights):
            if weight is not decoder.head.weights[0]:
                del weights[id(weight)]
    num_bytes = sum(w.num_bytes if isinstance(w, Quantized) else w.nbytes for w in weights.values())
    memory = ResidentWeights(num_bytes, 3 * len(weights))
    held: dict[int, Matrix] = {}
    for name, weight in weights.items():
        if isinstance(weight, Quantized) and can_tile(weight):
            held[name] = memory.copy_tiled(tile(weight, digits))
        else:
            held[name] = memory.copy(weight)
    if digits < 3 and not any(isinstance(weight, Tiled) for weight in held.values()):
        raise ConfigError("--activation-quantization rounds for int4 and int8 weights, and this checkpoint has none")
    return lambda weight: held.get(id(weight), weight)


def _layer_parts(layer: DecoderLayer, cache: LayerCache, hold: Callable[[Weight], Matrix]) -> LayerParts:
    attention, feed_forward = layer.attention, layer.feed_forward
    turns: list[HeadNormRope | None] = [attention.turn_q, attention.turn_k, None]
    if attention.is_sparse:
        turns += [attention.turn_index_q, attention.turn_index_k]
    query_mix, key_mix = attention.turn_q.parts[1], attention.turn_k.parts[1]
    config = attention.config
    head_dims = (config.head_dim,) * 3 + ((config.sparse.index_dim,) * 2 if attention.is_sparse else ())
    is_moe = isinstance(feed_forward, MixtureOfExperts)
    router = feed_forward.router.weights if isinstance(feed_forward, MixtureOfExperts) else ()
    routed = feed_forward.routed.table if isinstance(feed_forward, MixtureOfExperts) else ()
    shared = feed_forward.shared if isinstance(feed_forward, MixtureOfExperts) else feed_forward
    assert shared is None or isinstance(shared, GatedExperts)
    return LayerParts(
        attention_norm=layer.attention_norm.weights[0],  # type: ignore[arg-type]
        projections=tuple(map(hold, attention.project_in.weights)),
        head_norms=tuple(turn.parts[0] if turn else None for turn in turns),
        mixing=(_plain(query_mix), _plain(key_mix)),
        head_dims=head_dims,
        project_out=hold(attention.project_out.weights[0]),
        feed_forward_norm=layer.feed_forward_norm.weights[0],  # type: ignore[arg-type]
        caches=(cache.k, cache.v, cache.index if attention.is_sparse else None),
        gate=hold(router[0]) if is_moe else None,
        bias=router[1] if len(router) > 1 else None,
        experts=tuple(_expert(parts, hold) for parts in routed),
        shared=None if shared is None else _expert(shared.table[0], hold),
    )


def _plain(part: Tensor | None) -> Tensor | None:
    return None if part is None else part.float().contiguous()


def _expert(parts: tuple[Weight, Weight, Weight], hold: Callable[[Weight], Matrix]) -> tuple[Matrix, Matrix, Matrix]:
    gate, up, down = parts
    return hold(gate), hold(up), hold(down)


def _any_experts(layer: DecoderLayer) -> GatedExperts:
    part = layer.feed_forward
    found = part.routed if isinstance(part, MixtureOfExperts) else part
    assert isinstance(found, GatedExperts)
    return found
