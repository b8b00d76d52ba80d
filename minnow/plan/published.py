"""the published comparison: deployments by name, and every set of assumptions that reproduces it"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from minnow.arch import size
from minnow.arch.sharding import ALONE, Ranks
from minnow.config import load
from minnow.config import model as model_config
from minnow.config.model import ModelConfig
from minnow.engine import budget
from minnow.formats.spec import SPEC_BY_NAME
from minnow.plan import capacity, deployment, hardware
from minnow.plan.capacity import EVERYTHING, KV_ONLY, WITH_INDEX, Accounting
from minnow.plan.deployment import CONTEXT_TOKENS, UTILIZATION, Deployment

FLASH, M3 = "m3.1-flash", "m3-mxfp8"
FLASH_SEQUENCES, M3_SEQUENCES, NUM_RANKS = 76, 28, 4  # of 256K tokens on four B300, DEP4
DECODE_TOKENS, DECODE_SPREAD = 4_500_000, 50_000  # "about 4.5M" tokens on a GB300 decode rank of DEP4
DECODE_UTILIZATION = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class AssumptionSet:
    """One reading of the published comparison.

    Attributes:
        flash, m3: which bytes of a token each model is charged.
        m3_index: format of M3's index keys.
        has_mtp: M3's rank also holds a layer for multi-token prediction.
    """

    name: str
    words: str
    flash: Accounting
    m3: Accounting
    m3_index: str = "fp8"
    has_mtp: bool = False


SETS = (
    AssumptionSet(name="A", words="K and V only", flash=KV_ONLY, m3=KV_ONLY),
    AssumptionSet(name="A'", words="A, M3 with its MTP layer", flash=KV_ONLY, m3=KV_ONLY, has_mtp=True),
    AssumptionSet(name="B", words="with index keys, M3's in FP8", flash=WITH_INDEX, m3=WITH_INDEX),
    AssumptionSet(name="B'", words="B, M3 with its MTP layer", flash=WITH_INDEX, m3=WITH_INDEX, has_mtp=True),
    AssumptionSet(
        name="C", words="with index keys, M3's in BF16", flash=WITH_INDEX, m3=WITH_INDEX, m3_index="bfloat16"
    ),
    AssumptionSet(
        name="C'", words="C, M3 with its MTP layer", flash=WITH_INDEX, m3=WITH_INDEX, m3_index="bfloat16", has_mtp=True
    ),
    AssumptionSet(
        name="D", words="C', and the drafter", flash=EVERYTHING, m3=WITH_INDEX, m3_index="bfloat16", has_mtp=True
    ),
)
UTILIZATIONS = (0.90, 0.92, 0.95, 1.0)
_OWN = (  # no settings
    "context_tokens", "reserve", "experts_format", "has_sequence_parallel", "has_hybrid_manager", "has_index_cp",
    "dual_batch_tokens",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a set of assumptions leaves open.

    Attributes:
        usable_bytes: [least, limit) of memory for weights and cache on a rank that gives both counts; None where
            none does.
        reserves_bytes: utilization -> [least, limit) of the reserve on a B300 that gives both counts.
        joint_bytes: the same where the reserve also gives the tokens of a GB300 decode rank.
    """

    assumptions: AssumptionSet
    usable_bytes: tuple[float, float] | None
    reserves_bytes: dict[float, tuple[float, float]]
    joint_bytes: dict[float, tuple[float, float]]


def deploy(model: str, device: str, strategy: str, utilization: float = UTILIZATION, **settings: Any) -> Deployment:
    """A published model on a device, by names.

    Args:
        settings: settings of an engine by name, or arguments of `deployment.settle`.
    """
    config = model_config.known(model)
    assert config is not None, model
    own = {name: settings.pop(name) for name in _OWN if name in settings}
    loaded = load.from_values({"gpu_memory_utilization": utilization, **settings}, {}).config
    return deployment.settle(
        model,
        config,
        model_config.known_directory(model),
        dataclasses.replace(loaded, parallel=deployment.parallel_of(strategy)),
        hardware.read(device),
        is_drafting=True,
        **own,
    )


def flash() -> Deployment:
    """M3.1-Flash of the comparison: four B300, DEP4, a cache in NVFP4."""
    return deploy(FLASH, "b300", f"dep{NUM_RANKS}")


def m3(index_format: str = "fp8") -> Deployment:
    """M3 of the comparison: the same devices, a cache in FP8."""
    words = {"indexer_kv_dtype": index_format}
    return deploy(M3, "b300", f"dep{NUM_RANKS}", kv_cache_dtype="fp8", attention_config=words)


def decode_rank() -> Deployment:
    """A decode rank of M3.1-Flash: GB300, DEP4, most of the memory."""
    return deploy(FLASH, "gb300", "dep4", DECODE_UTILIZATION, watermark=0.05, max_num_seqs=28)


def mtp_bytes(model: ModelConfig, ranks: Ranks = ALONE) -> int:
    """Bytes of one layer for multi-token prediction: a layer like the others and a fusing projection.

    A hypothesis: no published file lists it. It was found because it fills the gap to M3-MXFP8's published size.
    """
    layer = dataclasses.replace(
        model,
        num_hidden_layers=1,
        is_moe=(True,),
        vision=None,
        sparse=dataclasses.replace(model.sparse, is_sparse=(True,)),
    )
    own = (share for share in size.measure(layer, ranks=ranks).shares if share.kind not in ("embedding", "head"))
    fusing = model.hidden_size * SPEC_BY_NAME["mxfp8"].num_bytes(2 * model.hidden_size)
    return sum(share.num_bytes for share in own) + fusing


def examine() -> tuple[Finding, ...]:
    """Every set, and the utilizations and reserves under which it reproduces what was published."""
    low, high = _decode_reserves()
    memory_bytes = flash().device.memory_bytes
    findings = []
    for one in SETS:
        usable = _usable(one)
        reserves = {} if usable is None else dict(_reserves(usable, memory_bytes))
        joint = {u: (max(a, low, 0.0), min(b, high)) for u, (a, b) in reserves.items()}
        findings.append(
            Finding(
                assumptions=one,
                usable_bytes=usable,
                reserves_bytes=reserves,
                joint_bytes={u: (a, b) for u, (a, b) in joint.items() if a < b},
            )
        )
    return tuple(findings)


def _usable(one: AssumptionSet) -> tuple[float, float] | None:
    ours, theirs = flash(), m3(one.m3_index)
    extra = mtp_bytes(theirs.model, budget.ranks_of(theirs.mesh)) if one.has_mtp else 0
    first = _interval(ours, one.flash, FLASH_SEQUENCES)
    second = _interval(theirs, one.m3, M3_SEQUENCES, extra)
    low, high = max(first[0], second[0]), min(first[1], second[1])
    return (low, high) if low < high else None


def _interval(of: Deployment, accounting: Accounting, num_sequences: int, more_bytes: int = 0) -> tuple[float, float]:
    """Memory of a rank for weights and cache with which a count, rounded down on each rank, comes out."""
    each_bytes = CONTEXT_TOKENS * capacity.row(of, accounting).token_bytes
    weights_bytes = of.weights().num_bytes + more_bytes
    count = num_sequences // NUM_RANKS
    return weights_bytes + count * each_bytes, weights_bytes + (count + 1) * each_bytes


def _reserves(usable: tuple[float, float], memory_bytes: int) -> Iterator[tuple[float, tuple[float, float]]]:
    low, high = usable
    for utilization in UTILIZATIONS:
        limit = utilization * memory_bytes
        if limit > low:
            yield utilization, (max(limit - high, 0.0), limit - low)


def _decode_reserves() -> tuple[float, float]:
    """Reserves that leave the published tokens on a GB300 decode rank, every stored byte charged."""
    rank = decode_rank()
    token_bytes = capacity.row(rank, EVERYTHING).token_bytes
    left = DECODE_UTILIZATION * rank.device.memory_bytes - rank.weights().num_bytes
    return (
        left - (DECODE_TOKENS + DECODE_SPREAD) * token_bytes,
        left - (DECODE_TOKENS - DECODE_SPREAD) * token_bytes,
    )
