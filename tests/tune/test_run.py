"""a run that was stopped goes on to the same bits, and leaves a log and a plot"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from minnow.core.errors import CheckpointError, ConfigError
from minnow.tune.run import SLOW_SHARE, Metrics, Plan, Position, Run, Watch, read_log


class Fit:
    """Fits a matrix to random products."""

    def __init__(self) -> None:
        self.weight = torch.zeros(4, 4, requires_grad=True)
        self.exported: list[Position] = []
        self._wanted = torch.arange(16.0).view(4, 4) / 16

    @property
    def parameters(self) -> dict[str, Tensor]:
        return {"weight": self.weight}

    def learn(self, step: int, generator: torch.Generator) -> Metrics:
        x = torch.randn(8, 4, generator=generator)
        loss = (x @ (self.weight - self._wanted)).square().mean()
        loss.backward()
        return {"loss": loss.item()}

    def validate(self) -> Metrics:
        return {"error": (self.weight - self._wanted).abs().mean().item()}

    def export(self, position: Position) -> None:
        self.exported.append(position)


def _plan(steps: int = 30, **changes: int) -> Plan:
    return Plan(steps=steps, rate=0.1, warmup_steps=3, validate_steps=10, **changes)


def _go(directory: Path, work: Fit, *, stop_after: int | None = None, plan: Plan | None = None) -> Run:
    started = Run(directory, plan or _plan(), work.parameters, {"words": "these"})
    last = started.step + (stop_after or 10**6)
    started.go(work, 1.0, Watch(is_stopped=lambda: started.step >= last))
    return started


def test_pieces_give_the_bits_of_one_run(tmp_path: Path) -> None:
    whole, pieces = Fit(), Fit()
    _go(tmp_path / "whole", whole)
    _go(tmp_path / "pieces", pieces, stop_after=7)
    for _ in range(3):
        pieces = Fit()
        started = _go(tmp_path / "pieces", pieces, stop_after=9)
    assert started.step == 30
    assert torch.equal(whole.weight, pieces.weight)
    assert whole.validate()["error"] < Fit().validate()["error"] / 3


def test_a_killed_run_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    whole, killed = Fit(), Fit()
    _go(tmp_path / "whole", whole)
    _go(tmp_path / "killed", killed, stop_after=12)
    log = tmp_path / "killed" / "log.jsonl"
    log.write_text(log.read_text() + '{"step": 13, "loss": 99.0}\n')  # written, but not saved
    killed = Fit()
    _go(tmp_path / "killed", killed)
    assert torch.equal(whole.weight, killed.weight)
    steps = [line["step"] for line in read_log(log)]
    assert steps == list(range(31)) and "99.0" not in log.read_text()


def test_the_hours_end_a_piece(tmp_path: Path) -> None:
    work, now = Fit(), [0.0]

    def clock() -> float:
        now[0] += 60.0
        return now[0]

    done = Run(tmp_path, _plan(), work.parameters, {}).go(work, 0.5, Watch(clock=clock))
    assert 0 < done.step < 30 and not done.is_done
    assert done.seconds <= 0.5 * 3600 + 60


def test_an_export_knows_the_last_validation(tmp_path: Path) -> None:
    work = Fit()
    _go(tmp_path, work, stop_after=12)
    ten = read_log(tmp_path / "log.jsonl")[10]
    assert work.exported[-1].metrics["held_out_error"] == ten["held_out_error"]
    work = Fit()
    _go(tmp_path, work, stop_after=3)
    assert work.exported[-1].metrics["held_out_error"] == ten["held_out_error"]


def test_a_checkpoint_is_written_every_ten_minutes(tmp_path: Path) -> None:
    work, now = Fit(), [0.0]

    def clock() -> float:
        now[0] += 100.0
        return now[0]

    done = Run(tmp_path, _plan(), work.parameters, {}).go(work, 10.0, Watch(clock=clock))
    assert done.is_done
    assert len(work.exported) >= 4


def test_log_and_plot_exist(tmp_path: Path) -> None:
    _go(tmp_path, Fit())
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "held_out_error" in line] == [0, 10, 20, 30]
    assert {"loss", "rate", "gradient", "seconds"} <= set(lines[-1])
    drawn = (tmp_path / "loss.svg").read_text()
    assert drawn.startswith("<svg") and drawn.count("<polyline") == 2 and "held_out_error" in drawn


def test_another_seed_is_another_run(tmp_path: Path) -> None:
    _go(tmp_path, Fit(), stop_after=2)
    with pytest.raises(ConfigError, match="seed 0, not 1"):
        _go(tmp_path, Fit(), plan=_plan(seed=1))


def test_more_steps_go_on(tmp_path: Path) -> None:
    _go(tmp_path, Fit(), plan=_plan(steps=5))
    assert _go(tmp_path, Fit(), plan=_plan(steps=8)).step == 8


@pytest.mark.parametrize("spoil", [lambda raw: raw[:50], lambda raw: b"", lambda raw: b"no checkpoint"])
def test_a_broken_state_is_said(tmp_path: Path, spoil: Callable[[bytes], bytes]) -> None:
    _go(tmp_path, Fit(), stop_after=2)
    state = tmp_path / "state" / "run.pt"
    state.write_bytes(spoil(state.read_bytes()))
    with pytest.raises(CheckpointError, match="delete it to begin again"):
        _go(tmp_path, Fit())


def test_rate_rises_then_falls() -> None:
    plan = Plan(steps=100, rate=1.0, warmup_steps=10, final_share=0.1)
    rates = [plan.rate_at(step) for step in range(101)]
    assert rates[:10] == sorted(rates[:10]) and rates[9] == 1.0
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[100] == pytest.approx(0.1)


def test_slow_parameters_learn_at_a_share_of_the_rate(tmp_path: Path) -> None:
    class Even:
        """The gradient of each parameter is one."""

        def __init__(self) -> None:
            self.parameters = {name: torch.zeros(1, requires_grad=True) for name in ("quick", "slow")}

        def learn(self, step: int, generator: torch.Generator) -> Metrics:
            for parameter in self.parameters.values():
                parameter.grad = torch.ones(1)
            return {"loss": float(step)}

        def validate(self) -> Metrics:
            return {}

        def export(self, position: Position) -> None:
            pass

    work = Even()
    Run(tmp_path, _plan(5), work.parameters, {}, slow=("slow",)).go(work, 1.0, Watch())
    moved = {name: parameter.item() for name, parameter in work.parameters.items()}
    assert moved["quick"] < 0
    assert moved["slow"] == pytest.approx(SLOW_SHARE * moved["quick"])
    assert [line["loss"] for line in read_log(tmp_path / "log.jsonl") if "loss" in line] == [0.0, 1.0, 2.0, 3.0, 4.0]
