"""checkpoint names -> our names, as a table"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from minnow.arch.storage import FLOATS, Part, parts_of, storage_of
from minnow.config.model import ModelConfig

Kind = Literal[
    "attention", "dense ffn", "shared expert", "routed expert",
    "router", "router bias", "embedding", "head", "norm", "vision", "drafter", "offsets",
]  # fmt: skip
KINDS: tuple[Kind, ...] = Kind.__args__  # type: ignore[attr-defined]

_TEXT = "language_model."
_IGNORED = ("language_model.model.mtp.", "language_model.mtp.", "model.mtp.", "mtp.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """One weight of the network, whatever its tensors on disk.

    Attributes:
        name: ours, such as "model.layers.3.self_attn.q_proj".
        checkpoint_name: what its tensors' names begin with.
        shape: logical, [out, in] for a linear; never sharded.
        suffix: of its one tensor while it is not quantised; "" where the name is whole already.
    """

    name: str
    checkpoint_name: str
    kind: Kind
    shape: tuple[int, ...]
    suffix: str = ".weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """One tensor that a checkpoint must hold.

    Attributes:
        name: in the checkpoint.
        dtype: safetensors' word for the type that the published checkpoint has.
        also: other dtypes that are as good.
        module: our name of the weight it belongs to.
        part: what it is of that weight.
    """

    name: str
    dtype: str
    also: tuple[str, ...] = ()
    shape: tuple[int, ...]
    module: str
    part: Part


def modules(config: ModelConfig) -> dict[str, Module]:
    """Every weight of the network by our name: embedding, layers in order, last norm, head, vision.

    Source: names and shapes of the published MiniMax-M3 checkpoints.
    """
    return {module.name: module for module in (*_text(config), *_vision(config))}


def tensors(module: Module, config: ModelConfig) -> tuple[TensorSpec, ...]:
    """The tensors that hold one weight in a checkpoint of this configuration.

    Raises:
        FormatError: the weight's width does not fill whole blocks of its format.
    """
    storage = storage_of(module.name, module.checkpoint_name, module.kind, config.quantization)
    if storage == "plain":
        dtype, also = _plain_dtypes(module, config)
        name = module.checkpoint_name + module.suffix
        return (TensorSpec(name=name, dtype=dtype, also=also, shape=module.shape, module=module.name, part="weight"),)
    return tuple(
        TensorSpec(
            name=module.checkpoint_name + part.suffix,
            dtype=part.dtype,
            shape=part.shape(module.shape),
            module=module.name,
            part=part.part,
        )
        for part in parts_of(storage, module.name, module.shape)
    )


def expected(config: ModelConfig) -> dict[str, TensorSpec]:
    """Every tensor that a checkpoint of this configuration holds, by checkpoint name.

    The drafter (`dspark/`) and the multi-token-prediction tensors of M3 (`is_ignored`) are not among them.

    Raises:
        FormatError: a weight's width does not fill whole blocks of its format.
    """
    return {spec.name: spec for module in modules(config).values() for spec in tensors(module, config)}


def is_ignored(tensor_name: str) -> bool:
    """Whether a checkpoint may hold this tensor for others' use: M3's multi-token-prediction module."""
    return tensor_name.startswith(_IGNORED)


def _plain_dtypes(module: Module, config: ModelConfig) -> tuple[str, tuple[str, ...]]:
    dtype = "F32" if config.dtype == "float32" else "BF16"
    if module.kind == "router bias":
        return "F32", ()
    if module.kind == "offsets":
        return "I64", ("I32",)
    if module.kind == "router":  # the type of the published gate is not certain; the published size fits F32
        return "F32", ("BF16",)
    is_free = config.quantization.scheme == "minnow" or module.kind in ("norm", "vision", "drafter")
    return dtype, tuple(d for d in FLOATS if d != dtype) if is_free else ()


def _text(config: ModelConfig) -> Iterator[Module]:
    width, vocabulary = config.hidden_size, (config.vocab_size, config.hidden_size)
    yield _of_text("model.embed_tokens", "embedding", *vocabulary)
    for layer in range(config.num_hidden_layers):
        prefix = f"model.layers.{layer}"
        yield _of_text(f"{prefix}.input_layernorm", "norm", width)
        yield from attention(config, f"{prefix}.self_attn", config.sparse.is_sparse[layer])
        yield _of_text(f"{prefix}.post_attention_layernorm", "norm", width)
        if config.is_moe[layer]:
            yield from _moe(config, f"{prefix}.block_sparse_moe")
        else:
            yield from feed_forward(f"{prefix}.mlp", "dense ffn", config.dense_intermediate_size, width)
    yield _of_text("model.norm", "norm", width)
    if not config.tie_word_embeddings:
        yield _of_text("lm_head", "head", *vocabulary)


def attention(config: ModelConfig, prefix: str, is_sparse: bool) -> Iterator[Module]:
    """The weights of one layer's attention; `prefix` is their common name."""
    width, head = config.hidden_size, config.head_dim
    rows, kv_rows = config.num_attention_heads * head, config.num_key_value_heads * head
    yield _of_text(f"{prefix}.q_proj", "attention", rows, width)
    yield _of_text(f"{prefix}.k_proj", "attention", kv_rows, width)
    yield _of_text(f"{prefix}.v_proj", "attention", kv_rows, width)
    yield _of_text(f"{prefix}.o_proj", "attention", width, rows)
    if is_sparse:
        index = config.sparse.index_dim
        yield _of_text(f"{prefix}.index_q_proj", "attention", config.sparse.num_index_heads * index, width)
        yield _of_text(f"{prefix}.index_k_proj", "attention", index, width)
    if config.use_qk_mix:
        for side in "qk":  # small, and never quantised, like norms
            yield _of_text(f"{prefix}.{side}_mix", "norm", config.num_key_value_heads, head, head)
    if config.use_qk_norm:
        yield _of_text(f"{prefix}.q_norm", "norm", head)
        yield _of_text(f"{prefix}.k_norm", "norm", head)
        if is_sparse:
            yield _of_text(f"{prefix}.index_q_norm", "norm", config.sparse.index_dim)
            yield _of_text(f"{prefix}.index_k_norm", "norm", config.sparse.index_dim)


def feed_forward(prefix: str, kind: Kind, inner: int, width: int) -> Iterator[Module]:
    """The weights of one gated feed-forward unit."""
    yield _of_text(f"{prefix}.gate_proj", kind, inner, width)
    yield _of_text(f"{prefix}.up_proj", kind, inner, width)
    yield _of_text(f"{prefix}.down_proj", kind, width, inner)


def _moe(config: ModelConfig, prefix: str) -> Iterator[Module]:
    width, inner, experts = config.hidden_size, config.intermediate_size, config.num_local_experts
    yield _of_text(f"{prefix}.gate", "router", experts, width)
    if config.use_routing_bias:
        yield _of_text(f"{prefix}.e_score_correction_bias", "router bias", experts, suffix="")
    for expert in range(experts):
        yield _of_text(f"{prefix}.experts.{expert}.w1", "routed expert", inner, width)
        yield _of_text(f"{prefix}.experts.{expert}.w2", "routed expert", width, inner)
        yield _of_text(f"{prefix}.experts.{expert}.w3", "routed expert", inner, width)
    if config.n_shared_experts:
        shared = config.shared_intermediate_size * config.n_shared_experts
        yield from feed_forward(f"{prefix}.shared_experts", "shared expert", shared, width)


def _vision(config: ModelConfig) -> Iterator[Module]:
    vision = config.vision
    if vision is None:
        return
    width, inner, tower = vision.hidden_size, vision.intermediate_size, "vision_tower.vision_model"
    patch = (vision.num_channels, vision.temporal_patch_size, vision.patch_size, vision.patch_size)
    yield _of_vision(f"{tower}.embeddings.patch_embedding", width, *patch)
    yield from _with_bias(f"{tower}.pre_layrnorm", width)  # the checkpoint's spelling
    for layer in range(vision.num_hidden_layers):
        prefix = f"{tower}.encoder.layers.{layer}"
        yield from _with_bias(f"{prefix}.layer_norm1", width)
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            yield from _with_bias(f"{prefix}.self_attn.{name}", width, width)
        yield from _with_bias(f"{prefix}.layer_norm2", width)
        yield from _with_bias(f"{prefix}.mlp.fc1", inner, width)
        yield from _with_bias(f"{prefix}.mlp.fc2", width, inner)
    projected = config.projector_hidden_size
    merged = projected * vision.spatial_merge_size**2
    yield from _with_bias("multi_modal_projector.linear_1", projected, width)
    yield from _with_bias("multi_modal_projector.linear_2", config.hidden_size, projected)
    yield from _with_bias("patch_merge_mlp.linear_1", projected, merged)
    yield from _with_bias("patch_merge_mlp.linear_2", config.hidden_size, projected)


def _of_text(name: str, kind: Kind, *shape: int, suffix: str = ".weight") -> Module:
    return Module(name=name, checkpoint_name=_TEXT + name, kind=kind, shape=shape, suffix=suffix)


def _of_vision(name: str, *shape: int, suffix: str = ".weight") -> Module:
    return Module(name=name, checkpoint_name=name, kind="vision", shape=shape, suffix=suffix)


def _with_bias(name: str, *shape: int) -> Iterator[Module]:
    yield _of_vision(name, *shape)
    yield _of_vision(f"{name}.bias", shape[0], suffix="")
