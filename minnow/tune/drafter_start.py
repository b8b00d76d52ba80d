"""a drafter before training: its configuration, its vocabulary, and weights taken from the target's layers"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minnow.arch import drafter as names
from minnow.arch.drafter import AT
from minnow.checkpoint.load import open_drafter
from minnow.config.drafter import DrafterConfig
from minnow.config.model import ModelConfig
from minnow.core.errors import ConfigError
from minnow.formats.quantized import decode
from minnow.kernels import registry
from minnow.model.dspark import Drafter
from minnow.tune.attend import attend_densely
from minnow.tune.features import FeatureStore
from minnow.tune.target import Target

_FEED_FORWARD = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
_PROJECTIONS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
_LAYER_WEIGHTS = ("input_layernorm", "post_attention_layernorm", *_PROJECTIONS, *_FEED_FORWARD)
_BACKBONE_SHARE = 0.1  # of the last norm's weights: the backbone says little at first, and the Markov head the rest


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What kind of drafter to train.

    Attributes:
        block_size: drafts that it makes at once.
        num_layers: of its own.
        num_taps: layers of the target that lend it features; fewer where the target has fewer.
        draft_vocab_size: tokens that it can draft.
        markov_rank: of its Markov head.
        window: tokens that it looks back.
    """

    block_size: int = 7
    num_layers: int = 2
    num_taps: int = 5
    draft_vocab_size: int = 8192
    markov_rank: int = 64
    window: int = 512


def tap_layers(num_layers: int, num_taps: int) -> tuple[int, ...]:
    """Layers of the target spread evenly from the second to the last but one: 1, 8, 15, 22, 28 of 30."""
    first = min(1, num_layers - 1)
    last = max(num_layers - 2, first)
    count = min(num_taps, last - first + 1)
    return tuple(first + math.ceil(i * (last - first) / max(count - 1, 1)) for i in range(count))


def source_layers(num_target_layers: int, num_layers: int) -> tuple[int, ...]:
    """Layers of the target that the drafter's begin as: its last ones, which already write what the head reads.

    Beginning as layers 8 and 22 of 30 learned slower: after 100 steps of 128 blocks a cross-entropy of 7.2 against 6.0.
    """
    return tuple(max(num_target_layers - num_layers + i, 0) for i in range(num_layers))


def vocabulary(ids: Iterable[Sequence[int]], always: Iterable[int], size: int) -> Tensor:
    """The tokens to draft from: those that are `always` there, and the most frequent; ascending i64 [size or fewer]."""
    counts = Counter(token_id for sequence in ids for token_id in sequence)
    kept = dict.fromkeys(always)
    for token_id, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if len(kept) >= size:
            break
        kept[token_id] = None
    return torch.tensor(sorted(kept))


def unused_id(ids: Iterable[Sequence[int]], model: ModelConfig) -> int:
    """The first id that no sequence holds and that begins or ends nothing: it becomes the mask token.

    Raises:
        ConfigError: every id is used.
    """
    used = {token_id for sequence in ids for token_id in sequence} | {*model.eos_token_ids, model.bos_token_id}
    found = next((token_id for token_id in range(model.vocab_size) if token_id not in used), None)
    if found is None:
        raise ConfigError("the answers use every token of the vocabulary; none is left to be the drafter's mask token")
    return found


def config_json(shape: Shape, model: ModelConfig, draft_vocab_size: int, mask_token_id: int) -> dict[str, Any]:
    """The drafter's config.json; config/drafter.py reads it."""
    raw: dict[str, Any] = {
        "architectures": ["DSparkDraftModel"],
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": model.num_attention_heads,
        "num_key_value_heads": model.num_key_value_heads,
        "head_dim": model.head_dim,
        "dense_intermediate_size": model.dense_intermediate_size,
        "hidden_act": model.hidden_act,
        "use_gemma_norm": model.use_gemma_norm,
        "rms_norm_eps": model.rms_norm_eps,
        "rope_theta": model.rope_theta,
        "rotary_dim": model.rotary_dim,
        "max_position_embeddings": model.max_position_embeddings,
        "num_target_layers": model.num_hidden_layers,
        "target_layer_ids": list(tap_layers(model.num_hidden_layers, shape.num_taps)),
        "block_size": shape.block_size,
        "is_causal": False,
        "layer_types": ["sliding_attention"] * shape.num_layers,
        "sliding_window": shape.window,
        "mask_token_id": mask_token_id,
        "draft_vocab_size": draft_vocab_size,
        "markov_rank": shape.markov_rank,
        "markov_head_type": "vanilla",
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
        "sample_from_anchor": True,
        "dtype": "bfloat16",
    }
    if model.hidden_act == "swigluoai":
        raw |= {name: getattr(model, name) for name in ("swiglu_alpha", "swiglu_limit", "swiglu_beta")}
    if model.rope_scaling is not None:
        raw["rope_scaling"] = {"rope_type": "llama3", **asdict(model.rope_scaling)}
    return raw


def weights(config: DrafterConfig, target: Target, probe_T: Tensor, markov: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    """What training begins with, f32 by our names.

    Layers are copies of the target's, the fusing matrix is the mean of the taps, and the heads' norms have the size
    that the target's queries and keys have without them. The confidence head says a half. The backbone says little
    and the Markov head what follows a token on average: after 50 steps of 128 blocks a round had 1.32 tokens so, and
    1.13 where the Markov head began with nothing.

    Args:
        probe_T: i64 [T], a text on which that size is measured.
        markov: the two tables of minnow.tune.bigram.
    """
    backbone, taps = config.backbone, config.target_layer_ids
    sources = source_layers(target.config.num_hidden_layers, backbone.num_hidden_layers)
    found: dict[str, Tensor] = {}
    for layer, source in enumerate(sources):
        for name in _LAYER_WEIGHTS:
            found[f"{AT}layers.{layer}.{name}"] = target.weights[f"model.layers.{source}.{name}"]
        q_norm, k_norm = _head_norms(target, source, probe_T)
        found[f"{AT}layers.{layer}.self_attn.q_norm"] = q_norm - backbone.norm_offset
        found[f"{AT}layers.{layer}.self_attn.k_norm"] = k_norm - backbone.norm_offset
    found[f"{AT}fc"] = torch.eye(backbone.hidden_size).repeat(1, len(taps)) / len(taps)
    norms = [target.weights[f"model.layers.{source}.input_layernorm"].float() for source in sources]
    found[f"{AT}hidden_norm"] = torch.stack(norms).mean(0)
    offset = backbone.norm_offset
    found[f"{AT}norm"] = (target.weights["model.norm"].float() + offset) * _BACKBONE_SHARE - offset
    found[f"{AT}markov_head.markov_w1"], found[f"{AT}markov_head.markov_w2"] = markov
    for module in names.modules(config).values():
        if module.name not in found and module.kind != "offsets":
            found[module.name] = torch.zeros(module.shape)
    return {name: found[name].detach().float().clone() for name in names.modules(config) if name in found}


def read(directory: Path, config: DrafterConfig) -> tuple[Tensor, dict[str, Tensor]]:
    """What can be drafted, i64 [W], and the weights, f32 by our names, of a drafter on disk.

    Raises:
        CheckpointError: names everything that is wrong with it.
    """
    source = open_drafter(directory, config)
    found = {name: decode(source.take(name)) for name in source.names}
    offsets = found.pop(f"{AT}d2t", torch.zeros(config.draft_vocab_size)).long()
    return offsets + torch.arange(len(offsets)), {name: value.float().clone() for name, value in found.items()}


def assemble(config: DrafterConfig, weights: Mapping[str, Tensor], ids: Tensor, store: FeatureStore) -> Drafter:
    """A drafter of plain torch operations on these very tensors, so that they can learn.

    Args:
        ids: i64 [W], what can be drafted.
        store: has the target's embedding and head.
    """
    kernels = registry.bind(registry.target_of(torch.device("cpu")), "*=reference")
    drafter = Drafter(config, kernels, torch.float32, torch.device("cpu"))
    table = {**weights, f"{AT}d2t": ids - torch.arange(len(ids))}
    for module in drafter.modules():
        wanted: tuple[str, ...] = getattr(module, "weight_names", ())
        if wanted:
            module.weights = tuple(table[name] for name in wanted)  # type: ignore[assignment]
    drafter.share(store.target.weights["model.embed_tokens"].float(), store.head)
    return drafter


def _head_norms(target: Target, layer: int, probe_T: Tensor) -> tuple[Tensor, Tensor]:
    """The root mean square of each dim of a layer's queries and keys, f32 [H] each; dims that rotate together share."""
    seen: list[Tensor] = []

    def attend(at: int, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if at == layer:
            seen.extend(heads.float().square().mean((0, 1, 2)) for heads in (q, k))
        return attend_densely(at, x, q, k, v)

    with torch.no_grad():
        target.forward(probe_T[None], attend=attend)
    half = target.config.rotary_dim // 2
    for squares in seen:
        squares[: 2 * half] = (squares[:half] + squares[half : 2 * half]).repeat(2) / 2
    q, k = (squares.sqrt() for squares in seen)
    return q, k
