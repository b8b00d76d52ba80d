"""a made-up machine: the files of /proc and /sys that say what a process may use"""

from pathlib import Path


def write(root: Path, text_by_path: dict[str, str]) -> Path:
    """Put files below a root."""
    for name, text in text_by_path.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def processors(root: Path, allowed: str, nodes: dict[int, str] | None = None, threads_a_core: int = 1) -> Path:
    """An affinity mask on a machine with NUMA nodes; hyperthreads of a core lie apart, as on real ones.

    Args:
        allowed: CPUs of the mask, such as "0-3,8".
        nodes: CPUs of each node.
        threads_a_core: with 2, CPU 0 of eight shares its core with CPU 4.
    """
    nodes = {0: allowed} if nodes is None else nodes
    write(root, {"proc/thread-self/status": f"Name:\tminnow\nCpus_allowed:\tff\nCpus_allowed_list:\t{allowed}"})
    num_cpus = 1 + max(int(cpus.replace(",", "-").split("-")[-1]) for cpus in nodes.values())
    num_cores = num_cpus // threads_a_core
    for cpu in range(num_cpus):
        siblings = ",".join(str(cpu % num_cores + k * num_cores) for k in range(threads_a_core))
        write(root, {f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list": siblings})
    return write(root, {f"sys/devices/system/node/node{node}/cpulist": cpus for node, cpus in nodes.items()})


def control_groups_2(root: Path, place: str, files: dict[str, str], mounted: str = "/") -> Path:
    """A process in a control group of version 2; the files are relative to the mount."""
    mount = "31 23 0:28 / / rw - overlay overlay rw\n" + (
        f"42 31 0:38 {mounted} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"
    )
    write(root, {"proc/self/cgroup": f"0::{place}", "proc/self/mountinfo": mount})
    return write(root, {f"sys/fs/cgroup/{name}": text for name, text in files.items()})


def control_groups_1(root: Path, place: str, files: dict[str, str], mounted: str = "/") -> Path:
    """The same in version 1, with the empty tree of version 2 that systemd mounts beside it."""
    mounts = (
        f"40 31 0:34 {mounted} /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct",
        f"41 31 0:35 {mounted} /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory",
        "42 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw",
    )
    lines = (f"4:memory:{place}", f"3:cpu,cpuacct:{place}", "1:name=systemd:/", "0::/")
    write(root, {"proc/self/cgroup": "\n".join(lines), "proc/self/mountinfo": "\n".join(mounts)})
    return write(root, {f"sys/fs/cgroup/{name}": text for name, text in files.items()})
