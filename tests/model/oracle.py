"""the public reference: transformers' MiniMax-M3 text model, exported to a checkpoint in the published names"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import MiniMaxM3VLTextConfig
from transformers.models.minimax_m3_vl.modeling_minimax_m3_vl import MiniMaxM3VLForCausalLM

_ROTARY_SHARE = 0.5


def make(seed: int, *, sparse: list[bool], moe: list[bool], block_size: int, num_blocks: int, **sizes: int) -> Any:
    """A random model in f32: every weight matters (norms, biases and all are spread out)."""
    named = {
        "vocab_size": 128, "hidden_size": 64, "intermediate_size": 32, "dense_intermediate_size": 96,
        "shared_intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
        "num_local_experts": 8, "num_experts_per_tok": 2, "index_head_dim": 32, **sizes,
    }  # fmt: skip
    config = MiniMaxM3VLTextConfig(
        **named,
        num_hidden_layers=len(sparse),
        index_n_heads=named["num_key_value_heads"],
        index_block_size=block_size,
        index_topk_blocks=num_blocks,
        index_local_blocks=1,
        max_position_embeddings=1 << 20,
        rope_parameters={"rope_type": "default", "rope_theta": 5e6, "partial_rotary_factor": _ROTARY_SHARE},
        layer_types=["minimax_m3_sparse" if s else "full_attention" for s in sparse],
        mlp_layer_types=["sparse" if m else "dense" for m in moe],
        bos_token_id=1,
        eos_token_id=2,
    )
    config._attn_implementation = "sdpa"
    model = MiniMaxM3VLForCausalLM(config).float().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in model.state_dict().items():
            scale = 0.2 if value.dim() == 1 else 1.5 * value.shape[-1] ** -0.5
            value.copy_(torch.randn(value.shape, generator=generator) * (1.0 if "embed" in name else scale))
    return model


def export(model: Any, directory: Path) -> None:
    """Write config.json and model.safetensors as MiniMax publishes them (F32)."""
    config = model.config
    tensors = {}
    for name, value in model.state_dict().items():
        tensors.update(_published(f"language_model.{name}", value))
    save_file({k: v.contiguous().clone() for k, v in tensors.items()}, directory / "model.safetensors")
    same = (
        "vocab_size hidden_size num_hidden_layers num_attention_heads num_key_value_heads head_dim intermediate_size "
        "shared_intermediate_size dense_intermediate_size num_local_experts num_experts_per_tok rms_norm_eps "
        "routed_scaling_factor max_position_embeddings swiglu_alpha swiglu_limit"
    ).split()
    is_sparse = [int(kind == "minimax_m3_sparse") for kind in config.layer_types]
    text = {
        **{name: getattr(config, name) for name in same},
        "moe_layer_freq": [int(kind == "sparse") for kind in config.mlp_layer_types],
        "n_shared_experts": 1,
        "scoring_func": "sigmoid",
        "use_routing_bias": True,
        "hidden_act": "swigluoai",
        "use_gemma_norm": True,
        "use_qk_norm": True,
        "qk_norm_type": "per_head",
        "rope_theta": 5e6,
        "rotary_dim": int(config.head_dim * _ROTARY_SHARE),
        "dtype": "float32",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "sparse_attention_config": {
            "use_sparse_attention": any(is_sparse),
            "sparse_index_dim": config.index_head_dim,
            "sparse_num_index_heads": config.index_n_heads,
            "sparse_topk_blocks": config.index_topk_blocks,
            "sparse_block_size": config.index_block_size,
            "sparse_score_type": "max",
            "sparse_init_block": 0,
            "sparse_local_block": 1,
            "sparse_attention_freq": is_sparse,
            "sparse_disable_index_value": is_sparse,
        },
    }
    outer = {"architectures": ["MiniMaxM3SparseForConditionalGeneration"], "model_type": "minimax_m3_vl"}
    (directory / "config.json").write_text(json.dumps({**outer, "text_config": text}), encoding="utf-8")


def _published(name: str, value: Tensor) -> dict[str, Tensor]:
    """transformers fuses gate and up, stacks experts, and nests the indexer; the checkpoint does not."""
    for inner in ("q_proj", "k_proj", "q_norm", "k_norm"):
        name = name.replace(f"indexer.{inner}", f"index_{inner}")
    is_dense = ".mlp.gate_up_proj." in name or ".mlp.down_proj." in name
    if not is_dense:
        name = name.replace(".mlp.", ".block_sparse_moe.")
    name = name.replace("gate.e_score", "e_score")
    stem = name.rsplit(".", 1)[0]
    if name.endswith("experts.gate_up_proj"):
        return {
            f"{stem}.{e}.{part}.weight": rows
            for e, both in enumerate(value)
            for part, rows in zip(("w1", "w3"), both.chunk(2), strict=True)
        }
    if name.endswith("experts.down_proj"):
        return {f"{stem}.{e}.w2.weight": rows for e, rows in enumerate(value)}
    if name.endswith("gate_up_proj.weight"):
        gate, up = value.chunk(2)
        return {name.replace("gate_up_proj", "gate_proj"): gate, name.replace("gate_up_proj", "up_proj"): up}
    return {name: value}


@torch.no_grad()
def forward(model: Any, ids: Tensor) -> tuple[Tensor, dict[int, Tensor]]:
    """Logits f32 [T V] of one pass, and each sparse layer's chosen blocks i64 [I T K]."""
    chosen: dict[int, Tensor] = {}
    hooks = []
    for i, layer in enumerate(model.model.layers):
        if layer.self_attn.indexer is not None:

            def keep(_module: Any, _inputs: Any, output: Tensor, i: int = i) -> None:
                chosen[i] = output[0]

            hooks.append(layer.self_attn.indexer.register_forward_hook(keep))
    logits = model(ids[None], use_cache=False).logits[0]
    for hook in hooks:
        hook.remove()
    return logits, chosen
