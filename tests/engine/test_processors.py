"""cases F01 and F02: how many threads, on which CPUs, with which memory"""

import errno
import itertools
import os
from collections.abc import Collection
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minnow.config.kernel import KernelConfig
from minnow.core.errors import ConfigError
from minnow.engine import processors
from minnow.engine.placement import System
from minnow.engine.processors import Threads, Topology, decide, parse_cpus
from tests.engine import machine

BIND = KernelConfig(numa_bind=True)


class FakeSystem:
    """Records what is bound; refuses what it is told to."""

    def __init__(self, *refused: str) -> None:
        self.bound: dict[str, object] = {}
        self._refused = refused

    def _call(self, name: str, *values: object) -> None:
        if name in self._refused:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        self.bound[name] = values

    def calls(self) -> System:
        def affinity(cpus: Collection[int]) -> None:
            self._call("cpus", *cpus)

        def policy(mode: int, nodes: Collection[int]) -> None:
            self._call("memory", mode, *nodes)

        return System(set_affinity=affinity, set_memory_policy=policy)


def _topology(allowed: str, nodes: dict[int, str] | None = None) -> Topology:
    cpus_by_node = {node: parse_cpus(cpus) for node, cpus in (nodes or {0: allowed}).items()}
    mask = parse_cpus(allowed)
    kept = {node: tuple(c for c in cpus if c in mask) for node, cpus in cpus_by_node.items()}
    return Topology(cores=tuple((c,) for c in mask), cpus_by_node={n: c for n, c in kept.items() if c})


# -- F01: the number of threads ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mask", "quota", "count", "source"),
    [
        ("0-15", "200000 100000", 2, "the container's CPU quota of 2"),
        ("0-3", "max 100000", 4, "the affinity mask"),
        ("0-3", "200000 100000", 2, "the container's CPU quota of 2"),
        ("5,9", "350000 100000", 2, "the affinity mask"),
        ("0-15", "250000 100000", 2, "the container's CPU quota of 2.5"),
        ("0-15", "50000 100000", 1, "the container's CPU quota of 0.5"),
    ],
)
def test_f01_as_many_threads_as_the_mask_has_and_the_quota_pays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], mask: str, quota: str, count: int, source: str
) -> None:
    root = machine.processors(tmp_path, mask, {0: "0-15"})
    machine.control_groups_2(root, "/", {"cpu.max": quota})
    threads = processors.settle(KernelConfig(), root=root, system=FakeSystem().calls())
    assert (threads.count, threads.source) == (count, source)
    said = capsys.readouterr().err
    assert f"threads chosen threads={count} source={source!r}" in said
    assert "warning" not in said


def test_f01_the_users_number_wins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = machine.processors(tmp_path, "0-1")
    for count, is_pinned in ((1, False), (2, True), (3, False)):
        threads = processors.settle(KernelConfig(num_threads=count), root=root, system=FakeSystem().calls())
        assert (threads.count, threads.source) == (count, "--num-threads")
        assert threads.cpus == ((0, 1) if is_pinned else None)
        said = capsys.readouterr().err
        assert f"threads={count} source=--num-threads" in said
        assert ("more threads than CPUs" in said) == (count == 3)


def test_f01_more_threads_than_the_quota_pays_for_are_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = machine.processors(tmp_path, "0-7")
    machine.control_groups_2(root, "/", {"cpu.max": "200000 100000"})
    processors.settle(KernelConfig(num_threads=8), root=root, system=FakeSystem().calls())
    assert "warning engine: more threads than CPUs threads=8 cpus=2" in capsys.readouterr().err


def test_threads_are_pinned_only_where_they_fill_the_mask() -> None:
    assert decide(KernelConfig(), _topology("2-4")).cpus == (2, 3, 4)
    assert decide(KernelConfig(num_threads=2), _topology("2-4")).cpus is None
    assert decide(KernelConfig(num_threads=4), _topology("2-4")).cpus is None


def test_this_machine_can_be_read() -> None:
    topology = processors.read()
    assert set(topology.cpus) == os.sched_getaffinity(0)
    assert set(itertools.chain(*topology.cpus_by_node.values())) == set(topology.cpus)
    assert topology.quota_cpus > 0


def test_cpu_lists() -> None:
    assert parse_cpus("0-3,8,10-11") == (0, 1, 2, 3, 8, 10, 11)
    assert parse_cpus("") == ()
    for text in ("a", "3-1", "1,,2", "-1"):
        with pytest.raises(ConfigError, match=r"is no list of CPUs; write for example 0-3,8"):
            parse_cpus(text)


# -- F02: NUMA nodes --------------------------------------------------------------------------------------------------


def _ranks(kernel: KernelConfig, topology: Topology, num_ranks: int) -> list[Threads]:
    return [decide(kernel, topology, rank=rank, num_ranks=num_ranks) for rank in range(num_ranks)]


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_f02_only_allowed_cpus_and_no_overlap(num_ranks: int) -> None:
    topology = _topology("4-7", {0: "0-3", 1: "4-7"})
    found = _ranks(BIND, topology, num_ranks)
    used = [cpu for threads in found for cpu in threads.bound_cpus]
    assert sorted(used) == [4, 5, 6, 7]
    assert [threads.nodes for threads in found] == [(1,)] * num_ranks
    assert all(threads.cpus == threads.bound_cpus and threads.count == len(threads.cpus) for threads in found)


def test_fewer_ranks_than_nodes_have_several_each() -> None:
    topology = _topology("0-7", {0: "0-1", 1: "2-3", 2: "4-5", 3: "6-7"})
    (only,) = _ranks(BIND, topology, 1)
    assert (only.bound_cpus, only.nodes) == (tuple(range(8)), (0, 1, 2, 3))
    assert [t.nodes for t in _ranks(BIND, topology, 2)] == [(0, 1), (2, 3)]
    assert [t.bound_cpus for t in _ranks(BIND, topology, 3)] == [(0, 1), (2, 3), (4, 5, 6, 7)]


@given(
    node_by_cpu=st.lists(st.integers(0, 3), min_size=1, max_size=12),
    allowed=st.sets(st.integers(0, 11), min_size=1),
    num_ranks=st.integers(1, 6),
)
def test_ranks_share_out_the_allowed_cpus_or_are_refused(
    node_by_cpu: list[int], allowed: set[int], num_ranks: int
) -> None:
    mask = tuple(sorted(c for c in allowed if c < len(node_by_cpu))) or (0,)
    nodes = sorted({node_by_cpu[c] for c in mask})
    cpus_by_node = {node: tuple(c for c in mask if node_by_cpu[c] == node) for node in nodes}
    topology = Topology(cores=tuple((c,) for c in mask), cpus_by_node=cpus_by_node)
    try:
        found = _ranks(BIND, topology, num_ranks)
    except ConfigError as error:
        assert "start fewer ranks" in str(error)
        assert num_ranks > min(len(cpus) for cpus in cpus_by_node.values())
        return
    used = [cpu for threads in found for cpu in threads.bound_cpus]
    assert sorted(used) == sorted(mask)  # none twice, none left over
    assert all(threads.count >= 1 for threads in found)


def test_hyperthreads_of_a_core_stay_with_one_rank(tmp_path: Path) -> None:
    topology = processors.read(machine.processors(tmp_path, "0-7", threads_a_core=2))
    assert topology.cores == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert [t.bound_cpus for t in _ranks(BIND, topology, 2)] == [(0, 1, 4, 5), (2, 3, 6, 7)]
    half = decide(KernelConfig(numa_bind=True, num_threads=4), topology)
    assert half.cpus == (0, 1, 2, 3)  # a core each
    assert [t.bound_cpus for t in _ranks(BIND, topology, 8)] == [(0,), (4,), (1,), (5,), (2,), (6,), (3,), (7,)]


def test_named_nodes_and_cpus() -> None:
    topology = _topology("0-7", {0: "0-3", 1: "4-7"})
    for text in ("1 1", "1,1", "[1, 1]", "1 1 0"):
        found = _ranks(KernelConfig(numa_bind=True, numa_bind_nodes=text), topology, 2)
        assert [(t.bound_cpus, t.nodes) for t in found] == [((4, 5), (1,)), ((6, 7), (1,))]
    for text in ("0-1,4 2,5", '["0-1,4", "2,5"]'):
        found = _ranks(KernelConfig(numa_bind=True, numa_bind_cpus=text), topology, 2)
        assert [(t.bound_cpus, t.nodes) for t in found] == [((0, 1, 4), (0, 1)), ((2, 5), (0, 1))]
    both = KernelConfig(numa_bind=True, numa_bind_cpus="0-3", numa_bind_nodes="0")
    assert decide(both, topology).nodes == (0,)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"numa_bind_nodes": "0"}, "names NUMA node 0, but the CPUs that this process may use are on 1"),
        ({"numa_bind_nodes": "one"}, "names NUMA node one, but"),
        ({"numa_bind_cpus": "4-8 5"}, "names CPU 8, which this process may not use"),
        ({"numa_bind_cpus": "4 4-5"}, "gives CPU 4 to two ranks; name it once"),
        ({"numa_bind_cpus": "4"}, "is '4'; it needs one entry a rank, 2 in all"),
        ({"numa_bind_cpus": "[4"}, r"is '\[4'; it needs one entry a rank"),
        ({"numa_bind_cpus": "four 5"}, "'four' is no list of CPUs"),
        ({"numa_bind_nodes": "1", "numa_bind": False}, "--numa-bind-nodes does nothing alone; add --numa-bind"),
        ({"numa_bind_cpus": "4", "numa_bind": False}, "--numa-bind-cpus does nothing alone; add --numa-bind"),
    ],
)
def test_what_cannot_be_bound_is_refused(settings: dict[str, str], sentence: str) -> None:
    kernel = KernelConfig(**{"numa_bind": True} | settings)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=sentence):
        _ranks(kernel, _topology("4-7", {0: "0-3", 1: "4-7"}), 2 if "nodes" not in str(settings) else 1)


def test_more_ranks_than_cpus_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"node 0 to 3 ranks, but they may use 2 of its CPUs; start fewer ranks"):
        decide(BIND, _topology("0-1"), num_ranks=3)


def test_f02_one_node_is_preferred_and_several_take_turns(tmp_path: Path) -> None:
    for allowed, bound in (
        ("4-7", {"cpus": (4, 5, 6, 7), "memory": (1, 1)}),
        ("2-5", {"cpus": (2, 3, 4, 5), "memory": (3, 0, 1)}),
    ):
        system = FakeSystem()
        root = machine.processors(tmp_path / allowed, allowed, {0: "0-3", 1: "4-7"})
        processors.settle(BIND, root=root, system=system.calls())
        assert system.bound == bound
    system = FakeSystem()
    processors.settle(KernelConfig(), root=root, system=system.calls())
    assert system.bound == {}  # nothing is bound unless it is asked for


@pytest.mark.parametrize("refused", [("memory",), ("cpus",), ("cpus", "memory")])
def test_f02_a_refusal_is_one_warning_and_the_start_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], refused: tuple[str, ...]
) -> None:
    root = machine.processors(tmp_path, "4-7", {0: "0-3", 1: "4-7"})
    threads = processors.settle(BIND, root=root, system=FakeSystem(*refused).calls())
    assert threads.count == 4
    said = [line for line in capsys.readouterr().err.splitlines() if " warning " in line]
    assert len(said) == 1
    assert "not bound as --numa-bind asks" in said[0]
    assert "Operation not permitted" in said[0]
