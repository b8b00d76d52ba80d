"""what a load comes to, as numbers"""

import dataclasses
import json

import pytest

from minnow.plan import document, frontier, hardware, simulation
from minnow.plan.frontier import Point
from minnow.plan.simulation import Recorder
from minnow.plan.workload import Text, Workload
from tests.plan.simulated import alone, cluster, play


def test_latencies_and_both_interactivities_by_hand() -> None:
    recorder = Recorder()
    for first_s, end_s, num_tokens in ((1.0, 3.0, 5), (2.0, 2.0, 1), (1.0, 11.0, 11)):
        job = simulation.Job(0, Text(()), num_tokens, due_s=0.5)
        job.first_s = first_s
        recorder.add(job, end_s, is_warmup=False)
    assert list(recorder.ttft_s) == [0.5, 1.5, 0.5] and list(recorder.e2e_s) == [2.5, 1.5, 10.5]
    assert list(recorder.tpot_s) == [0.5, 1.0] and list(recorder.token_s) == [0.5, 1.5, 10.5 / 11]
    found = simulation._percentiles(recorder.token_s)
    assert found.count == 3 and found.p50 == pytest.approx(10.5 / 11)
    assert found.p90 == pytest.approx(10.5 / 11 + 0.8 * (1.5 - 10.5 / 11))


def test_rates_are_of_the_time_from_the_first_request_to_the_last_end() -> None:
    outcome = play(cluster(ranks=2), [alone(n, 10.0 + n, 100, 10) for n in range(4)])
    assert outcome.duration_s == pytest.approx(3 + outcome.e2e_s.p50)
    assert outcome.total_tokens_s_device == pytest.approx(440 / outcome.duration_s / 2)
    assert outcome.output_tokens_s_device == pytest.approx(40 / outcome.duration_s / 2)
    assert outcome.e2e_interactivity == pytest.approx(10 / outcome.e2e_s.p50, rel=0.01)
    assert outcome.tpot_interactivity == pytest.approx(1 / outcome.tpot_s.p50)


def test_prices_name_their_basis_and_none_is_invented() -> None:
    sessions = [alone(1)]
    outcome = play(cluster(), sessions)
    assert [price.basis for price in outcome.prices] == ["hyperscaler", "neocloud", "rental"]
    first = outcome.prices[0]
    assert first.total_tokens == pytest.approx(outcome.total_tokens_s_device * 3600 / 2.34)
    assert first.dollars_h.status == "collected"
    rubin = simulation.simulate(cluster(), Workload(sessions=sessions), hardware.read("rubin"))
    assert rubin.prices == ()


def test_nothing_is_nothing() -> None:
    outcome = play(cluster(), [])
    assert (outcome.num_requests, outcome.duration_s, outcome.total_tokens_s_device) == (0, 0.0, 0.0)
    assert outcome.ttft_s.count == 0 and outcome.decode.hit_rate is None


def test_as_json() -> None:
    outcome = play(cluster(prefill=None), [alone(1)])
    plain = json.loads(json.dumps(document.plain(outcome)))
    assert plain["num_requests"] == 1 and plain["prices"][0]["dollars_h"]["written"] == "2.34 $/h"
    assert plain["ttft_s"]["count"] == 1 and plain["prefill"] is None


@pytest.mark.parametrize(
    ("places", "flags"),
    [
        ([(1, 1)], [True]),
        ([(1, 3), (2, 2), (3, 1)], [True, True, True]),
        ([(1, 3), (1, 2), (3, 1), (2, 1)], [True, False, True, False]),
        ([(1, 1), (1, 1), (0, 0)], [True, True, False]),
        ([], []),
    ],
)
def test_the_frontier(places: list[tuple[float, float]], flags: list[bool]) -> None:
    assert frontier.best(places) == flags


def test_points_learn_whether_they_are_on_it() -> None:
    outcome = play(cluster(), [alone(1)])
    better = dataclasses.replace(outcome, e2e_interactivity=outcome.e2e_interactivity + 1)
    points = frontier.mark([Point(topology="a", load="1", outcome=each) for each in (outcome, better)])
    assert [point.is_best for point in points] == [False, True]
