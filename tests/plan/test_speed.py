"""how fast a plan says a deployment is, and what its tokens cost"""

import json
from pathlib import Path
from typing import Any

import pytest

from minnow.cli.main import main
from minnow.core.errors import ConfigError
from minnow.plan import calibration, capacity, published, speed, work
from minnow.plan.roofline import StepModel
from minnow.plan.work import Row

FLASH = ("plan", "m3.1-flash", "--hardware", "b300", "--strategy", "dep4")


def measured(device: str = "b300", strategy: str = "dep4", length: float = 3.2, **settings: Any) -> speed.Speed:
    held = capacity.measure(published.deploy("m3.1-flash", device, strategy, **settings))
    return speed.measure(held, calibration.read("gpu"), length)


def test_the_full_step_decodes_all_sequences_that_fit_and_yields_tokens_at_its_time() -> None:
    of = measured()
    assert of.full.work.num_sequences == 15 and of.full.work.num_tokens == 15 * 8
    assert of.full.num_answers == 4 * 15 * 3.2
    assert of.full.answers_s == pytest.approx(3.2 / of.full.reached.seconds)
    assert of.full.bound.seconds < of.full.reached.seconds


def test_a_step_decodes_no_more_than_its_tokens_allow() -> None:
    assert measured(context_tokens=4096, max_num_batched_tokens=64).full.work.num_sequences == 8  # of 8 tokens each


def test_dollars_are_those_of_all_devices_for_the_time_of_a_million_tokens() -> None:
    of = measured()
    tokens_s = 4 * 15 * 3.2 / of.full.reached.seconds
    assert of.dollars_by_base["neocloud"] == pytest.approx(4 * 2.81 / 3600 / tokens_s * 1e6)
    assert list(of.dollars_by_base) == list(speed.PRICE_BASES)
    assert measured("rubin", "tp4").dollars_by_base == {}  # no price is known, and none is made up


def test_a_prompt_takes_its_steps_one_after_the_other() -> None:
    of = published.deploy("m3.1-flash", "b300", "tp4", max_num_batched_tokens=4096, context_tokens=10_000)
    model = StepModel(of, calibration.read("gpu"))
    ends = (4096, 8192, 10_000)
    rows = [Row(4096, 4096, 0), Row(4096, 8192, 0), Row(1808, 10_000, 1, True)]
    alone = sum(model.seconds(work.add_up([row], model.limits)) for row in rows)
    assert speed.prompt_seconds(model, ends[-1]) == pytest.approx(alone)


@pytest.mark.parametrize("length", [0.5, 8.5])
def test_no_step_yields_more_tokens_than_it_verifies(length: float) -> None:
    with pytest.raises(ConfigError, match=rf"--acceptance-length is {length:g}; .* yields 1 to 8 tokens"):
        measured(length=length)


def test_plan_shows_steps_parts_and_cost(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*FLASH, "--acceptance-length", "3.2"]) == 0
    out = capsys.readouterr().out
    assert "Steps, calibration gpu, acceptance length 3.2" in out
    assert "decode, 15 x 262,144 tokens" in out and "neocloud price, prompts not counted" in out
    assert "routed experts" in out and "Calibrated on GB300 latency" in out
    assert main([*FLASH, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["speed"]
    assert found["full"]["work"]["num_sequences"] == 15 and found["calibrated"]["name"] == "gpu"
    assert {part["name"] for part in found["full"]["reached"]["parts"]} >= {"routed experts", "index scan"}


def test_plan_with_the_bound_is_faster_than_calibrated(capsys: pytest.CaptureFixture[str]) -> None:
    seconds = []
    for name in ("bound", "gpu"):
        assert main([*FLASH, "--calibration", name, "--json"]) == 0
        parts = json.loads(capsys.readouterr().out)["speed"]["full"]["reached"]["parts"]
        seconds.append(sum(part["seconds"] for part in parts))
    assert seconds[0] < seconds[1]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--acceptance-length", "9"), "--acceptance-length is 9; a step of this engine yields 1 to 8 tokens"),
        (("--acceptance-length", "x"), "--acceptance-length is 'x'; a number is needed"),
        (("--no-speculation", "--acceptance-length", "2"), "yields one token, as nothing is drafted, a sequence"),
        (("--calibration", "tpu"), "no calibration is called 'tpu'; known are bound, cpu, gpu"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], says: str
) -> None:
    assert main([*FLASH, *words]) != 0
    assert says in capsys.readouterr().err


def test_without_rates_there_is_a_plan_and_a_way_to_times(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    sheet = tmp_path / "box.toml"
    sheet.write_text('kind = "cpu"\n[memory]\nvalue = "900 GB"\nstatus = "nominal"\nsource = "x"\n')
    assert main(["plan", "m3.1-flash", "--hardware", str(sheet)]) == 0
    assert "No times: the sheet of box has no [bf16]" in capsys.readouterr().out


def test_428_billion_parameters_on_one_cpu_server_is_a_plan_like_any_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "m3.1-flash", "--hardware", "xeon-6980p", "--strategy", "tp2"]) == 0
    out = capsys.readouterr().out
    assert "m3.1-flash on 2x Intel Xeon 6980P, TP2" in out and "Steps, calibration cpu" in out
    assert "sent to other ranks" in out
