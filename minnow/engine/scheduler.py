"""plan() and commit() (no torch)"""

import heapq
import time
from bisect import bisect_left, insort
from collections.abc import Callable
from collections.abc import Sequence as Ordered

from minnow.cache.blocks import BlockPool
from minnow.cache.prefix import HashChain, PrefixCache
from minnow.cache.tiers import Source
from minnow.config.scheduler import SchedulerConfig
from minnow.core.errors import ConfigError, RequestError
from minnow.core.request import Request
from minnow.core.step import (
    EngineStats,
    FinishReason,
    RowResult,
    RowStep,
    StepPlan,
    StepResult,
    TokenLogprobs,
    TokenOutput,
)
from minnow.engine import policy, sequence
from minnow.engine.acceptance import Acceptance
from minnow.engine.pace import Pace, StepCosts
from minnow.engine.planning import Planning
from minnow.engine.sequence import Sequence, State


class Scheduler:
    """Chooses what runs in each step, and settles what came of it.

    plan() and commit() alternate in the plain loop. They may also overlap: plan N + 1 is made before commit N, with
    the largest lengths that step N can leave; commits keep the order of plans. Whatever ends meanwhile (by a stop
    token, an error or an abort) keeps its row and blocks until the last plan that holds it is committed, because the
    device may still write there.

    A step that fails as a whole is committed like any other, with an error in each row.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        blocks: BlockPool,
        *,
        max_model_len: int,
        eos_token_ids: tuple[int, ...],
        seed: int,
        enable_prefix_caching: bool,
        num_speculative_tokens: int = 0,
        step_costs: StepCosts | None = None,
        source: Source | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make a scheduler without requests.

        Args:
            config: limits and policy.
            blocks: the pool; nobody else takes blocks from it.
            max_model_len: longest prompt plus output. Where all blocks hold less, max_tokens None ends there.
            eos_token_ids: end a sequence unless it has ignore_eos.
            seed: gives requests without a seed one each.
            enable_prefix_caching: reuse blocks of equal prefixes.
            num_speculative_tokens: drafts that the device makes for a sequence at most; 0 without a drafter.
            step_costs: with them, only drafts that pay are made and verified.
            source: what has tokens of prompts beyond the pool.
            clock: seconds; tells how long requests wait.

        Raises:
            ConfigError: a step could hold no token or no sequence.
        """
        for name in ("max_num_seqs", "max_num_batched_tokens"):
            if getattr(config, name) < 1:
                raise ConfigError(f"{name} is {getattr(config, name)}; it must be 1 or more")
        self._config = config
        self._blocks = blocks
        self._prefix = PrefixCache(blocks) if enable_prefix_caching else None
        self._max_model_len = max_model_len
        self._cache_tokens = blocks.num_usable_blocks * blocks.block_size
        self._eos_token_ids = eos_token_ids
        self._seed = seed
        self._num_speculative_tokens = num_speculative_tokens
        self._step_costs = step_costs
        self._source = source
        self._pace, self._is_drafting = Pace(), True
        self._clock = clock
        self._waiting: list[Sequence] = []  # both lists in the order of ranks
        self._running: list[Sequence] = []
        self._by_id: dict[str, Sequence] = {}
        self._in_flight: dict[int, tuple[Sequence, ...]] = {}  # of each step not committed, in the order of its rows
        self._free_rows = list(range(config.max_num_seqs))  # a heap
        self._stops: list[int] = []  # rows freed since the last plan
        self._step = 0
        self._num_added = 0
        self._num_preemptions = 0
        self._num_errors = 0
        self._prefix_queries_tokens = 0
        self._prefix_hits_tokens = 0
        self._prompt_tokens = 0
        self._generation_tokens = 0
        self._computed_tokens = 0
        self._acceptance = Acceptance(num_speculative_tokens)

    @property
    def is_idle(self) -> bool:
        """No request is waiting, running or in flight."""
        return not self._by_id and not self._in_flight

    @property
    def num_running(self) -> int:
        """Sequences that have a row."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Sequences that wait for one."""
        return len(self._waiting)

    def add(self, request: Request, chain: HashChain | None = None) -> None:
        """Queue a request.

        Args:
            chain: of its blocks, where somebody has begun to work it out; used by this sequence alone from now on.

        Raises:
            RequestError: its id is taken, it has no tokens, or it could never fit the context or the cache.
        """
        if request.request_id in self._by_id:
            raise RequestError(f"request id {request.request_id!r} is in use; take another", param="request_id")
        policy.check_fits(request, max_model_len=self._max_model_len, cache_tokens=self._cache_tokens)
        new = sequence.make(
            request,
            rank=policy.rank(request, self._num_added, self._config.scheduling_policy),
            max_context_tokens=min(self._max_model_len, self._cache_tokens + 1),
            eos_token_ids=self._eos_token_ids,
            engine_seed=self._seed,
            chain=None if self._prefix is None else chain or self._prefix.chain(request),
            added_s=self._clock(),
        )
        self._num_added += 1
        self._by_id[request.request_id] = new
        insort(self._waiting, new, key=_rank)

    def abort(self, request_id: str) -> TokenOutput | None:
        """End a request at any moment; None when it is unknown or has ended already.

        Its blocks are free at once, or after the commit of the plans that hold it.
        """
        ended = self._by_id.get(request_id)
        if ended is None:
            return None
        output = self._output(ended, finish_reason="abort")
        self._finish(ended)
        return output

    def num_cached_tokens(self, chain: HashChain, token_ids: Ordered[int]) -> int:
        """Tokens at the start of a prompt that a sequence would find in the prefix cache now."""
        return 0 if self._prefix is None else len(self._prefix.match(chain, token_ids)) * self._blocks.block_size

    def reset_prefix_cache(self) -> None:
        """Forget all cached prefixes; sequences that run keep their blocks."""
        if self._prefix is not None:
            self._prefix.reset()

    # -- plan ---------------------------------------------------------------------------------------------------

    def plan(self) -> StepPlan | None:
        """Choose the next step, or None when there is nothing to run.

        Running sequences come first, those that need one token before those with a prompt to finish, so that a long
        prompt delays nobody's next token. What is left of the budget goes to waiting ones, unless one was preempted
        in this very step.
        """
        planning = Planning(
            budget_tokens=self._config.max_num_batched_tokens, budget_drafts=self._num_tokens_for_drafts()
        )
        if self._step_costs is not None:
            self._keep_worthwhile_drafts(self._step_costs)
            self._is_drafting = self._wants_drafts(self._step_costs)
        decoding, others = list[Sequence](), list[Sequence]()
        for running in self._running:
            num_remaining = running.num_remaining_tokens
            if num_remaining > 0:
                (decoding if num_remaining == 1 else others).append(running)
        for candidate in decoding + others:
            self._continue(candidate, planning)
        if not planning.has_preempted:
            self._admit(planning)
        if not planning.step_by_row:
            return None
        self._step += 1
        plan = planning.finish(self._step, tuple(self._stops))
        self._stops.clear()
        for planned, step in planning.step_by_row.values():
            planned.num_computed_tokens += step.num_tokens
            planned.num_in_flight += 1
            planned.num_pending_tokens += step.is_sampling
            planned.num_ready_drafts = 0
        self._in_flight[plan.step] = tuple(planned for planned, _ in planning.step_by_row.values())
        return plan

    def _continue(self, running: Sequence, planning: Planning) -> None:
        if running.state is not State.RUNNING:
            return  # it was preempted for one before it
        num_remaining = running.num_remaining_tokens
        if self._num_speculative_tokens and running.num_pending_tokens:
            return  # where its next step begins is known when the drafts of this one are settled
        num_tokens = self._num_chunk_tokens(num_remaining, planning.budget_of(running, running.num_computed_tokens))
        if not num_tokens:
            return
        num_drafts, num_slots = self._num_drafts(running, num_tokens, planning.budget_drafts, running.block_ids)
        num_held_tokens = running.num_computed_tokens + num_tokens + num_drafts + num_slots
        num_blocks = self._blocks.num_blocks_of(num_held_tokens) - len(running.block_ids)
        while num_blocks > self._blocks.num_free_blocks:
            preempted = policy.victim(self._running)
            self._preempt(preempted, planning)
            if preempted is running:
                return
        if num_blocks > 0:
            new_ids = self._blocks.allocate(num_blocks)
            running.block_ids += new_ids
            planning.blocks_by_row[_row(running)] = new_ids
        planning.add(_row(running), running, num_tokens, num_drafts=num_drafts, num_lookahead_slots=num_slots)

    def _num_tokens_for_drafts(self) -> int:
        """Tokens of a step that drafts may take: everybody's own come first, and prompts keep half of the others."""
        if not self._num_speculative_tokens:
            return 0
        num_decoding = sum(running.num_remaining_tokens == 1 for running in self._running)
        left = max(self._config.max_num_batched_tokens - num_decoding, 0)
        has_prompts = num_decoding < len(self._running) or bool(self._waiting)
        return left // 2 if has_prompts else left

    def _keep_worthwhile_drafts(self, costs: StepCosts) -> None:
        """Forget drafts whose verification would take longer than it saves."""
        ready = [running for running in self._running if running.num_ready_drafts]
        counts = policy.num_worthwhile_drafts(
            [running.confidences for running in ready], costs.drafting, num_others=len(self._running) - len(ready)
        )
        for running, count in zip(ready, counts, strict=True):
            running.num_ready_drafts = min(running.num_ready_drafts, count)

    def _wants_drafts(self, costs: StepCosts) -> bool:
        decoding = [running for running in self._running if running.num_remaining_tokens == 1]
        count = sum(not running.is_repeatable for running in decoding)
        return self._pace.wants_drafts(costs, count, len(decoding) - count) if count else self._is_drafting

    def _num_drafts(
        self, planned: Sequence, num_tokens: int, budget_drafts: int, block_ids: list[int]
    ) -> tuple[int, int]:
        """Drafts that a step verifies behind a sequence's next tokens, and slots for those that are made then.

        Short of free blocks there are fewer of both; those that they hold may be missed by a sequence after this one.
        """
        end = planned.num_computed_tokens + num_tokens
        if not self._num_speculative_tokens or end < planned.num_known_tokens or not planned.is_generating:
            return 0, 0
        # A draft is worth its place where a token after it is still wanted.
        num_wanted_tokens = planned.max_total_tokens - 1 - end
        num_free_tokens = (len(block_ids) + self._blocks.num_free_blocks) * self._blocks.block_size - end
        most = max(min(num_wanted_tokens, num_free_tokens), 0)
        num_drafts = max(min(planned.num_ready_drafts, budget_drafts, most), 0)
        is_drafting = self._config.max_num_batched_tokens > 1
        if self._step_costs is not None:  # what is looked at then depends on the clock, and a seed's answer must not
            is_drafting &= self._is_drafting and not planned.is_repeatable
        return num_drafts, min(self._num_speculative_tokens, most - num_drafts) if is_drafting else 0

    def _preempt(self, victim: Sequence, planning: Planning) -> None:
        """Take everything from a running sequence but its tokens; it is computed anew later."""
        planning.drop(_row(victim))
        _remove(self._running, victim)
        self._release(victim)
        victim.state = State.PREEMPTED
        victim.num_computed_tokens = victim.num_published_blocks = 0
        victim.num_ready_drafts = victim.num_made_drafts = 0
        victim.num_preemptions += 1
        self._num_preemptions += 1
        insort(self._waiting, victim, key=_rank)

    def _admit(self, planning: Planning) -> None:
        """Start waiting sequences in order, until one does not fit: nobody is overtaken, so nobody starves.

        But while others have all the scores of this step, who wants none goes past those that do; they keep their
        turn, and get their scores as those before them end.
        """
        for waiting in list(self._waiting):
            if not self._free_rows or not planning.budget_tokens:
                break
            if waiting.wants_prompt_logprobs and not planning.budget_logprobs:
                continue
            # The tokens of a plan in flight must arrive first, as a start carries all tokens.
            if waiting.num_in_flight or not self._start(waiting, planning):
                break

    def _start(self, waiting: Sequence, planning: Planning) -> bool:
        # The match and the taking of its blocks are one act: nothing is planned on a match that may grow stale.
        cached = self._match(waiting)
        num_matched_tokens = len(cached) * self._blocks.block_size
        num_cached_tokens = num_matched_tokens + self._num_loadable_tokens(waiting, num_matched_tokens)
        budget_tokens = planning.budget_of(waiting, num_cached_tokens)
        num_tokens = self._num_chunk_tokens(len(waiting.token_ids) - num_cached_tokens, budget_tokens)
        is_whole = policy.needs_whole(waiting, is_reserving=self._config.scheduler_reserve_full_isl)
        num_held_tokens = len(waiting.token_ids) if is_whole else num_cached_tokens + num_tokens
        num_new_blocks = self._blocks.num_blocks_of(num_held_tokens) - len(cached)
        num_revived_blocks = sum(self._blocks.is_free(block_id) for block_id in cached)
        if not policy.can_admit(
            num_new_blocks + num_revived_blocks,
            self._blocks.num_free_blocks,
            num_reserved_blocks=policy.num_reserved_blocks(self._config.watermark, self._blocks.num_blocks)
            if self._running
            else 0,
        ):
            return False
        self._blocks.share(cached)
        if num_cached_tokens > num_matched_tokens:
            assert self._source is not None
            num_loaded_tokens = num_cached_tokens - num_matched_tokens
            self._source.load(waiting.request, num_matched_tokens, num_loaded_tokens, self._prompt_hashes(waiting))
        waiting.block_ids = cached + self._blocks.allocate(num_new_blocks)
        waiting.num_computed_tokens = num_cached_tokens
        _, num_slots = self._num_drafts(waiting, num_tokens, planning.budget_drafts, waiting.block_ids)
        num_blocks = self._blocks.num_blocks_of(num_cached_tokens + num_tokens + num_slots)
        if num_blocks > len(waiting.block_ids):
            waiting.block_ids += self._blocks.allocate(num_blocks - len(waiting.block_ids))
        waiting.num_published_blocks = len(cached)
        self._publish(waiting, num_cached_tokens)
        waiting.row = heapq.heappop(self._free_rows)
        waiting.state = State.RUNNING
        if waiting.num_cached_tokens is None:
            waiting.num_cached_tokens = num_cached_tokens
            waiting.queued_s = self._clock() - waiting.added_s
            self._prefix_queries_tokens += len(waiting.token_ids)
            self._prefix_hits_tokens += num_cached_tokens
        _remove(self._waiting, waiting)
        insort(self._running, waiting, key=_rank)
        planning.starts.append(waiting.row_start())
        planning.blocks_by_row[waiting.row] = waiting.block_ids
        planning.add(waiting.row, waiting, num_tokens, num_lookahead_slots=num_slots)
        return True

    def _match(self, waiting: Sequence) -> list[int]:
        # Log-probabilities of the prompt need the logits of every prompt token, so nothing may be skipped.
        if self._prefix is None or waiting.chain is None or waiting.wants_prompt_logprobs:
            return []
        return self._prefix.match(waiting.chain, waiting.token_ids)

    def _num_loadable_tokens(self, waiting: Sequence, num_matched_tokens: int) -> int:
        if self._source is None or waiting.wants_prompt_logprobs:
            return 0
        return self._source.num_tokens_after(waiting.request, num_matched_tokens, self._prompt_hashes(waiting))

    def _prompt_hashes(self, waiting: Sequence) -> list[bytes]:
        if waiting.chain is None:
            return []
        return waiting.chain.first((len(waiting.token_ids) - 1) // self._blocks.block_size, waiting.token_ids)

    def _num_chunk_tokens(self, num_remaining_tokens: int, budget_tokens: int) -> int:
        return policy.num_chunk_tokens(
            num_remaining_tokens,
            budget_tokens,
            threshold_tokens=self._config.long_prefill_token_threshold,
            is_alone=len(self._by_id) == 1,
        )

    # -- commit -------------------------------------------------------------------------------------------------

    def commit(self, plan: StepPlan, result: StepResult) -> list[TokenOutput]:
        """Settle a step: append tokens, publish full blocks, end what has ended.

        Args:
            plan: the oldest plan not committed.
            result: one RowResult for each row of the plan, in its order.

        Returns:
            What each request gained; nothing for unfinished prompts and for requests aborted meanwhile.
        """
        assert result.step == plan.step, f"plan {plan.step} got the result of step {result.step}"
        outputs: list[TokenOutput] = []
        rounds: list[tuple[int, int]] = []
        self._computed_tokens += sum(step.num_tokens for step in plan.rows)
        for planned, step, row in zip(self._in_flight.pop(plan.step), plan.rows, result.rows, strict=True):
            assert row.row == step.row, f"row {step.row} got the result of row {row.row}"
            planned.num_in_flight -= 1
            planned.num_pending_tokens -= step.is_sampling
            if planned.state is State.FINISHED:
                if not planned.num_in_flight:
                    self._release(planned)
                continue
            if planned.num_made_drafts and step.is_sampling and row.error is None:
                rounds.append((step.num_drafts, len(row.token_ids) - 1))
            output = self._commit_row(planned, step, row)
            if output is not None:
                outputs.append(output)
        self._pace.add(rounds)
        return outputs

    def _commit_row(self, planned: Sequence, step: RowStep, row: RowResult) -> TokenOutput | None:
        if row.error is not None:
            self._num_errors += 1
            # Any of its blocks may hold what broke it, also those that it published earlier or shared.
            # A sequence preempted meanwhile has no blocks any more, but what it published is still known.
            if self._prefix is not None and planned.chain is not None:
                self._prefix.forget(planned.chain)
            self._finish(planned)
            return self._output(planned, finish_reason="error", error=row.error)
        assert bool(row.token_ids) == step.is_sampling, f"row {step.row} yielded {len(row.token_ids)} tokens"
        if step.num_prompt_logprobs:
            assert len(row.prompt_logprobs) == step.num_prompt_logprobs, f"row {step.row} did not score its prompt"
            planned.keep(step.start, row.prompt_logprobs)
        num_rejected_tokens = max(step.num_drafts + 1 - len(row.token_ids), 0) if step.is_sampling else 0
        self._acceptance.add(step.num_drafts, step.num_drafts - num_rejected_tokens)
        num_taken_tokens, reason = planned.take(row.token_ids)
        self._generation_tokens += num_taken_tokens
        if planned.state is State.RUNNING:
            planned.num_computed_tokens -= num_rejected_tokens
            planned.num_ready_drafts = planned.num_made_drafts = row.num_drafts
            planned.confidences = row.confidences
            self._publish(planned, step.start + step.num_tokens - num_rejected_tokens)
        if not planned.is_generating and step.start + step.num_tokens >= planned.max_total_tokens:
            reason = "length"
        if reason is not None:
            self._finish(planned)
        elif not num_taken_tokens:
            return None
        taken = row.token_ids[:num_taken_tokens]
        return self._output(planned, taken, row.logprobs[:num_taken_tokens], finish_reason=reason)

    def _publish(self, planned: Sequence, num_computed_tokens: int) -> None:
        start = planned.num_published_blocks
        num_full_blocks = min(num_computed_tokens, len(planned.token_ids)) // self._blocks.block_size
        if num_full_blocks > start and self._prefix is not None and planned.chain is not None:
            self._prefix.publish(planned.chain, planned.token_ids, planned.block_ids, start=start, stop=num_full_blocks)
            planned.num_published_blocks = num_full_blocks

    def _output(
        self,
        of: Sequence,
        token_ids: tuple[int, ...] = (),
        logprobs: tuple[TokenLogprobs, ...] = (),
        *,
        finish_reason: FinishReason | None,
        error: str | None = None,
    ) -> TokenOutput:
        if not of.has_answered and of.num_cached_tokens is not None:
            self._prompt_tokens += of.num_prompt_tokens
        return of.answer(token_ids, logprobs, finish_reason=finish_reason, error=error)

    def _finish(self, ended: Sequence) -> None:
        _remove(self._running if ended.state is State.RUNNING else self._waiting, ended)
        del self._by_id[ended.request.request_id]
        ended.state = State.FINISHED
        if not ended.num_in_flight:
            self._release(ended)

    def _release(self, holder: Sequence) -> None:
        """Give row and blocks back; the next plan tells the device to stop the row before anybody starts there."""
        if holder.row is not None:
            self._stops.append(holder.row)
            heapq.heappush(self._free_rows, holder.row)
            holder.row = None
        self._blocks.free(holder.block_ids)
        holder.block_ids = []

    # -- many steps at once -------------------------------------------------------------------------------------

    def num_repeatable_steps(self) -> int:
        """How many of the next steps are alike: every running sequence computes and yields one token in its place.

        Nobody starts or ends, and blocks are free, as long as no stop token comes. 0 where that is not sure, and with
        drafts.
        """
        is_full = not self._waiting or not self._free_rows
        if self._num_speculative_tokens or self._in_flight or not self._running or not is_full:
            return 0
        if len(self._running) > self._config.max_num_batched_tokens:
            return 0
        size, count = self._blocks.block_size, self._max_model_len
        for running in self._running:
            if running.num_remaining_tokens != 1 or not running.has_answered:
                return 0
            count = min(count, running.max_total_tokens - 1 - len(running.token_ids))
        num_new_blocks = sum(
            max(self._blocks.num_blocks_of(running.num_computed_tokens + count) - len(running.block_ids), 0)
            for running in self._running
        )
        if num_new_blocks > self._blocks.num_free_blocks:
            count = min(len(running.block_ids) * size - running.num_computed_tokens for running in self._running)
        return count

    def progress(self) -> list[tuple[str, int]]:
        """Request and number of computed tokens of each running sequence, in the order of their ranks."""
        return [(running.request.request_id, running.num_computed_tokens) for running in self._running]

    def repeat(self, num_steps: int, token_ids: Ordered[int]) -> None:
        """Settle steps that are alike in one go, as plan() and commit() would one by one; nothing was planned for them.

        Args:
            num_steps: at most `num_repeatable_steps`.
            token_ids: what each running sequence yields in every one of them, in the order of `progress`.
        """
        size = self._blocks.block_size
        events: list[tuple[int, bool, int]] = []  # step, is_full, place: blocks are taken, then filled and published
        for place, (running, token_id) in enumerate(zip(self._running, token_ids, strict=True)):
            start = running.num_computed_tokens
            running.token_ids += [token_id] * num_steps
            running.num_computed_tokens += num_steps
            events += [(i, False, place) for i in range(len(running.block_ids) * size - start, num_steps, size)]
            events += [(i, True, place) for i in range(-(start + 1) % size, num_steps, size)]
        for i, is_full, place in sorted(events):
            running = self._running[place]
            if is_full:
                self._publish(running, running.num_computed_tokens - num_steps + i + 1)
            else:
                running.block_ids += self._blocks.allocate(1)
        self._step += num_steps
        self._computed_tokens += num_steps * len(self._running)
        self._generation_tokens += num_steps * len(self._running)

    # -- for operators and tests --------------------------------------------------------------------------------

    def stats(self) -> EngineStats:
        """Gauges and counters since the start."""
        return EngineStats(
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            num_blocks=self._blocks.num_usable_blocks,
            num_free_blocks=self._blocks.num_free_blocks,
            prefix_queries_tokens=self._prefix_queries_tokens,
            prefix_hits_tokens=self._prefix_hits_tokens,
            num_preemptions=self._num_preemptions,
            num_errors=self._num_errors,
            prompt_tokens=self._prompt_tokens,
            generation_tokens=self._generation_tokens,
            computed_tokens=self._computed_tokens,
            num_drafts=self._acceptance.num_drafts,
            num_draft_tokens=self._acceptance.num_draft_tokens,
            num_accepted_tokens=sum(self._acceptance.accepted_per_position),
            accepted_per_position=tuple(self._acceptance.accepted_per_position),
        )

    def check(self) -> None:
        """Prove that sequences, rows and blocks agree; an AssertionError is a mistake of ours."""
        assert sorted(s.rank for s in self._by_id.values()) == sorted(map(_rank, self._waiting + self._running))
        for queue in (self._waiting, self._running):
            assert queue == sorted(queue, key=_rank), "a queue is out of order"
        for waiting in self._waiting:
            holds = waiting.row, waiting.block_ids, waiting.num_computed_tokens, waiting.num_published_blocks
            assert holds == (None, [], 0, 0), f"{waiting.request.request_id} waits and holds {holds}"
        for running in self._running:
            num_held_tokens = len(running.block_ids) * self._blocks.block_size
            assert running.num_computed_tokens <= num_held_tokens, f"{running.request.request_id} outgrew its blocks"
        in_flight = (planned for planned_of_step in self._in_flight.values() for planned in planned_of_step)
        holders = list(dict.fromkeys([*self._running, *in_flight]))  # eq=False: by identity
        rows = [holder.row for holder in holders if holder.row is not None]
        assert sorted(rows + self._free_rows) == list(range(self._config.max_num_seqs)), "a row is owned twice or lost"
        self._blocks.check([holder.block_ids for holder in holders])


def _rank(of: Sequence) -> tuple[int, float, int]:
    return of.rank


def _row(running: Sequence) -> int:
    assert running.row is not None, f"{running.request.request_id} runs without a row"
    return running.row


def _remove(queue: list[Sequence], leaving: Sequence) -> None:
    del queue[bisect_left(queue, leaving.rank, key=_rank)]
