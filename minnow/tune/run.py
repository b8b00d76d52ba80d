"""a training run that stops and goes on exactly: optimizer, schedule, checkpoints, log"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Protocol

import torch
from torch import Tensor

from minnow.core.errors import CheckpointError, ConfigError
from minnow.tune import plot

CHECKPOINT_S = 600.0
SLOW_SHARE = 0.4  # of the rate, for parameters that would change too much at all of it
_STATE, _LOG, _PLOT = Path("state") / "run.pt", "log.jsonl", "loss.svg"
_HELD_OUT = "held_out_"

Metrics = dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a run learns: AdamW without weight decay; the rate rises, then falls along a cosine.

    Attributes:
        steps: of the optimizer, in all pieces together.
        rate: the highest learning rate.
        final_share: of it that is left at the last step.
        warmup_steps: in which the rate rises from zero.
        clip: the largest norm of all gradients together.
        second_decay: AdamW's second beta.
        validate_steps: between two validations; there is one before the first step and one after the last, too.
        seed: of every random choice.
    """

    steps: int
    rate: float
    final_share: float = 0.1
    warmup_steps: int = 50
    clip: float = 1.0
    second_decay: float = 0.99
    validate_steps: int = 200
    seed: int = 0

    def rate_at(self, step: int) -> float:
        """Learning rate of a step, counted from 0."""
        if step < self.warmup_steps:
            return self.rate * (step + 1) / self.warmup_steps
        done = (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps)
        return self.rate * (self.final_share + (1 - self.final_share) * (1 + math.cos(math.pi * done)) / 2)


class Work(Protocol):
    """What a run does; it owns the parameters, the run owns everything that changes them."""

    def learn(self, step: int, generator: torch.Generator) -> Metrics:
        """Add the gradients of a step, counted from 0, to the parameters; "loss" is among the metrics."""

    def validate(self) -> Metrics:
        """Measure on held-out text; no random choice, and gradients are left alone."""

    def export(self, position: Position) -> None:
        """Write the result so far: called at every checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """How far a run is.

    Attributes:
        step: steps done.
        seconds: spent on them in all pieces.
        metrics: of the last step and, with "held_out_" before their names, of the last validation.
    """

    step: int
    steps: int
    seconds: float
    metrics: Metrics

    @property
    def is_done(self) -> bool:
        """Whether all steps are done."""
        return self.step >= self.steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What a run asks and tells while it goes on.

    Attributes:
        clock: seconds.
        is_stopped: whether to stop after this step.
        show: told the position after each step.
    """

    clock: Callable[[], float] = time.monotonic
    is_stopped: Callable[[], bool] = lambda: False
    show: Callable[[Position], None] = lambda position: None


def step_generator(seed: int, step: int) -> torch.Generator:
    """The randomness of one step. Each has its own, so a run goes on exactly without a saved random state."""
    return torch.Generator().manual_seed(seed * 1_000_003 + step)


class Run:
    """One run in its directory; it goes on where `state/` says that it stopped."""

    def __init__(
        self,
        directory: Path,
        plan: Plan,
        parameters: Mapping[str, Tensor],
        settings: Mapping[str, Any],
        *,
        slow: Collection[str] = (),
    ) -> None:
        """Begin, or load what there is into the parameters.

        Args:
            directory: of the stage's output; made if needed.
            plan: `steps` may differ from the piece before, which changes the schedule from here on.
            parameters: f32, by name; leaves that require grad.
            settings: plain values that make this run another one when they change.
            slow: parameters that learn at SLOW_SHARE of the rate.

        Raises:
            ConfigError: the directory holds a run with other settings.
            CheckpointError: its state cannot be read.
        """
        self.directory, self.plan, self.parameters = directory, plan, dict(parameters)
        self._settings = {**settings, **{k: v for k, v in _fields(plan).items() if k != "steps"}}
        self._settings |= {"slow": sorted(slow)} if slow else {}
        quick = [name for name in parameters if name not in slow]
        self._shares = [share for share, names in ((1.0, quick), (SLOW_SHARE, slow)) if names]
        self._optimizer = torch.optim.AdamW(
            [{"params": [parameters[name] for name in names]} for names in (quick, slow) if names],
            lr=plan.rate,
            betas=(0.9, plan.second_decay),
            weight_decay=0.0,
        )
        self.step, self.seconds = 0, 0.0
        (directory / _STATE).parent.mkdir(parents=True, exist_ok=True)
        self._is_new = not (directory / _STATE).is_file()
        if not self._is_new:
            self._resume()
        lines = _cut(directory / _LOG, self.step, is_new=self._is_new)
        self._measured: Metrics = {k: v for line in lines for k, v in line.items() if k.startswith(_HELD_OUT)}

    def go(self, work: Work, hours: float, watch: Watch) -> Position:
        """Do steps until all are done, the hours are over or the watch says stop; then save.

        Returns:
            Where the run stands.
        """
        start_s, before_s = watch.clock(), self.seconds
        saved_s = start_s
        metrics: Metrics = {}
        if self._is_new:
            self._measure(work, {"step": 0, "seconds": 0.0})
        while self.step < self.plan.steps and watch.clock() - start_s < 3600 * hours and not watch.is_stopped():
            metrics = self._one_step(work)
            self.seconds = before_s + watch.clock() - start_s
            line: dict[str, Any] = {"step": self.step, "seconds": round(self.seconds, 1), **metrics}
            if self.step % self.plan.validate_steps == 0 or self.step == self.plan.steps:
                self._measure(work, line)
            else:
                self._write(line)
            watch.show(self._position(metrics))
            if watch.clock() - saved_s > CHECKPOINT_S:
                self._save(work, metrics)
                saved_s = watch.clock()
        self._save(work, metrics)
        return self._position(metrics)

    def _one_step(self, work: Work) -> Metrics:
        rate = self.plan.rate_at(self.step)
        for group, share in zip(self._optimizer.param_groups, self._shares, strict=True):
            group["lr"] = rate * share
        self._optimizer.zero_grad(set_to_none=True)
        metrics = work.learn(self.step, step_generator(self.plan.seed, self.step))
        norm = torch.nn.utils.clip_grad_norm_(self.parameters.values(), self.plan.clip)
        self._optimizer.step()
        self.step += 1
        return {**metrics, "gradient": float(norm), "rate": rate}

    def _position(self, metrics: Metrics) -> Position:
        both = {**metrics, **self._measured}
        return Position(step=self.step, steps=self.plan.steps, seconds=self.seconds, metrics=both)

    def _measure(self, work: Work, line: Mapping[str, Any]) -> None:
        self._measured = {f"{_HELD_OUT}{name}": value for name, value in work.validate().items()}
        self._write({**line, **self._measured})

    def _save(self, work: Work, metrics: Metrics) -> None:
        state = {
            "step": self.step,
            "seconds": self.seconds,
            "settings": self._settings,
            "parameters": {name: value.detach() for name, value in self.parameters.items()},
            "optimizer": self._optimizer.state_dict(),
        }
        partial = (self.directory / _STATE).with_suffix(".partial")
        with partial.open("wb") as opened:
            torch.save(state, opened)
            opened.flush()
            os.fsync(opened.fileno())
        partial.rename(self.directory / _STATE)
        work.export(self._position(metrics))
        plot.draw(read_log(self.directory / _LOG), self.directory / _PLOT)

    def _resume(self) -> None:
        path = self.directory / _STATE
        try:
            state = torch.load(path, weights_only=True)
            for name, seen in state["settings"].items():
                if self._settings.get(name) != seen:
                    raise ConfigError(
                        f"{self.directory} holds a run with {name} {seen}, not {self._settings.get(name)}; "
                        "give the same to go on with it, or another --output"
                    )
            with torch.no_grad():
                for name, value in self.parameters.items():
                    value.copy_(state["parameters"][name])
            self._optimizer.load_state_dict(state["optimizer"])
            self.step, self.seconds = int(state["step"]), float(state["seconds"])
        except (OSError, RuntimeError, KeyError, ValueError, EOFError, UnpicklingError) as error:
            why = str(error).partition("\n")[0] or type(error).__name__
            raise CheckpointError(f"{path} cannot be read ({why}); delete it to begin again") from None

    def _write(self, line: Mapping[str, Any]) -> None:
        with (self.directory / _LOG).open("a", encoding="utf-8") as log:
            log.write(json.dumps(line) + "\n")


def read_log(path: Path) -> list[dict[str, float]]:
    """The lines of a log.jsonl."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _cut(log: Path, step: int, *, is_new: bool) -> list[dict[str, float]]:
    """Take lines out of a log that were written after the checkpoint which a killed run goes on from; the others."""
    kept = [] if is_new or not log.is_file() else [line for line in read_log(log) if line["step"] <= step]
    log.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
    return kept


def _fields(plan: Plan) -> dict[str, Any]:
    return {name: getattr(plan, name) for name in Plan.__dataclass_fields__}
