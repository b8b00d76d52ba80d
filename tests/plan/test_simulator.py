"""a load on simulated engines, worked out by hand, one by one, and in other orders"""

import itertools
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from minnow.config.scheduler import SchedulerConfig
from minnow.plan import acceptance, workload
from minnow.plan import cluster as clusters
from minnow.plan.cluster import Cluster
from minnow.plan.rank import Job
from minnow.plan.simulator import Handover, Simulator
from minnow.plan.work import Row, add_up
from minnow.plan.workload import Piece, Session, Turn, Workload
from tests.plan.simulated import SHAPE, alone, cluster, play, pool, seconds

Record = tuple[int, float, float, float, int]


def record(on: Cluster, load: Workload) -> tuple[list[Record], Simulator]:
    """Every request's number, times and cached tokens, and the engines at the end."""
    records: list[Record] = []

    def on_end(job: Job, now_s: float, is_warmup: bool) -> None:
        records.append((job.number, job.due_s, job.first_s, now_s, job.num_cached_tokens))

    simulator = clusters.build(on, 0, on_end)
    simulator.run(load)
    for engine in simulator.engines:
        for rank in engine.ranks:
            rank.check()
            assert not rank.num_requests and not rank.num_awaited_tokens and not rank.num_held_tokens
    return records, simulator


def step_s(*rows: Row) -> float:
    return seconds(add_up(list(rows), SHAPE.limits))


# -- by hand ----------------------------------------------------------------------------------------------------


def test_one_request_by_hand() -> None:
    first = step_s(Row(256, 256, 0)) + step_s(Row(44, 300))
    rest = sum(step_s(Row(1, 300 + i)) for i in range(1, 5))
    for is_repeating in (True, False):
        records, _ = record(
            cluster(is_repeating=is_repeating),
            Workload(sessions=[alone(1, 2.0, num_input_tokens=300, num_output_tokens=5)]),
        )
        assert records == [(0, 2.0, pytest.approx(2.0 + first, rel=1e-12), pytest.approx(2.0 + first + rest), 0)]


def test_who_comes_during_a_step_is_in_the_next_one() -> None:
    prompt = step_s(Row(100, 100))
    sessions = [alone(1, 0.0), alone(2, prompt / 2)]
    records, _ = record(cluster(), Workload(sessions=sessions))
    both = step_s(Row(1, 101), Row(100, 100))
    assert records[1][:3] == (1, prompt / 2, pytest.approx(prompt + both))
    records, _ = record(cluster(), Workload(sessions=[alone(1, 0.0), alone(2, prompt)]))
    assert records[1][2] == pytest.approx(prompt + both)  # as the step ends is early enough


def test_ranks_in_lockstep_wait_for_the_slowest() -> None:
    sessions = [alone(1, 0.0, 250, 1), alone(2, 0.0, 16, 1)]
    records, simulator = record(cluster(ranks=2, routing="round-robin"), Workload(sessions=sessions))
    slow = step_s(Row(250, 250))
    assert [end_s for _, _, _, end_s, _ in records] == [slow, slow]
    assert simulator.engines[0].num_steps == 1
    records, _ = record(cluster(engines=2, routing="round-robin"), Workload(sessions=sessions))
    assert sorted(end_s for _, _, _, end_s, _ in records) == [step_s(Row(16, 16)), slow]


def tree() -> Session:
    """A turn, two agents that it calls, and a turn after both."""
    one, two = (Turn(pieces=(Piece(n, 40),), num_output_tokens=n, after=(0,), gap_s=0.5 * n, agent=n) for n in (3, 4))
    last = Turn(pieces=(Piece(1, 50), Piece(5, 20)), num_output_tokens=2, after=(0, 1, 2), gap_s=7.0, extends=0)
    return Session(turns=(Turn(pieces=(Piece(1, 50),), num_output_tokens=2), one, two, last))


def test_a_tree_of_turns_keeps_its_order_and_its_gaps() -> None:
    records, _ = record(cluster(), Workload(sessions=[tree()]))
    ends = {number: end_s for number, _, _, end_s, _ in records}
    dues = {number: due_s for number, due_s, _, _, _ in records}
    assert dues[0] == 0 and len(records) == 4
    assert (dues[1], dues[2]) == (ends[0] + 1.5, ends[0] + 2.0)
    assert dues[3] == max(ends[1], ends[2]) + 7.0
    assert records[-1][4] == 48  # the prefix of the first turn, in blocks of 16


def test_idle_time_beyond_the_limit_is_left_out() -> None:
    records, simulator = record(cluster(), Workload(sessions=[tree()], max_idle_s=1.0))
    assert simulator.skipped_s == pytest.approx(0.5 + 6.0, abs=0.1)
    ends = {number: end_s for number, _, _, end_s, _ in records}
    assert records[-1][1] == pytest.approx(max(ends[1], ends[2]) + 1.0)
    with_another = [tree(), alone(9, 0.0, 100, 2000)]  # something always runs
    _, simulator = record(cluster(), Workload(sessions=with_another, max_idle_s=1.0))
    assert simulator.skipped_s == 0.0


# -- limits -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [1, 3])
def test_no_more_sessions_at_once_than_allowed(most: int) -> None:
    sessions = [alone(n, 0.001 * n, num_output_tokens=5 + n) for n in range(1, 12)]
    records, _ = record(cluster(), Workload(sessions=sessions, max_concurrency=most))
    moments = [(due_s, 1) for _, due_s, _, _, _ in records] + [(end_s, -1) for _, _, _, end_s, _ in records]
    alive = list(itertools.accumulate(change for _, change in sorted(moments, key=lambda m: (m[0], m[1]))))
    assert max(alive) == most and len(records) == 11


def test_no_turn_begins_after_the_last_that_is_wanted() -> None:
    endless = (alone(n, 0.1 * n) for n in itertools.count(1))
    outcome = play(cluster(), endless, max_turns=7)
    assert outcome.num_requests == 7


def test_what_can_never_run_is_left_out_and_said() -> None:
    outcome = play(cluster(), [alone(1), alone(2, 0.0, 4090, 10), alone(3, 1.0)])
    assert (outcome.num_requests, outcome.num_refused) == (2, 1)
    assert outcome.first_refusal.startswith("the prompt of 4090 tokens and max_tokens 10 make 4100 tokens")


def test_a_warm_up_is_played_and_not_counted() -> None:
    turn = replace(alone(1).turns[0], is_warmup=True)
    outcome = play(cluster(), [Session(turns=(turn,)), alone(2, 3.0)])
    assert (outcome.num_requests, outcome.num_warmups, outcome.input_tokens) == (1, 1, 100)
    assert outcome.duration_s == pytest.approx(outcome.e2e_s.p50)


# -- the same, settled together -----------------------------------------------------------------------------------


def mixed(seed: int) -> list[Session]:
    """Requests of all lengths at random times, some with a prefix in common, some in trees."""
    rng = Random(seed)
    sessions, now_s = [], 0.0
    for n in range(40):
        now_s += rng.expovariate(12.0)
        if rng.random() < 0.2:
            sessions.append(replace(tree(), start_s=now_s))
            continue
        pieces = (Piece(100 + rng.randrange(3), rng.randint(1, 90)), Piece(1000 + n, rng.randint(1, 400)))
        turn = Turn(pieces=pieces, num_output_tokens=rng.randint(1, 120))
        sessions.append(Session(turns=(turn,), start_s=now_s))
    return sessions


@pytest.mark.parametrize("routing", ["cache-aware", "least-loaded", "round-robin"])
@pytest.mark.parametrize("engines", [{}, {"engines": 3}, {"ranks": 2}, {"engines": 2, "ranks": 2}, {"num_blocks": 60}])
def test_settled_together_or_step_by_step(engines: dict[str, Any], routing: str) -> None:
    for seed in range(3):
        load = Workload(sessions=mixed(seed))
        (one, alike), (many, others) = (
            record(cluster(routing=routing, is_repeating=is_repeating, **engines), load)
            for is_repeating in (False, True)
        )
        assert one == many
        for left, right in zip(alike.engines, others.engines, strict=True):
            assert left.num_steps == right.num_steps and left.busy_s == pytest.approx(right.busy_s)
            assert left.used_s == pytest.approx(right.used_s, rel=0.01)  # of stretches, use grows evenly
            assert left.peak_used == right.peak_used
            for mine, their in zip(left.ranks, right.ranks, strict=True):
                assert list(mine.blocks._free) == list(their.blocks._free)
                assert mine.blocks._hash_by_block == their.blocks._hash_by_block
                assert mine.stats() == their.stats()


def test_a_seed_gives_the_same_again() -> None:
    law = acceptance.from_length(2.2, 3)
    played = [record(cluster(num_drafts=3, law=law, ranks=2), Workload(sessions=mixed(1)))[0] for _ in range(2)]
    assert played[0] == played[1]


# -- drafts and scarcity ----------------------------------------------------------------------------------------


def test_rounds_yield_what_the_law_says() -> None:
    law = acceptance.from_length(2.5, 3)
    outcome = play(cluster(num_drafts=3, law=law), [alone(n, n * 1.0, 50, 800) for n in range(1, 15)])
    assert 1 + outcome.decode.num_accepted_tokens / outcome.decode.num_drafts == pytest.approx(2.5, rel=0.02)
    without = play(cluster(), [alone(n, n * 1.0, 50, 800) for n in range(1, 15)])
    assert without.tpot_s.mean / outcome.tpot_s.mean == pytest.approx(2.5, rel=0.15)
    assert outcome.tpot_s.p99 > outcome.tpot_s.p50 * 1.01  # the variance stays
    assert outcome.decode.computed_tokens > without.decode.computed_tokens


def test_a_full_cache_preempts_and_computes_again() -> None:
    sessions = [alone(n, 0.0, 60, 150) for n in range(1, 9)]
    scheduler = SchedulerConfig(max_num_batched_tokens=256, max_num_seqs=16, scheduler_reserve_full_isl=False)
    tight, roomy = (
        play(cluster(num_blocks=num_blocks, scheduler=scheduler, has_prefix_cache=False), sessions)
        for num_blocks in (50, 400)
    )
    assert tight.num_requests == roomy.num_requests == 8
    assert tight.decode.num_preemptions > 0 == roomy.decode.num_preemptions
    assert tight.decode.computed_tokens > roomy.decode.computed_tokens
    assert tight.duration_s > roomy.duration_s and tight.decode.peak_used > 0.95


def visits(count: int, *, answer: int = 0) -> list[Session]:
    """Sessions of two turns, far apart, with text of their own."""
    sessions = []
    for n in range(1, count + 1):
        first = Turn(pieces=(Piece(n, 400),), num_output_tokens=48, answer=answer * (500 + n))
        pieces = (*first.pieces, Piece(500 + n, 48), Piece(200 + n, 20))
        second = Turn(pieces=pieces, num_output_tokens=10, after=(0,), gap_s=30.0, extends=0)
        sessions.append(Session(turns=(first, second), start_s=0.5 * n))
    return sessions


def test_host_memory_brings_back_what_the_device_gave_up() -> None:
    sessions = visits(30)
    small = {"num_blocks": 120}
    host = {"host_blocks": 2000, "host_bytes_s": 1e9}
    lost, kept, roomy = (play(cluster(**words), sessions) for words in (small, small | host, {"num_blocks": 4000}))
    assert lost.cached_tokens == 0 and lost.decode.num_evictions > 0
    assert kept.cached_tokens == roomy.cached_tokens == 30 * 400
    assert kept.decode.host_hit_rate == pytest.approx(30 * 400 / kept.input_tokens)
    # 25 blocks of 1 MB come at 1 GB/s before the step: slower than where they never left
    assert kept.ttft_s.p50 != roomy.ttft_s.p50
    assert sum_of(kept) - sum_of(roomy) == pytest.approx(30 * 0.025, rel=0.05)


def sum_of(outcome: Any) -> float:
    return float(outcome.ttft_s.mean * outcome.ttft_s.count)


def test_answers_are_found_again_where_they_were_generated() -> None:
    recorded, generated = (play(cluster(num_blocks=4000), visits(5, answer=answer)) for answer in (0, 1))
    assert recorded.cached_tokens == 5 * 400
    assert generated.cached_tokens == 5 * 432  # 447 tokens were computed; whole blocks are found


# -- several engines --------------------------------------------------------------------------------------------


def test_a_session_comes_back_to_where_its_prefix_is() -> None:
    sessions = visits(9)
    rates = {
        routing: play(cluster(engines=4, routing=routing, num_blocks=4000), sessions).cached_tokens
        for routing in ("cache-aware", "round-robin")
    }
    assert rates["cache-aware"] == 9 * 400 > rates["round-robin"]


def test_load_is_spread() -> None:
    sessions = [alone(n, 0.0) for n in range(1, 13)]
    for routing in ("cache-aware", "least-loaded", "round-robin"):
        _, simulator = record(cluster(engines=3, routing=routing), Workload(sessions=sessions))
        assert [engine.ranks[0].stats().generation_tokens for engine in simulator.engines] == [40, 40, 40]


def test_prefill_hands_over_to_decode() -> None:
    handover = Handover(block_bytes=1_000_000, bytes_s=1e8)
    on = cluster(prefill=pool(), handover=handover, has_prefix_cache=False)
    records, simulator = record(on, Workload(sessions=[alone(1, 0.0, 100, 10), alone(2, 0.0, 100, 10)]))
    first = step_s(Row(100, 100), Row(100, 100))
    assert [first_s for _, _, first_s, _, _ in records] == [first, first]
    arrivals = [first + 0.07, first + 0.14]  # 7 blocks each, one after the other
    one = sum(step_s(Row(1, 101 + i)) for i in range(9))
    assert records[0][3] == pytest.approx(arrivals[0] + one)
    assert records[1][3] >= arrivals[1]
    prefill, decode = simulator.prefill[0].ranks[0].stats(), simulator.engines[0].ranks[0].stats()
    assert (prefill.computed_tokens, decode.computed_tokens) == (200, 18)
    assert (prefill.generation_tokens, decode.generation_tokens) == (2, 18)


def test_an_answer_of_one_token_needs_no_decode() -> None:
    on = cluster(prefill=pool(), handover=Handover(block_bytes=1, bytes_s=1.0), has_prefix_cache=False)
    outcome = play(on, [alone(1, 0.0, 100, 1)])
    assert outcome.num_requests == 1 and outcome.decode.num_steps == 0
    assert outcome.tpot_s.count == 0 and outcome.tpot_interactivity == 0


def test_prefixes_stay_where_prompts_are_computed() -> None:
    on = cluster(
        prefill=pool(engines=2, num_blocks=4000), engines=2, has_prefix_cache=False,
        handover=Handover(block_bytes=1000, bytes_s=1e9),
    )  # fmt: skip
    outcome = play(on, visits(8))
    assert outcome.cached_tokens == 8 * 400 and outcome.prefill is not None
    assert outcome.prefill.computed_tokens == outcome.input_tokens - outcome.cached_tokens
    assert outcome.num_devices == 4


def test_drafts_and_prefill_apart() -> None:
    law = acceptance.from_length(2.5, 3)
    on = cluster(
        prefill=pool(num_drafts=3), handover=Handover(block_bytes=1000, bytes_s=1e9), law=law, num_drafts=3,
        has_prefix_cache=False,
    )  # fmt: skip
    outcome = play(on, [alone(n, 0.2 * n, 80, 300) for n in range(1, 9)])
    assert outcome.num_requests == 8 and outcome.output_tokens == 2400
    assert outcome.prefill is not None and outcome.prefill.num_drafts == 0 < outcome.decode.num_drafts


def test_a_poisson_load_below_capacity_keeps_its_rate() -> None:
    rng = Random(5)
    load = workload.independent(
        workload.arrivals(10.0, 1.0, rng), workload.fixed(64), workload.fixed(8), count=600, rng=rng
    )
    outcome = play(cluster(), load)
    assert outcome.duration_s == pytest.approx(60, rel=0.1)
    assert outcome.total_tokens_s_device == pytest.approx(10 * 72, rel=0.1)
