"""the table of recipes as values: what there is to choose from, layers of settings, orders of words"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

TABLE = Path(__file__).with_name("recipes.toml")
_CONDITIONS = ("hardware", "platform", "variant", "strategy", "feature", "preset", "role")


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """Devices of one kind: the image to run on them, and what they can be asked for; no strategies means all."""

    image: str
    docker: tuple[str, ...]
    variants: tuple[str, ...]
    strategies: tuple[str, ...]
    features: tuple[str, ...]
    defaults: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """How devices share the work: tp, tep or dep, in which roles."""

    parallel: str
    roles: tuple[str, ...]
    has_many_nodes: bool = False

    @property
    def hosts(self) -> tuple[str, ...]:
        """Nodes whose addresses the others must know."""
        return self.roles if len(self.roles) > 1 else ("head",) if self.has_many_nodes else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A name for a choice; what is empty is not pinned."""

    hardware: str = ""
    strategy: str = ""
    devices: int = 0
    host_memory: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Devices of a prefill and of a decode engine."""

    parallel: str
    prefill: int
    decode: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Settings under conditions.

    Attributes:
        when: axis -> the values it holds for.
        sets: what it sets, as the file has it: "flags", "env", "nixl" and "host" (keys of a connector), "policy",
            "host_memory"; or "words" and "short" of an order.
    """

    rule: str
    when: Mapping[str, tuple[str, ...]]
    sets: Mapping[str, Any]

    def holds(self, values: Mapping[str, tuple[str, ...]]) -> bool:
        """Whether each condition is met by one of the values of its axis."""
        return all(any(value in wanted for value in values[axis]) for axis, wanted in self.when.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """All of it; `devices` of an engine are 0 for a whole node."""

    model: str
    version: str
    compact: tuple[str, ...]
    platforms: Mapping[str, Platform]
    platform_by_hardware: Mapping[str, str]
    devices_by_hardware: Mapping[str, int]
    strategies: Mapping[str, Strategy]
    presets: Mapping[str, Preset]
    splits: Mapping[str, Split]
    stated: tuple[Mapping[str, tuple[str, ...]], ...]
    layers: tuple[Layer, ...]
    notes: tuple[Layer, ...]
    variables: tuple[str, ...]
    orders: tuple[Layer, ...]


@cache
def read() -> Table:
    """The table that comes with Minnow."""
    raw = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    return Table(
        model=raw["model"],
        version=raw["version"],
        compact=tuple(raw["compact"]),
        platforms=_named(Platform, raw["platform"]),
        platform_by_hardware={name: row["platform"] for name, row in raw["hardware"].items()},
        devices_by_hardware={name: row["devices"] for name, row in raw["hardware"].items()},
        strategies=_named(Strategy, raw["strategy"]),
        presets=_named(Preset, raw["preset"]),
        splits=_named(Split, raw["pd"]),
        stated=tuple({axis: tuple(values) for axis, values in row.items()} for row in raw["stated"]),
        layers=tuple(map(_layer, raw["layer"])),
        notes=tuple(map(_layer, raw["note"])),
        variables=tuple(raw["env"]["order"]),
        orders=tuple(map(_layer, raw["order"])),
    )


def _named(kind: Any, rows: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    frozen = {name: {k: tuple(v) if isinstance(v, list) else v for k, v in row.items()} for name, row in rows.items()}
    return MappingProxyType({name: kind(**row) for name, row in frozen.items()})


def _layer(row: Mapping[str, Any]) -> Layer:
    when = {axis: tuple(values) for axis, values in row.items() if axis in _CONDITIONS}
    sets = {name: value for name, value in row.items() if name not in when and name != "rule"}
    return Layer(rule=row.get("rule", ""), when=when, sets=sets)
