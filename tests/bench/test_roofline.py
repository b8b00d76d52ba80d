"""calibrating on some steps and predicting others"""

from dataclasses import replace
from pathlib import Path

import pytest

from minnow.bench import record, roofline
from minnow.bench.limits import Limits
from minnow.bench.roofline import Judged, Point
from minnow.config import flags, load
from minnow.config import model as model_config
from minnow.core.errors import ConfigError
from minnow.plan import calibration, deployment, hardware
from minnow.plan.calibration import BOUND
from minnow.plan.deployment import Deployment
from tests import tiny

LIMITS = Limits(
    num_threads=2,
    instruction_set="x",
    operations_s={"f32": 3e11, "bf16": 2e12},
    _bytes_s={n << 20: 5e10 for n in (1, 8, 64, 512)},
)
TRUE = replace(
    BOUND, name="true", overlaps=False, memory={"weights": 0.7, "attention": 0.4},
    arithmetic={"weights": 0.2, "attention": 0.1}, step_s=3e-4, prompt_s=1e-3,
)  # fmt: skip


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    tiny.write_tiny(path, dtype="float32", layers=2)
    return path


def deploy(directory: Path) -> Deployment:
    config = load.from_values({"model": str(directory), "speculation": False}, {}).config
    return deployment.settle("tiny", model_config.read(directory), directory, config, hardware.read("here"))


def test_steps_that_follow_the_roofline_are_predicted_on_lengths_that_nothing_was_calibrated_on(
    directory: Path,
) -> None:
    of = deploy(directory)
    model = roofline.model_of(of, LIMITS, TRUE)
    points = roofline.points_of((100, 300, 400), (50, 200, 450), (1, 4))
    seconds = {point: [roofline.predict(model, point)] * 3 for point in points}
    found, _ = roofline.judge(of, LIMITS, seconds)
    assert max(abs(judged.error) for judged in found) < 0.02
    assert {judged.point for judged in found if judged.point.is_held_out} == {
        point for point in points if point.context_tokens in (100, 300, 400)
    }


def test_what_is_held_out_has_no_say_in_the_calibration(directory: Path) -> None:
    of = deploy(directory)
    model = roofline.model_of(of, LIMITS, TRUE)
    points = roofline.points_of((100, 300), (50, 200), (1,))
    seconds = {point: [roofline.predict(model, point) * (9 if point.is_held_out else 1)] for point in points}
    found, _ = roofline.judge(of, LIMITS, seconds)
    errors = {judged.point.is_held_out: judged.error for judged in found}
    assert abs(errors[False]) < 0.02 and errors[True] == pytest.approx(1 / 9 - 1, abs=0.02)


def judged(error: float, spread: float, is_held_out: bool = True) -> Judged:
    point = Point(context_tokens=100, num_sequences=1, is_held_out=is_held_out)
    return Judged(point=point, measured_s=1.0, predicted_s=1 + error, spread=spread)


@pytest.mark.parametrize(
    ("error", "spread", "verdict", "is_met"),
    [
        (0.19, 1.1, "met", True),
        (-0.21, 1.1, "MISSED", False),
        (0.05, 1.2, "noisy: not judged", True),
        (0.9, 1.3, "noisy: not judged", True),
    ],
)
def test_the_bar_is_judged_only_on_a_quiet_run(error: float, spread: float, verdict: str, is_met: bool) -> None:
    of_others = [judged(0.0, 9.0, is_held_out=False), judged(error, 1.0), judged(error, 1.0)]
    lines, found = roofline.report([*of_others, judged(error, spread)], TRUE, LIMITS)
    assert found is is_met
    assert f"bar 20%: {verdict};" in "\n".join(lines) and f"p90/p10 of the repeats {spread:.2f}" in "\n".join(lines)


def test_a_saved_calibration_is_read_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(roofline.as_toml(TRUE))
    read = calibration.read(str(path))
    assert replace(read, name="true", sources={}) == replace(TRUE, sources={})


def run(words: list[object]) -> tuple[int, list[str]]:
    parser = flags.new_parser("minnow bench roofline", roofline.HELP)
    roofline.add_arguments(parser)
    said: list[str] = []
    status = roofline.run(flags.parse(parser, [str(word) for word in words]), said.append)
    return status, said


def test_it_measures_and_predicts_a_model(directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofline, "measure_limits", lambda: LIMITS)
    fixed = ("--num-threads", 1, "--block-size", 16, "--max-num-batched-tokens", 64, "--num-repeats", 2)
    words = ("--context", 96, 160, "--calibrate", 64, 128, "--record", tmp_path / "r.jsonl")
    _, said = run([directory, *fixed, *words, "--save-calibration", tmp_path / "own.toml"])
    assert sum("calibrated on" in line for line in said) == sum("  predicted" in line for line in said) == 4
    results = record.read(tmp_path / "r.jsonl")[0]["results"]
    assert results["decode 1 x 96"]["measured_s"] > 0 and results["prompt of 160"]["predicted_s"] > 0
    assert calibration.read(str(tmp_path / "own.toml")).sources


def test_what_is_calibrated_on_cannot_be_predicted(directory: Path) -> None:
    with pytest.raises(ConfigError, match="--context and --calibrate both have 64"):
        run([directory, "--context", 64, "--calibrate", 64, 128])
    with pytest.raises(ConfigError, match="the longest context with 32 tokens more is 1000032"):
        run([directory, "--context", 1_000_000])
