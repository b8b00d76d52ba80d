"""which of several simulated loads no other beats in both of what counts: the Pareto frontier"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from minnow.plan.simulation import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A load on a topology, and what it comes to.

    Attributes:
        topology: in words.
        load: concurrency or rate, in words.
        is_best: no other point has both more tokens a second for a user and more for a device.
    """

    topology: str
    load: str
    outcome: Outcome
    is_best: bool = True

    @property
    def place(self) -> tuple[float, float]:
        """Interactivity (1 / P90 of the time of an answer over its tokens) and all tokens a second on a device."""
        return self.outcome.e2e_interactivity, self.outcome.total_tokens_s_device


def best(places: Sequence[tuple[float, float]]) -> list[bool]:
    """Which places no other beats, with at least as much of both and more of one."""
    return [not any(other != place and other[0] >= place[0] and other[1] >= place[1] for other in places)
            for place in places]  # fmt: skip


def mark(points: Sequence[Point]) -> list[Point]:
    """The points, each with the word whether it is on the frontier."""
    flags = best([point.place for point in points])
    return [dataclasses.replace(point, is_best=flag) for point, flag in zip(points, flags, strict=True)]
