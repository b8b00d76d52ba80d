"""the frozen target in plain torch: differentiable, with tapped residuals and attention passed in"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from minnow.arch import names
from minnow.checkpoint.load import open_weights
from minnow.checkpoint.reader import Reader
from minnow.checkpoint.trained import DESCRIPTION_NAME, merged
from minnow.checkpoint.writer import Writer
from minnow.config import model
from minnow.config.model import ModelConfig
from minnow.core.errors import CheckpointError, ConfigError
from minnow.formats.quantized import decode
from minnow.model.rope import inverse_frequencies
from minnow.tune.attend import Attend, attend_densely

PARTS_NAME = "trained.safetensors"
_PREFIX, _SUFFIX = "language_model.", ".weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class Residuals:
    """What a forward pass leaves.

    Attributes:
        last: f32 [S T D] after the last layer, before the last norm.
        taps: f32 [S T D] after each layer that was asked for, in that order.
    """

    last: Tensor
    taps: tuple[Tensor, ...]


class Target:
    """A decoder whose weights are a plain table, so that some of them can be replaced by ones that learn.

    Attributes:
        weights: our names -> [out in], [D] of a norm, [G H H] of what mixes heads. Matrices are used in `dtype`,
            whatever theirs is.
        inverse_frequencies: f32 [pairs], radians a position.
        dtype: of matrix products and of q, k, v. The residual stream, norms, rotation and logits are f32.
        start: the position of the first token.
    """

    def __init__(self, config: ModelConfig, weights: Mapping[str, Tensor], dtype: torch.dtype, start: int = 0) -> None:
        """Take the weights as they are.

        Raises:
            ConfigError: the model has experts, which training does not do here.
        """
        if any(config.is_moe):
            raise ConfigError("minnow tune works on models without experts; this one has them, see moe_layer_freq")
        self.config, self.weights, self.dtype, self.start = config, weights, dtype, start
        self.inverse_frequencies = inverse_frequencies(config, torch.device("cpu"))
        self._turns: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def replaced(self, weights: Mapping[str, Tensor]) -> Target:
        """The same model with some weights (by our names) put in the place of its own, or beside them."""
        return Target(self.config, {**self.weights, **weights}, self.dtype, self.start)

    def moved(self, start: int) -> Target:
        """The same model, whose sequences begin at a position: attention stays, rotated keys are others."""
        return Target(self.config, self.weights, self.dtype, start)

    def forward(self, ids_ST: Tensor, *, attend: Attend | None = None, taps: Sequence[int] = ()) -> Residuals:
        """Run sequences that all begin at `start`.

        Args:
            ids_ST: i64 [S T].
            attend: how a layer attends; None is exact causal attention over all positions.
            taps: layers (from 0) whose output is wanted.
        """
        attend = attend or attend_densely
        h_STD = functional.embedding(ids_ST, self.weights["model.embed_tokens"]).float()
        tapped: dict[int, Tensor] = {}
        for layer in range(self.config.num_hidden_layers):
            h_STD = self.layer(layer, h_STD, attend)
            if layer in taps:
                tapped[layer] = h_STD
        return Residuals(last=h_STD, taps=tuple(tapped[layer] for layer in taps))

    def layer(self, layer: int, h_STD: Tensor, attend: Attend) -> Tensor:
        """f32 [S T D] -> f32 [S T D], the residual stream through one layer."""
        x_STD = self.norm(f"model.layers.{layer}.input_layernorm", h_STD)
        out_SNTH = attend(layer, x_STD, *self.qkv(layer, x_STD))
        h_STD = h_STD + self.project_out(layer, out_SNTH)
        return h_STD + self._feed_forward(layer, self.norm(f"model.layers.{layer}.post_attention_layernorm", h_STD))

    def qkv(self, layer: int, x_STD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys after norm, rotation and mixing, and values: [S N T H], [S G T H] twice."""
        at, width = f"model.layers.{layer}.self_attn.", self.config.head_dim
        q, k = self.turned(at + "q_proj", x_STD, at + "q_norm"), self.turned(at + "k_proj", x_STD, at + "k_norm")
        if self.config.use_qk_mix:
            for_q, for_k = (self.weights[f"{at}{side}_mix"].float() for side in "qk")
            q = (q.float() @ for_q.repeat_interleave(q.shape[1] // len(for_q), 0)).to(self.dtype)
            k = (k.float() @ for_k).to(self.dtype)
        return q, k, _heads(self.linear(at + "v_proj", x_STD), width)

    def index(self, layer: int, x_STD: Tensor) -> tuple[Tensor, Tensor]:
        """Index queries [S I T J] and the index key [S 1 T J] of a sparse layer; an attend.Index."""
        at = f"model.layers.{layer}.self_attn.index_"
        q, k = (self.turned(f"{at}{part}_proj", x_STD, f"{at}{part}_norm") for part in "qk")
        return q, k

    def turned(self, name: str, x_STD: Tensor, norm: str) -> Tensor:
        """Project, norm each head where the model does (by the weight `norm`), rotate: [S heads T H]."""
        config = self.config
        width = config.head_dim if "index" not in name else config.sparse.index_dim
        heads = _heads(self.linear(name, x_STD), width)
        if config.use_qk_norm:
            weight = self.weights[norm].float() + config.norm_offset
            heads = functional.rms_norm(heads.float(), (width,), weight, config.rms_norm_eps)
        cos, sin = self._turn(x_STD.shape[1], width)
        half = config.rotary_dim // 2
        first, second, rest = heads[..., :half], heads[..., half : 2 * half], heads[..., 2 * half :]
        turned: Tensor = (heads * cos + torch.cat((-second, first, rest), dim=-1) * sin).to(self.dtype)
        return turned

    def project_out(self, layer: int, out_SNTH: Tensor) -> Tensor:
        """[S N T H] -> [S T D], the attention's part of the residual."""
        return self.linear(f"model.layers.{layer}.self_attn.o_proj", out_SNTH.transpose(1, 2).flatten(2))

    def norm(self, name: str, h: Tensor) -> Tensor:
        """Root-mean-square norm of the model width: f32 [... D] -> dtype [... D]."""
        weight = self.weights[name].float() + self.config.norm_offset
        return functional.rms_norm(h, (h.shape[-1],), weight, self.config.rms_norm_eps).to(self.dtype)

    def linear(self, name: str, x: Tensor) -> Tensor:
        """x @ W^T in `dtype`: [... in] -> [... out]."""
        return functional.linear(x.to(self.dtype), self.weights[name].to(self.dtype))

    def hidden(self, last: Tensor) -> Tensor:
        """After the last norm: f32 [... D] -> dtype [... D]."""
        return self.norm("model.norm", last)

    def logits(self, hidden: Tensor) -> Tensor:
        """[... D] after the last norm -> f32 [... V]."""
        return self.linear("model.embed_tokens" if self.config.tie_word_embeddings else "lm_head", hidden).float()

    def _feed_forward(self, layer: int, x: Tensor) -> Tensor:
        at, config = f"model.layers.{layer}.mlp.", self.config
        gate, up = self.linear(at + "gate_proj", x), self.linear(at + "up_proj", x)
        if config.hidden_act == "silu":
            return self.linear(at + "down_proj", functional.silu(gate) * up)
        gate, limit = gate.clamp(max=config.swiglu_limit), config.swiglu_limit
        inner = (up.clamp(-limit, limit) + config.swiglu_beta) * gate * torch.sigmoid(config.swiglu_alpha * gate)
        return self.linear(at + "down_proj", inner)

    def _turn(self, num_tokens: int, width: int) -> tuple[Tensor, Tensor]:
        """Cosine and sine of the rotation at each position: f32 [T width]; 1 and 0 where nothing turns."""
        if (num_tokens, width) not in self._turns:
            angle = torch.arange(self.start, self.start + num_tokens)[:, None] * self.inverse_frequencies
            angle = functional.pad(angle.repeat(1, 2), (0, width - 2 * self.inverse_frequencies.numel()))
            self._turns[num_tokens, width] = angle.cos(), angle.sin()
        return self._turns[num_tokens, width]


def _heads(x_STC: Tensor, width: int) -> Tensor:
    """[S T heads*width] -> [S heads T width]."""
    return torch.unflatten(x_STC, -1, (-1, width)).transpose(1, 2)


def load(directory: Path, dtype: torch.dtype, parts: Sequence[Path] = ()) -> Target:
    """The model of a checkpoint directory, with its linears decoded.

    Args:
        dtype: that weights of matrices are kept and used in.
        parts: output directories of stages that were trained before; their weights replace the model's or come
            beside them, and the configuration is what they imply.

    Raises:
        CheckpointError, ConfigError: the checkpoint or the parts are not what they should be.
    """
    raw = model.read_object(directory / "config.json")
    plain = model.parse(raw)
    source = open_weights(directory, plain)
    kinds = {name: module.kind for name, module in names.modules(plain).items()}
    weights: dict[str, Tensor] = {}
    for name in source.names:
        if kinds[name] != "vision":
            values = decode(source.take(name))
            weights[name] = values.to(dtype if values.dim() > 1 else torch.float32)
    for part in parts:
        weights |= read_parts(part, dtype)
        raw = merged(raw, model.read_object(part / DESCRIPTION_NAME)["config"])
    return Target(model.parse(raw), weights, dtype)


def read_parts(parts: Path, dtype: torch.dtype) -> dict[str, Tensor]:
    """Trained weights of a stage by our names.

    Raises:
        CheckpointError: the directory holds none, or one whose name is no weight of a text model.
    """
    with Reader(parts) as reader:
        short = {name: name.removeprefix(_PREFIX).removesuffix(_SUFFIX) for name in reader.names}
        odd = next((name for name in short if name != checkpoint_name(short[name])), None)
        if odd is not None:
            raise CheckpointError(f"{parts} holds {odd}; names begin with {_PREFIX} and end with {_SUFFIX}")
        return {ours: reader.read(name).to(dtype) for name, ours in short.items()}


def checkpoint_name(name: str) -> str:
    """Our name of a text weight as a checkpoint writes it."""
    return _PREFIX + name + _SUFFIX


def write_parts(directory: Path, weights: Mapping[str, Tensor]) -> None:
    """Write trained weights, by our names, as BF16 under the names of a checkpoint; the file appears whole."""
    directory.mkdir(parents=True, exist_ok=True)
    partial = directory / f".{PARTS_NAME}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    with Writer(partial) as writer:
        for name, values in weights.items():
            writer.add(checkpoint_name(name), values.detach().to(torch.bfloat16))
    (partial / "model.safetensors").rename(directory / PARTS_NAME)
    partial.rmdir()
