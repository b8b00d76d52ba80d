import os
import subprocess
import sys
from pathlib import Path

import pytest

from minnow.bench import timing
from tests.fakes import FakeClock


def test_a_spread_is_median_and_quartiles() -> None:
    seen = timing.spread([5.0, 1.0, 2.0, 4.0, 3.0])
    assert (seen.median, seen.low, seen.high, seen.least, seen.num) == (3.0, 2.0, 4.0, 1.0, 5)
    assert timing.spread([7.0]) == timing.Spread(median=7.0, low=7.0, high=7.0, least=7.0, num=1)


@pytest.mark.parametrize(
    ("percent", "value"), [(0, 10.0), (50, 25.0), (90, 37.0), (99, 39.7), (100, 40.0)]
)  # as numpy.percentile gives them
def test_percentiles_lie_between_neighbours(percent: float, value: float) -> None:
    assert timing.percentile([40.0, 10.0, 20.0, 30.0], percent) == pytest.approx(value)
    assert timing.percentile([3.0], percent) == 3.0


def test_measuring_warms_up_and_goes_on_until_there_is_enough() -> None:
    clock, calls = FakeClock(), []

    def call() -> None:
        calls.append(None)
        clock.advance(10.0 if len(calls) <= 2 else 0.05)

    seen = timing.measure(call, num_warmups=2, min_repeats=3, min_s=0.2, clock=clock)
    assert seen.num == len(calls) - 2 >= 4
    assert seen.median == seen.high == pytest.approx(0.05)  # the slow first calls are not in it

    clock, calls = FakeClock(), []
    assert timing.measure(lambda: clock.advance(1.0), min_repeats=5, min_s=0.2, clock=clock).num == 5


def test_things_compared_run_in_turns_and_none_is_always_first() -> None:
    order: list[str] = []
    values = {"a": iter([9.0, 2.0, 4.0, 6.0]), "b": iter([9.0, 1.0, 1.0, 2.0])}

    def one(name: str) -> float:
        order.append(name)
        return next(values[name])

    seen = timing.interleave({"a": lambda: one("a"), "b": lambda: one("b")}, 3)
    assert "".join(order) == "ab" + "ab" + "ba" + "ab"
    assert seen.samples == {"a": (2.0, 4.0, 6.0), "b": (1.0, 1.0, 2.0)}
    assert seen.of("a").median == 4.0
    assert seen.ratio("a", "b").median == 3.0  # of 2, 4 and 3


def test_seconds_of_a_call() -> None:
    clock = FakeClock()
    assert timing.seconds(lambda: clock.advance(1.5), clock)() == 1.5


def test_own_work_and_that_of_children_is_not_that_of_others() -> None:
    """Whatever else runs here meanwhile is seen, so all that is sure is what must not be in the difference."""
    before, machine_s = timing.others_s(), _busy_s()
    burn = "import time\nwhile time.process_time() < 0.4: pass\nprint(flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()  # it has worked and still lives
        others_s, all_s = timing.others_s() - before, _busy_s() - machine_s
        child.communicate(b"\n")
    assert others_s <= all_s - 0.3


def _busy_s() -> float:
    words = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    ticks = sum(int(word) for number, word in enumerate(words) if number not in (3, 4))
    return ticks / float(os.sysconf("SC_CLK_TCK"))
