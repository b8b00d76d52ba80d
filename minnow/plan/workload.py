"""arrivals and lengths: sessions of turns, as distributions say or as a trace had them"""

import itertools
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple, overload

from minnow.core.errors import ConfigError

Lengths = Callable[[Random], int]  # draws a number of tokens


class Piece(NamedTuple):
    """A run of text that prompts may share; two are equal where their numbers are.

    Attributes:
        number: names the text, from 1 below 2^31 (a trace's own: below 2^30).
        num_tokens: of it, from its start.
    """

    number: int
    num_tokens: int


class Text(Sequence[int]):
    """Token ids of pieces one after the other: each token of a piece has the piece's number as its id.

    So prompts begin alike exactly where their pieces do, and ids are made when they are looked at.
    """

    __slots__ = ("_ends", "pieces")

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self.pieces = pieces
        self._ends = list(itertools.accumulate(piece.num_tokens for piece in pieces))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> list[int]: ...
    def __getitem__(self, place: int | slice) -> int | list[int]:
        """One id, or those of a run without steps."""
        if isinstance(place, int):
            return self[place : place + 1][0]
        start, stop, _ = place.indices(len(self))
        found: list[int] = []
        index = bisect_right(self._ends, start)
        while start < stop:
            end = min(self._ends[index], stop)
            found += [self.pieces[index].number] * (end - start)
            start, index = end, index + 1
        return found

    def num_shared_tokens(self, other: "Text") -> int:
        """Tokens at the start that two texts have in common."""
        shared = 0
        for mine, others in zip(self.pieces, other.pieces, strict=False):
            if mine.number != others.number:
                break
            shared += min(mine.num_tokens, others.num_tokens)
            if mine.num_tokens != others.num_tokens:
                break
        return shared


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One request of a session.

    Attributes:
        pieces: of its prompt.
        num_output_tokens: of its answer, one at least.
        after: turns of the session, by their place, that must have ended; none of them: it comes with the session.
        gap_s: from the last of these ends, or from the session's start, to this turn.
        extends: an earlier turn whose prompt begins as this one does, as far as they are alike; -1 is none.
        answer: number of the piece that the answer is in later prompts; 0: no prompt holds what it yields, as where a
            recorded answer stands in its place.
        agent: who asks: 0 is the session's own, others are called by it.
        is_warmup: it is not counted.
    """

    pieces: tuple[Piece, ...]
    num_output_tokens: int
    after: tuple[int, ...] = ()
    gap_s: float = 0.0
    extends: int = -1
    answer: int = 0
    agent: int = 0
    is_warmup: bool = False

    @property
    def num_input_tokens(self) -> int:
        """Tokens of the prompt."""
        return sum(piece.num_tokens for piece in self.pieces)


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A tree of turns: an agent's, with those of the agents that it calls.

    Attributes:
        turns: each after those that it waits for.
        start_s: when it comes at the earliest.
    """

    turns: tuple[Turn, ...]
    start_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is asked for, and when.

    Attributes:
        sessions: in the order of their starts; read once, as they are needed.
        max_concurrency: sessions alive at once; others wait for one to end. 0 is no limit.
        max_idle_s: where nothing at all is running for longer, what comes next comes after so long.
        max_turns: counted turns after which no more begin; 0 is no limit.
        words: what it is.
    """

    sessions: Iterable[Session]
    max_concurrency: int = 0
    max_idle_s: float = math.inf
    max_turns: int = 0
    words: str = ""


def fixed(num_tokens: int) -> Lengths:
    """Always as many."""
    return lambda rng: num_tokens


def uniform(num_tokens: int, ratio: float) -> Lengths:
    """Evenly within 1 - ratio and 1 + ratio of a number, one at least.

    Raises:
        ConfigError: the ratio is below 0, or 1 and more.
    """
    if not 0 <= ratio < 1:
        raise ConfigError(f"--random-range-ratio is {ratio:g}; it must be at least 0 and below 1")
    low, high = max(1, math.floor(num_tokens * (1 - ratio))), max(1, math.ceil(num_tokens * (1 + ratio)))
    return fixed(num_tokens) if low == high else lambda rng: rng.randint(low, high)


def log_normal(median: float, mean: float, most: int) -> Lengths:
    """Of a log-normal law, one at least and at most so many; the mean is that before the limit."""
    mu, sigma = math.log(median), math.sqrt(2 * math.log(mean / median))
    return lambda rng: max(1, min(round(rng.lognormvariate(mu, sigma)), most))


def arrivals(rate: float, burstiness: float, rng: Random) -> Iterator[float]:
    """Seconds after the start at which requests come, without end.

    Args:
        rate: requests a second; infinite lets all come at once.
        burstiness: shape of the gamma law of the gaps: 1 is a Poisson process, less comes in bursts.

    Raises:
        ConfigError: one of them is not above 0.
    """
    for name, value in (("--request-rate", rate), ("--burstiness", burstiness)):
        if not value > 0:
            raise ConfigError(f"{name} is {value:g}; it must be above 0")
    if math.isinf(burstiness):
        raise ConfigError("--burstiness is inf; it must be a number")
    return _arrivals(rate, burstiness, rng)


def _arrivals(rate: float, burstiness: float, rng: Random) -> Iterator[float]:
    if math.isinf(rate):
        yield from itertools.repeat(0.0)
    now_s = 0.0
    while True:
        now_s += rng.gammavariate(burstiness, 1 / (rate * burstiness))
        yield now_s


def independent(
    starts: Iterator[float],
    num_input_tokens: Lengths,
    num_output_tokens: Lengths,
    *,
    count: int,
    num_prefix_tokens: int = 0,
    rng: Random,
) -> Iterator[Session]:
    """Requests that know nothing of each other, each a session of one turn.

    Args:
        starts: when each comes.
        num_prefix_tokens: the same before all prompts.
    """
    prefix = (Piece(1, num_prefix_tokens),) if num_prefix_tokens else ()
    for number, start_s in zip(range(2, count + 2), starts, strict=False):
        pieces = (*prefix, Piece(number, num_input_tokens(rng)))
        yield Session(turns=(Turn(pieces=pieces, num_output_tokens=num_output_tokens(rng)),), start_s=start_s)
