"""engines on a simulated clock: sessions come, turns are routed, step and end; prefill may be apart from decode"""

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from minnow.plan.live import LiveSession
from minnow.plan.lockstep import Lockstep
from minnow.plan.rank import Job, Rank
from minnow.plan.routing import Router
from minnow.plan.workload import Session, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """How a computed prompt gets to the engine that goes on with it.

    Attributes:
        block_bytes: of one block, on one rank that sends.
        bytes_s: bytes a second from that rank.
    """

    block_bytes: int
    bytes_s: float


@dataclass(slots=True)
class _Owner:
    """Whose turn a request is."""

    live: LiveSession
    place: int
    is_warmup: bool


class Clock:
    """The simulated time, in seconds."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


_Event = Callable[[], object]


class Simulator:
    """Plays a workload on engines.

    At one moment, what comes is handled first, then steps that end, and only then do new steps begin. So a request
    that comes as a step ends is in the next one.

    Attributes:
        num_refused: requests that could never run; first_refusal says why the first could not.
        skipped_s: idle time that was left out.
    """

    def __init__(
        self,
        engines: Sequence[Lockstep],
        router: Router,
        clock: Clock,
        *,
        on_end: Callable[[Job, float, bool], None],
        prefill: Sequence[Lockstep] = (),
        prefill_router: Router | None = None,
        handover: Handover | None = None,
    ) -> None:
        """Put engines together.

        Args:
            engines: that do all, or, behind engines that prefill, go on from the first token.
            router: chooses among their ranks.
            on_end: called with each request that has ended, when it did, and whether it is one of a warm-up.
            prefill: compute prompts, and the first token.
            handover: how these get to the others.
        """
        self.engines, self.prefill = engines, prefill
        self.num_refused, self.first_refusal = 0, ""
        self.skipped_s = 0.0
        self._clock, self._on_end = clock, on_end
        self._router, self._prefill_router = router, prefill_router or router
        self._handover = handover
        self._link_free_s: dict[int, float] = {}  # by rank that sends
        self._sender_by_job: dict[int, int] = {}
        self._all = [*prefill, *engines]
        self._ranks = [rank for engine in engines for rank in engine.ranks]
        self._prefill_ranks = [rank for engine in prefill for rank in engine.ranks]
        self._engine_by_rank = {id(rank): i for i, engine in enumerate(self._all) for rank in engine.ranks}
        self._front = self._prefill_ranks or self._ranks
        shape = self._front[0].shape
        self._block_size = shape.block_size if shape.has_prefix_cache else 0
        self._due: list[tuple[float, int, _Event]] = []  # a heap; times of the workload, skipped ones not taken off
        self._moves: list[tuple[float, int, _Event]] = []  # a heap: prompts on their way
        self._ends: list[tuple[float, int, int]] = []  # a heap: time, engine, its version
        self._ready: dict[int, None] = {}  # engines that stand still and may have work
        self._order = self._num_jobs = self._num_counted = self._num_live = 0
        self._workload = Workload(sessions=())
        self._sessions: Iterator[Session] = iter(())
        self._upcoming: Session | None = None
        self._is_over = False  # nothing begins any more

    def run(self, workload: Workload) -> float:
        """Play a workload to its end; gives the time of that."""
        self._workload, self._sessions = workload, iter(workload.sessions)
        self._upcoming = next(self._sessions, None)
        self._admit()
        while True:
            moment_s = self._next_s()
            if self._ready and moment_s > self._clock.now_s:
                self._start_all()
                continue
            if math.isinf(moment_s):
                return self._clock.now_s
            self._clock.now_s = moment_s
            self._handle(moment_s)

    # -- time ---------------------------------------------------------------------------------------------------

    def _next_s(self) -> float:
        while self._ends and self._ends[0][2] != self._all[self._ends[0][1]].version:
            heapq.heappop(self._ends)
        running_s = min(self._ends[0][0] if self._ends else math.inf, self._moves[0][0] if self._moves else math.inf)
        if not self._due:
            return running_s
        due_s = self._due[0][0] - self.skipped_s
        most_s = self._clock.now_s + self._workload.max_idle_s
        if due_s > most_s and math.isinf(running_s) and not self._ready:
            self.skipped_s += due_s - most_s
            due_s = self._due[0][0] - self.skipped_s
        return max(min(running_s, due_s), self._clock.now_s)  # sums of times may be off by their last digit

    def _handle(self, now_s: float) -> None:
        """One thing that happens now."""
        if self._due and self._due[0][0] - self.skipped_s <= now_s:
            heapq.heappop(self._due)[2]()
        elif self._moves and self._moves[0][0] <= now_s:
            heapq.heappop(self._moves)[2]()
        else:
            _, index, _ = heapq.heappop(self._ends)
            engine = self._all[index]
            ended = engine.finish()
            self._ready[index] = None
            for job in ended:
                self._ended(job, engine, now_s)

    def _start_all(self) -> None:
        now_s = self._clock.now_s
        until_s = min(
            self._due[0][0] - self.skipped_s if self._due else math.inf, self._moves[0][0] if self._moves else math.inf
        )
        ready, self._ready = list(self._ready), {}
        for index in ready:
            engine = self._all[index]
            end_s = engine.start(now_s, until_s)
            if end_s is not None:
                heapq.heappush(self._ends, (end_s, index, engine.version))
            for rank in engine.ranks:
                refused, rank.refused = rank.refused, []
                for job, why in refused:
                    self._refused(job, why, now_s)

    # -- sessions -----------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Have sessions begin as far as the limits let them; of those to come later one is known at a time."""
        limit = self._workload.max_concurrency
        while self._upcoming is not None and not self._is_over and not (limit and self._num_live >= limit):
            session, now_s = self._upcoming, self._clock.now_s + self.skipped_s
            self._num_live += 1
            self._upcoming = None
            if session.start_s > now_s:
                self._push(self._due, session.start_s, partial(self._begin, session, is_late=True))
                return
            self._begin(session)

    def _begin(self, session: Session, *, is_late: bool = False) -> None:
        self._upcoming = next(self._sessions, None)
        if self._is_over:
            return
        live = LiveSession(session)
        for place, turn in live.first():
            self._fall_due(live, place, turn.gap_s)
        if is_late:
            self._admit()

    def _fall_due(self, live: LiveSession, place: int, gap_s: float) -> None:
        self._push(self._due, self._clock.now_s + self.skipped_s + gap_s, partial(self._send, live, place))

    def _send(self, live: LiveSession, place: int) -> None:
        """A turn has fallen due: it goes to a rank."""
        if self._is_over:
            return
        turn = live.turn(place)
        text, chain = live.begin(place, self._block_size, is_routed=len(self._front) > 1)
        owner = _Owner(live, place, turn.is_warmup)
        job = Job(
            self._num_jobs, text, turn.num_output_tokens, due_s=self._clock.now_s, answer=turn.answer, owner=owner
        )
        job.chain = chain
        self._num_jobs += 1
        self._num_counted += not turn.is_warmup
        if self._workload.max_turns and self._num_counted >= self._workload.max_turns:
            self._is_over = True
            self._due.clear()
        if self._prefill_ranks:
            sender = self._submit(job, self._prefill_ranks, self._prefill_router)
            self._sender_by_job[job.number] = id(sender)
        else:
            self._submit(job, self._ranks, self._router)

    def _submit(self, job: Job, ranks: Sequence[Rank], router: Router) -> Rank:
        for index, engine in enumerate(self._all):
            end_s = engine.interrupt(self._clock.now_s)
            if end_s is not None:
                heapq.heappush(self._ends, (end_s, index, engine.version))
        rank, num_cached_tokens = router(job, ranks)
        index = self._engine_by_rank[id(rank)]
        rank.submit(job, num_cached_tokens)
        if not self._all[index].is_busy:
            self._ready[index] = None
        return rank

    def _ended(self, job: Job, engine: Lockstep, now_s: float) -> None:
        if engine in self.prefill and job.num_output_tokens > 1:
            self._hand_over(job, now_s)
            return
        self._sender_by_job.pop(job.number, None)
        owner = job.owner
        assert isinstance(owner, _Owner)
        self._on_end(job, now_s, owner.is_warmup)
        self._go_on(owner)

    def _refused(self, job: Job, why: str, now_s: float) -> None:
        owner = job.owner
        assert isinstance(owner, _Owner)
        self._sender_by_job.pop(job.number, None)
        self.num_refused += 1
        self.first_refusal = self.first_refusal or why
        self._go_on(owner)

    def _go_on(self, owner: _Owner) -> None:
        for place, turn in owner.live.end(owner.place):
            self._fall_due(owner.live, place, turn.gap_s)
        if owner.live.has_ended:
            self._num_live -= 1
            self._admit()

    def _hand_over(self, job: Job, now_s: float) -> None:
        """Send the blocks of a prompt; those of one rank go one after the other."""
        assert self._handover is not None
        size = self._ranks[0].shape.block_size
        num_bytes = -(-job.num_input_tokens // size) * self._handover.block_bytes
        sender = self._sender_by_job.pop(job.number)
        end_s = max(now_s, self._link_free_s.get(sender, 0.0)) + num_bytes / self._handover.bytes_s
        self._link_free_s[sender] = end_s
        job.is_handed = True
        self._push(self._moves, end_s, partial(self._submit, job, self._ranks, self._router))

    def _push(self, heap: list[tuple[float, int, _Event]], at_s: float, event: _Event) -> None:
        self._order += 1
        heapq.heappush(heap, (at_s, self._order, event))
