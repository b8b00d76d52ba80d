"""DecoderLayer, Decoder"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from minnow.cache.pool import LayerCache
from minnow.config.model import ModelConfig
from minnow.kernels.registry import Kernels
from minnow.model.attention import Attention
from minnow.model.experts import feed_forward
from minnow.model.layers import Embedding, Linear, Norm
from minnow.model.rope import inverse_frequencies
from minnow.model.step import StepInputs, StepOutput


class DecoderLayer(nn.Module):
    """h + attention(norm h), then h + feed_forward(norm h).

    Args:
        at: what the names of its weights begin with.
    """

    def __init__(self, config: ModelConfig, layer: int, kernels: Kernels, inv_freq: Tensor, at: str) -> None:
        super().__init__()
        self.attention_norm = Norm(kernels, at + "input_layernorm", config.rms_norm_eps, config.norm_offset)
        self.attention = Attention(config, layer, kernels, inv_freq, at + "self_attn.")
        self.feed_forward_norm = Norm(kernels, at + "post_attention_layernorm", config.rms_norm_eps, config.norm_offset)
        self.feed_forward = feed_forward(config, layer, kernels, at)

    def forward(self, h_TD: Tensor, inputs: StepInputs, cache: LayerCache) -> Tensor:
        """[T D] -> [T D], the residual stream."""
        h_TD = h_TD + self.attention(self.attention_norm(h_TD), inputs, cache)
        y_TD: Tensor = h_TD + self.feed_forward(self.feed_forward_norm(h_TD))
        return y_TD


class Decoder(nn.Module):
    """Embedding, layers, last norm, head: MiniMax-M3 and whatever is a configuration of it.

    Args:
        kernels: bound operations.
        dtype: of the activations.
    """

    def __init__(self, config: ModelConfig, kernels: Kernels, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.config, self.kernels = config, kernels
        inv_freq = inverse_frequencies(config, device)
        self.embed = Embedding(kernels, "model.embed_tokens", dtype)
        self.layers = nn.ModuleList(
            DecoderLayer(config, layer, kernels, inv_freq, f"model.layers.{layer}.")
            for layer in range(config.num_hidden_layers)
        )
        self.norm = Norm(kernels, "model.norm", config.rms_norm_eps, config.norm_offset)
        head = "model.embed_tokens" if config.tie_word_embeddings else "lm_head"
        self.head = Linear(kernels, head, dtype=torch.float32)

    @torch.inference_mode()
    def forward(self, inputs: StepInputs, caches: Sequence[LayerCache]) -> StepOutput:
        """Run one step; a StepFunction.

        Returns:
            hidden [Q D] after the last norm, logits f32 [Q V], and the residual after each tap layer.
        """
        h_TD = self.embed(inputs.ids)
        if inputs.embeddings is not None:
            h_TD = h_TD.index_copy(0, inputs.embedding_rows, inputs.embeddings.to(h_TD.dtype))
        tapped = {-1: h_TD}
        for i, (layer, cache) in enumerate(zip(self.layers, caches, strict=True)):
            h_TD = layer(h_TD, inputs, cache)
            if i in inputs.tap_layers:
                tapped[i] = h_TD
        hidden_QD = self.norm(h_TD[inputs.logits_rows])
        taps = tuple(tapped[i] for i in inputs.tap_layers)
        return StepOutput(hidden=hidden_QD, logits=self.head(hidden_QD), taps=taps)
