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
from torch.nn import functional

from minnow.arch import drafter as names
from minnow.arch.drafter import AT
from minnow.checkpoint.load import open_drafter
from minnow.config.drafter import DrafterConfig
from minnow.config.model import ModelConfig
from minnow.core.errors import ConfigError
from minnow.formats.quantized import decode
from minnow.kernels import registry
from minnow.model.dspark import Drafter
from minnow.tune import injection
from minnow.tune.acceptance import Text
from minnow.tune.features import FeatureStore

ADDING = ("o_proj", "down_proj")  # whose products are added to the residual stream
_BACKBONE_SHARE = 0.1  # of the last norm's weights: the backbone says little at first, and the Markov head the rest
_PROBES = 24  # texts on which features are measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What kind of drafter to train.

    Attributes:
        block_size: drafts that it makes at once.
        num_layers: of its own. They have as many key heads as query heads: values of one position carry what the
            target knew there, and heads that share theirs would carry less.
        num_taps: layers of the target that lend it features; fewer where the target has fewer.
        draft_vocab_size: tokens that it can draft.
        markov_rank: of its Markov head.
        window: tokens that it looks back.
    """

    block_size: int = 4
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
        "num_key_value_heads": model.num_attention_heads,
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


def weights(
    config: DrafterConfig, store: FeatureStore, texts: Sequence[Text], markov: tuple[Tensor, Tensor], seed: int
) -> dict[str, Tensor]:
    """What training begins with, f32 by our names.

    The first layer looks at the newest features (minnow.tune.injection) and the other parts of the layers add nothing
    yet. The fusing matrix mixes taps of equal size. The confidence head says a half. The backbone says little and the
    Markov head what follows a token on average.

    Args:
        texts: to train on.
        markov: the two tables of minnow.tune.bigram.
        seed: of what is random.
    """
    backbone, target = config.backbone, store.target
    taps = [torch.cat([rows[1:] for rows in tap]) for tap in _taps(store, texts)]  # no first tokens: they are odd
    generator = torch.Generator().manual_seed(seed)
    shapes = {module.name: module.shape for module in names.modules(config).values() if module.kind != "offsets"}
    found = {name: _begin(name, shape, generator) for name, shape in shapes.items()}
    mix = torch.unflatten(found[f"{AT}fc"], 1, (len(taps), -1))
    mix *= injection.SIZE * torch.stack([1 / tap.square().mean().sqrt() for tap in taps])[:, None]
    fused_TD = functional.rms_norm(torch.cat(taps, dim=1) @ found[f"{AT}fc"].T, (backbone.hidden_size,))
    size_D = fused_TD.square().mean(0).sqrt() + 0.1  # dims that are always large would rule the rest
    found[f"{AT}hidden_norm"] = size_D.mean() / size_D
    counts_V = torch.bincount(torch.cat([text.ids for text in texts]), minlength=backbone.vocab_size)
    found |= injection.layer(config, target, fused_TD * found[f"{AT}hidden_norm"], counts_V)
    found[f"{AT}norm"] = (target.weights["model.norm"].float() + target.config.norm_offset) * _BACKBONE_SHARE
    found[f"{AT}markov_head.markov_w1"], found[f"{AT}markov_head.markov_w2"] = markov
    for name in found:
        if name.endswith("norm"):
            found[name] = found[name] - backbone.norm_offset
    return {name: found[name].detach().float().clone() for name in shapes}


def _taps(store: FeatureStore, texts: Sequence[Text]) -> list[tuple[Tensor, ...]]:
    features = [store.take(text.index, text.ids) for text in texts[:_PROBES]]
    return list(zip(*(feature.taps for feature in features), strict=True))


def _begin(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Norms do nothing, what comes out of layers and the confidence head is zero, the rest keeps a row's size."""
    if name.endswith("norm"):
        return torch.ones(shape)
    if "confidence_head" in name or name.endswith(ADDING):
        return torch.zeros(shape)
    return (torch.rand(shape, generator=generator) * 2 - 1) / math.sqrt(shape[-1])


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
