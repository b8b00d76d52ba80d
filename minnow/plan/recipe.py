"""a recipe's choice: hardware, variant, strategy, features and preset, out of what there is"""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from minnow.core.errors import ConfigError
from minnow.core.units import parse_bytes
from minnow.plan import hardware, recipe_table

DEFAULT_PRESET = "baseline"
KEYS = {  # what may be chosen; the first six are the words of the public page
    "hardware": "the device: b300",
    "variant": "formats of weights and caches: default, mxfp4 or fp8",
    "strategy": "how devices share the work: single_node_tp",
    "features": "what is turned on, by commas: tool_calling,reasoning,spec_decoding",
    "preset": "a named choice; baseline is none",
    "nodes": "machines of a multi-node strategy",
    "devices": "of one engine on each node, where it takes fewer than the recipe: 4",
    "host_memory": "of a rank for cache, whole GiB: 180GiB",
    "prefill_host": "the prefill node's own address, which the decode node reaches",
    "decode_host": "the decode node's own address, which the prefill node reaches",
    "head_host": "address of the first of several nodes",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What a recipe is made for; every value is one of those there are.

    Attributes:
        platform: of the hardware: "blackwell", "cdna4" or "hopper".
        devices: of one engine on one node; 0 in a pd_cluster, whose roles differ.
        nodes: that one engine is on.
        host_memory_bytes: of a rank, for cache; 0 is what the layers set.
        hosts: "prefill", "decode" and "head" -> address, of those that are given.
    """

    hardware: str
    platform: str
    variant: str
    strategy: str
    features: tuple[str, ...]
    preset: str
    devices: int
    nodes: int
    host_memory_bytes: int
    hosts: Mapping[str, str]

    @property
    def is_stated(self) -> bool:
        """Whether the public serving recipe states every word of it."""
        default = recipe_table.read().platforms[self.platform].variants[0]
        if self.preset != DEFAULT_PRESET or self.variant != default:
            return False
        if self.devices != _devices({}, self.hardware, self.strategy, recipe_table.Preset()):
            return False
        return any(
            self.hardware in row["hardware"]
            and self.strategy in row["strategy"]
            and set(self.features) == set(row["features"])
            and self.host_memory_bytes in (0, *map(parse_bytes, row.get("host_memory", ())))
            for row in recipe_table.read().stated
        )

    def axes(self, role: str) -> dict[str, tuple[str, ...]]:
        """The values that conditions of layers are about."""
        return {
            "hardware": (self.hardware,),
            "platform": (self.platform,),
            "variant": (self.variant,),
            "strategy": (self.strategy,),
            "feature": self.features,
            "preset": (self.preset,),
            "role": (role,),
        }


def choose(words: Iterable[str]) -> Choice:
    """Read a choice from "key=value" words, or from one word with "&" between them, as a page's address has it.

    Raises:
        ConfigError: no such key or value (lists those there are), or two that do not go together (says why).
    """
    given = _split(words)
    table = recipe_table.read()
    preset_name = _one(given, "preset", DEFAULT_PRESET, table.presets)
    preset = table.presets[preset_name]
    for key, pinned in (("hardware", preset.hardware), ("strategy", preset.strategy)):
        if pinned and given.setdefault(key, pinned) != pinned:
            raise ConfigError(f"preset {preset_name} is for {key} {pinned}, not {given[key]}; leave {key} out")
    if "hardware" not in given:
        raise ConfigError(f"a recipe needs its hardware: hardware=b300; known are {_list(table.platform_by_hardware)}")
    device = _one(given, "hardware", "", table.platform_by_hardware)
    platform_name = table.platform_by_hardware[device]
    platform = table.platforms[platform_name]
    strategy = _one(given, "strategy", "single_node_tp", table.strategies)
    if platform.strategies and strategy not in platform.strategies:
        raise ConfigError(f"strategy {strategy} is not for {device}; it takes {_list(platform.strategies)}")
    nodes = _nodes(given, strategy)
    return Choice(
        hardware=device,
        platform=platform_name,
        variant=_variant(given, device, platform),
        strategy=strategy,
        features=_features(given, device, strategy, platform),
        preset=preset_name,
        devices=_devices(given, device, strategy, preset),
        nodes=nodes,
        host_memory_bytes=parse_bytes(given.get("host_memory", preset.host_memory) or "0"),
        hosts=_hosts(given, strategy),
    )


def _split(words: Iterable[str]) -> dict[str, str]:
    given: dict[str, str] = {}
    for word in (part for whole in words for part in whole.split("&")):
        key, mark, value = word.partition("=")
        if not mark:
            raise ConfigError(f"{word!r} is no key=value; write hardware=b300, for example")
        if key not in KEYS:
            near = difflib.get_close_matches(key, KEYS, n=1)
            raise ConfigError(
                f"a recipe has no {key!r}; " + (f"did you mean {near[0]}?" if near else f"it has {_list(KEYS)}")
            )
        if given.setdefault(key, value) != value:
            raise ConfigError(f"{key} is given twice, as {given[key]} and as {value}; leave one out")
    return given


def _one(given: Mapping[str, str], key: str, default: str, known: Iterable[str]) -> str:
    value, known = given.get(key, default), tuple(known)
    if value not in known:
        raise ConfigError(f"no {key} is called {value!r}; it must be one of {_list(known)}")
    return value


def _variant(given: Mapping[str, str], device: str, platform: recipe_table.Platform) -> str:
    every = dict.fromkeys(v for p in recipe_table.read().platforms.values() for v in p.variants)
    variant = _one(given, "variant", platform.variants[0], every)
    if variant not in platform.variants:
        raise ConfigError(
            f"variant {variant} has caches in NVFP4, but {device} has no FP4 units; it takes {_list(platform.variants)}"
        )
    return variant


def _features(given: Mapping[str, str], device: str, strategy: str, platform: recipe_table.Platform) -> tuple[str, ...]:
    if "features" not in given:
        return platform.defaults
    every = dict.fromkeys(f for p in recipe_table.read().platforms.values() for f in p.features)
    features = tuple(dict.fromkeys(word for word in given["features"].split(",") if word))
    for feature in features:
        _one({"feature": feature}, "feature", "", every)
        if feature not in platform.features:
            why = {
                "spec_decoding": "DSpark is not served on Hopper",
                "prefill_dbo_sp": "both switches are of the MI355X engine",
            }.get(feature, "nothing of it is known there")
            raise ConfigError(f"feature {feature} is not for {device}: {why}; it takes {_list(platform.features)}")
    if "prefill_dbo_sp" in features and strategy != "single_node_tp":
        raise ConfigError(f"feature prefill_dbo_sp is for single_node_tp, not {strategy}; leave one out")
    return features


def _nodes(given: Mapping[str, str], strategy: str) -> int:
    has_many = recipe_table.read().strategies[strategy].has_many_nodes
    text = given.get("nodes", "")
    if not has_many:
        if text not in ("", "1"):
            raise ConfigError(f"nodes is {text}, but {strategy} has one node an engine; leave it out")
        return 1
    if not text.isdecimal() or int(text) < 2:
        raise ConfigError(f"nodes is {text!r}; {strategy} needs the number of machines, 2 or more: nodes=2")
    return int(text)


def _hosts(given: Mapping[str, str], strategy: str) -> Mapping[str, str]:
    used = recipe_table.read().strategies[strategy].hosts
    found = {key.removesuffix("_host"): value for key, value in given.items() if key.endswith("_host") and value}
    for name in found.keys() - set(used):
        raise ConfigError(f"{name}_host is given, but {strategy} has no such node; leave it out")
    return found


def _devices(given: Mapping[str, str], device: str, strategy: str, preset: recipe_table.Preset) -> int:
    table, text = recipe_table.read(), given.get("devices", "")
    if len(table.strategies[strategy].roles) > 1:
        if text:
            raise ConfigError(f"devices is {text}, but the roles of {strategy} have their own; leave it out")
        return 0
    if text and not (text.isdecimal() and int(text)):
        raise ConfigError(f"devices is {text!r}; a whole number from 1 on is needed: devices=4")
    whole = hardware.read(device).devices_per_node
    is_spread = table.strategies[strategy].has_many_nodes
    return int(text or 0) or preset.devices or (0 if is_spread else table.devices_by_hardware[device]) or whole


def _list(names: Iterable[str]) -> str:
    return ", ".join(names)
