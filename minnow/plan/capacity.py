"""what a deployment holds: weights, cache and sequences of a rank, what binds, and how far the next step is"""

import dataclasses
from dataclasses import dataclass

from minnow.arch.size import ModelSize
from minnow.cache.layout import BlockLayout, GroupName
from minnow.config.model import ModelConfig
from minnow.engine import budget
from minnow.engine.budget import MemoryPlan
from minnow.plan.deployment import Deployment


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounting:
    """Which bytes of a token are charged.

    Attributes:
        groups: of pages (cache/layout.py).
        words: whose count it is.
    """

    name: str
    groups: tuple[GroupName, ...]
    words: str


KV_ONLY = Accounting(name="K and V only", groups=("kv",), words="as published comparisons do")
WITH_INDEX = Accounting(name="K, V and index keys", groups=("kv", "index"), words="without a drafter")
EVERYTHING = Accounting(name="all that is stored", groups=("kv", "index", "draft"), words="what an engine allocates")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one more sequence a rank takes; any one of these does, unless max_num_seqs binds.

    Attributes:
        max_num_seqs: where it binds, the next one; else 0.
        more_bytes: of memory for the cache.
        utilization: of the device's memory instead of the present one; None where all of it would not do, or where the
            cache does not get all that is left.
        context_tokens: shorter sequences instead.
    """

    max_num_seqs: int
    more_bytes: int
    utilization: float | None
    context_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What one rank holds under an accounting.

    Attributes:
        layout: the row of a block, of the groups that are charged.
        memory: what the rank's memory is spent on.
        tokens_each: of the cache that one sequence takes: its own, and those that a windowed drafter's pages are worth.
        num_cached: sequences that the cache of a rank holds.
        num_sequences: side by side on one rank.
        num_sequences_engine: on all ranks: replicas times those of one.
        binds: "cache memory", "watermark", "kv_cache_memory_bytes" (the cache does not get all that is left), or
            "max_num_seqs".
        slack: the share of one more sequence that the cache has left.
    """

    accounting: Accounting
    layout: BlockLayout
    memory: MemoryPlan
    tokens_each: int
    num_cached: int
    num_sequences: int
    num_sequences_engine: int
    binds: str
    slack: float
    next_step: Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """A deployment and what it comes to.

    Attributes:
        weights: the target's, on the fullest rank.
        graph_tokens: of the largest decode step: every sequence's own and its drafts.
        published, allocated: under `KV_ONLY` and under `EVERYTHING`.
    """

    deployment: Deployment
    weights: ModelSize
    graph_tokens: int
    published: Holding
    allocated: Holding


def measure(deployment: Deployment) -> Capacity:
    """Add up what a deployment holds.

    Raises:
        CapacityError: not even one sequence of full length fits; names limit, weights, reserve and the way out.
    """
    return Capacity(
        deployment=deployment,
        weights=deployment.weights(),
        graph_tokens=graph_tokens(deployment),
        published=hold(deployment, KV_ONLY),
        allocated=hold(deployment, EVERYTHING),
    )


def graph_tokens(deployment: Deployment) -> int:
    """Tokens of the largest decode step of a replica."""
    return deployment.config.scheduler.max_num_seqs * (1 + deployment.num_drafts)


def hold(deployment: Deployment, accounting: Accounting, weights_bytes: int | None = None) -> Holding:
    """What one rank holds under an accounting.

    Args:
        weights_bytes: of the target on a rank; None takes the part that the engine's table of shards gives it.

    Raises:
        CapacityError: as `measure`.
    """
    config, device = deployment.config, deployment.device
    charged = row(deployment, accounting)
    if weights_bytes is None:
        weights_bytes = deployment.weights().num_bytes
    own = deployment.drafter_bytes
    memory = budget.plan_memory(
        config.cache,
        charged,
        available_bytes=device.memory_bytes,
        weights_bytes=weights_bytes + deployment.copied_bytes + own,
        workspace_bytes=deployment.reserve.num_bytes - own,
        max_model_len=config.max_model_len,
        most_bytes=budget.most_bytes(config, charged) if device.kind == "cpu" else None,
    )
    each = deployment.context_tokens + _window_tokens(deployment, accounting, charged)
    watermark, limit = config.scheduler.watermark, config.scheduler.max_num_seqs
    beneath, roomy = memory.num_sequences(each, watermark), memory.num_sequences(each)
    num_sequences = min(beneath, limit)
    binds = "watermark" if beneath < roomy else "kv_cache_memory_bytes" if _is_capped(memory) else "cache memory"
    num_usable_blocks = memory.num_usable_blocks(watermark)
    return Holding(
        accounting=accounting,
        layout=charged,
        memory=memory,
        tokens_each=each,
        num_cached=beneath,
        num_sequences=num_sequences,
        num_sequences_engine=num_sequences * config.parallel.data_parallel_size,
        binds="max_num_seqs" if limit < beneath else binds,
        slack=num_usable_blocks / -(-each // memory.block_size) - beneath,
        next_step=_next_step(deployment, memory, each, beneath),
    )


def row(deployment: Deployment, accounting: Accounting) -> BlockLayout:
    """The row of a block of the groups that are charged for every token."""
    whole = stored_row(deployment)
    names = [name for name in accounting.groups if not (name == "draft" and _window(deployment))]
    return dataclasses.replace(whole, groups=tuple(group for group in whole.groups if group.name in names))


def stored_row(deployment: Deployment) -> BlockLayout:
    """The row of a block with everything in it."""
    return budget.layout(deployment.config, deployment.model, deployment.mesh, deployment.drafter)


def read_share(layout: BlockLayout, model: ModelConfig, context_tokens: int) -> float | None:
    """What a decode step reads of a sequence in a sparse layer, as a share of its keys and values there.

    Index keys of every token are scanned; of the chosen blocks keys and values are read.

    Returns:
        None where no layer is sparse.
    """
    kv, index = layout.group("kv"), layout.group("index")
    if kv is None or index is None:
        return None
    chosen_tokens = min(context_tokens, model.sparse.num_blocks * model.sparse.block_size)
    return index.token_bytes / kv.token_bytes + chosen_tokens / context_tokens


def _window(deployment: Deployment) -> int:
    """Tokens that a sequence's drafter pages are kept for; 0 is all."""
    drafter = deployment.drafter
    return drafter.window if drafter is not None and deployment.has_hybrid_manager else 0


def _window_tokens(deployment: Deployment, accounting: Accounting, charged: BlockLayout) -> int:
    window = _window(deployment)
    if not window or "draft" not in accounting.groups:
        return 0
    group = stored_row(deployment).group("draft")
    assert group is not None
    kept_bytes = min(window, deployment.context_tokens) * group.token_bytes * group.num_layers
    return -(-kept_bytes // charged.token_bytes)


def _next_step(deployment: Deployment, memory: MemoryPlan, each: int, num_cached: int) -> Step:
    scheduler, size = deployment.config.scheduler, memory.block_size
    watermark = min(scheduler.watermark, 0.99)  # 1 keeps every block free: no memory would do
    num_usable_blocks = memory.num_usable_blocks(scheduler.watermark)
    num_wanted_blocks = (num_cached + 1) * -(-each // size)
    num_blocks = memory.num_blocks + num_wanted_blocks - num_usable_blocks
    while (
        short := num_wanted_blocks - dataclasses.replace(memory, num_blocks=num_blocks).num_usable_blocks(watermark)
    ) > 0:
        num_blocks += short
    more_bytes = (num_blocks - memory.num_blocks) * memory.row_bytes
    needed_bytes = memory.total_bytes + more_bytes
    utilization = -(-needed_bytes * 1000 // deployment.device.memory_bytes) / 1000  # as it is printed, rounded up
    return Step(
        max_num_seqs=scheduler.max_num_seqs + 1 if scheduler.max_num_seqs < num_cached else 0,
        more_bytes=more_bytes,
        utilization=utilization if utilization <= 1 and not _is_capped(memory) else None,
        context_tokens=max(
            (num_usable_blocks // (num_cached + 1) * size - (each - deployment.context_tokens)) // size * size, 0
        ),
    )


def _is_capped(memory: MemoryPlan) -> bool:
    """Whether a block more would still fit."""
    return memory.total_bytes + memory.row_bytes <= memory.limit_bytes
