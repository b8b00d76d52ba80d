"""preemption, errors and aborts"""

from dataclasses import replace

import pytest

from minnow.config.scheduler import SchedulerConfig
from minnow.core.request import SamplingParams
from minnow.core.step import RowResult, StepResult
from tests.fakes import (
    CONFIG,
    Collector,
    FakeRunner,
    expect_alone,
    make_request,
    make_scheduler,
    run_until_idle,
    step,
    tokens_by_row,
)


def test_the_last_admitted_gives_way_and_comes_back_first() -> None:
    scheduler, runner = make_scheduler(num_blocks=9, is_caching=False)
    asked = [make_request("a", 8, 20), make_request("b", 8, 12, first=2), make_request("c", 8, 4, first=3)]
    for each in asked[:2]:
        scheduler.add(each)
    collector = Collector()
    while not scheduler.stats().num_preemptions:
        plan, outputs = step(scheduler, runner)
        collector.take(outputs)
    scheduler.add(asked[2])
    assert plan.stops == (1,) and tokens_by_row(plan) == {0: 1}
    done = collector.token_ids["b"][:]
    while not plan.starts:
        plan, outputs = step(scheduler, runner)
        collector.take(outputs)
    resumed = plan.starts[0]
    assert resumed.request_id == "b" and resumed.num_prompt_tokens == 8
    assert resumed.token_ids == (*asked[1].token_ids, *done)
    run_until_idle(scheduler, runner, collector)
    expect_alone(collector, *asked)
    assert scheduler.stats().num_free_blocks == 8


def test_a_resumed_sequence_finds_its_own_blocks_again() -> None:
    scheduler, runner = make_scheduler(num_blocks=9)
    asked = [make_request("a", 8, 20), make_request("b", 8, 12, first=2)]
    for each in asked:
        scheduler.add(each)
    collector = Collector()
    starts = []
    while not scheduler.is_idle:
        plan, outputs = step(scheduler, runner)
        starts += plan.starts
        collector.take(outputs)
    assert scheduler.stats().num_preemptions >= 1
    assert starts[2].request_id == "b" and starts[2].num_computed_tokens > 0
    assert collector.num_cached_tokens == {"a": 0, "b": 0}  # what its first admission found, not its own blocks
    expect_alone(collector, *asked)


def test_two_that_do_not_fit_side_by_side_do_not_thrash() -> None:
    """Case C08: A grows from 40 of 100 blocks, B needs 70."""
    for is_reserving in (True, False):
        config = replace(CONFIG, max_num_batched_tokens=64, scheduler_reserve_full_isl=is_reserving)
        scheduler, runner = make_scheduler(config, num_blocks=101, max_model_len=400)
        asked = [make_request("a", 160, 200), make_request("b", 260, 20, first=2)]
        for each in asked:
            scheduler.add(each)
        collector = Collector()
        run_until_idle(scheduler, runner, collector)
        expect_alone(collector, *asked, max_model_len=400)
        assert scheduler.stats().num_preemptions <= 3


def test_tokens_of_a_preempted_row_go_to_others() -> None:
    """The victim was planned earlier in the same step: the plan has nothing of it, and others get its budget."""
    config = replace(
        CONFIG,
        max_num_batched_tokens=8,
        scheduler_reserve_full_isl=False,
        long_prefill_token_threshold=4,
        scheduling_policy="priority",
    )
    scheduler, runner = make_scheduler(config, num_blocks=10)
    asked = [make_request("a", 24, 2), make_request("b", 24, 2, first=2), make_request("c", 1, 20, first=3, priority=1)]
    collector, plans = Collector(), []
    for each in (asked[2], asked[0], asked[1]):
        scheduler.add(each)
        plan, outputs = step(scheduler, runner)
        plans.append(plan)
        collector.take(outputs)
    while not scheduler.stats().num_preemptions:
        plan, outputs = step(scheduler, runner)
        plans.append(plan)
        collector.take(outputs)
    row_by_name = {start.request_id: start.row for plan in plans for start in plan.starts}
    assert tokens_by_row(plans[-2]) == {row_by_name["a"]: 4, row_by_name["b"]: 3, row_by_name["c"]: 1}
    assert plans[-1].stops == (row_by_name["c"],)
    assert tokens_by_row(plans[-1]) == {row_by_name["a"]: 4, row_by_name["b"]: 4}
    run_until_idle(scheduler, runner, collector)
    expect_alone(collector, *asked)


def test_what_ends_while_the_next_step_runs_keeps_its_blocks_until_then() -> None:
    scheduler, runner = make_scheduler()
    scheduler.add(make_request("a", 7, 1))
    scheduler.add(make_request("b", 7, 9, first=2))
    asked = replace(make_request("a", 7), sampling=SamplingParams(stop_token_ids=tuple(range(64))))
    scheduler.abort("a")
    scheduler.add(asked)
    plans = [scheduler.plan(), scheduler.plan()]
    results = [runner.launch(plan).result() for plan in plans if plan]
    assert plans[0] and plans[1] and len(plans[1].rows) == 2
    outputs = scheduler.commit(plans[0], results[0])
    assert {output.request_id: output.finish_reason for output in outputs} == {"a": "stop", "b": None}
    scheduler.check()
    assert scheduler.stats().num_free_blocks == 32 - 2 - 2  # both still hold theirs
    outputs = scheduler.commit(plans[1], results[1])
    assert [output.request_id for output in outputs] == ["b"]  # the token behind the end is dropped
    scheduler.check()
    assert scheduler.stats().num_free_blocks == 32 - 2
    last = scheduler.plan()
    assert last is not None and len(last.stops) == 1


def test_an_abort_waits_for_all_plans_in_flight() -> None:
    scheduler, runner = make_scheduler()
    scheduler.add(make_request("a", 7, 9))
    plans = [scheduler.plan(), scheduler.plan()]
    assert scheduler.abort("a") is not None
    for plan, num_held_blocks in zip(plans, (2, 0), strict=True):
        assert plan is not None
        assert scheduler.commit(plan, runner.launch(plan).result()) == []
        assert scheduler.stats().num_free_blocks == 32 - num_held_blocks
        scheduler.check()
    assert scheduler.is_idle


def test_an_error_ends_one_request_and_leaves_nothing_in_the_cache() -> None:
    """Case E07 on the scheduler's side: neighbours go on, the blocks are not found again."""
    scheduler, _ = make_scheduler()
    runner = FakeRunner(4, failing={"bad"})
    good, bad = make_request("good", 20, 6, first=2), make_request("bad", 20, 6)
    scheduler.add(bad)
    scheduler.add(good)
    collector = Collector()
    run_until_idle(scheduler, runner, collector)
    end = collector.ends["bad"]
    assert (end.finish_reason, end.error, end.token_ids) == ("error", "logits are not finite", ())
    expect_alone(collector, good)
    again = replace(bad, request_id="again")
    scheduler.add(again)
    run_until_idle(scheduler, runner, collector)
    assert collector.num_cached_tokens["again"] == 0
    expect_alone(collector, again)
    assert scheduler.stats().num_free_blocks == 32


@pytest.mark.parametrize("state", ["queued", "prefilling", "between chunks", "streaming", "preempted"])
def test_aborting_frees_at_once(state: str) -> None:
    """Case C03: 50 requests in each state."""
    config = SchedulerConfig(max_num_batched_tokens=400, max_num_seqs=50)
    scheduler, runner = make_scheduler(
        replace(config, max_num_batched_tokens=4000 if state == "streaming" else 400), num_blocks=401
    )
    names = [str(number) for number in range(50)]
    num_tokens = {"queued": 24, "prefilling": 24, "between chunks": 24, "streaming": 24, "preempted": 12}[state]
    if state == "preempted":
        scheduler, runner = make_scheduler(replace(config, max_num_batched_tokens=4000), num_blocks=201)
    for number, name in enumerate(names):
        scheduler.add(make_request(name, num_tokens, 30, first=number % 8))
    plan = None
    if state == "prefilling":
        plan = scheduler.plan()
    elif state == "between chunks":
        step(scheduler, runner)
        assert scheduler.stats().num_running
    elif state == "streaming":
        for _ in range(3):
            step(scheduler, runner)
        assert scheduler.stats().num_running == 50
    elif state == "preempted":
        while scheduler.stats().num_preemptions < 5:
            step(scheduler, runner)
    assert scheduler.stats().num_free_blocks < scheduler.stats().num_blocks or state == "queued"
    outputs = [scheduler.abort(name) for name in names]
    assert [output.finish_reason for output in outputs if output] == ["abort"] * 50
    assert [scheduler.abort(name) for name in names] == [None] * 50
    scheduler.check()
    if plan is not None:  # the device still writes; the step's end frees all
        assert not scheduler.is_idle and scheduler.stats().num_free_blocks < scheduler.stats().num_blocks
        assert scheduler.commit(plan, runner.launch(plan).result()) == []
    assert scheduler.stats().num_free_blocks == scheduler.stats().num_blocks
    assert scheduler.is_idle and scheduler.plan() is None
    scheduler.check()
    scheduler.add(make_request("0", 9, 3))  # the names and rows are free again
    collector = Collector()
    run_until_idle(scheduler, runner, collector)
    expect_alone(collector, make_request("0", 9, 3))


def test_a_step_that_fails_whole_is_settled_with_errors() -> None:
    scheduler, _ = make_scheduler()
    for name in "ab":
        scheduler.add(make_request(name, 9))
    plan = scheduler.plan()
    assert plan is not None
    rows = tuple(RowResult(row=row.row, error="the device is gone") for row in plan.rows)
    outputs = scheduler.commit(plan, StepResult(step=plan.step, rows=rows))
    assert [output.finish_reason for output in outputs] == ["error", "error"]
    assert scheduler.is_idle and scheduler.stats().num_free_blocks == 32
