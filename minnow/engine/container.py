"""what the control groups of this process allow: CPUs and memory"""

import math
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path("/")


def read_text(path: Path) -> str:
    """A file of the system without blanks around it; empty where there is none or it may not be read."""
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape").strip()
    except OSError:
        return ""


def quota_cpus(root: Path = ROOT) -> float:
    """CPUs that the least quota of this process's control groups pays for; infinite where none is set.

    Args:
        root: of the file system; tests make their own.
    """
    least = math.inf
    for folder in _folders("cpu", root):
        words = read_text(folder / "cpu.max").split()  # version 2: "200000 100000" or "max 100000"
        if not words:
            words = [read_text(folder / "cpu.cfs_quota_us"), read_text(folder / "cpu.cfs_period_us")]
        if len(words) == 2 and all(word.isdigit() for word in words):  # version 1 says -1 for none
            least = min(least, int(words[0]) / max(int(words[1]), 1))
    return least


def left_bytes(root: Path = ROOT) -> int | None:
    """Memory that this process's control groups leave it; None where none sets a limit.

    What they hold of files is not counted as used: the kernel gives it up before it ends a process.

    Args:
        root: of the file system; tests make their own.
    """
    left = []
    for folder in _folders("memory", root):
        limit = read_text(folder / "memory.max") or read_text(folder / "memory.limit_in_bytes")
        used = read_text(folder / "memory.current") or read_text(folder / "memory.usage_in_bytes")
        if limit.isdigit() and used.isdigit():
            left.append(max(int(limit) - max(int(used) - _file_bytes(folder), 0), 0))
    return min(left, default=None)


def free_bytes(root: Path = ROOT) -> int:
    """Main memory that this process may still take: what the machine has free, or its control groups leave.

    Args:
        root: of the file system; tests make their own.
    """
    lines = (root / "proc/meminfo").read_text(encoding="ascii").splitlines()
    free = int(dict(line.split(":", 1) for line in lines)["MemAvailable"].split()[0]) * 1024
    left = left_bytes(root)
    return free if left is None else min(free, left)


def _file_bytes(folder: Path) -> int:
    pairs = [line.split() for line in read_text(folder / "memory.stat").splitlines()]
    by_name = {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
    # In version 1 the names without "total_" leave out the groups below.
    return sum(by_name.get(f"total_{name}", by_name.get(name, 0)) for name in ("inactive_file", "active_file"))


def _folders(controller: str, root: Path) -> Iterator[Path]:
    """Folders of the control groups that hold this process, its own first and then those above, in both versions."""
    place_by_controller: dict[str, str] = {}
    for line in read_text(root / "proc/self/cgroup").splitlines():
        _, controllers, place = line.split(":", 2)
        place_by_controller |= dict.fromkeys(controllers.split(","), place)  # version 2 names no controller
    for line in read_text(root / "proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = (*right.split(), "", "", "")[:3]
        name = {"cgroup2": "", "cgroup": controller}.get(kind)
        if name not in place_by_controller or (name and name not in options.split(",")):
            continue
        mounted, mount = left.split()[3:5]
        top = root / mount.lstrip("/")
        yield from _upwards(top, _inside(place_by_controller[name], mounted))


def _inside(place: str, mounted: str) -> PurePosixPath:
    """The way from a mounted group to the process's own; a place that is not below it can only be the mounted one."""
    path = PurePosixPath(place)
    if ".." in path.parts or not path.is_relative_to(mounted):
        return PurePosixPath()
    return path.relative_to(mounted)


def _upwards(top: Path, inside: PurePosixPath) -> Iterator[Path]:
    for path in (inside, *inside.parents):
        yield top / path
