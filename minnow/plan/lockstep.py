"""ranks that step together on a clock: a step takes as long as the slowest of them"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace

from minnow.plan.rank import Job, Rank
from minnow.plan.work import Work

_MOST_STEPS = 256  # looked ahead at once


class Lockstep:
    """An engine of one rank, or of several whose experts need each other's tokens in every step.

    Steps in which every sequence only gains a token are timed one by one, but settled together; `interrupt` says that
    something comes meanwhile.

    Attributes:
        version: counts the ends that were announced; of those announced before it, none is true any more.
        busy_s: that steps have taken so far.
        used_s: the same times the share of the fullest rank's blocks that were in use.
    """

    def __init__(self, ranks: Sequence[Rank], seconds: Callable[[Work], float], *, is_repeating: bool = True) -> None:
        """Make an engine that stands still.

        Args:
            seconds: of a step of a rank.
            is_repeating: whether steps that are alike may be settled together.
        """
        self.ranks = ranks
        self.version = 0
        self.busy_s = self.used_s = self.peak_used = 0.0
        self.num_steps = 0
        self._seconds = seconds
        self._is_repeating = is_repeating
        self._is_stretch = False
        self._moving: list[Rank] = []  # those with work of their own when the steps began
        self._ends: list[float] = []  # of the steps that have begun or surely will, and are not settled
        self._since_s = 0.0  # when the first of them began

    @property
    def is_busy(self) -> bool:
        """Whether a step runs."""
        return bool(self._ends)

    @property
    def has_work(self) -> bool:
        """Whether some request has not ended."""
        return any(rank.num_requests for rank in self.ranks)

    def start(self, now_s: float, until_s: float) -> float | None:
        """Begin a step, or several that are alike.

        Args:
            now_s: when.
            until_s: something may come then, so nothing is looked at that begins later.

        Returns:
            When the last of them ends; None where there is nothing to do.
        """
        self._since_s = now_s
        self._is_stretch = False
        # A rank without work of its own runs along: it has others' tokens for its experts, and is not the slowest.
        self._moving = [rank for rank in self.ranks if rank.num_requests]
        count = self._num_repeatable_steps() if self._is_repeating else 0
        if count > 1:
            self._is_stretch = True
            self._look_ahead(now_s, until_s, min(count, _MOST_STEPS))
        else:
            planned = [(rank, rank.plan()) for rank in self._moving]
            working = [(rank, work) for rank, work in planned if work is not None]
            if not working:
                return None
            times = self._times([work for _, work in working])
            self._ends = [now_s + max(s + rank.load_s() for s, (rank, _) in zip(times, working, strict=True))]
        self.version += 1
        return self._ends[-1]

    def finish(self) -> list[Job]:
        """Settle what is left; gives the requests that have ended."""
        end_s = self._ends[-1]
        if self._is_stretch:
            self._settle(len(self._ends))
            return []
        self._spend(end_s, 1)
        self._ends.clear()
        return [job for rank in self._moving for job in rank.commit(end_s)]

    def interrupt(self, now_s: float) -> float | None:
        """Settle what has ended before now, and have the running step be the last before others may begin.

        After that the ranks say what is true now: the running step is planned and not settled, as any other would be.

        Returns:
            When it ends, where that is news.
        """
        if not self._is_stretch or not self._ends:
            return None
        self._settle(bisect_left(self._ends, now_s))
        for rank in self._moving:
            rank.plan()
        self._is_stretch = False
        if len(self._ends) < 2:
            return None
        del self._ends[1:]
        self.version += 1
        return self._ends[0]

    def _num_repeatable_steps(self) -> int:
        return min((rank.num_repeatable_steps() for rank in self._moving), default=0)

    def _look_ahead(self, now_s: float, until_s: float, count: int) -> None:
        works = [rank.works() for rank in self._moving]
        end_s = now_s
        while len(self._ends) < count and end_s < until_s:
            end_s += max(self._times([next(each) for each in works]))
            self._ends.append(end_s)

    def _times(self, works: list[Work]) -> list[float]:
        """Seconds of each rank's part of a step; experts get the tokens of all of them."""
        if len(self.ranks) > 1:
            total = sum(work.num_tokens for work in works)
            works = [replace(work, expert_tokens=total) for work in works]
        return [self._seconds(work) for work in works]

    def _settle(self, count: int) -> None:
        if not count:
            return
        before = self._used()
        for rank in self._moving:
            rank.repeat(count)
        self._spend(self._ends[count - 1], count, before)
        del self._ends[:count]

    def _used(self) -> float:
        """Share of the fullest rank's blocks in use."""
        return max(rank.num_held_tokens for rank in self.ranks) / self._most_held_tokens

    def _spend(self, end_s: float, count: int, before: float | None = None) -> None:
        """Add up steps that have ended; before a stretch of them so much was in use, and it grew evenly."""
        now = self._used()
        share = now if before is None else (before + now) / 2
        self.busy_s += end_s - self._since_s
        self.used_s += share * (end_s - self._since_s)
        self.peak_used = max(self.peak_used, now)
        self.num_steps += count
        self._since_s = end_s

    @property
    def _most_held_tokens(self) -> int:
        rank = self.ranks[0]
        return rank.blocks.num_usable_blocks * rank.shape.block_size
