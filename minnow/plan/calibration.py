"""Calibration: what share of a device's rates steps reach, apart from the first principles; each with its source"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from minnow.core.errors import ConfigError

FILES = Path(__file__).parent / "calibrations"

# Weights that meet tokens; queries that meet the cache; all that only touches activations and logits.
Kind = Literal["weights", "attention", "activations"]
KINDS: tuple[Kind, ...] = Kind.__args__  # type: ignore[attr-defined]
_SHARES = ("memory", "arithmetic")
_PLAIN = ("fitted_on", "held_out_error", "overlaps")
_SECONDS = ("step_s", "prompt_s", "draft_s", "message_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """How far steps stay behind a device's rates. As it stands here they do not: that is the bound.

    Attributes:
        memory: share of the memory's rate that each kind of work reaches; of kinds not named, all of it.
        arithmetic: the same of the rate of multiplications.
        link: share of a link's rate.
        overlaps: memory is read while numbers are multiplied, so the longer of the two counts; else their sum.
        step_s: of every step whatever it does: launches, the host, the sampling.
        prompt_s: of every step in which a prompt is computed, on top.
        draft_s: of making the drafts of a step.
        message_s: of every collective.
        fitted_on: measured points that some value was chosen to meet (plan/anchors.py); they prove nothing any more.
        held_out_error: median of the errors on points that nothing was fitted on; None where that is not known.
        sources: of each value, in words.
    """

    name: str
    memory: Mapping[Kind, float]
    arithmetic: Mapping[Kind, float]
    link: float = 1.0
    overlaps: bool = True
    step_s: float = 0.0
    prompt_s: float = 0.0
    draft_s: float = 0.0
    message_s: float = 0.0
    fitted_on: tuple[str, ...] = ()
    held_out_error: float | None = None
    sources: Mapping[str, str]


BOUND = Calibration(name="bound", memory={}, arithmetic={}, sources={})


def names() -> list[str]:
    """Of the calibrations that come with Minnow."""
    return sorted(path.stem for path in FILES.glob("*.toml"))


def read(name: str) -> Calibration:
    """A calibration by its name ("bound" is none), or from a TOML file of your own.

    Raises:
        ConfigError: there is no such calibration, or a value in it is none; names file, entry and what is expected.
    """
    if name == BOUND.name:
        return BOUND
    path = FILES / f"{name}.toml"
    if not path.is_file():
        path = Path(name).expanduser()
    if path.suffix != ".toml" or not path.is_file():
        raise ConfigError(f"no calibration is called {name!r}; known are bound, {', '.join(names())}, or name a file")
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path} is no TOML: {error}") from None
    return _parse(path, raw)


def _parse(path: Path, raw: Mapping[str, Any]) -> Calibration:
    known = {*_PLAIN, "link", *_SECONDS, *(f"{share}_{kind}" for share in _SHARES for kind in KINDS)}
    values: dict[str, float] = {}
    sources: dict[str, str] = {}
    for key, entry in raw.items():
        if key not in known:
            raise ConfigError(f"{path}: {key} is no entry; entries are {', '.join(sorted(known))}")
        if key in _PLAIN:
            continue
        if not (isinstance(entry, dict) and isinstance(entry.get("source"), str)):
            raise ConfigError(f"{path}: {key} is {entry!r}; a table with value and source is needed")
        values[key], sources[key] = _number(f"{path}: {key}", entry.get("value"), key in _SECONDS), entry["source"]
    return Calibration(
        name=path.stem, memory={kind: values[f"memory_{kind}"] for kind in KINDS if f"memory_{kind}" in values},
        arithmetic={kind: values[f"arithmetic_{kind}"] for kind in KINDS if f"arithmetic_{kind}" in values},
        link=values.get("link", 1.0), overlaps=bool(raw.get("overlaps", True)), step_s=values.get("step_s", 0.0),
        prompt_s=values.get("prompt_s", 0.0), draft_s=values.get("draft_s", 0.0),
        message_s=values.get("message_s", 0.0), fitted_on=tuple(raw.get("fitted_on", ())),
        held_out_error=raw.get("held_out_error"), sources=sources,
    )  # fmt: skip


def _number(where: str, value: Any, is_seconds: bool) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not (value >= 0 if is_seconds else 0 < value <= 1):
        raise ConfigError(f"{where}: value is {value!r}; {'seconds' if is_seconds else 'a share above 0, at most 1'}")
    return float(value)
