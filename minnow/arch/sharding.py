"""our names -> ShardSpec, as a table"""

import re
from dataclasses import dataclass
from typing import Literal


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


REPLICATED = ShardSpec()

# First match wins; patterns cover the end of our names. Index heads follow the key/value head they choose for.
TABLE: tuple[tuple[str, ShardSpec], ...] = (
    (r"self_attn\.q_proj", ShardSpec(axis="tp", dim=0, unit="head")),
    (r"self_attn\.(k_proj|v_proj|index_q_proj)", ShardSpec(axis="tp", dim=0, unit="kv head")),
    (r"self_attn\.index_k_proj", REPLICATED),  # every rank holds the whole index cache
    (r"self_attn\.o_proj", ShardSpec(axis="tp", dim=1, unit="head")),
    (r"(mlp|shared_experts)\.(gate_proj|up_proj)", ShardSpec(axis="tp", dim=0)),
    (r"(mlp|shared_experts)\.down_proj", ShardSpec(axis="tp", dim=1)),
    (r"block_sparse_moe\.experts\.\d+\.w[123]", ShardSpec(axis="ep", unit="expert")),
    (r"block_sparse_moe\.(gate|e_score_correction_bias)", REPLICATED),
    (r"model\.embed_tokens|lm_head", ShardSpec(axis="tp", dim=0, unit="token id")),
    (r"[a-z_]*norm", REPLICATED),
)
_COMPILED = tuple((re.compile(rf"(?:.*\.)?(?:{pattern})"), spec) for pattern, spec in TABLE)


def spec_of(module: str) -> ShardSpec:
    """How a weight splits.

    Args:
        module: our name, such as "model.layers.3.self_attn.q_proj". Vision weights are copied: each rank
            encodes whole images.

    Raises:
        KeyError: the table does not know the name.
    """
    if module.startswith(("vision_tower.", "multi_modal_projector.", "patch_merge_mlp.")):
        return REPLICATED
    for pattern, spec in _COMPILED:
        if pattern.fullmatch(module):
            return spec
    raise KeyError(module)
