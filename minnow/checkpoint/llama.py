"""Llama-family models said as configurations of the M3 layout"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minnow.config.model import ARCHITECTURE
from minnow.core.errors import CheckpointError

_Object = Mapping[str, Any]

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM")

# What Llama 3.1 and its successors stretch their rotary frequencies by, save for the factor.
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}

_MODULE_BY_GGUF = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def to_m3(raw: _Object) -> dict[str, Any]:
    """Say a Llama-family config.json in the M3 layout: dense attention, dense FFN, plain norms, SiLU, full rotary.

    Raises:
        CheckpointError: names the field, its value, and what can be converted.

    Source: the config.json of Hugging Face's Llama and Mistral models; MiniMax-M3's for the result.
    """
    architectures = list(raw.get("architectures") or [])
    if not set(architectures) & set(ARCHITECTURES):
        raise CheckpointError(f"the model is a {architectures}; {' and '.join(ARCHITECTURES)} can be converted")
    _refuse(raw, "attention_bias", (None, False), "its linears have biases, which this decoder lacks")
    _refuse(raw, "mlp_bias", (None, False), "its linears have biases, which this decoder lacks")
    _refuse(raw, "sliding_window", (None,), "this decoder attends to the whole context")
    _refuse(raw, "partial_rotary_factor", (None, 1, 1.0), "only full rotary is converted")
    _refuse(raw, "hidden_act", (None, "silu"), "this decoder's dense layers know silu")
    heads, layers, width = (_whole(raw, n) for n in ("num_attention_heads", "num_hidden_layers", "hidden_size"))
    head_dim = raw.get("head_dim") or width // heads
    theta, scaling = _rope(raw)
    is_tied = bool(raw.get("tie_word_embeddings", False))
    text = {
        "model_type": "minimax_m3_vl_text",
        "vocab_size": _whole(raw, "vocab_size"),
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": raw.get("num_key_value_heads") or heads,
        "head_dim": head_dim,
        "dense_intermediate_size": _whole(raw, "intermediate_size"),
        "moe_layer_freq": [0] * layers,
        "hidden_act": "silu",
        "rms_norm_eps": raw.get("rms_norm_eps", 1e-6),
        "use_gemma_norm": False,
        "use_qk_norm": False,
        "rope_theta": theta,
        "rotary_dim": head_dim,
        "rope_scaling": scaling,
        "max_position_embeddings": _whole(raw, "max_position_embeddings"),
        "bos_token_id": raw.get("bos_token_id"),
        "eos_token_id": raw.get("eos_token_id"),
        "pad_token_id": raw.get("pad_token_id"),
        "sparse_attention_config": {"use_sparse_attention": False},
        "tie_word_embeddings": is_tied,
    }
    dtype = raw.get("dtype") or raw.get("torch_dtype")
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "minimax_m3_vl",
        "dtype": "float32" if dtype == "float32" else "bfloat16",
        "tie_word_embeddings": is_tied,
        "text_config": text,
    }


def config_of_gguf(metadata: _Object, *, is_tied: bool, rope_factors: Sequence[float] | None) -> dict[str, Any]:
    """Say the metadata of a GGUF as a Llama's config.json.

    Args:
        metadata: of the file.
        is_tied: it has no tensor for the head.
        rope_factors: its tensor of rotary frequency divisors, if any.

    Raises:
        CheckpointError: another architecture, or a feature that this decoder lacks.
    """
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise CheckpointError(f"the GGUF's general.architecture is {architecture!r}; 'llama' can be converted")

    def get(key: str, default: Any = None) -> Any:
        return metadata.get(f"llama.{key}", default)

    for key, allowed in (("expert_count", (None, 0)), ("rope.scaling.type", (None, "none"))):
        if get(key) not in allowed:
            raise CheckpointError(f"the GGUF's llama.{key} is {get(key)!r}; such models cannot be converted")
    heads, width = get("attention.head_count"), get("embedding_length")
    if not isinstance(heads, int) or not isinstance(width, int) or heads <= 0:
        raise CheckpointError(f"the GGUF has llama.attention.head_count {heads!r}, llama.embedding_length {width!r}")
    head_dim = get("attention.key_length", width // heads)
    if get("rope.dimension_count", head_dim) != head_dim or get("attention.value_length", head_dim) != head_dim:
        raise CheckpointError(
            f"the GGUF's heads have {head_dim} values, of which {get('rope.dimension_count')} are rotated; "
            "only full rotary is converted"
        )
    stop_keys = ("eos_token_id", "eot_token_id")
    eos = [metadata[f"tokenizer.ggml.{key}"] for key in stop_keys if f"tokenizer.ggml.{key}" in metadata]
    return {
        "architectures": [ARCHITECTURES[0]],
        "vocab_size": get("vocab_size", len(metadata.get("tokenizer.ggml.tokens", ()))),
        "hidden_size": width,
        "intermediate_size": get("feed_forward_length"),
        "num_hidden_layers": get("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": get("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "rms_norm_eps": _shortest(get("attention.layer_norm_rms_epsilon", 1e-6)),
        "rope_theta": get("rope.freq_base", 10000.0),
        "rope_scaling": _llama3_scaling(rope_factors, get("rope.freq_base", 10000.0), head_dim),
        "max_position_embeddings": get("context_length"),
        "sliding_window": get("attention.sliding_window"),
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": sorted(set(eos)) or None,
        "pad_token_id": metadata.get("tokenizer.ggml.padding_token_id"),
        "tie_word_embeddings": is_tied,
        "dtype": "float32",  # the format's own engine computes in F32; docs/decisions/0005
    }


def module_of_gguf(name: str) -> str:
    """Our name of a GGUF tensor; a tensor that has no place in the decoder keeps its own."""
    match = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.weight", name)
    part = None if match is None else _MODULE_BY_GGUF.get(match[2])
    if match is None or part is None or (match[1] is None) != (part.startswith(("model.", "lm_head"))):
        return name
    return part if match[1] is None else f"model.layers.{match[1]}.{part}"


def stored_rows(rows: range, head_dim: int) -> list[int]:
    """Where a GGUF keeps rows of a q or k projection.

    GGUF's rotary turns neighbouring values, M3's (and Hugging Face's) turns value i with i + head_dim / 2; so the
    file interleaves the two halves of each head's rows.

    Source: the GGUF writer for Llama models.
    """
    half = head_dim // 2
    return [r - r % head_dim + 2 * (r % half) + (r % head_dim) // half for r in rows]


def _refuse(raw: _Object, name: str, allowed: tuple[object, ...], why: str) -> None:
    if raw.get(name) not in allowed:
        raise CheckpointError(f"the model's {name} is {raw[name]!r}, which cannot be converted: {why}")


def _whole(raw: _Object, name: str) -> int:
    value = raw.get(name)
    if not isinstance(value, int) or value <= 0:
        raise CheckpointError(f"the model's {name} is {value!r}; a whole number is needed")
    return value


def _rope(raw: _Object) -> tuple[float, dict[str, Any] | None]:
    """Base of the rotary frequencies, and how they are stretched."""
    scaling = dict(raw.get("rope_parameters") or raw.get("rope_scaling") or {})
    theta = float(scaling.pop("rope_theta", None) or raw.get("rope_theta") or 10000.0)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in ("default", "llama3"):
        raise CheckpointError(f"the model's rope type is {kind!r}; 'default' and 'llama3' can be converted")
    return theta, scaling if kind == "llama3" else None


def _llama3_scaling(factors: Sequence[float] | None, theta: float, head_dim: int) -> dict[str, Any] | None:
    """Find Llama 3's rule behind a list of frequency divisors; a GGUF does not name it."""
    if factors is None:
        return None
    factor = max(factors)
    low, high, length = (float(v) for v in _LLAMA3.values())
    for index, seen in enumerate(factors):
        wave = 2 * math.pi * theta ** (2 * index / head_dim)
        share = min(1.0, max(0.0, (length / wave - low) / (high - low)))
        if abs(seen - 1 / ((1 - share) / factor + share)) > 1e-3 * seen:
            raise CheckpointError(
                f"the GGUF divides its rotary frequencies by {[round(f, 3) for f in factors]}, which is not Llama 3's "
                "rule; convert the model's safetensors checkpoint instead"
            )
    return {"rope_type": "llama3", "factor": factor, **_LLAMA3}


def _shortest(value: float) -> float:
    """The shortest decimal of the same F32: GGUF keeps 1e-5 as 9.99999974738e-06."""
    return float(str(np.float32(value)))
