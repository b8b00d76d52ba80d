"""what a step may hold: tokens, and prompt tokens that are scored"""

from dataclasses import replace

from minnow.config.scheduler import SchedulerConfig
from minnow.core.request import Request
from minnow.core.step import StepPlan
from minnow.engine import policy, sequence
from minnow.engine.planning import Planning
from tests.fakes import Collector, alone_scores, expect_alone, make_request, make_scheduler, step

MOST = policy.MAX_PROMPT_LOGPROBS
CONFIG = SchedulerConfig(max_num_batched_tokens=4 * MOST, max_num_seqs=8)
LONG = 4096


def scored(name: str, num_tokens: int, max_tokens: int = 2) -> Request:
    """A request that wants its prompt scored."""
    made = make_request(name, num_tokens, max_tokens)
    return replace(made, sampling=replace(made.sampling, prompt_logprobs=0))


def parts(plan: StepPlan) -> list[tuple[int, int, int]]:
    """Of each row: where it starts, its tokens, and how many of them score the next one."""
    return [(row.start, row.num_tokens, row.num_prompt_logprobs) for row in plan.rows]


def test_a_scored_prompt_gets_chunks_of_its_own_budget() -> None:
    scheduler, runner = make_scheduler(CONFIG, num_blocks=2048, max_model_len=LONG)
    collector, asked = Collector(), scored("a", 2 * MOST + 5)
    scheduler.add(asked)
    plans = []
    while not scheduler.is_idle:
        plan, outputs = step(scheduler, runner)
        plans.append(parts(plan))
        collector.take(outputs)
    assert plans == [
        [(0, MOST, MOST)],
        [(MOST, MOST, MOST)],
        [(2 * MOST, 5, 4)],  # the last token of the prompt scores none of it
        [(2 * MOST + 5, 1, 0)],
    ]
    assert collector.scores["a"] == alone_scores(asked)
    expect_alone(collector, asked, max_model_len=LONG)


def test_scored_prompts_share_the_budget_and_others_do_not_need_it() -> None:
    scheduler, runner = make_scheduler(CONFIG, num_blocks=2048, max_model_len=LONG, is_caching=False)
    asked = [
        scored("a", MOST - 10),
        make_request("b", MOST, 2),
        scored("c", MOST),
        scored("d", 3),
        make_request("e", 5),
    ]
    for each in asked:
        scheduler.add(each)
    collector, plans = Collector(), []
    while not scheduler.is_idle:
        plan, outputs = step(scheduler, runner)
        plans.append(parts(plan))
        collector.take(outputs)
    assert plans[:2] == [
        [(0, MOST - 10, MOST - 11), (0, MOST, 0), (0, 11, 11), (0, 5, 0)],  # e needs no scores, so it goes past d
        [(MOST - 10, 1, 0), (MOST, 1, 0), (5, 1, 0), (11, MOST - 11, MOST - 12), (0, 3, 2)],
    ]
    expect_alone(collector, *asked, max_model_len=LONG)
    for each in asked:
        expected = () if each.sampling.prompt_logprobs is None else alone_scores(each)
        assert collector.scores[each.request_id] == expected


def test_one_that_was_scored_is_resumed_like_any_other() -> None:
    """Preempted after its first token it needs no scores, so what it left in the cache serves it again."""
    scheduler, runner = make_scheduler(replace(CONFIG, max_num_batched_tokens=64), num_blocks=9)
    asked = [scored("a", 15, 12), scored("b", 13, 12)]
    for each in asked:
        scheduler.add(each)
    collector, starts = Collector(), []
    while not scheduler.is_idle:
        plan, outputs = step(scheduler, runner)
        starts += [start for start in plan.starts if start.request_id == "b"]
        collector.take(outputs)
    assert collector.ends["b"].num_preemptions == len(starts) - 1 > 0
    assert [start.num_computed_tokens > 0 for start in starts] == [False, *[True] * (len(starts) - 1)]
    expect_alone(collector, *asked)
    assert collector.scores == {each.request_id: alone_scores(each) for each in asked}


def test_what_was_planned_for_a_preempted_one_is_given_back() -> None:
    asked = scored("a", 9)
    waiting = sequence.make(asked, rank=(0, 0.0, 0), max_context_tokens=20, eos_token_ids=(), engine_seed=0, chain=None)
    planning = Planning(budget_tokens=20)
    planning.add(3, waiting, 9)
    assert (planning.budget_tokens, planning.budget_logprobs) == (11, MOST - 8)
    planning.drop(3)
    assert (planning.budget_tokens, planning.budget_logprobs) == (20, MOST)
    assert planning.has_preempted and planning.finish(1, (3,)) == StepPlan(step=1, stops=(3,))
