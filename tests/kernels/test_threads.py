"""the team of threads as a process sees it: forks, address space, limits of memory, CPUs"""

import os
import signal
import subprocess
import sys

import pytest

from minnow.kernels import native

# A kernel without torch, which takes seconds to load and address space of its own: sample, of one row. It takes at
# least 16 bytes of scratch memory a token and thread.
PROGRAM = """
import array, ctypes, os, resource, sys, threading, time

library = ctypes.CDLL(sys.argv[1])
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def set_threads(count, cpus=None):
    places = None if cpus is None else (ctypes.c_int32 * count)(*cpus)
    library.minnow_set_threads(ctypes.c_int64(count), places)


def draw(num_tokens=200_000):
    ones, zeros, half = array.array("f", [1.0]), array.array("q", [0]), array.array("d", [0.5])
    logits, ids = array.array("f", [0.0]) * num_tokens, array.array("q", [-9])
    columns = (logits, ones, zeros, ones, zeros, half, ids)
    library.minnow_sample_portable(
        *(ctypes.c_void_p(column.buffer_info()[0]) for column in columns), ctypes.c_int64(1), ctypes.c_int64(num_tokens)
    )
    return ids[0]


def address_space_mib():
    lines = open("/proc/self/status").read().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmSize"))) / 1024


def child_draws():
    pid = os.fork()
    if pid == 0:
        os._exit(0 if draw() == 100_000 else 3)
    until = time.monotonic() + 20
    while time.monotonic() < until:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status == 0
        time.sleep(0.002)
    os.kill(pid, 9)
    return False
"""


def run(code: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", PROGRAM + code, str(native.library_path())], capture_output=True, text=True, check=False
    )


def check(code: str) -> None:
    done = run(code)
    assert done.returncode == 0, done.stderr


def test_the_child_of_a_fork_has_a_team_of_its_own() -> None:
    check("set_threads(2); assert draw() == 100_000; assert child_draws(); assert draw() == 100_000")


def test_a_fork_in_the_middle_of_another_thread_s_run_does_not_hang_the_child() -> None:
    check("""
set_threads(2)
is_over = False
def repeat():
    while not is_over: draw()
thread = threading.Thread(target=repeat)
thread.start()
drawn = [child_draws() for _ in range(5)]
is_over = True
thread.join()
assert drawn == [True] * 5
""")


def test_address_space_is_what_was_needed_and_goes_back_with_threads() -> None:
    check("""
start = address_space_mib()
draw()
assert address_space_mib() - start < 32, address_space_mib() - start
set_threads(4)
draw(2_000_000)
assert 128 < address_space_mib() - start < 400, address_space_mib() - start
set_threads(1)
assert address_space_mib() - start < 80, address_space_mib() - start  # stacks are kept for the next threads
""")


def test_a_thread_that_ends_gives_its_memory_back() -> None:
    check("""
def in_threads(count):
    for _ in range(count):
        thread = threading.Thread(target=draw, args=(2_000_000,))
        thread.start()
        thread.join()
in_threads(5)
start = address_space_mib()
in_threads(20)
assert address_space_mib() - start < 300, address_space_mib() - start
""")


LIMITED = """
limit = int(address_space_mib() + 100) << 20
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
set_threads(2)
assert draw() == 100_000
"""


def test_kernels_run_where_address_space_is_limited() -> None:
    check(LIMITED)


def test_too_little_memory_is_one_sentence() -> None:
    done = run(LIMITED + "draw(6_000_000)")
    assert done.returncode == -signal.SIGABRT
    assert done.stderr.count("\n") == 1
    assert "minnow: the system gives no 92 MiB for the scratch memory of a kernel; raise the limit" in done.stderr


def test_torch_s_threads_are_not_kept_to_the_caller_s_cpu() -> None:
    code = """
import os, torch
from minnow.kernels import native
torch.set_num_threads(3)
cpus = sorted(os.sched_getaffinity(0))
native.set_threads(2, (cpus[0], cpus[-1]))
native.pin_caller()
torch.ones(1 << 20).neg_()
lines = [line for task in os.listdir("/proc/self/task") for line in open(f"/proc/self/task/{task}/status")]
masks = [line.split()[1] for line in lines if line.startswith("Cpus_allowed_list")]
assert len(masks) >= 4
assert len(cpus) == 1 or masks.count(str(cpus[0])) == 1, masks
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("is_pinned", [True, False])
def test_the_caller_gets_the_cpu_beside_those_of_workers(is_pinned: bool) -> None:
    allowed = sorted(os.sched_getaffinity(0))
    check(f"""
cpus = {allowed[0]}, {allowed[-1]}
set_threads(2, cpus if {is_pinned} else None)
library.minnow_pin_caller()
assert os.sched_getaffinity(0) == ({{cpus[0]}} if {is_pinned} else set({allowed})), os.sched_getaffinity(0)
draw()
""")
