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
        notes=tuple(_notes(choice)),
    )


def _notes(choice: Choice) -> Iterator[str]:
    if choice.preset != "baseline":
        yield f"preset {choice.preset} is public by name only: hardware, strategy and devices are read from its name"
    if choice.preset.startswith("gb"):
        yield "its engines run under NVIDIA Dynamo, whose part is not written here"
    if "mono_decode" in choice.features:
        yield "mono_decode has no published switch, so no word is written; Minnow's CPU step is one native call anyway"
    if choice.hardware in ("h100", "h200"):
        yield "DSpark is not served on Hopper, so no drafts are made"


def _process(choice: Choice, role: str, node: int) -> Process:
    parallel, devices = recipe_rules.devices_of(choice, role)
    flags: dict[str, Any] = {}
    env: dict[str, Any] = {}
    connector: dict[str, Any] = {}
    rules: dict[str, str] = {}
    axes = choice.axes(role)
    for layer in recipe_table.read().layers:
        if layer.holds(axes):
            for target, kind in ((flags, "flags"), (env, "env")):
                _merge(target, layer.sets.get(kind, {}))
                rules |= dict.fromkeys(layer.sets.get(kind, {}), layer.rule)
            _merge(connector, {k: v for k, v in layer.sets.items() if k not in ("flags", "env")})
    draft = Draft(
        choice=choice,
        role=role,
        node=node,
        parallel=parallel,
        devices=devices * choice.nodes,
        flags=flags,
        env=env,
        connector=connector,
    )
    for rule in recipe_rules.RULES:
        more = rule.flags(draft)
        _merge(flags, more)
        rules |= dict.fromkeys(more, rule.reason)
    address = recipe_rules.own_address(draft)
    _merge(env, address)
    rules |= dict.fromkeys(address, "each node's own address, which the other one reaches")
    return Process(
        role=role,
        node=node,
        environment=tuple(
            Word(name=k, value=env[k], rule=rules[k]) for k in _order(env, recipe_table.read().variables)
        ),
        words=tuple(_words(axes, flags, rules)),
        num_huge_pages=_huge_pages(draft),
    )


def _merge(target: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Set what is new or other; objects key by key; an empty text takes away, except from what is needed."""
    for key, value in more.items():
        if isinstance(value, Mapping):
            inner = dict(target.get(key, {}))
            _merge(inner, value)
            target[key] = inner
        elif value == "" and not key.endswith(("_HOST", "-addr", "-address")):
            target.pop(key, None)
        else:
            target[key] = value


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
