"""the real calls that bind, in a process that ends with them"""

import os
import subprocess
import sys

import pytest

from minnow.engine import placement

CODE = """
import os
from pathlib import Path
from minnow.engine import placement
cpu = min(os.sched_getaffinity(0))
print(placement.bind((cpu,), (0,), placement.linux()))
print(os.sched_getaffinity(0) == {cpu})
print("prefer" in Path("/proc/self/numa_maps").read_text())
print(placement.bind((), (63, 64, 1000), placement.linux()))
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/numa_maps"), reason="this system has no NUMA policies")
def test_the_real_calls_bind_or_say_why() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    refused, has_affinity, has_policy, absent = done.stdout.splitlines()
    assert has_affinity == "True"
    assert has_policy == "True" or "memory policy cannot be set" in refused
    assert "memory policy cannot be set" in absent  # there are no such nodes


def test_nothing_to_bind_calls_nothing() -> None:
    def fail(*_: object) -> None:
        raise AssertionError

    assert placement.bind((), (), placement.System(set_affinity=fail, set_memory_policy=fail)) == []
