"""device and link sheets; each number with its unit, its status and its source"""

import functools
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from minnow.core.errors import ConfigError
from minnow.core.units import parse_bytes
from minnow.engine import container

SHEETS = Path(__file__).parent / "sheets"
HERE = "here"  # this machine

# What a number rests on, from the best: the vendor's own page; a tool on the device; a public project's table; a page
# of somebody else; nothing that was looked up. Or it was read here, or is the definition of the thing.
STATUSES = ("official", "reported", "collected", "unofficial", "from memory", "measured", "nominal")

_SCALE = {"PFLOP/s": 1e15, "TFLOP/s": 1e12, "$/h": 1.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number of a sheet.

    Attributes:
        value: in bytes, bytes a second, operations a second, or dollars an hour.
        written: as the sheet has it, its unit (GB or GiB) included.
        status: one of STATUSES.
    """

    value: float
    written: str
    status: str
    source: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """A device, or a link between machines.

    Attributes:
        name: what it is asked for by.
        devices_per_node: that share a machine; 1 for a processor.
        scale_up_devices: that reach each other over [scale_up]; as many as share a machine unless the sheet says more.
        is_mesh: each pair of a machine's devices has links of its own, which together make [scale_up].
        figures: by name; a device has "memory", a link has "rate". Rates are one way.
    """

    name: str
    title: str
    kind: Literal["gpu", "cpu", "link"]
    devices_per_node: int
    scale_up_devices: int = 1
    is_mesh: bool = False
    figures: Mapping[str, Figure]

    @property
    def memory_bytes(self) -> int:
        """Memory of one device."""
        return int(self.figures["memory"].value)


def names() -> list[str]:
    """Names of the sheets that come with Minnow."""
    return sorted(path.stem for path in SHEETS.glob("*.toml"))


def read_all(kind: str = "") -> tuple[Sheet, ...]:
    """The sheets that come with Minnow, of one kind or all."""
    found = (read(name) for name in names())
    return tuple(sheet for sheet in found if not kind or sheet.kind == kind)


def read(name: str) -> Sheet:
    """A sheet by its name, from a TOML file of your own, or ("here") this machine's processor.

    Raises:
        ConfigError: there is no such sheet (names those there are), or it lacks something (names file and entry).
    """
    if name == HERE:
        return _here()
    if name.lower() in names():
        return _shipped(name.lower())
    path = Path(name).expanduser()
    if path.suffix != ".toml" or not path.is_file():
        raise ConfigError(
            f"no hardware is called {name!r}; known are {', '.join(names())}, {HERE}, or name a .toml file"
        )
    return _read(path)


@functools.cache
def _shipped(name: str) -> Sheet:
    return _read(SHEETS / f"{name}.toml")


def _read(path: Path) -> Sheet:
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path} is no TOML: {error}") from None
    return _sheet(path, raw)


def _sheet(path: Path, raw: Mapping[str, Any]) -> Sheet:
    kind = raw.get("kind")
    if kind not in ("gpu", "cpu", "link"):
        raise ConfigError(f"{path}: kind is {kind!r}; it must be gpu, cpu or link")
    figures = {key: _figure(f"{path}: {key}", entry) for key, entry in raw.items() if isinstance(entry, dict)}
    needed = "rate" if kind == "link" else "memory"
    if needed not in figures:
        raise ConfigError(f"{path}: a {kind} needs [{needed}] with value, status and source")
    per_node = _count(path, raw, "devices_per_node", 1)
    return Sheet(
        name=path.stem,
        title=str(raw.get("title", path.stem)),
        kind=kind,
        devices_per_node=per_node,
        scale_up_devices=_count(path, raw, "scale_up_devices", per_node),
        is_mesh=bool(raw.get("is_mesh", False)),
        figures=figures,
    )


def _count(path: Path, raw: Mapping[str, Any], name: str, otherwise: int) -> int:
    value = raw.get(name, otherwise)
    if type(value) is not int or value < 1:
        raise ConfigError(f"{path}: {name} is {value!r}; a whole number from 1 on is needed")
    return value


def _figure(where: str, entry: Mapping[str, Any]) -> Figure:
    missing = [word for word in ("value", "status", "source") if not isinstance(entry.get(word), str)]
    if missing:
        raise ConfigError(f"{where}: {missing[0]} is {entry.get(missing[0])!r}; a text is needed")
    if entry["status"] not in STATUSES:
        raise ConfigError(f"{where}: status is {entry['status']!r}; it must be one of {', '.join(STATUSES)}")
    return Figure(
        value=_value(where, entry["value"]),
        written=entry["value"],
        status=entry["status"],
        source=entry["source"],
        note=str(entry.get("note", "")),
    )


def _value(where: str, text: str) -> float:
    """A number with its unit; memory without one, or of a G that may be either, is refused."""
    match = re.fullmatch(r"([0-9.]+) (\S+)", text)
    if match is not None and match[2] in _SCALE:
        return float(match[1]) * _SCALE[match[2]]
    if match is None or not re.fullmatch(r"[kMGT]i?B(/s)?", match[2]):
        raise ConfigError(f"{where}: value is {text!r}; write a number and a unit: 275040 MiB, 288 GB, 8.0 TB/s")
    return float(parse_bytes(text.removesuffix("/s")))


def _here() -> Sheet:
    """This machine: what its main memory has free, in its container where that has less."""
    free = container.free_bytes()
    figure = Figure(value=free, written=f"{free} B", status="measured", source="/proc/meminfo and the control groups")
    return Sheet(name=HERE, title="this machine", kind="cpu", devices_per_node=1, figures={"memory": figure})
