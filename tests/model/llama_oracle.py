"""the public reference for a Llama configuration: transformers, given our checkpoint's dequantised weights"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from minnow.checkpoint.load import open_weights
from minnow.config import model as model_config
from minnow.formats.quantized import decode


def make(directory: Path) -> Any:
    """transformers' Llama in f32 with the exact values of a converted checkpoint; index heads are left out."""
    config = model_config.read(directory)
    reference = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.dense_intermediate_size,
            num_hidden_layers=config.num_hidden_layers,
            num_attention_heads=config.num_attention_heads,
            num_key_value_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            rms_norm_eps=config.rms_norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
            max_position_embeddings=config.max_position_embeddings,
            tie_word_embeddings=config.tie_word_embeddings,
        )
    ).eval()
    source = open_weights(directory, config)
    state = {f"{name}.weight": decode(source.take(name)) for name in source.names if ".index_" not in name}
    if config.tie_word_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    reference.load_state_dict(state)
    return reference


@torch.no_grad()
def forward(reference: Any, ids: Tensor) -> Tensor:
    """Logits f32 [T V] of one pass."""
    logits: Tensor = reference(ids[None], use_cache=False).logits[0]
    return logits
