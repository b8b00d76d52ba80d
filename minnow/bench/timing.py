"""repeat what is measured, in turns where things are compared; medians with their spread"""

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """What repeated measurements gave, in their own unit.

    Attributes:
        low, high: the quartiles: half of the measurements lie between them.
        least: of all.
        num: how many there were.
    """

    median: float
    low: float
    high: float
    least: float
    num: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Interleaved:
    """What functions measured that ran in turns: one value a round each."""

    samples: Mapping[str, tuple[float, ...]]

    def of(self, name: str) -> Spread:
        """The values of one function."""
        return spread(self.samples[name])

    def ratio(self, name: str, other: str) -> Spread:
        """One function's value over another's, round by round, so that what slows a whole round cancels."""
        return spread([a / b for a, b in zip(self.samples[name], self.samples[other], strict=True)])


def spread(values: Sequence[float]) -> Spread:
    """Median and quartiles of at least one value."""
    low, median, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    return Spread(median=median, low=low, high=high, least=min(values), num=len(values))


def percentile(values: Sequence[float], percent: float) -> float:
    """A percentile of at least one value, between neighbours where it falls between them."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    below = ordered[int(place)]
    above = ordered[min(int(place) + 1, len(ordered) - 1)]
    return below + (above - below) * (place - int(place))


def seconds(function: Callable[[], object], clock: Clock = time.perf_counter) -> Callable[[], float]:
    """The function as one that gives the seconds it took, for `interleave`."""

    def call() -> float:
        started = clock()
        function()
        return clock() - started

    return call


def measure(
    function: Callable[[], object],
    *,
    num_warmups: int = 1,
    min_repeats: int = 5,
    min_s: float = 0.2,
    clock: Clock = time.perf_counter,
) -> Spread:
    """Seconds of a call: warmed up, then repeated at least so often and for at least so long."""
    for _ in range(num_warmups):
        function()
    timed, taken = seconds(function, clock), [0.0]
    while len(taken) <= min_repeats or sum(taken) < min_s:
        taken.append(timed())
    return spread(taken[1:])


def interleave(functions: Mapping[str, Callable[[], float]], repeats: int, *, num_warmups: int = 1) -> Interleaved:
    """Measure several things in turns, so that whatever changes the machine meanwhile meets them all.

    Args:
        functions: name -> measures once and gives the value (see `seconds` for times).
        repeats: rounds; each begins with the next function, so that none always runs first.
    """
    names = list(functions)
    for name in names * num_warmups:
        functions[name]()
    samples: dict[str, list[float]] = {name: [] for name in names}
    for round_number in range(repeats):
        first = round_number % len(names)
        for name in names[first:] + names[:first]:
            samples[name].append(functions[name]())
    return Interleaved(samples={name: tuple(values) for name, values in samples.items()})


def others_s() -> float:
    """Seconds of cores that this machine has ever spent on anything but this process and its descendants; Linux."""
    ticks = os.sysconf("SC_CLK_TCK")
    user, nice, system, _, _, *interrupts = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9])
    own = {os.getpid()}
    ours_s = sum(os.times()[:4])
    for pid in sorted(int(path.name) for path in Path("/proc").glob("[0-9]*")):
        try:
            words = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue  # it has ended
        if int(words[1]) in own and pid not in own:  # a parent's number is nearly always below its child's
            own.add(pid)
            ours_s += sum(map(int, words[11:15])) / ticks
    return (user + nice + system + sum(interrupts)) / ticks - ours_s
