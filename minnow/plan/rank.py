"""one rank on a clock: the engine's own scheduler, blocks and prefix cache, with made-up answers for a device"""

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from minnow.cache.blocks import BlockPool
from minnow.cache.prefix import HashChain
from minnow.cache.tiers import HostTier
from minnow.config.scheduler import SchedulerConfig
from minnow.core.errors import RequestError
from minnow.core.request import Request, SamplingParams
from minnow.core.step import EngineStats, RowResult, RowStep, StepPlan, StepResult
from minnow.engine.scheduler import Scheduler
from minnow.plan.acceptance import Acceptances
from minnow.plan.work import Limits, Row, Work, add_up
from minnow.plan.workload import Text

_NOT_REPEATED = 2**31  # ids from here on are of answers that no prompt holds


@dataclass(frozen=True, slots=True, kw_only=True)
class RankShape:
    """What a rank schedules with, and what it holds.

    Attributes:
        num_blocks: rows of its pool, the null block among them.
        row_bytes: of a block on the rank.
        num_drafts: of a round; 0 without a drafter.
        limits: what bounds how much of a context is looked at.
        host_blocks: that its share of host memory holds.
        host_bytes_s: bytes a second from there.
    """

    scheduler: SchedulerConfig
    num_blocks: int
    block_size: int
    row_bytes: int
    max_model_len: int
    has_prefix_cache: bool
    num_drafts: int
    limits: Limits
    host_blocks: int = 0
    host_bytes_s: float = 0.0


class Job:
    """One request on its way; times are of the simulated clock.

    Attributes:
        number: counts requests.
        num_input_tokens, num_output_tokens: of its prompt, and of its answer.
        owner: whose it is; for the caller alone.
        chain: of its prompt's blocks, as far as it was worked out.
        due_s: when it was sent.
        first_s: when its first token came; below 0 before that.
        num_cached_tokens: of the prompt, not computed when it first ran.
        num_awaited_tokens: that were still to be computed when it was given to its rank.
        is_handed: its prompt was computed elsewhere, and its first token came there.
    """

    __slots__ = (
        "answer_id",
        "chain",
        "due_s",
        "first_s",
        "is_handed",
        "num_awaited_tokens",
        "num_cached_tokens",
        "num_input_tokens",
        "num_output_tokens",
        "number",
        "owner",
        "request_id",
        "results",
        "text",
    )  # fmt: skip

    def __init__(
        self, number: int, text: Text, num_output_tokens: int, *, due_s: float, answer: int = 0, owner: object = None
    ) -> None:
        self.number, self.request_id = number, str(number)
        self.text, self.num_input_tokens = text, len(text)
        self.num_output_tokens = num_output_tokens
        self.answer_id = answer or _NOT_REPEATED + number % _NOT_REPEATED
        self.owner = owner
        self.due_s, self.first_s = due_s, -1.0
        self.chain: HashChain | None = None
        self.num_cached_tokens = self.num_awaited_tokens = 0
        self.is_handed = False
        self.results: dict[int, RowResult] | None = None  # of its row, by tokens that came and drafts that were made


class _Handed:
    """Prompts whose keys and values have come from another engine, but for the last token; each is taken once."""

    def __init__(self) -> None:
        self.num_tokens_by_id: dict[str, int] = {}

    def num_tokens_after(self, request: Request, num_tokens: int, hashes: Sequence[bytes]) -> int:
        return max(self.num_tokens_by_id.get(request.request_id, 0) - num_tokens, 0)

    def load(self, request: Request, num_tokens: int, count: int, hashes: Sequence[bytes]) -> None:
        del self.num_tokens_by_id[request.request_id]


class Rank:
    """A scheduler and what stands in for its device.

    Only so many requests are in the scheduler's own queue as a step could start, and one more: the rest wait before it,
    where they take no memory. That changes nothing of what it plans.

    Attributes:
        is_prefilling: requests leave it with their first token.
        refused: requests that could never run, and why, since somebody last looked.
        num_awaited_tokens: of prompts, that are still to be computed.
    """

    def __init__(
        self,
        shape: RankShape,
        *,
        acceptances: Acceptances | None = None,
        is_prefilling: bool = False,
        is_handed: bool = False,
        clock: Callable[[], float],
    ) -> None:
        """Make an idle rank.

        Args:
            acceptances: tells how many drafts of a round are kept; none of them without it.
            is_handed: prompts come computed from another engine.
            clock: seconds.
        """
        self.shape, self.is_prefilling = shape, is_prefilling
        self.refused: list[tuple[Job, str]] = []
        self.num_awaited_tokens = 0
        self.tier = HostTier(shape.host_blocks, shape.block_size) if shape.host_blocks else None
        self.blocks = BlockPool(
            shape.num_blocks, shape.block_size, on_eviction=None if self.tier is None else self.tier.keep
        )
        self._handed = _Handed() if is_handed else None
        self._scheduler = Scheduler(
            shape.scheduler, self.blocks, max_model_len=shape.max_model_len, eos_token_ids=(), seed=0,
            enable_prefix_caching=shape.has_prefix_cache, num_speculative_tokens=shape.num_drafts,
            source=self._handed or self.tier, clock=clock,
        )  # fmt: skip
        self._acceptances = acceptances
        self._queue: deque[Job] = deque()
        self._job_by_id: dict[str, Job] = {}
        self._job_by_row: list[Job | None] = [None] * shape.scheduler.max_num_seqs
        self._silent = [RowResult(row=row) for row in range(shape.scheduler.max_num_seqs)]
        self._plan: StepPlan | None = None
        self._num_loaded_blocks = 0

    @property
    def num_requests(self) -> int:
        """Requests that have not ended."""
        return len(self._job_by_id) + len(self._queue)

    @property
    def num_held_tokens(self) -> int:
        """Tokens in blocks that are in use."""
        return (self.blocks.num_usable_blocks - self.blocks.num_free_blocks) * self.shape.block_size

    def stats(self) -> EngineStats:
        """The scheduler's."""
        return self._scheduler.stats()

    def num_cached_tokens(self, job: Job) -> int:
        """Tokens of a request's prompt that it would find here now; those in host memory are not counted."""
        return 0 if job.chain is None else self._scheduler.num_cached_tokens(job.chain, job.text)

    def submit(self, job: Job, num_cached_tokens: int = 0) -> None:
        """Queue a request, of whose prompt so many tokens are known to be here."""
        job.num_awaited_tokens = 0 if job.is_handed else job.num_input_tokens - num_cached_tokens
        self.num_awaited_tokens += job.num_awaited_tokens
        self._queue.append(job)

    def plan(self) -> Work | None:
        """Plan a step and say what is to be done in it; None where there is nothing."""
        self._fill()
        plan = self._plan = self._scheduler.plan()
        if plan is None:
            return None
        for start in plan.starts:
            job = self._job_by_row[start.row] = self._job_by_id[start.request_id]
            job.results = {}
        return add_up([_row(step) for step in plan.rows], self.shape.limits)

    def load_s(self) -> float:
        """Seconds that it takes to bring from host memory what the step just planned wants from there."""
        if self.tier is None:
            return 0.0
        num_blocks = self.tier.num_loaded_blocks - self._num_loaded_blocks
        self._num_loaded_blocks += num_blocks
        return num_blocks * self.shape.row_bytes / self.shape.host_bytes_s if num_blocks else 0.0

    def commit(self, now_s: float) -> list[Job]:
        """Settle the step that was planned; gives the requests that have ended here."""
        plan, self._plan = self._plan, None
        if plan is None:
            return []
        rows = tuple(map(self._result, plan.rows))
        ended = []
        for output in self._scheduler.commit(plan, StepResult(step=plan.step, rows=rows)):
            job = self._job_by_id[output.request_id]
            if job.num_awaited_tokens or job.first_s < 0:
                self.num_awaited_tokens -= job.num_awaited_tokens
                job.num_awaited_tokens = 0
                if job.first_s < 0:
                    job.first_s, job.num_cached_tokens = now_s, output.num_cached_tokens
            if output.finish_reason is not None:
                del self._job_by_id[output.request_id]
                ended.append(job)
        return ended

    def num_repeatable_steps(self) -> int:
        """How many of the next steps only add a token to every sequence, and could be settled at once."""
        return self._scheduler.num_repeatable_steps() if self._has_no_room_for_others() else 0

    def works(self) -> Iterator[Work]:
        """The work of each such step."""
        contexts = [num_tokens + 1 for _, num_tokens in self._scheduler.progress()]
        most, count = self.shape.limits.chosen_tokens, len(contexts)
        context_tokens, chosen_tokens = sum(contexts), sum(min(context, most) for context in contexts)
        growing = deque(sorted(most - context for context in contexts if context < most))
        for i in itertools.count(1):
            yield Work(
                num_sequences=count,
                num_tokens=count,
                num_logits=count,
                context_tokens=context_tokens,
                chosen_tokens=chosen_tokens,
                context_pairs=float(context_tokens),
                chosen_pairs=float(chosen_tokens),
            )
            context_tokens += count
            chosen_tokens += len(growing)
            while growing and growing[0] <= i:
                growing.popleft()

    def repeat(self, num_steps: int) -> None:
        """Settle so many of them."""
        ids = [self._job_by_id[request_id].answer_id for request_id, _ in self._scheduler.progress()]
        self._scheduler.repeat(num_steps, ids)

    def check(self) -> None:
        """Prove that what the scheduler has agrees; an AssertionError is a mistake of ours."""
        self._scheduler.check()

    def _has_no_room_for_others(self) -> bool:
        return not self._queue or self._scheduler.num_running == self.shape.scheduler.max_num_seqs

    def _fill(self) -> None:
        """Give the scheduler as many requests as it could start in a step, and one more."""
        scheduler = self._scheduler
        while self._queue and scheduler.num_waiting <= self.shape.scheduler.max_num_seqs - scheduler.num_running:
            job = self._queue.popleft()
            try:
                scheduler.add(self._request(job), job.chain)
            except RequestError as error:
                self.num_awaited_tokens -= job.num_awaited_tokens
                self.refused.append((job, str(error)))
                continue
            self._job_by_id[job.request_id] = job
            if job.is_handed and self._handed is not None:
                self._handed.num_tokens_by_id[job.request_id] = job.num_input_tokens

    def _request(self, job: Job) -> Request:
        ids = job.text[:]
        num_tokens = job.num_output_tokens
        if job.is_handed:
            ids.append(job.answer_id)
            num_tokens -= 1
        elif self.is_prefilling:
            num_tokens = 1
        sampling = SamplingParams(max_tokens=num_tokens, ignore_eos=True)
        return Request(request_id=job.request_id, token_ids=tuple(ids), sampling=sampling, arrival_s=job.due_s)

    def _result(self, step: RowStep) -> RowResult:
        if not step.is_sampling:
            return self._silent[step.row]
        job = self._job_by_row[step.row]
        assert job is not None and job.results is not None
        count = 1
        if step.num_drafts and self._acceptances is not None:
            count += self._acceptances.draw(step.num_drafts)
        key = count << 16 | step.num_lookahead_slots
        result = job.results.get(key)
        if result is None:
            ids = (job.answer_id,) * count
            result = job.results[key] = RowResult(row=step.row, token_ids=ids, num_drafts=step.num_lookahead_slots)
        return result


def _row(step: RowStep) -> Row:
    num_logits = step.num_drafts + 1 if step.is_sampling else 0
    return Row(step.num_tokens, step.start + step.num_tokens, num_logits, step.num_lookahead_slots > 0)
