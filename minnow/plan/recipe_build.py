"""a choice becomes a recipe: processes with their environment and words, each with its rule"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from minnow.plan import recipe_rules, recipe_table, transfer
from minnow.plan.recipe import Choice
from minnow.plan.recipe_rules import Draft


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """A flag or a variable of a process.

    Attributes:
        name: as it is spelled: "-tp", "--block-size", "VLLM_USE_V2_MODEL_RUNNER".
        value: None where the flag takes none.
        rule: why it is there.
    """

    name: str
    value: str | None
    rule: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One command on one node.

    Attributes:
        role: "serve", "prefill" or "decode".
        node: of the engine, from 0; only the first serves requests.
        num_huge_pages: of 1 GiB to be reserved on the node before the start.
    """

    role: str
    node: int
    environment: tuple[Word, ...]
    words: tuple[Word, ...]
    num_huge_pages: int

    @property
    def port(self) -> str:
        """Where it listens."""
        return next((word.value or "" for word in self.words if word.name == "--port"), recipe_rules.PROXY_PORT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a choice is started.

    Attributes:
        status: "stated" where the public serving recipe has every word of it, else "inferred".
        notes: what is not in the words.
    """

    choice: Choice
    status: Literal["stated", "inferred"]
    model: str
    version: str
    processes: tuple[Process, ...]
    notes: tuple[str, ...]


def build(choice: Choice) -> Recipe:
    """Put the commands of a choice together.

    Raises:
        ConfigError: a node has too few devices, or host memory is no whole number of huge pages.
    """
    table = recipe_table.read()
    roles = table.strategies[choice.strategy].roles
    return Recipe(
        choice=choice,
        status="stated" if choice.is_stated else "inferred",
        model=table.model,
        version=table.version,
        processes=tuple(_process(choice, role, node) for role in roles for node in range(choice.nodes)),
        notes=tuple(note.rule for note in table.notes if note.holds(choice.axes(roles[0]))),
    )


def _process(choice: Choice, role: str, node: int) -> Process:
    table, axes = recipe_table.read(), choice.axes(role)
    flags: dict[str, Any] = {}
    env: dict[str, Any] = {}
    connector: dict[str, Any] = {}
    rules: dict[str, str] = {}  # of flags and variables
    for layer in (layer for layer in table.layers if layer.holds(axes)):
        _lay(flags, rules, layer.sets.get("flags", {}), layer.rule)
        _lay(env, rules, layer.sets.get("env", {}), layer.rule)
        connector |= {key: value for key, value in layer.sets.items() if key not in ("flags", "env")}
    parallel, devices = recipe_rules.devices_of(choice, role)
    draft = Draft(
        choice=choice, role=role, node=node, parallel=parallel, devices=devices,
        flags=flags, env=env, connector=connector,
    )  # fmt: skip
    for reason, more in [(rule.reason, rule.flags(draft)) for rule in recipe_rules.RULES]:
        _lay(flags, rules, more, reason)
    _lay(env, rules, recipe_rules.own_address(draft), "each node's own address, which the other one reaches")
    return Process(
        role=role,
        node=node,
        environment=tuple(Word(name=k, value=env[k], rule=rules[k]) for k in _order(env, table.variables)),
        words=tuple(_words(axes, flags, rules)),
        num_huge_pages=_huge_pages(draft),
    )


def _lay(values: dict[str, Any], rules: dict[str, str], more: Mapping[str, Any], rule: str) -> None:
    """Set what is new or other, objects key by key, and say why."""
    for key, value in more.items():
        is_merged = isinstance(value, Mapping) and key in values
        values[key] = {**values[key], **value} if is_merged else value
        rules[key] = f"{rules[key]}; {rule}" if is_merged else rule


def _order(names: Mapping[str, Any], wanted: tuple[str, ...]) -> list[str]:
    last = len(wanted)
    return sorted(names, key=lambda name: wanted.index(name) if name in wanted else last)


def _words(axes: Mapping[str, tuple[str, ...]], flags: Mapping[str, Any], rules: Mapping[str, str]) -> Iterator[Word]:
    order = next(order for order in recipe_table.read().orders if order.holds(axes))
    for flag in _order(flags, tuple(order.sets["words"])):
        is_short = flag == "--tensor-parallel-size" and order.sets.get("short", False)
        yield Word(name="-tp" if is_short else flag, value=_value(flag, flags[flag]), rule=rules[flag])


def _value(flag: str, value: Any) -> str | None:
    if value is True:
        return None
    if isinstance(value, str):
        return value
    return json.dumps(value, separators=(",", ":") if flag in recipe_table.read().compact else None)


def _huge_pages(of: Draft) -> int:
    """Pages for the ranks of this node; none where the connector takes ordinary memory."""
    if not of.host_bytes or "cpu_hugepage_block_size" not in of.connector["host"]:
        return 0
    return transfer.huge_pages(of.host_bytes, of.devices // of.choice.nodes)
