"""a million requests take no more memory than their few numbers, and long loads little time"""

import json
import subprocess
import sys
import time
from random import Random

import pytest

from minnow.config.scheduler import SchedulerConfig
from minnow.plan import agentx, workload
from minnow.plan.simulation import simulate
from minnow.plan.work import Limits
from minnow.plan.workload import Workload
from tests.plan.simulated import B300, cluster

_SCRIPT = """
import json, resource, sys
from random import Random
from minnow.plan import workload
from tests.plan.simulated import cluster, play
count = int(sys.argv[1])
starts = workload.arrivals(float(sys.argv[2]), 1.0, Random(0))
load = workload.independent(starts, workload.fixed(40), workload.fixed(3), count=count, rng=Random(1))
outcome = play(cluster(), load, max_concurrency=int(sys.argv[3]))
print(json.dumps([outcome.num_requests, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))
"""


def peak_mib(count: int, rate: str, most: int) -> float:
    """Memory of a process that simulates so many requests."""
    words = [sys.executable, "-c", _SCRIPT, str(count), rate, str(most)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    num_requests, found = json.loads(done.stdout)
    assert num_requests == count
    return float(found)


def test_requests_that_all_come_at_once_wait_without_taking_memory() -> None:
    few, many = (peak_mib(count, "inf", 0) for count in (100, 4000))
    assert many - few < 4000 * 2048 / 2**20 + 2  # a prompt's ids alone would take 40 numbers of 8 bytes, twice


@pytest.mark.slow
def test_memory_is_flat_at_a_million_requests() -> None:
    few, many = peak_mib(100_000, "100", 0), peak_mib(1_000_000, "100", 0)
    assert many - few < 40  # four numbers of 8 bytes a request: 29 MiB


@pytest.mark.slow
def test_a_hundred_thousand_requests_take_less_than_two_minutes() -> None:
    scheduler = SchedulerConfig(max_num_batched_tokens=8192, max_num_seqs=256)
    shape = {"scheduler": scheduler, "num_blocks": 30_000, "block_size": 128, "max_model_len": 1 << 20}
    rng = Random(0)
    load = workload.independent(
        workload.arrivals(40.0, 1.0, rng), workload.fixed(512), workload.fixed(64), count=100_000, rng=rng
    )
    started = time.process_time()
    outcome = simulate(cluster(**shape), Workload(sessions=load), B300)
    assert outcome.num_requests == 100_000 and time.process_time() - started < 120


@pytest.mark.slow
def test_a_replay_of_two_thousand_turns_takes_less_than_two_minutes() -> None:
    scheduler = SchedulerConfig(max_num_batched_tokens=8192, max_num_seqs=28)
    shape = {"scheduler": scheduler, "num_blocks": 31_000, "block_size": 128, "max_model_len": 1 << 20}
    limits = Limits(chosen_tokens=2048)
    sessions = agentx.Generator(Random(0)).replay(16)
    load = Workload(sessions=sessions, max_concurrency=16, max_idle_s=agentx.MAX_IDLE_S, max_turns=2000)
    started = time.process_time()
    outcome = simulate(cluster(ranks=4, limits=limits, **shape), load, B300)
    assert outcome.num_requests == 2000 and time.process_time() - started < 120
    assert outcome.input_tokens / outcome.num_requests == pytest.approx(218_900, rel=0.25)  # few sessions
    assert outcome.cached_tokens / outcome.input_tokens > 0.8
