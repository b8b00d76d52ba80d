"""the engines of a deployment as they are simulated: pools of replicas, host memory, the way from prefill to decode"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from minnow.core.errors import ConfigError
from minnow.core.units import parse_bytes
from minnow.plan import hardware, routing
from minnow.plan.acceptance import AcceptanceLaw, Acceptances
from minnow.plan.capacity import Capacity
from minnow.plan.lockstep import Lockstep
from minnow.plan.rank import Job, Rank, RankShape
from minnow.plan.simulator import Clock, Handover, Simulator
from minnow.plan.work import Work, limits_of

LINK = "nic-400g"  # from prefill to decode where nothing else is asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Engines that are alike.

    Attributes:
        num_ranks: that schedule for themselves and step together.
        num_devices: of all engines of the pool.
        seconds: of a step of a rank.
    """

    shape: RankShape
    num_engines: int
    num_ranks: int
    num_devices: int
    seconds: Callable[[Work], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What is simulated.

    Attributes:
        pool: engines that do all, or, behind those of `prefill`, go on from the first token.
        law: of the drafts that are kept; None drafts nothing.
        routing: see routing.py.
        is_repeating: steps that are alike are settled together; it changes nothing but the time that this takes.
    """

    pool: Pool
    prefill: Pool | None = None
    handover: Handover | None = None
    law: AcceptanceLaw | None = None
    routing: str = "cache-aware"
    is_repeating: bool = True

    @property
    def num_devices(self) -> int:
        """Of all engines."""
        return self.pool.num_devices + (self.prefill.num_devices if self.prefill is not None else 0)


def pool_of(
    capacity: Capacity, seconds: Callable[[Work], float], *, num_replicas: int = 1, host_memory: str = ""
) -> Pool:
    """The engines of a deployment, so many times.

    Replicas of its data parallelism whose experts are spread step together; others are engines of their own.

    Args:
        host_memory: of each rank for blocks that its device has no room for any more; "" is none.

    Raises:
        ConfigError: there is nothing to bring them back over.
    """
    of = capacity.deployment
    parallel, layout, memory = of.config.parallel, capacity.allocated.layout, capacity.allocated.memory
    host_bytes = parse_bytes(host_memory) if host_memory else 0
    if host_bytes and not of.config.cache.enable_prefix_caching:
        raise ConfigError("--host-memory keeps prefixes, and --no-enable-prefix-caching keeps none; leave one out")
    if host_bytes and "host_link" not in of.device.figures:
        raise ConfigError(f"--host-memory needs a host_link, and the sheet {of.device.name} has none; leave it out")
    shape = RankShape(
        scheduler=of.config.scheduler,
        num_blocks=memory.num_blocks,
        block_size=memory.block_size,
        row_bytes=layout.row_bytes,
        max_model_len=of.config.max_model_len,
        has_prefix_cache=of.config.cache.enable_prefix_caching,
        num_drafts=of.num_drafts,
        limits=limits_of(of.model, of.drafter),
        host_blocks=host_bytes // layout.row_bytes,
        host_bytes_s=of.device.figures["host_link"].value if host_bytes else 0.0,
    )
    num_replicas_inside = parallel.data_parallel_size
    is_together = parallel.enable_expert_parallel and num_replicas_inside > 1
    return Pool(
        shape=shape,
        num_engines=num_replicas if is_together else num_replicas * num_replicas_inside,
        num_ranks=num_replicas_inside if is_together else 1,
        num_devices=num_replicas * of.num_ranks,
        seconds=seconds,
    )


def without_prefixes(pool: Pool) -> Pool:
    """Engines that get computed prompts: they keep no prefixes, those that compute prompts do."""
    return dataclasses.replace(pool, shape=dataclasses.replace(pool.shape, has_prefix_cache=False))


def handover_of(prefill: Capacity, decode: Capacity, link: str = LINK) -> Handover:
    """The way of a prompt's blocks between two deployments: the larger of what a rank sends and one receives.

    Args:
        link: of each rank: a sheet, or "scale-up" for the devices' own links.

    Raises:
        ConfigError: there is no such link, or blocks are not of one size.
    """
    here, there = prefill.allocated.memory, decode.allocated.memory
    if here.block_size != there.block_size:
        raise ConfigError(f"blocks of {here.block_size} tokens cannot go where they have {there.block_size}")
    device = prefill.deployment.device
    if link == "scale-up":
        if "scale_up" not in device.figures:
            raise ConfigError(
                f"--link is scale-up, and the sheet {device.name} has no scale_up; name a sheet of a link"
            )
        rate = device.figures["scale_up"].value
    else:
        sheet = hardware.read(link)
        if sheet.kind != "link":
            raise ConfigError(f"--link is {link}, a device; name the sheet of a link, or scale-up")
        rate = sheet.figures["rate"].value
    return Handover(block_bytes=max(here.row_bytes, there.row_bytes), bytes_s=rate)


def build(cluster: Cluster, seed: int, on_end: Callable[[Job, float, bool], None]) -> Simulator:
    """Idle engines on a clock at 0.

    Args:
        seed: of the draws of acceptance.
        on_end: see `Simulator`.
    """
    clock = Clock()

    def engines(pool: Pool, name: str) -> list[Lockstep]:
        return [
            Lockstep(
                [_rank(cluster, pool, Random(f"{seed} {name} {i} {j}"), name, clock) for j in range(pool.num_ranks)],
                pool.seconds,
                is_repeating=cluster.is_repeating,
            )
            for i in range(pool.num_engines)
        ]

    return Simulator(
        engines(cluster.pool, "decode"),
        routing.make(cluster.routing),
        clock,
        on_end=on_end,
        prefill=engines(cluster.prefill, "prefill") if cluster.prefill is not None else (),
        prefill_router=routing.make(cluster.routing),
        handover=cluster.handover,
    )


def _rank(cluster: Cluster, pool: Pool, rng: Random, name: str, clock: Clock) -> Rank:
    return Rank(
        pool.shape,
        acceptances=None if cluster.law is None else Acceptances(cluster.law, rng),
        is_prefilling=name == "prefill",
        is_handed=name == "decode" and cluster.prefill is not None,
        clock=clock,
    )
