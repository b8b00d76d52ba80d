"""write every StepPlan; replay and compare results"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol

import msgspec

from minnow.core.errors import ConfigError
from minnow.core.step import StepPlan, StepResult

_FORMAT = "minnow-steps-1"


class _Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: str


class RecordedStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of a record.

    Attributes:
        result: None where the step failed or the process ended within it.
    """

    plan: StepPlan
    result: StepResult | None


class Launched(Protocol):
    """A step under way."""

    def result(self) -> StepResult:
        """Wait for the step and give its result."""
        ...


class Launcher(Protocol):
    """What can run plans."""

    def launch(self, plan: StepPlan) -> Launched:
        """Run a step."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Where a replay first left the record.

    Attributes:
        step: number of the step.
        row: row of the sequence, or None where the steps differ as a whole.
        recorded, replayed: what each has there.
    """

    step: int
    row: int | None
    recorded: str
    replayed: str

    def __str__(self) -> str:
        place = f"step {self.step}" if self.row is None else f"step {self.step}, row {self.row}"
        return f"{place}: recorded {self.recorded}, replayed {self.replayed}"


class Recorder:
    """Writes steps as JSON lines: a header, then plan and result of one step a line.

    Nothing is held back in a buffer, so that a crash of the process loses no finished step. Prompts stand in the file
    as token ids; keep it as private as they are.
    """

    def __init__(self, path: Path) -> None:
        """Begin a new file.

        Raises:
            ConfigError: the file cannot be written.
        """
        try:
            self._file = path.open("wb", buffering=0)
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror}; name another file") from None
        self._write(_Header(format=_FORMAT))

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def write(self, plan: StepPlan, result: StepResult | None) -> None:
        """Add a step; None is the result of a step that failed."""
        self._write(RecordedStep(plan=plan, result=result))

    def close(self) -> None:
        """End the file."""
        self._file.close()

    def _write(self, line: msgspec.Struct) -> None:
        self._file.write(msgspec.json.encode(line) + b"\n")


def read(path: Path) -> Iterator[RecordedStep]:
    """The steps of a record, in order.

    Raises:
        ConfigError: the file is missing, no record, or broken; names the line.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}; name a file that Minnow recorded") from None
    with file:
        for number, line in enumerate(file, start=1):
            try:
                if number > 1:
                    yield msgspec.json.decode(line, type=RecordedStep)
                elif msgspec.json.decode(line, type=_Header).format != _FORMAT:
                    raise ConfigError(f"{path} is a record of another version; this one reads {_FORMAT}")
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise ConfigError(f"{path}, line {number}, is no recorded step: {error}; record it anew") from None


def replay(path: Path, runner: Launcher) -> Difference | None:
    """Run a record's plans again and compare results exactly, log-probabilities included.

    Args:
        path: the record.
        runner: fresh, over the same model, block size and number of blocks.

    Returns:
        The first difference, or None where all recorded results came again.

    Raises:
        ConfigError: as read().
    """
    for recorded in read(path):
        replayed = runner.launch(recorded.plan).result()
        if recorded.result is not None:
            difference = _compare(recorded.result, replayed)
            if difference is not None:
                return difference
    return None


def _compare(recorded: StepResult, replayed: StepResult) -> Difference | None:
    rows = [row.row for row in recorded.rows], [row.row for row in replayed.rows]
    if rows[0] != rows[1]:
        return Difference(step=recorded.step, row=None, recorded=f"rows {rows[0]}", replayed=f"rows {rows[1]}")
    for then, now in zip(recorded.rows, replayed.rows, strict=True):
        for name in ("error", "token_ids", "logprobs", "prompt_logprobs"):
            values = getattr(then, name), getattr(now, name)
            if values[0] != values[1]:
                return Difference(
                    step=recorded.step,
                    row=then.row,
                    recorded=f"{name} {values[0]}",
                    replayed=f"{name} {values[1]}",
                )
    return None
