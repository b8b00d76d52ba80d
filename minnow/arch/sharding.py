"""our names -> ShardSpec, as a table"""

import re
from dataclasses import dataclass
from typing import Literal

from minnow.core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSpec:
    """How one weight splits over an axis of the mesh.

    Attributes:
        axis: "tp", "ep", or None for a copy on every rank.
        dim: of the logical [out, in] weight; for "expert" there is none, whole weights go to one rank.
        unit: what must stay whole on a rank. A "kv head" is copied where there are more ranks than heads.
    """

    axis: Literal["tp", "ep"] | None = None
    dim: int = 0
    unit: Literal["value", "head", "kv head", "token id", "expert"] = "value"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """Ranks along the axes that weights split over.

    Attributes:
        tp: share every layer.
        ep: share the experts, whole ones each. With one, the ranks of `tp` share every expert instead.
    """

    tp: int = 1
    ep: int = 1


REPLICATED = ShardSpec()
ALONE = Ranks()

# First match wins; patterns cover the end of our names. Index heads follow the key/value head they choose for.
TABLE: tuple[tuple[str, ShardSpec], ...] = (
    (r"self_attn\.q_proj", ShardSpec(axis="tp", dim=0, unit="head")),
    (r"self_attn\.(k_proj|v_proj|index_q_proj)", ShardSpec(axis="tp", dim=0, unit="kv head")),
    (r"self_attn\.[qk]_mix", ShardSpec(axis="tp", dim=0, unit="kv head")),
    (r"self_attn\.index_k_proj", REPLICATED),  # every rank holds the whole index cache
    (r"self_attn\.o_proj", ShardSpec(axis="tp", dim=1, unit="head")),
    (r"(mlp|shared_experts)\.(gate_proj|up_proj)", ShardSpec(axis="tp", dim=0)),
    (r"(mlp|shared_experts)\.down_proj", ShardSpec(axis="tp", dim=1)),
    (r"block_sparse_moe\.experts\.\d+\.w[123]", ShardSpec(axis="ep", unit="expert")),
    (r"block_sparse_moe\.(gate|e_score_correction_bias)", REPLICATED),
    (r"model\.embed_tokens|lm_head", ShardSpec(axis="tp", dim=0, unit="token id")),
    (r"[a-z_]*norm", REPLICATED),
    (r"dspark\.(fc|markov_head\.\w+|confidence_head\.\w+|d2t)(\.bias)?", REPLICATED),
)
_OF_EXPERT = {"w1": ShardSpec(axis="tp", dim=0), "w3": ShardSpec(axis="tp", dim=0), "w2": ShardSpec(axis="tp", dim=1)}
_COMPILED = tuple((re.compile(rf"(?:.*\.)?(?:{pattern})"), spec) for pattern, spec in TABLE)


def spec_of(module: str, ranks: Ranks | None = None) -> ShardSpec:
    """How a weight splits.

    Args:
        module: our name, such as "model.layers.3.self_attn.q_proj". Vision weights are copied: each rank
            encodes whole images.
        ranks: without expert parallelism among them, experts split like the shared one; None: as the table has it.

    Raises:
        KeyError: the table does not know the name.
    """
    if module.startswith(("vision_tower.", "multi_modal_projector.", "patch_merge_mlp.")):
        return REPLICATED
    for pattern, spec in _COMPILED:
        if pattern.fullmatch(module):
            is_split = spec.axis == "ep" and ranks is not None and ranks.ep == 1
            return _OF_EXPERT[module.rsplit(".", 1)[1]] if is_split else spec
    raise KeyError(module)


def shape_on_rank(module: str, shape: tuple[int, ...], ranks: Ranks, num_kv_heads: int) -> tuple[int, ...]:
    """The part of a weight that the fullest rank holds; of an expert that it holds, all.

    Args:
        module: our name.
        shape: logical, of the whole weight.
        num_kv_heads: of the network the weight belongs to.

    Raises:
        ConfigError: the ranks do not divide what must stay whole; names both.
        KeyError: as `spec_of`.
    """
    spec = spec_of(module, ranks)
    if spec.axis != "tp" or ranks.tp == 1:
        return shape
    length, parts = shape[spec.dim], ranks.tp
    if spec.unit == "kv head":
        parts = min(parts, num_kv_heads)  # more ranks than heads hold copies
    if spec.unit == "token id":
        part = -(-length // parts)
    elif length % parts or (spec.unit == "kv head" and (ranks.tp % parts or num_kv_heads % parts)):
        whole = f"{num_kv_heads} key/value heads" if spec.unit == "kv head" else f"{length} values of {module}"
        raise ConfigError(f"{ranks.tp} ranks do not divide the {whole}; take a power of two")
    else:
        part = length // parts
    return (*shape[: spec.dim], part, *shape[spec.dim + 1 :])
