"""tiny Llama-family models as Hugging Face directories and as GGUF files"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from minnow.text import byte_level

HEADS, KV_HEADS, HEAD_DIM, LAYERS = 4, 2, 32, 2
WIDTH, INNER, VOCABULARY = 128, 96, 259

_GGUF_BY_MODULE = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip


def llama_config(**changed: Any) -> LlamaConfig:
    fields = {
        "vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": INNER, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM,
        "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "bos_token_id": 256, "eos_token_id": 257,
        "tie_word_embeddings": True,
    }  # fmt: skip
    return LlamaConfig(**(fields | changed))


def write_llama(directory: Path, dtype: torch.dtype = torch.bfloat16, **changed: Any) -> dict[str, Tensor]:
    """Write a random model; returns its weights by our names (the head only where it has its own)."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(llama_config(**changed)).to(dtype)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(torch.randn(weight.shape) * 0.1 + ("norm" in name))
    model.save_pretrained(directory)
    weights = {name.removesuffix(".weight"): w.detach() for name, w in model.named_parameters()}
    assert ("lm_head" in weights) != model.config.tie_word_embeddings
    return weights


def gguf_name(module: str) -> str:
    if module.startswith("model.layers."):
        _, _, layer, part = module.split(".", 3)
        return f"blk.{layer}.{_GGUF_BY_MODULE[part]}.weight"
    return {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}[module] + ".weight"


def interleaved(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """The row order of GGUF's q and k, as its writer makes it: halves of a head's rows in turn."""
    halves = weight.reshape(num_heads, 2, weight.shape[0] // num_heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def metadata_of_llama() -> dict[str, Any]:
    letters = {value: letter for letter, value in byte_level.BYTE_BY_CHARACTER.items()}
    return {
        "general.architecture": "llama", "llama.block_count": LAYERS, "llama.context_length": 512,
        "llama.embedding_length": WIDTH, "llama.feed_forward_length": INNER, "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS, "llama.rope.freq_base": 10000.0,
        "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.rope.dimension_count": HEAD_DIM,
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": [*(letters[i] for i in range(256)), "<s>", "</s>", letters[97] + letters[98]],
        "tokenizer.ggml.token_type": [1] * 256 + [3, 3, 1], "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.bos_token_id": 256, "tokenizer.ggml.eos_token_id": 257,
        "tokenizer.chat_template": "{{ messages[0].content }}",
    }  # fmt: skip


def write_gguf(
    path: Path,
    weights: Mapping[str, Tensor],
    kind_of: Mapping[str, Kind],
    *,
    metadata: Mapping[str, Any] | None = None,
    more: Mapping[str, np.ndarray] | None = None,
    **changed: Any,
) -> dict[str, Tensor]:
    """Write a GGUF of these weights; returns the values that the gguf package reads back, by our names.

    Args:
        weights: by our names, in M3's row order.
        kind_of: the last word of a module's name -> its format; F32 where it is not named.
        metadata: instead of `metadata_of_llama()`.
        more: further F32 tensors, by GGUF name.
        changed: metadata with "__" for "."; None leaves one out.
    """
    pairs = dict(metadata or metadata_of_llama()) | {key.replace("__", "."): v for key, v in changed.items()}
    writer = gguf.GGUFWriter(path, str(pairs.pop("general.architecture")))
    for key, value in pairs.items():
        add = {str: writer.add_string, float: writer.add_float32, bool: writer.add_bool, list: writer.add_array}
        if value is not None:
            add.get(type(value), writer.add_uint32)(key, value)
    right = {}
    for module, weight in weights.items():
        values = weight.float().numpy()
        is_turned = module.endswith(("q_proj", "k_proj"))
        heads = HEADS if module.endswith("q_proj") else KV_HEADS
        kind = kind_of.get(module.rsplit(".", 1)[-1], Kind.F32)
        data = quantized(interleaved(values, heads) if is_turned else values, kind)
        raw_dtype = None if kind in (Kind.F32, Kind.F16) else kind
        writer.add_tensor(gguf_name(module), data, raw_dtype=raw_dtype)
        back = gguf.quants.dequantize(data, kind)
        right[module] = torch.from_numpy(turned_back(back, heads) if is_turned else back)
    for name, data in (more or {}).items():
        writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return right


def turned_back(weight: np.ndarray, num_heads: int) -> np.ndarray:
    pairs = weight.reshape(num_heads, weight.shape[0] // num_heads // 2, 2, *weight.shape[1:])
    return pairs.swapaxes(1, 2).reshape(weight.shape)


def quantized(values: np.ndarray, kind: Kind) -> np.ndarray:
    if kind in (Kind.Q4_K, Kind.Q6_K):  # which the gguf package only reads: any bytes will do, with tame scales
        block_values, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        shape = (*values.shape[:-1], values.shape[-1] // block_values, block_bytes)
        raw = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
        scale = np.frombuffer(np.float16(0.01).tobytes(), np.uint8)
        places = (slice(-2, None),) if kind is Kind.Q6_K else (slice(0, 2), slice(2, 4))
        for place in places:
            raw[..., place] = scale
        return raw.reshape(*values.shape[:-1], -1)
    return gguf.quants.quantize(values, kind)
