"""tiny random checkpoints in every layout, and a byte tokenizer, made on the fly"""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minnow.arch import drafter as drafter_names
from minnow.arch import names
from minnow.arch.names import Module
from minnow.arch.storage import STORAGE_BY_NAME, storage_of
from minnow.checkpoint import parts
from minnow.checkpoint.writer import Writer
from minnow.config import drafter as drafter_config
from minnow.config import model
from minnow.config.drafter import DrafterConfig
from minnow.config.model import ARCHITECTURE, ModelConfig
from minnow.formats import nvfp4
from minnow.formats.quantized import Weight, encode

_IGNORED = ["language_model.lm_head", "language_model.model.embed_tokens", "block_sparse_moe.gate"]
_QUANTIZATION: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "mxfp8": {"quant_method": "mxfp8", "weight_block_size": [1, 32], "ignored_layers": _IGNORED},
    "m3.1": {
        "quant_method": "mxfp8",
        "weight_block_size": [1, 32],
        "moe_quant_algo": "NVFP4",
        "moe_quant_format": "nvfp4-pack-quantized",
        "group_size": 16,
        "ignored_layers": _IGNORED,
    },
    "modelopt-nvfp4": {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": _IGNORED},
    "modelopt-mxfp4": {"quant_method": "modelopt", "quant_algo": "MXFP4", "ignore": _IGNORED},
}
FORMATS = tuple(_QUANTIZATION)

_VISION = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_channels": 3,
    "patch_size": 4,
    "temporal_patch_size": 2,
    "spatial_merge_size": 2,
}

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>")
BOS_TOKEN_ID, START_TOKEN_ID, EOS_TOKEN_ID = 256, 257, 258
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def m3_text(layers: int = 4) -> dict[str, Any]:
    """A text_config of M3's kind: layer 0 dense in attention and FFN, the others sparse and of experts."""
    return {
        "model_type": "minimax_m3_text",
        "vocab_size": 320,
        "hidden_size": 64,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "rotary_dim": 16,
        "rope_theta": 10000.0,
        "intermediate_size": 32,
        "shared_intermediate_size": 64,
        "dense_intermediate_size": 96,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
        "moe_layer_freq": [0] + [1] * (layers - 1),
        "routed_scaling_factor": 2.0,
        "hidden_act": "swigluoai",
        "max_position_embeddings": 4096,
        "bos_token_id": BOS_TOKEN_ID,
        "eos_token_id": EOS_TOKEN_ID,
        "sparse_attention_config": {
            "use_sparse_attention": True,
            "sparse_index_dim": 32,
            "sparse_num_index_heads": 2,
            "sparse_topk_blocks": 4,
            "sparse_block_size": 16,
            "sparse_init_block": 0,
            "sparse_local_block": 1,
            "sparse_attention_freq": [0] + [1] * (layers - 1),
            "sparse_disable_index_value": [0] + [1] * (layers - 1),
        },
    }


def llama_text(layers: int = 3) -> dict[str, Any]:
    """A text_config of the Llama kind: dense, no head norms, SiLU, full rotary, tied head."""
    return {
        "model_type": "minimax_m3_text",
        "vocab_size": 320,
        "hidden_size": 64,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rotary_dim": 16,
        "rope_theta": 10000.0,
        "dense_intermediate_size": 96,
        "moe_layer_freq": [0] * layers,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "use_gemma_norm": False,
        "use_qk_norm": False,
        "max_position_embeddings": 2048,
        "bos_token_id": BOS_TOKEN_ID,
        "eos_token_id": EOS_TOKEN_ID,
        "tie_word_embeddings": True,
        "sparse_attention_config": None,
    }


def layer_formats(family: str, feed_forward: str, attention: str) -> dict[str, str]:
    """`formats` for the matrices of all layers."""
    formats = {f"model.layers.*.self_attn.{name}_proj": attention for name in "qkvo"}
    formats |= {f"model.layers.*.mlp.{name}_proj": feed_forward for name in ("gate", "up", "down")}
    if family == "m3":
        formats |= {f"model.layers.*.block_sparse_moe.experts.*.{name}": feed_forward for name in ("w1", "w2", "w3")}
    return formats


def config_json(
    *,
    format: str = "plain",
    family: str = "m3",
    layers: int | None = None,
    dtype: str = "bfloat16",
    vision: bool = False,
    formats: dict[str, str] | None = None,
    **overrides: Any,
) -> dict[str, Any]:
    """The config.json of a tiny model.

    Args:
        format: one of FORMATS.
        family: "m3" or "llama".
        layers: number of layers; lists with one entry a layer follow.
        dtype: of weights that are not quantised, "bfloat16" or "float32".
        vision: with a tiny vision tower.
        formats: instead of `format`, one of our own conversions: module pattern -> format.
        overrides: fields of text_config; those of sparse_attention_config begin with "sparse_" and go there.
    """
    make = {"m3": m3_text, "llama": llama_text}[family]
    text = make() if layers is None else make(layers)
    text["dtype"] = dtype
    for name, value in overrides.items():
        is_sparse = name.startswith("sparse_") and name != "sparse_attention_config"
        (text["sparse_attention_config"] if is_sparse else text)[name] = value
    raw: dict[str, Any] = {"architectures": [ARCHITECTURE], "model_type": "minimax_m3_vl", "text_config": text}
    raw["tie_word_embeddings"] = text.get("tie_word_embeddings", False)
    if vision:
        raw |= {"vision_config": _VISION, "projector_hidden_size": text["hidden_size"]}
    quantization = _QUANTIZATION[format] if formats is None else {"quant_method": "minnow", "formats": formats}
    if quantization is not None:
        raw["quantization_config"] = quantization
    return raw


def write_tiny(
    directory: Path,
    *,
    format: str = "plain",
    family: str = "m3",
    layers: int | None = None,
    dtype: str = "bfloat16",
    vision: bool = False,
    formats: dict[str, str] | None = None,
    seed: int = 0,
    max_shard_bytes: int = 10**9,
    **overrides: Any,
) -> ModelConfig:
    """Write a random checkpoint with its config.json; equal arguments give equal bytes.

    Args:
        directory: made if needed.
        seed: of the weights.
        max_shard_bytes: small values give several shards and an index.
        format, family, layers, dtype, vision, formats, overrides: as in `config_json`.

    Returns:
        The configuration as read back.
    """
    raw = config_json(
        format=format, family=family, layers=layers, dtype=dtype, vision=vision, formats=formats, **overrides
    )
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(raw, indent=2), encoding="utf-8")
    config = model.read(directory)
    for pattern, form in (formats or {}).items():
        alone = replace(config.quantization, format_by_module=((pattern, form),))
        storages = {storage_of(m.name, m.checkpoint_name, m.kind, alone) for m in names.modules(config).values()}
        assert form in storages, f"{pattern} names no module"
    generator = torch.Generator().manual_seed(seed)
    with Writer(directory, max_shard_bytes=max_shard_bytes, header_room_bytes=128 * 1024) as writer:
        for module in names.modules(config).values():
            storage = storage_of(module.name, module.checkpoint_name, module.kind, config.quantization)
            weight = _weight(module, config, storage, generator)
            for name, tensor in parts.split(weight, names.tensors(module, config), storage).items():
                writer.add(name, tensor)
    return config


def drafter_json(target: ModelConfig, *, is_m3: bool = False, layers: int = 2, **overrides: Any) -> dict[str, Any]:
    """The config.json of a tiny drafter for a tiny model: MiniMax's words, nested, or DeepSpec's."""
    sizes = {
        "hidden_size": target.hidden_size,
        "vocab_size": target.vocab_size,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rope_theta": 10000.0,
        "enable_confidence_head": True,
    }
    at, last = "dspark_" if is_m3 else "", target.num_hidden_layers - 1
    words = {
        f"{at}block_size": 5,
        f"{at}target_layer_ids": [0, last],
        "dspark_noise_token_id" if is_m3 else "mask_token_id": target.vocab_size - 1,
        f"{at}markov_rank": 8,
        f"{at}markov_head_type": "vanilla",
        "dspark_ffn_hidden_size" if is_m3 else "intermediate_size": 48,
    }
    if is_m3:
        words |= {"layer_types": ["sliding_attention"] * layers, "sliding_window": 40, "hidden_act": "swigluoai"}
        words |= {
            "rotary_dim": 8,
            "use_gemma_norm": True,
            "sparse_attention_config": None,
            "moe_layer_freq": [0] * layers,
        }
    fields = sizes | words | overrides
    if not is_m3:
        return {"architectures": ["Qwen3DSparkModel"], **fields}
    return {"architectures": ["DSparkMiniMaxDraftModel"], "text_config": fields}


def write_tiny_drafter(
    directory: Path, target: ModelConfig, *, is_m3: bool = False, seed: int = 0, spread: float = 1.0, **overrides: Any
) -> DrafterConfig:
    """Write a random drafter into a model's directory, under `dspark/`.

    Args:
        spread: of the Markov head and the projections; small values draft what the head alone says.
        is_m3, overrides: as of `drafter_json`.
    """
    place = directory / "dspark"
    place.mkdir(parents=True, exist_ok=True)
    raw = drafter_json(target, is_m3=is_m3, **overrides)
    (place / "config.json").write_text(json.dumps(raw, indent=2), encoding="utf-8")
    config = drafter_config.read(place, target)
    generator = torch.Generator().manual_seed(seed)
    with Writer(place, max_shard_bytes=10**9, header_room_bytes=128 * 1024) as writer:
        for module in drafter_names.modules(config).values():
            storage = storage_of(module.name, module.checkpoint_name, module.kind, config.backbone.quantization)
            if module.kind == "offsets":
                chosen = torch.randperm(target.vocab_size, generator=generator)[: module.shape[0]].sort().values
                writer.add("d2t", chosen - torch.arange(len(chosen)))
                continue
            weight = _weight(module, config.backbone, storage, generator)
            if isinstance(weight, Tensor) and module.kind != "norm":
                weight = weight * spread
            for name, tensor in parts.split(weight, names.tensors(module, config.backbone), storage).items():
                writer.add(_m3_name(name) if is_m3 else name, tensor)
    return config


def _m3_name(name: str) -> str:
    if name.startswith("layers."):
        _, layer, rest = name.split(".", 2)
        name = f"layers.{layer}.decoder_layer.{rest}"
    return "language_model.model.dspark." + ("final_" + name if name.startswith("norm.") else name)


def write_tiny_tokenizer(directory: Path) -> None:
    """Write a tokenizer of single bytes and SPECIAL_TOKENS (ids 256 on), a chat template, generation defaults.

    "<tool_call>" and its end are added tokens that are not special: they survive skip_special_tokens.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    letter_by_byte = {_byte_of(letter): letter for letter in letters}
    vocabulary = {letter_by_byte[byte]: byte for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    added = [AddedToken(t, special=t.startswith("<|"), normalized=False) for t in SPECIAL_TOKENS]
    for token in added:  # one at a time: ids follow the order
        tokenizer.add_special_tokens([token]) if token.special else tokenizer.add_tokens([token])
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL_TOKENS[0],
        "eos_token": SPECIAL_TOKENS[2],
        "model_max_length": 4096,
        "chat_template": CHAT_TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=2), encoding="utf-8")
    generation = {"bos_token_id": BOS_TOKEN_ID, "eos_token_id": EOS_TOKEN_ID, "temperature": 1.0, "top_p": 0.95}
    (directory / "generation_config.json").write_text(json.dumps(generation, indent=2), encoding="utf-8")


def _byte_of(letter: str) -> int:
    """The byte that GPT-2's alphabet writes as this letter: printable Latin-1 as itself, the rest from U+0100 on."""
    code = ord(letter)
    if code < 256:
        return code
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    return [byte for byte in range(256) if byte not in printable][code - 256]


def _weight(module: Module, config: ModelConfig, storage: str, generator: torch.Generator) -> Weight:
    values = _values(module, config, generator)
    if storage == "plain":
        dtype = names.tensors(module, config)[0].dtype
        return values.to(torch.float32 if dtype == "F32" else torch.bfloat16)
    name = STORAGE_BY_NAME[storage].format
    return nvfp4.encode_weight(values) if name == "nvfp4" else encode(name, values)


def _values(module: Module, config: ModelConfig, generator: torch.Generator) -> Tensor:
    """Random f32 of a spread that keeps activations near 1 through the layers."""
    noise = torch.randn(module.shape, generator=generator)
    if module.name.endswith("_mix"):  # each side's is the inverse of the other's
        mix = torch.eye(module.shape[-1]) + 0.05 * torch.randn(module.shape, generator=torch.Generator().manual_seed(4))
        return mix if module.name.endswith("k_mix") else torch.linalg.inv(mix).transpose(1, 2)
    if module.kind == "norm":
        return noise * 0.1 + (0.0 if config.use_gemma_norm else 1.0)
    if module.kind == "embedding":
        return noise
    if len(module.shape) == 1:
        return noise * 0.1
    return noise / math.sqrt(math.prod(module.shape[1:]))
