"""read a config.json of the M3 layout into a ModelConfig"""

import math
from collections.abc import Mapping
from typing import Any, Literal

from minnow.config.model import (
    ARCHITECTURE,
    ModelConfig,
    QuantizationConfig,
    RopeScaling,
    SparseConfig,
    VisionConfig,
)
from minnow.core.errors import ConfigError

_Object = Mapping[str, Any]

_TOP_FIELDS = frozenset(
    """architectures model_type text_config vision_config image_token_index video_token_index
    image_token_id video_token_id projector_hidden_size projector_hidden_act multimodal_projector_bias
    patch_merge_bias vision_feature_layer vision_feature_select_strategy process_image_mode image_seq_length
    img_token_compression_config tie_word_embeddings quantization_config torch_dtype dtype transformers_version
    bos_token_id eos_token_id pad_token_id auto_map use_cache""".split()
)
_TEXT_FIELDS = frozenset(
    """architectures model_type vocab_size hidden_size num_hidden_layers num_attention_heads num_key_value_heads
    head_dim intermediate_size shared_intermediate_size dense_intermediate_size num_local_experts
    num_experts_per_tok n_shared_experts moe_layer_freq scoring_func use_routing_bias routed_scaling_factor
    hidden_act swiglu_alpha swiglu_limit swiglu_beta rms_norm_eps use_gemma_norm use_qk_norm qk_norm_type
    use_qk_mix attention_output_gate rope_theta rotary_dim partial_rotary_factor rope_scaling rope_parameters
    max_position_embeddings num_mtp_modules bos_token_id eos_token_id pad_token_id sparse_attention_config
    tie_word_embeddings torch_dtype dtype transformers_version attention_dropout initializer_range use_cache
    router_aux_loss_coef router_jitter_noise output_router_logits layer_types mlp_layer_types index_n_heads
    index_head_dim index_block_size index_topk_blocks index_local_blocks""".split()
)


def parse(raw: _Object) -> ModelConfig:
    """Turn the JSON object of a config.json into a ModelConfig.

    Raises:
        ConfigError: names the field, its value, and what this decoder can do.

    Source: MiniMax-M3's config.json; our own conversions write the same names.
    """
    architectures = _names(raw, "architectures")
    if ARCHITECTURE not in architectures:
        raise ConfigError(
            f"config.json has architectures {list(architectures)}; Minnow runs {ARCHITECTURE} "
            "(minnow convert turns Llama-family checkpoints and GGUF files into it)"
        )
    text = raw.get("text_config")
    if not isinstance(text, Mapping):
        raise ConfigError("config.json has no text_config object")
    text = _flattened(text)
    layers = _whole(text, "num_hidden_layers", least=1)
    heads, head_dim = _whole(text, "num_attention_heads", least=1), _whole(text, "head_dim", least=1)
    _refuse(text, "attention_output_gate", (None, False))
    _refuse(text, "scoring_func", (None, "sigmoid"))
    _refuse(text, "qk_norm_type", (None, "per_head"))
    _refuse(text, "hidden_act", ("swigluoai", "silu"))
    config = ModelConfig(
        vocab_size=_whole(text, "vocab_size", least=1),
        hidden_size=_whole(text, "hidden_size", least=1),
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=_whole(text, "num_key_value_heads", least=1),
        head_dim=head_dim,
        dense_intermediate_size=_whole(text, "dense_intermediate_size", 0),
        intermediate_size=_whole(text, "intermediate_size", 0),
        shared_intermediate_size=_whole(text, "shared_intermediate_size", 0),
        num_local_experts=_whole(text, "num_local_experts", 0),
        num_experts_per_tok=_whole(text, "num_experts_per_tok", 0),
        n_shared_experts=_whole(text, "n_shared_experts", 0),
        is_moe=_flags(text, "moe_layer_freq", layers),
        use_routing_bias=bool(text.get("use_routing_bias", True)),
        routed_scaling_factor=_number(text, "routed_scaling_factor", 1.0, is_positive=True),
        hidden_act=text["hidden_act"],
        swiglu_alpha=_number(text, "swiglu_alpha", 1.702),
        swiglu_limit=_number(text, "swiglu_limit", 7.0),
        swiglu_beta=_number(text, "swiglu_beta", 1.0),
        rms_norm_eps=_number(text, "rms_norm_eps", 1e-6, is_positive=True),
        use_gemma_norm=bool(text.get("use_gemma_norm", True)),
        use_qk_norm=bool(text.get("use_qk_norm", True)),
        use_qk_mix=bool(text.get("use_qk_mix", False)),
        rope_theta=_number(text, "rope_theta", 5e6, is_positive=True),
        rotary_dim=_rotary_dim(text, head_dim),
        rope_scaling=_rope_scaling(_object(text, "rope_scaling")),
        max_position_embeddings=_whole(text, "max_position_embeddings", least=1),
        bos_token_id=next(iter(_ids(text if "bos_token_id" in text else raw, "bos_token_id")), None),
        eos_token_ids=_ids(text if "eos_token_id" in text else raw, "eos_token_id"),
        tie_word_embeddings=bool(text.get("tie_word_embeddings", raw.get("tie_word_embeddings", False))),
        dtype=_dtype(raw, text),
        num_mtp_modules=_whole(text, "num_mtp_modules", 0),
        sparse=_sparse(text, layers),
        quantization=_quantization(_object(raw, "quantization_config")),
        vision=_vision(_object(raw, "vision_config")),
        projector_hidden_size=_whole(raw, "projector_hidden_size", 0),
        unknown_fields=tuple(sorted({*raw} - _TOP_FIELDS | {f"text_config.{k}" for k in {*text} - _TEXT_FIELDS})),
    )
    _check(config)
    return config


_SPARSE_BY_FLAT = {
    "index_head_dim": "sparse_index_dim",
    "index_n_heads": "sparse_num_index_heads",
    "index_topk_blocks": "sparse_topk_blocks",
    "index_block_size": "sparse_block_size",
    "index_local_blocks": "sparse_local_block",
}


def _flattened(text: _Object) -> _Object:
    """One spelling for what configs write in two: explicit values win over nested ones.

    transformers writes `rope_parameters`, `index_*`, `layer_types` and `mlp_layer_types`; MiniMax's own files have
    `rope_theta`, `sparse_attention_config` and `moe_layer_freq`.
    """
    rope = _object(text, "rope_parameters")
    merged = {k: rope[k] for k in ("rope_theta", "partial_rotary_factor") if k in rope} | dict(text)
    if merged.get("rope_scaling") is None and rope.get("rope_type", "default") != "default":
        merged["rope_scaling"] = rope
    flat = {nested: text[name] for name, nested in _SPARSE_BY_FLAT.items() if text.get(name) is not None}
    if text.get("layer_types") is not None:
        is_sparse = [int(kind == "minimax_m3_sparse") for kind in _list(text, "layer_types")]
        flat |= {"sparse_attention_freq": is_sparse, "sparse_disable_index_value": is_sparse}
    if flat:
        merged["sparse_attention_config"] = {**_object(text, "sparse_attention_config"), **flat}
    if text.get("mlp_layer_types") is not None:
        merged["moe_layer_freq"] = [int(kind == "sparse") for kind in _list(text, "mlp_layer_types")]
    return merged


def _check(config: ModelConfig) -> None:
    if config.num_attention_heads % config.num_key_value_heads:
        raise ConfigError(
            f"num_attention_heads {config.num_attention_heads} is no multiple of "
            f"num_key_value_heads {config.num_key_value_heads}"
        )
    if any(config.sparse.is_sparse) and config.sparse.num_index_heads != config.num_key_value_heads:
        raise ConfigError(
            f"sparse_num_index_heads is {config.sparse.num_index_heads}; each of the "
            f"{config.num_key_value_heads} key/value heads needs one"
        )
    if any(config.sparse.is_sparse) and config.sparse.index_dim < config.rotary_dim:
        raise ConfigError(
            f"sparse_index_dim is {config.sparse.index_dim}; rotary_dim {config.rotary_dim} must fit in it"
        )
    if not all(config.is_moe) and config.dense_intermediate_size <= 0:
        raise ConfigError("dense_intermediate_size is missing, but moe_layer_freq has dense layers")
    if any(config.is_moe) and config.intermediate_size <= 0:
        raise ConfigError(
            f"config.json: intermediate_size is {config.intermediate_size}, but moe_layer_freq has layers with experts"
        )
    if any(config.is_moe) and not 0 < config.num_experts_per_tok <= config.num_local_experts:
        raise ConfigError(f"num_experts_per_tok is {config.num_experts_per_tok} of {config.num_local_experts} experts")
    if config.rotary_dim % 2 or not 0 < config.rotary_dim <= config.head_dim:
        raise ConfigError(f"rotary_dim is {config.rotary_dim}; it must be even and at most head_dim {config.head_dim}")


def _whole(source: _Object, name: str, default: int | None = None, *, least: int = 0) -> int:
    value = source.get(name)
    return _checked_whole(default if value is None else value, name, least)


def _checked_whole(value: object, name: str, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"config.json: {name} is {value!r}; a whole number of at least {least} is needed")
    return value


def _number(source: _Object, name: str, default: float | None = None, *, is_positive: bool = False) -> float:
    value = source.get(name)
    value = default if value is None else value
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    number = float(value) if is_number and value is not None else math.nan
    if not math.isfinite(number) or (is_positive and number <= 0):
        raise ConfigError(f"config.json: {name} is {value!r}; a number {'above 0 ' if is_positive else ''}is needed")
    return number


def _object(source: _Object, name: str) -> _Object:
    """An object inside the object; empty where there is none."""
    value = source.get(name)
    if value is not None and not isinstance(value, Mapping):
        raise ConfigError(f"config.json: {name} is {value!r}; an object is needed")
    return value or {}


def _list(source: _Object, name: str) -> list[object]:
    value = source.get(name)
    if not isinstance(value, list | tuple):
        raise ConfigError(f"config.json: {name} is {value!r}; a list with an entry a layer is needed")
    return list(value)


def _names(source: _Object, name: str) -> tuple[str, ...]:
    value = source.get(name) or []
    if not isinstance(value, list | tuple) or not all(isinstance(entry, str) for entry in value):
        raise ConfigError(f"config.json: {name} is {value!r}; a list of names is needed")
    return tuple(value)


def _refuse(source: _Object, name: str, allowed: tuple[object, ...]) -> None:
    if source.get(name) not in allowed:
        words = " or ".join(repr(a) for a in allowed if a is not None)
        raise ConfigError(f"config.json: {name} is {source.get(name)!r}; this decoder knows {words}")


def _flags(source: _Object, name: str, layers: int) -> tuple[bool, ...]:
    values = [1] * layers if source.get(name) is None else _list(source, name)
    if len(values) != layers:
        raise ConfigError(f"config.json: {name} has {len(values)} entries for {layers} layers")
    return tuple(bool(v) for v in values)


def _ids(source: _Object, name: str) -> tuple[int, ...]:
    """One token id, or several, or none."""
    value = source.get(name)
    ids = [] if value is None else value if isinstance(value, list | tuple) else [value]
    return tuple(_checked_whole(entry, name, 0) for entry in ids)


def _rotary_dim(text: _Object, head_dim: int) -> int:
    if text.get("rotary_dim") is not None:
        return _whole(text, "rotary_dim")
    return int(head_dim * _number(text, "partial_rotary_factor", 1.0, is_positive=True))


def _rope_scaling(raw: _Object) -> RopeScaling | None:
    kind = raw.get("rope_type", raw.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        raise ConfigError(f"config.json: rope_scaling is of type {kind!r}; this decoder knows 'default' and 'llama3'")
    scaling = {f"rope_scaling.{name}": value for name, value in raw.items()}
    return RopeScaling(
        factor=_number(scaling, "rope_scaling.factor", is_positive=True),
        low_freq_factor=_number(scaling, "rope_scaling.low_freq_factor", is_positive=True),
        high_freq_factor=_number(scaling, "rope_scaling.high_freq_factor", is_positive=True),
        original_max_position_embeddings=_whole(scaling, "rope_scaling.original_max_position_embeddings", least=1),
    )


def _dtype(raw: _Object, text: _Object) -> Literal["bfloat16", "float32"]:
    name = text.get("dtype") or text.get("torch_dtype") or raw.get("dtype") or raw.get("torch_dtype")
    return "float32" if name == "float32" else "bfloat16"


def _sparse(text: _Object, layers: int) -> SparseConfig:
    raw = _object(text, "sparse_attention_config")
    if text.get("sparse_attention_config") is None or not raw.get("use_sparse_attention", True):
        return SparseConfig(is_sparse=(False,) * layers)
    _refuse(raw, "sparse_score_type", (None, "max"))
    is_sparse = _flags(raw, "sparse_attention_freq", layers)
    has_no_value = _flags(raw, "sparse_disable_index_value", layers)
    for layer, (sparse, plain) in enumerate(zip(is_sparse, has_no_value, strict=True)):
        if sparse and not plain:
            raise ConfigError(f"config.json: layer {layer} has an index value path; this decoder has none")
    return SparseConfig(
        is_sparse=is_sparse,
        index_dim=_whole(raw, "sparse_index_dim", least=1),
        num_index_heads=_whole(raw, "sparse_num_index_heads", least=1),
        num_blocks=_whole(raw, "sparse_topk_blocks", least=1),
        block_size=_whole(raw, "sparse_block_size", least=1),
        num_init_blocks=_whole(raw, "sparse_init_block", 0),
        num_local_blocks=_whole(raw, "sparse_local_block", 1),
    )


def _vision(raw: _Object) -> VisionConfig | None:
    if not raw:
        return None
    names = VisionConfig.__dataclass_fields__
    return VisionConfig(**{name: _whole(raw, name, least=1) for name in names if raw.get(name) is not None})


def _quantization(raw: _Object) -> QuantizationConfig:
    if not raw:
        return QuantizationConfig()
    method = str(raw.get("quant_method", "")).lower()
    algo = str(raw.get("quant_algo", "")).upper()
    ignored = _names(raw, "ignored_layers") or _names(raw, "modules_to_not_convert") or _names(raw, "ignore")
    if method == "minnow":
        _refuse(raw, "kv_cache", (None, "bfloat16", "fp8", "nvfp4"))
        return QuantizationConfig(
            scheme="minnow",
            ignored=ignored,
            format_by_module=tuple((str(k), str(v)) for k, v in _object(raw, "formats").items()),
            kv_cache=raw.get("kv_cache"),
        )
    if method == "mxfp8" and raw.get("moe_quant_algo") is None:
        return QuantizationConfig(scheme="mxfp8", ignored=ignored)
    if (method, raw.get("moe_quant_algo"), raw.get("moe_quant_format")) == ("mxfp8", "NVFP4", "nvfp4-pack-quantized"):
        # `index_k_quant_type` says what the keys were trained for; `kv_cache_quant_algo` names the compute type only
        is_trained = raw.get("index_k_quant_type") == "nvfp4"
        return QuantizationConfig(scheme="mxfp8-nvfp4", ignored=ignored, kv_cache="nvfp4" if is_trained else None)
    if method == "modelopt" and algo in ("NVFP4", "MXFP4"):
        return QuantizationConfig(scheme="modelopt-nvfp4" if algo == "NVFP4" else "modelopt-mxfp4", ignored=ignored)
    raise ConfigError(
        f"config.json: quantization_config has quant_method {raw.get('quant_method')!r} with quant_algo "
        f"{raw.get('quant_algo')!r}, moe_quant_algo {raw.get('moe_quant_algo')!r}; known are mxfp8, mxfp8 with "
        "NVFP4 experts, modelopt NVFP4 and MXFP4, and minnow"
    )
