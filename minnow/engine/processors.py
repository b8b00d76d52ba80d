"""how many threads compute, and on which CPUs, from the affinity mask, the container's quota and the NUMA nodes"""

import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from minnow.config.kernel import KernelConfig
from minnow.core.errors import ConfigError
from minnow.core.log import Logger
from minnow.engine import container, placement
from minnow.engine.container import read_text
from minnow.engine.placement import System


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """What of the machine this process may use.

    Attributes:
        cores: the allowed CPUs in increasing order, those of one core (hyperthreads) together.
        cpus_by_node: allowed CPUs of each NUMA node; nodes without one are left out.
        quota_cpus: CPUs that the container's quota pays for; infinite without one.
    """

    cores: tuple[tuple[int, ...], ...]
    cpus_by_node: Mapping[int, tuple[int, ...]]
    quota_cpus: float = math.inf

    @property
    def cpus(self) -> tuple[int, ...]:
        """The allowed CPUs: one of every core, then the second of every core, and so on."""
        return spread(self.cores)


@dataclass(frozen=True, slots=True, kw_only=True)
class Threads:
    """The threads that compute.

    Attributes:
        count: how many.
        cpus: the CPU of each, or None where the system may move them.
        source: where the count comes from, for people.
        num_cpus: so many can run at once; more threads than that wait for each other.
        bound_cpus: the process is to keep to these; empty leaves it as it is.
        nodes: memory is to come from these NUMA nodes; empty leaves it to the system.
    """

    count: int
    cpus: tuple[int, ...] | None
    source: str
    num_cpus: int
    bound_cpus: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()


def spread(cores: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """CPUs of some cores, the first of each before the second of any."""
    return tuple(cpu for _, cpu in sorted((place, cpu) for core in cores for place, cpu in enumerate(core)))


def parse_cpus(text: str) -> tuple[int, ...]:
    """CPUs of a list such as "0-3,8".

    Raises:
        ConfigError: it is no such list.
    """
    found: set[int] = set()
    for part in text.split(",") if text else ():
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise ConfigError(f"{text!r} is no list of CPUs; write for example 0-3,8")
        found.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(sorted(found))


def read(root: Path = container.ROOT) -> Topology:
    """What this thread, its control groups and its machine allow.

    Args:
        root: of the file system; tests make their own.
    """
    status = read_text(root / "proc/thread-self/status")
    mask = re.search(r"^Cpus_allowed_list:\s*(\S+)", status, re.M)
    allowed = parse_cpus(mask[1]) if mask else _allowed_elsewhere()
    cores = set()
    for cpu in allowed:
        siblings = read_text(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        cores.add(tuple(c for c in parse_cpus(siblings) if c in allowed) or (cpu,))
    cpus_by_node = {}
    for folder in (root / "sys/devices/system/node").glob("node[0-9]*"):
        cpus = tuple(c for c in parse_cpus(read_text(folder / "cpulist")) if c in allowed)
        if cpus:
            cpus_by_node[int(folder.name.removeprefix("node"))] = cpus
    return Topology(
        cores=tuple(sorted(cores)),
        cpus_by_node=dict(sorted(cpus_by_node.items())) or {0: allowed},
        quota_cpus=container.quota_cpus(root),
    )


def _allowed_elsewhere() -> tuple[int, ...]:
    """The allowed CPUs where no file lists them: not every system that Python runs on is Linux."""
    ask = getattr(os, "sched_getaffinity", None)
    return tuple(sorted(ask(0))) if ask else tuple(range(os.cpu_count() or 1))


def decide(kernel: KernelConfig, topology: Topology, *, rank: int = 0, num_ranks: int = 1) -> Threads:
    """Choose the number of threads and their CPUs.

    The user's number is taken as it is. Else there are as many as the affinity mask has CPUs and the quota pays for.
    Threads are pinned where each can have a CPU of its own: when they fill the mask, or with `--numa-bind`. The thread
    that steps is one of them (worker.py pins it).

    Args:
        rank, num_ranks: processes on this machine that share the CPUs and the quota.

    Raises:
        ConfigError: `--numa-bind-nodes` or `--numa-bind-cpus` name what this process may not use or another rank has.
    """
    cpus: tuple[int, ...] = topology.cpus
    nodes: tuple[int, ...] = ()
    if kernel.numa_bind:
        cpus, nodes = _place(kernel, topology, rank, num_ranks)
    elif kernel.numa_bind_nodes or kernel.numa_bind_cpus:
        flag = "--numa-bind-nodes" if kernel.numa_bind_nodes else "--numa-bind-cpus"
        raise ConfigError(f"{flag} does nothing alone; add --numa-bind or leave it out")
    quota_cpus = topology.quota_cpus / num_ranks
    num_cpus = max(1, math.floor(min(quota_cpus, len(cpus))))
    source = "--numa-bind" if kernel.numa_bind else "the affinity mask"
    if quota_cpus < len(cpus):
        source = f"the container's CPU quota of {topology.quota_cpus:g}"
    count = kernel.num_threads or num_cpus
    is_pinned = count <= len(cpus) if kernel.numa_bind else count == len(cpus)
    return Threads(
        count=count,
        cpus=cpus[:count] if is_pinned else None,
        source="--num-threads" if kernel.num_threads else source,
        num_cpus=num_cpus,
        bound_cpus=cpus if kernel.numa_bind else (),
        nodes=nodes,
    )


def settle(kernel: KernelConfig, *, root: Path = container.ROOT, system: System | None = None) -> Threads:
    """Choose the threads, bind this thread and those it will start as `--numa-bind` asks, and say so in the log.

    Args:
        root: of the file system; tests make their own.
        system: the calls that bind; None takes the real ones.

    Raises:
        ConfigError: as `decide`.
    """
    log = Logger("engine")
    threads = decide(kernel, read(root))
    refused = placement.bind(threads.bound_cpus, threads.nodes, system or placement.linux())
    if refused:
        log.warning("not bound as --numa-bind asks", because="; ".join(refused))
    pairs = {"numa_nodes": ",".join(map(str, threads.nodes))} if threads.nodes else {}
    log.info("threads chosen", threads=threads.count, source=threads.source, pinned=threads.cpus is not None, **pairs)
    if threads.count > threads.num_cpus:
        log.warning("more threads than CPUs", threads=threads.count, cpus=threads.num_cpus, way_out="--num-threads 0")
    return threads


def _place(
    kernel: KernelConfig, topology: Topology, rank: int, num_ranks: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """CPUs and NUMA nodes of a rank; no two ranks have a CPU in common."""
    by_node = topology.cpus_by_node
    nodes_by_rank: list[tuple[int, ...]]
    if kernel.numa_bind_nodes:
        nodes_by_rank = [(node,) for node in _named_nodes(kernel.numa_bind_nodes, by_node, num_ranks)]
    else:
        known, many = tuple(by_node), len(by_node)
        # Fewer ranks than nodes: each has several. More: neighbours share one.
        nodes_by_rank = [
            known[r * many // num_ranks : max((r + 1) * many // num_ranks, r * many // num_ranks + 1)]
            for r in range(num_ranks)
        ]
    if kernel.numa_bind_cpus:
        cpus = _named_cpus(kernel.numa_bind_cpus, topology, num_ranks)[rank]
        on = tuple(node for node in by_node if set(by_node[node]) & set(cpus))
        return cpus, nodes_by_rank[rank] if kernel.numa_bind_nodes else on
    cores: list[tuple[int, ...]] = []
    for node in nodes_by_rank[rank]:
        sharers = [r for r in range(num_ranks) if node in nodes_by_rank[r]]
        own = [core for core in topology.cores if core[0] in by_node[node]]
        if len(own) < len(sharers):
            own = [(cpu,) for core in own for cpu in core]
        if len(own) < len(sharers):
            raise ConfigError(
                f"--numa-bind gives NUMA node {node} to {len(sharers)} ranks, but they may use {len(own)} of its CPUs; "
                f"start fewer ranks or name other nodes with --numa-bind-nodes"
            )
        place = sharers.index(rank)
        cores += own[place * len(own) // len(sharers) : (place + 1) * len(own) // len(sharers)]
    return spread(cores), nodes_by_rank[rank]


def _named_nodes(text: str, by_node: Mapping[int, tuple[int, ...]], num_ranks: int) -> list[int]:
    words = _entries("--numa-bind-nodes", text.strip("[]").replace(",", " "), num_ranks)
    for word in words:
        if not word.isdigit() or int(word) not in by_node:
            raise ConfigError(
                f"--numa-bind-nodes names NUMA node {word}, but the CPUs that this process may use are on "
                f"{', '.join(map(str, by_node))}"
            )
    return [int(word) for word in words[:num_ranks]]


def _named_cpus(text: str, topology: Topology, num_ranks: int) -> list[tuple[int, ...]]:
    lists = [parse_cpus(word) for word in _entries("--numa-bind-cpus", text, num_ranks)[:num_ranks]]
    named = [cpu for cpus in lists for cpu in cpus]
    foreign = sorted(set(named) - set(topology.cpus))
    if foreign:
        raise ConfigError(f"--numa-bind-cpus names CPU {foreign[0]}, which this process may not use (affinity mask)")
    twice = sorted(cpu for cpu in set(named) if named.count(cpu) > 1)
    if twice:
        raise ConfigError(f"--numa-bind-cpus gives CPU {twice[0]} to two ranks; name it once")
    return [spread(tuple(c for c in core if c in cpus) for core in topology.cores) for cpus in lists]


def _entries(flag: str, text: str, num_ranks: int) -> list[str]:
    """One word a rank, of "0 1" or of a JSON list."""
    try:
        words = [str(word) for word in json.loads(text)] if text.startswith("[") else text.split()
    except ValueError:
        words = []
    if len(words) < num_ranks:
        raise ConfigError(f"{flag} is {text!r}; it needs one entry a rank, {num_ranks} in all, with blanks between")
    return words
