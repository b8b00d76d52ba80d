"""limits of control groups, in both versions and wherever the process stands in the tree"""

import math
from pathlib import Path

import pytest

from minnow.engine import container
from tests.engine import machine

GIB = 2**30


@pytest.mark.parametrize(
    ("place", "mounted", "folder"),
    [
        ("/", "/", ""),  # a namespace of its own
        ("/docker/ab12", "/", "docker/ab12/"),  # on the host
        ("/docker/ab12", "/docker/ab12", ""),  # the host's name, of which only the own part is mounted
        ("/docker/ab12/inner", "/docker/ab12", "inner/"),
        ("/../other", "/", ""),  # a place outside of the namespace
        ("/elsewhere", "/docker/ab12", ""),
    ],
)
def test_a_quota_is_found_wherever_the_process_stands(tmp_path: Path, place: str, mounted: str, folder: str) -> None:
    root = machine.control_groups_2(tmp_path / "2", place, {f"{folder}cpu.max": "200000 100000"}, mounted)
    assert container.quota_cpus(root) == 2.0
    files = {"cpu.cfs_quota_us": "150000", "cpu.cfs_period_us": "100000"}
    files = {f"cpu,cpuacct/{folder}{name}": text for name, text in files.items()}
    assert container.quota_cpus(machine.control_groups_1(tmp_path / "1", place, files, mounted)) == 1.5


def test_the_least_quota_of_all_groups_above_counts(tmp_path: Path) -> None:
    files = {"a/b/c/cpu.max": "max 100000", "a/b/cpu.max": "400000 100000", "a/cpu.max": "150000 50000"}
    assert container.quota_cpus(machine.control_groups_2(tmp_path, "/a/b/c", files | {"x/cpu.max": "1 100000"})) == 3.0


@pytest.mark.parametrize("text", ["max 100000", "", "what"])
def test_no_quota_is_infinite(tmp_path: Path, text: str) -> None:
    assert container.quota_cpus(machine.control_groups_2(tmp_path / "2", "/a", {"a/cpu.max": text})) == math.inf
    files = {"cpu,cpuacct/a/cpu.cfs_quota_us": "-1", "cpu,cpuacct/a/cpu.cfs_period_us": "100000"}
    assert container.quota_cpus(machine.control_groups_1(tmp_path / "1", "/a", files)) == math.inf
    assert container.quota_cpus(tmp_path / "no such system") == math.inf


def test_memory_of_files_is_not_counted_as_used(tmp_path: Path) -> None:
    stat = f"anon 7\nactive_file {GIB}\ninactive_file {2 * GIB}\nfile_mapped 5\n"
    files = {"memory.max": str(8 * GIB), "memory.current": str(5 * GIB), "memory.stat": stat}
    root = machine.control_groups_2(tmp_path / "2", "/", files)
    assert container.left_bytes(root) == 6 * GIB
    stat = f"active_file 1\ninactive_file 1\ntotal_active_file {GIB}\ntotal_inactive_file {2 * GIB}"
    files = {"memory.limit_in_bytes": str(8 * GIB), "memory.usage_in_bytes": str(5 * GIB), "memory.stat": stat}
    root = machine.control_groups_1(tmp_path / "1", "/", {f"memory/{name}": text for name, text in files.items()})
    assert container.left_bytes(root) == 6 * GIB


def test_the_tightest_group_above_decides_what_is_left(tmp_path: Path) -> None:
    files = {
        "a/b/memory.max": str(8 * GIB), "a/b/memory.current": str(GIB),
        "a/memory.max": str(10 * GIB), "a/memory.current": str(9 * GIB),
        "memory.max": "max", "memory.current": str(90 * GIB),
    }  # fmt: skip
    assert container.left_bytes(machine.control_groups_2(tmp_path, "/a/b", files)) == GIB


def test_a_full_group_leaves_nothing_and_none_leaves_all(tmp_path: Path) -> None:
    full = {"memory.max": "1000", "memory.current": "1001"}
    assert container.left_bytes(machine.control_groups_2(tmp_path / "2", "/", full)) == 0
    assert container.left_bytes(machine.control_groups_2(tmp_path / "3", "/", {"memory.max": "max"})) is None
    assert container.left_bytes(tmp_path / "no such system") is None
