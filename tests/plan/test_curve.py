"""loads by the roofline: what a point adds up to, which ones are best, and the least that serves a rate"""

import dataclasses
import math

import pytest

from minnow.core.errors import CapacityError, ConfigError
from minnow.plan import calibration, capacity, published, speed
from minnow.plan.curve import Curve, Point, Traffic, mark
from minnow.plan.deployment import Deployment
from minnow.plan.roofline import StepModel

GPU = calibration.read("gpu")
CHAT = Traffic(input_tokens=8192, output_tokens=1024)


def point(each: float, device: float) -> Point:
    return Point(strategy="TP1", num_sequences=1, step_s=1.0, answers_s=each, all_answers_s=device, num_devices=1)


def test_without_prompts_a_point_is_the_step_of_the_plan() -> None:
    found = capacity.measure(published.flash())
    timed = speed.measure(found, GPU, 3.2)
    curve = Curve(found.deployment, GPU, Traffic(input_tokens=found.deployment.context_tokens), 3.2)
    full = curve.points()[-1]
    assert curve.most == found.allocated.num_sequences
    assert full.num_sequences == found.allocated.num_sequences_engine
    assert full.step_s == timed.full.reached.seconds
    assert full.answers_s == timed.full.answers_s
    assert full.all_answers_s == pytest.approx(timed.full.num_answers / timed.full.reached.seconds)
    assert full.device_answers_s == full.all_answers_s / 4
    assert full.requests_s == 0


def test_prompts_hold_up_the_answers_of_others_unless_another_engine_computes_them() -> None:
    of, other = published.flash(), published.deploy("m3.1-flash", "b300", "dep2")
    alone = Curve(of, GPU, CHAT)
    one, many = alone.at(1), alone.at(16)
    decode_s = 1024 * one.step_s
    assert one.answers_s == pytest.approx(1024 / decode_s)  # nobody comes in between
    assert one.requests_s == pytest.approx(4 / (decode_s + alone.prompt_s))
    life_s = 1024 * many.step_s + 15 * alone.prompt_s
    assert many.answers_s == pytest.approx(1024 / life_s)
    assert many.requests_s == pytest.approx(4 * 16 / (life_s + alone.prompt_s))
    apart = Curve(of, GPU, CHAT, prefill=other)
    same = apart.at(16)
    assert same.answers_s == pytest.approx(1024 / (1024 * same.step_s))
    assert same.num_devices == pytest.approx(
        4 + 2 * same.requests_s * apart.prompt_s / 2
    )  # two replicas on two devices


def test_what_is_cached_of_a_prompt_is_not_computed() -> None:
    of = published.flash()
    whole = Curve(of, GPU, CHAT).prompt_s
    most = Curve(of, GPU, dataclasses.replace(CHAT, cached_tokens=8000)).prompt_s
    assert 0 < most < whole / 3
    assert Curve(of, GPU, Traffic(input_tokens=8192)).prompt_s == 0
    assert Curve(of, GPU, dataclasses.replace(CHAT, cached_tokens=10**6)).prompt_s > 0  # one token is computed at least


@pytest.mark.parametrize(
    ("device", "tokens"), [("b300", 1_000_000), ("xeon-6980p", 200_000), ("b300", 100), ("b300", 9000)]
)
def test_a_long_prompt_is_worked_out_in_a_few_steps(device: str, tokens: int) -> None:
    of = published.deploy("m3.1-flash", device, "tp4" if device == "b300" else "tp1")
    found = Curve(of, GPU, Traffic(input_tokens=tokens, output_tokens=1)).prompt_s
    assert found == pytest.approx(speed.prompt_seconds(StepModel(of, GPU), tokens), rel=1e-3)


def test_the_least_that_serves_a_rate() -> None:
    curve = Curve(published.flash(), GPU, CHAT)
    most = curve.at(curve.most)
    found = curve.least_for(most.requests_s / 2)
    assert found is not None
    count = found.num_sequences // 4
    assert curve.at(count - 1).requests_s < most.requests_s / 2 <= found.requests_s
    assert curve.least_for(most.requests_s * 1.01) is None


def test_points_double_up_to_all_that_fit() -> None:
    curve = Curve(published.flash(), GPU, CHAT)
    counts = [one.num_sequences // 4 for one in curve.points()]
    assert counts[:-1] == [2**i for i in range(len(counts) - 1)]
    assert counts[-2] < counts[-1] == curve.most


def test_the_best_points_are_those_that_none_beats() -> None:
    marked = mark([point(1, 9), point(2, 8), point(2, 7), point(1.5, 8), point(3, 8), point(4, 1), point(4, 1)])
    assert [one.is_best for one in marked] == [True, False, False, False, True, True, True]


def test_what_cannot_be_is_refused() -> None:
    of: Deployment = published.flash()
    with pytest.raises(ConfigError, match="a request has 2,000,000 tokens, but --max-model-len is 1,048,576"):
        Curve(of, GPU, Traffic(input_tokens=1_999_999, output_tokens=1))
    with pytest.raises(ConfigError, match="--acceptance-length is 9"):
        Curve(of, GPU, CHAT, 9)
    with pytest.raises(ConfigError, match="--acceptance-length is nan"):
        Curve(of, GPU, CHAT, math.nan)
    with pytest.raises(CapacityError):
        Curve(published.deploy("m3.1-flash", "b300", "tp1"), GPU, CHAT)
