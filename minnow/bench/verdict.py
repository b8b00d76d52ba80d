"""a row of a comparison: sides that took turns, the ratio to the best peer, the bar that it meets or misses"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from minnow.bench import sides, timing
from minnow.bench.sides import Settings, SideError


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of a table.

    Attributes:
        value: median, in `unit`; None where it could not be measured, which misses the bar.
        low, high: quartiles, where there are several repetitions.
        is_least: the bar is the least value that is good, else the most.
        details: what else there is to say.
        numbers: what was measured, by name with its unit.
    """

    work: str
    unit: str
    bar: float
    value: float | None = None
    low: float | None = None
    high: float | None = None
    is_least: bool = True
    details: tuple[str, ...] = ()
    numbers: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_met(self) -> bool:
        """Whether the bar is reached."""
        return self.value is not None and (self.value >= self.bar if self.is_least else self.value <= self.bar)

    def lines(self) -> list[str]:
        """For people: the row, then its details."""
        spread = f" ({self.low:.3g} - {self.high:.3g})" if self.low is not None and self.low != self.high else ""
        seen = "not measured" if self.value is None else f"{self.value:.3g} {self.unit}{spread}"
        bar = f"bar {'>=' if self.is_least else '<='} {self.bar:g} {self.unit}"
        head = f"{self.work:52} {seen:26} {bar:14} {'met' if self.is_met else 'MISSED'}"
        return [head, *(f"    {detail}" for detail in self.details)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How often sides take turns.

    Attributes:
        least, most: rounds; after the least of them none begins that is later than `budget_s`.
        within: a peer that is slower than the best one by more in the first round is not asked again.
    """

    least: int = 3
    most: int = 9
    num_warmups: int = 1
    budget_s: float = 120.0
    within: float = math.inf


def take_turns(
    functions: Mapping[str, Callable[[int], float]],
    effort: Effort,
    errors: dict[str, str],
    clock: timing.Clock = time.perf_counter,
) -> dict[str, list[float]]:
    """Warm each side up, then let all measure in turns; one that fails drops out, and `errors` gets its words.

    Args:
        functions: side -> measures once (a rate), and is told which repetition it is.
    """
    samples: dict[str, list[float]] = {side: [] for side in functions}
    names, slow, started = list(functions), set[str](), clock()
    for number in range(effort.num_warmups + effort.most):
        if number == effort.num_warmups:
            started = clock()
        elif number >= effort.num_warmups + effort.least and clock() > started + effort.budget_s:
            break
        first = number % len(names)
        for side in names[first:] + names[:first]:
            if side in errors or side in slow:
                continue
            try:
                samples[side].append(functions[side](number))
            except SideError as error:
                errors[side] = str(error)
        if number == effort.num_warmups:
            peers = {side: rates[-1] for side, rates in samples.items() if side != "minnow" and side not in errors}
            slow = {side for side, rate in peers.items() if rate * effort.within < max(peers.values())}
    return {side: rates[effort.num_warmups :] for side, rates in samples.items() if side not in errors}


def judge(
    work: str,
    bar: float,
    samples: Mapping[str, Sequence[float]],
    errors: Mapping[str, str],
    used: Mapping[str, Settings],
    read_bytes: int = 0,
    limit_bytes_s: float = 0.0,
) -> Row:
    """A row from the rates of Minnow and its peers, in tokens a second.

    Args:
        samples: side -> a rate a round; the best peer is the one with the highest median, of those asked most often.
        errors: side -> why it has none.
        used: peer -> its settings.
        read_bytes: that one of our tokens reads, to say which share of the bandwidth that is.
        limit_bytes_s: at which this machine reads so large a working set over and over.
    """
    seen = timing.Interleaved(samples={side: tuple(rates) for side, rates in samples.items()})
    numbers = {f"{side}_tokens_s": seen.of(side).median for side in samples}
    details = [_line(side, seen.of(side), used.get(side, {})) for side in samples]
    details += [f"{sides.TITLE_BY_PEER.get(side, side)}: {words}" for side, words in errors.items()]
    most = max(map(len, samples.values()), default=0)
    peers = [side for side, rates in samples.items() if side != "minnow" and len(rates) == most]
    if "minnow" not in samples or not peers:
        return Row(work=work, unit="x", bar=bar, details=tuple(details), numbers=numbers)
    best = max(peers, key=lambda side: seen.of(side).median)
    ratio = seen.ratio("minnow", best)
    details.insert(0, f"best peer: {sides.TITLE_BY_PEER[best]}")
    if read_bytes:
        rate = read_bytes * numbers["minnow_tokens_s"]
        numbers |= {"read_bytes_s": rate, "limit_bytes_s": limit_bytes_s}
        share = f"{100 * rate / limit_bytes_s:.0f} % of {limit_bytes_s / 1e9:.1f}"
        details.append(f"minnow reads {read_bytes / 1e6:.1f} MB a token: {rate / 1e9:.1f} GB/s, {share}")
    return Row(work=work, unit="x", bar=bar, value=ratio.median, low=ratio.low, high=ratio.high,
               details=tuple(details), numbers=numbers)  # fmt: skip


def _line(side: str, seen: timing.Spread, settings: Settings) -> str:
    words = " ".join(f"{name}={value}" for name, value in settings.items())
    title = f"{sides.TITLE_BY_PEER.get(side, side)}{f' ({words})' if words else ''}"
    spread = f"{seen.low:,.4g} - {seen.high:,.4g}; {seen.num} times" if seen.num > 1 else "once"
    return f"{title}: {seen.median:,.4g} tokens/s ({spread})"
