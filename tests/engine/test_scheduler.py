"""plan() and commit() with room for all; scarcity and chance have files of their own"""

from dataclasses import replace

import pytest

from minnow.core.errors import ConfigError, RequestError
from minnow.core.request import SamplingParams
from minnow.core.step import RowResult, StepResult, TokenLogprobs
from tests.fakes import (
    CONFIG,
    Collector,
    FakeClock,
    alone,
    expect_alone,
    make_request,
    make_scheduler,
    run_until_idle,
    step,
    tokens_by_row,
)

# -- one request ------------------------------------------------------------------------------------------------


def test_a_prompt_in_chunks_then_tokens_one_by_one() -> None:
    scheduler, runner = make_scheduler()
    asked = make_request("a", 37, 3)
    scheduler.add(asked)
    plans, collector = [], Collector()
    while not scheduler.is_idle:
        plan, outputs = step(scheduler, runner)
        plans.append(plan)
        collector.take(outputs)
    rows = [plan.rows[0] for plan in plans]
    assert [(row.start, row.num_tokens, row.is_sampling) for row in rows] == [
        (0, 16, False),
        (16, 16, False),
        (32, 5, True),
        (37, 1, True),
        (38, 1, True),
    ]
    assert [len(ids.block_ids) for plan in plans for ids in plan.blocks] == [10]  # the whole prompt is reserved
    assert [plan.step for plan in plans] == [1, 2, 3, 4, 5]
    assert plans[0].starts[0].token_ids == asked.token_ids and not any(plan.starts for plan in plans[1:])
    expect_alone(collector, asked)
    assert scheduler.plan() is None


def test_blocks_come_chunk_by_chunk_where_nothing_is_reserved() -> None:
    scheduler, runner = make_scheduler(replace(CONFIG, scheduler_reserve_full_isl=False))
    scheduler.add(make_request("a", 37, 4))
    counts = []
    while not scheduler.is_idle:
        counts += [len(ids.block_ids) for ids in step(scheduler, runner)[0].blocks]
    assert counts == [4, 4, 2]


def test_stop_tokens_and_their_names() -> None:
    plain = replace(make_request("a", 9), sampling=SamplingParams())
    endless, _ = alone(plain, eos_token_ids=(), max_total_tokens=64)
    eos = next(token_id for token_id in endless[5:] if token_id not in endless[:5])
    scheduler, runner = make_scheduler(eos=eos)
    output, _ = alone(plain, eos_token_ids=(eos,), max_total_tokens=64)
    own = replace(plain, request_id="b", sampling=SamplingParams(stop_token_ids=(output[1],)))
    later = replace(plain, request_id="c", sampling=SamplingParams(stop_token_ids=(output[1],), min_tokens=3))
    collector = Collector()
    for asked in (plain, own, later):
        scheduler.add(asked)
    run_until_idle(scheduler, runner, collector)
    for asked in (plain, own, later):
        expected, _ = alone(asked, eos_token_ids=(eos,), max_total_tokens=64)
        end = collector.ends[asked.request_id]
        assert collector.token_ids[asked.request_id] == expected
        assert (end.finish_reason, end.stop_token_id) == ("stop", expected[-1])
    assert len(collector.token_ids["b"]) == 2 and len(collector.token_ids["c"]) > 3


def test_max_tokens_zero_computes_the_prompt_and_says_nothing() -> None:
    scheduler, runner = make_scheduler()
    scheduler.add(make_request("a", 20, 0))
    collector = Collector()
    assert run_until_idle(scheduler, runner, collector) == 2
    assert runner.num_computed_tokens == 20
    end = collector.ends["a"]
    assert (end.token_ids, end.finish_reason, end.stop_token_id) == ((), "length", None)


def test_omitted_max_tokens_fills_the_context() -> None:
    scheduler, runner = make_scheduler(max_model_len=30)
    collector = Collector()
    asked = [make_request("a", 10, None), make_request("b", 29, None)]
    for each in asked:
        scheduler.add(each)
    run_until_idle(scheduler, runner, collector)
    assert [len(collector.token_ids[name]) for name in "ab"] == [20, 1]
    expect_alone(collector, *asked, max_model_len=30)


def test_omitted_max_tokens_ends_where_all_blocks_are_full() -> None:
    scheduler, runner = make_scheduler(num_blocks=4)  # 12 tokens of cache
    scheduler.add(make_request("a", 5, None))
    collector = Collector()
    run_until_idle(scheduler, runner, collector)
    assert len(collector.token_ids["a"]) == 8  # 12 computed tokens draw a 13th


def test_accepted_drafts_behind_a_stop_token_are_dropped() -> None:
    scheduler, runner = make_scheduler(num_speculative_tokens=2)
    scheduler.add(replace(make_request("a", 5), sampling=SamplingParams(stop_token_ids=(9,), min_tokens=1)))
    step(scheduler, runner)
    plan = scheduler.plan()
    assert plan is not None
    drafts = replace(plan, rows=(replace(plan.rows[0], num_tokens=3, num_drafts=2),))
    logprobs = tuple(TokenLogprobs(logprob=-1.0, rank=rank) for rank in (1, 2, 3))
    row = RowResult(row=0, token_ids=(9, 10, 11), logprobs=logprobs)
    (output,) = scheduler.commit(drafts, StepResult(step=plan.step, rows=(row,)))
    assert (output.token_ids, output.finish_reason, output.stop_token_id) == ((9,), "stop", 9)
    assert output.logprobs == logprobs[:1]
    scheduler.check()
    assert scheduler.is_idle


def test_how_long_it_waited_and_how_often_it_was_preempted() -> None:
    clock = FakeClock(100.0)
    scheduler, runner = make_scheduler(replace(CONFIG, max_num_seqs=1), clock=clock)
    for name in "ab":
        scheduler.add(make_request(name, 5, 2))
        clock.advance(1.0)
    waits: dict[str, list[float]] = {"a": [], "b": []}
    while not scheduler.is_idle:
        for output in step(scheduler, runner)[1]:
            waits[output.request_id].append(output.queued_s)
            assert output.num_preemptions == 0
        clock.advance(0.5)
    assert waits == {"a": [2.0, 0.0], "b": [2.0, 0.0]}
    assert scheduler.stats().computed_tokens == runner.num_computed_tokens == 5 + 1 + 1 + 1  # b shares a block of 4


# -- refusals ---------------------------------------------------------------------------------------------------


def test_what_can_never_fit_is_refused_at_once() -> None:
    """Case C08, second half."""
    scheduler, _ = make_scheduler(num_blocks=9, max_model_len=40)
    with pytest.raises(RequestError) as too_long:
        scheduler.add(make_request("a", 41))
    assert too_long.value.code == "context_length_exceeded"
    with pytest.raises(RequestError) as too_large:
        scheduler.add(make_request("a", 34))
    assert too_large.value.code == "cache_capacity_exceeded"
    assert scheduler.is_idle and scheduler.plan() is None
    scheduler.add(make_request("a", 29))


def test_an_id_in_use_is_refused_until_it_is_free_again() -> None:
    scheduler, runner = make_scheduler()
    scheduler.add(make_request("a", 5))
    with pytest.raises(RequestError, match="'a' is in use") as caught:
        scheduler.add(make_request("a", 6))
    assert caught.value.param == "request_id"
    run_until_idle(scheduler, runner, Collector())
    scheduler.add(make_request("a", 6))


@pytest.mark.parametrize("name", ["max_num_seqs", "max_num_batched_tokens"])
def test_limits_of_zero_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is 0"):
        make_scheduler(replace(CONFIG, **{name: 0}))


# -- several requests -------------------------------------------------------------------------------------------


def test_running_ones_come_before_prompts_and_prompts_share_what_is_left() -> None:
    scheduler, runner = make_scheduler(replace(CONFIG, max_num_batched_tokens=10))
    scheduler.add(make_request("a", 4, 20))
    step(scheduler, runner)
    scheduler.add(make_request("b", 25, 20, first=2))
    scheduler.add(make_request("c", 5, 20, first=3))
    assert tokens_by_row(step(scheduler, runner)[0]) == {0: 1, 1: 9}
    assert tokens_by_row(step(scheduler, runner)[0]) == {0: 1, 1: 9}
    assert tokens_by_row(step(scheduler, runner)[0]) == {0: 1, 1: 7, 2: 2}
    plan = step(scheduler, runner)[0]
    assert tokens_by_row(plan) == {0: 1, 1: 1, 2: 3}


def test_a_later_decode_is_not_held_up_by_an_earlier_prompt() -> None:
    scheduler, runner = make_scheduler(replace(CONFIG, max_num_batched_tokens=10, long_prefill_token_threshold=6))
    scheduler.add(make_request("a", 30, 5))
    scheduler.add(make_request("b", 4, 9, first=2))
    assert tokens_by_row(step(scheduler, runner)[0]) == {0: 6, 1: 4}
    assert [(row.row, row.num_tokens) for row in step(scheduler, runner)[0].rows] == [(1, 1), (0, 6)]


def test_the_long_prefill_threshold_is_off_for_a_lone_request() -> None:
    scheduler, runner = make_scheduler(replace(CONFIG, long_prefill_token_threshold=6))
    scheduler.add(make_request("a", 40, 5))
    assert tokens_by_row(step(scheduler, runner)[0]) == {0: 16}
    scheduler.add(make_request("b", 40, 5, first=2))
    assert tokens_by_row(step(scheduler, runner)[0]) == {0: 6, 1: 6}


def test_admission_keeps_the_watermark_only_beside_others() -> None:
    scheduler, runner = make_scheduler(
        replace(CONFIG, watermark=0.25), num_blocks=9
    )  # int(0.25 * 9) = 2 blocks stay free
    scheduler.add(make_request("a", 28, 4))
    assert [start.request_id for start in step(scheduler, runner)[0].starts] == ["a"]  # 7 of 8 blocks, but alone
    scheduler.abort("a")
    scheduler.add(make_request("a", 12, 20))
    scheduler.add(make_request("b", 16, 4, first=2))  # 3 + 4 + 2 are more than 8
    scheduler.add(make_request("c", 4, 4, first=3))  # would fit, but nobody is overtaken
    assert [start.request_id for start in step(scheduler, runner)[0].starts] == ["a"]
    scheduler.abort("b")
    assert [start.request_id for start in step(scheduler, runner)[0].starts] == ["c"]


def test_the_whole_prompt_must_fit_unless_that_is_switched_off() -> None:
    for is_reserving, num_started in ((True, 1), (False, 2)):
        config = replace(CONFIG, scheduler_reserve_full_isl=is_reserving, long_prefill_token_threshold=8)
        scheduler, runner = make_scheduler(config, num_blocks=11)
        scheduler.add(make_request("a", 20, 4))
        scheduler.add(make_request("b", 24, 4, first=2))
        assert len(step(scheduler, runner)[0].starts) == num_started
        run_until_idle(scheduler, runner, Collector())


def test_rows_are_fixed_and_a_freed_one_is_stopped_before_it_starts_again() -> None:
    scheduler, runner = make_scheduler(replace(CONFIG, max_num_seqs=2))
    for name in "abc":
        scheduler.add(make_request(name, 4, 2 if name == "a" else 6))
    first = step(scheduler, runner)[0]
    assert [(start.row, start.request_id) for start in first.starts] == [(0, "a"), (1, "b")]
    step(scheduler, runner)
    third = step(scheduler, runner)[0]
    assert third.stops == (0,) and [(start.row, start.request_id) for start in third.starts] == [(0, "c")]
    assert {row.row for row in third.rows} == {0, 1}


def test_priorities_order_the_queue_and_choose_the_victim() -> None:
    scheduler, runner = make_scheduler(replace(CONFIG, scheduling_policy="priority"), num_blocks=9)
    scheduler.add(make_request("low", 8, 20, priority=5))
    scheduler.add(make_request("high", 8, 20, first=2, priority=-5, arrival_s=1.0))
    scheduler.add(make_request("middle", 8, 16, first=3, arrival_s=2.0))
    plan = step(scheduler, runner)[0]
    assert [start.request_id for start in plan.starts] == ["high", "middle"]
    collector = Collector()
    ends = []
    while not scheduler.is_idle:
        outputs = step(scheduler, runner)[1]
        collector.take(outputs)
        ends += [output.request_id for output in outputs if output.finish_reason]
    assert ends == ["high", "middle", "low"]
    assert scheduler.stats().num_preemptions > 0


def test_everybody_gets_a_token_before_anybody_gets_drafts() -> None:
    """Four sequences with three drafts each in a step of four tokens: all four move on in every step."""
    config = replace(CONFIG, max_num_batched_tokens=4)
    scheduler, runner = make_scheduler(config, num_speculative_tokens=3, num_blocks=60)
    for i in range(4):
        scheduler.add(make_request(f"r{i}", 1, 12))
    for turn in range(6):
        plan, _ = step(scheduler, runner)
        assert len(plan.rows) == 4, f"turn {turn}"


def test_drafts_leave_a_prompt_half_of_what_is_left() -> None:
    config = replace(CONFIG, max_num_batched_tokens=20)
    scheduler, runner = make_scheduler(config, num_speculative_tokens=7, num_blocks=80)
    for i in range(3):
        scheduler.add(make_request(f"r{i}", 2, 40))
    step(scheduler, runner)
    scheduler.add(make_request("long", 40, 2))
    for _ in range(3):
        plan, _ = step(scheduler, runner)
        prompt = [row.num_tokens for row in plan.rows if row.start + row.num_tokens <= 40 and row.num_tokens > 8]
        assert prompt and sum(row.num_drafts for row in plan.rows) <= 9


def test_a_step_of_one_token_makes_no_drafts() -> None:
    scheduler, runner = make_scheduler(replace(CONFIG, max_num_batched_tokens=1), num_speculative_tokens=3)
    scheduler.add(make_request("a", 2, 5))
    while not scheduler.is_idle:
        plan, _ = step(scheduler, runner)
        assert all(row.num_lookahead_slots == 0 for row in plan.rows)
