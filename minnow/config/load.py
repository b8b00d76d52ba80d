"""file + environment + flags -> EngineConfig; remembers each value's origin"""

import argparse
import dataclasses
import difflib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minnow.config import drafter as drafter_config
from minnow.config import engine as engine_config
from minnow.config import flags, speculative, vllm
from minnow.config.drafter import DrafterConfig
from minnow.config.engine import EngineConfig
from minnow.config.flags import Setting
from minnow.config.model import ModelConfig, without_index
from minnow.config.speculative import SpeculativeConfig
from minnow.core import env, units
from minnow.core.errors import ConfigError
from minnow.core.log import Logger

PREFIX = "MINNOW_"
DEFAULT_BLOCK_SIZE = 128

_SCALE = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The configuration as the user chose it, and where each value came from.

    Attributes:
        config: "auto" and 0 are still in it; `resolve_auto` replaces them.
        origin_by_field: setting name -> "default", "file NAME", "environment NAME" or "flag --name".
        foreign: what vLLM's own words come to.
    """

    config: EngineConfig
    origin_by_field: Mapping[str, str]
    foreign: vllm.Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class _Given:
    name: str
    value: object
    origin: str


def load(args: argparse.Namespace, environ: Mapping[str, str] | None = None, *, is_planning: bool = False) -> Loaded:
    """Put a configuration together: defaults, then the file, then the environment, then the flags.

    Args:
        args: what `flags.parse` found for a parser that went through `flags.add_arguments`.
        environ: the environment; None reads the process's own.
        is_planning: nothing is launched: what a launch does not do yet is taken, and nothing is logged; the caller
            shows `Loaded.foreign`.

    Raises:
        ConfigError: an unknown name, a value that does not fit, or a vLLM flag that is refused.
    """
    found = {key.removeprefix(flags.DEST): value for key, value in vars(args).items() if key.startswith(flags.DEST)}
    tag, file = found.pop("model tag", None), found.pop("config", None)
    if tag is not None and found.setdefault("model", tag) != tag:
        raise ConfigError(f"the model is given twice, as {tag!r} and as --model {found['model']!r}; leave one out")
    given = [*(_from_file(Path(file)) if file else ()), *_from_environment(environ)]
    given += [_Given(name=name, value=value, origin=_flag_origin(name, value, tag)) for name, value in found.items()]
    foreign = {k.removeprefix(vllm.DEST): v for k, v in vars(args).items() if k.startswith(vllm.DEST)}
    return _assemble(given, foreign, environ, is_planning=is_planning)


def from_values(values: Mapping[str, object], environ: Mapping[str, str] | None = None) -> Loaded:
    """The same from Python: settings by name above the environment and the defaults.

    Raises:
        ConfigError: an unknown name or a value that does not fit.
    """
    given = [*_from_environment(environ)]
    given += [_Given(name=name, value=value, origin=f"argument {name}") for name, value in values.items()]
    return _assemble(given, {}, environ)


def _assemble(
    given: list[_Given],
    foreign: dict[str, object],
    environ: Mapping[str, str] | None,
    *,
    is_planning: bool = False,
) -> Loaded:
    config, origins = EngineConfig(), dict.fromkeys(flags.settings(), "default")
    for item in _expand(given):
        setting = flags.settings().get(item.name)
        if setting is not None:
            config = _put(config, setting.path, convert(setting, item.value, item.origin))
            origins[item.name] = item.origin
        elif vllm.find(_vllm_key(item.name)) is not None:
            foreign = foreign | {_vllm_key(item.name): item.value}
        else:
            raise ConfigError(_unknown(item))
    outcome = vllm.judge(foreign, environ)
    refused = outcome.refused if is_planning else {**outcome.refused, **outcome.not_yet}
    if refused:
        raise ConfigError("; ".join(f"{flag} is refused: {reason}" for flag, reason in refused.items()))
    if not is_planning:
        log = Logger("config")
        for flag, reason in outcome.ignored.items():
            log.warning("no effect", flag=flag, because=reason)
    return Loaded(config=config, origin_by_field=origins, foreign=outcome)


def _expand(given: Iterable[_Given]) -> list[_Given]:
    """Replace every JSON object by the settings in it and sort by layer; the later of two wins.

    Within a layer, a setting given alone comes after those inside a JSON object.
    """
    expanded: list[_Given] = []
    plain: list[_Given] = []
    for item in given:
        if item.name in flags.documents():
            values = _object(item)
            expanded += [_Given(name=f"{item.name}.{k}", value=v, origin=item.origin) for k, v in values.items()]
        else:
            plain.append(item)
    rank = {"file": 0, "environment": 1}  # flags and arguments come last
    return sorted([*expanded, *plain], key=lambda item: rank.get(item.origin.split()[0], 2))


def _object(item: _Given) -> Mapping[str, object]:
    value = item.value
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise ConfigError(f"{item.origin}: {item.value!r} is no JSON ({error})") from None
    if not isinstance(value, Mapping):
        raise ConfigError(f"{item.origin}: {item.value!r} is no JSON object")
    return value


def _from_file(path: Path) -> list[_Given]:
    if path.suffix not in (".json", ".toml"):
        raise ConfigError(f"--config is {str(path)!r}; a .json or .toml file is needed")
    try:
        text = path.read_text(encoding="utf-8")
        values = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"--config: {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"--config: {path} is no {path.suffix[1:].upper()}: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"--config: {path} holds no object of settings by name")
    return [_Given(name=k.replace("-", "_"), value=v, origin=f"file {path.name}") for k, v in values.items()]


def _from_environment(environ: Mapping[str, str] | None) -> list[_Given]:
    own = {variable.name for variable in env.VARIABLES}
    found = {k: v for k, v in env.read_prefixed(PREFIX, environ).items() if k not in own}
    return [_Given(name=k.removeprefix(PREFIX).lower(), value=v, origin=f"environment {k}") for k, v in found.items()]


def _flag_origin(name: str, value: object, tag: str | None) -> str:
    if name == "model" and tag is not None:
        return "argument MODEL"
    flag = flags.settings()[name].flag if name in flags.settings() else _vllm_key(name)
    return "flag " + (flag.replace("--", "--no-", 1) if value is False else flag)


def _vllm_key(name: str) -> str:
    outer, _, inner = name.partition(".")
    return f"--{outer.replace('_', '-')}" + (f".{inner}" if inner else "")


def _unknown(item: _Given) -> str:
    near = difflib.get_close_matches(item.name, [*flags.settings(), *flags.documents()], n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else "minnow explain lists them"
    return f"{item.origin}: no setting is called {item.name!r}; {hint}"


def _put(config: Any, path: tuple[str, ...], value: object) -> Any:
    inner = value if len(path) == 1 else _put(getattr(config, path[0]), path[1:], value)
    return dataclasses.replace(config, **{path[0]: inner})


def convert(setting: Setting, raw: object, origin: str) -> object:
    """Turn text, or a value of a JSON or TOML file, into the value of a setting.

    Whole numbers may be written as vLLM reads them: 8k is 8000, 8K is 8192, also m, g, t; M, G, T.

    Raises:
        ConfigError: the value does not fit the setting; names the origin, the value and what fits.
    """
    if setting.field.takes_many and isinstance(raw, list):
        raw = " ".join(str(word) for word in raw)
    value = _convert(setting, raw)
    low, high = setting.field.at_least, setting.field.at_most
    if value is None:
        raise ConfigError(f"{origin}: {raw!r} does not fit {setting.name}; it takes {_wanted(setting)}")
    if isinstance(value, int | float) and not ((low is None or value >= low) and (high is None or value <= high)):
        raise ConfigError(f"{origin}: {setting.name} is {raw}; it must be {_range(low, high)}")
    if setting.kind is str and setting.field.unit == "bytes" and value:
        try:
            units.parse_bytes(str(value))
        except ConfigError as error:
            raise ConfigError(f"{origin}: {error}") from None
    return value


def _convert(setting: Setting, raw: object) -> int | float | bool | str | None:
    if setting.choices:
        return raw if isinstance(raw, str) and raw in setting.choices else None
    if setting.kind is bool:
        words = {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False}
        return raw if isinstance(raw, bool) else words.get(raw.lower()) if isinstance(raw, str) else None
    if isinstance(raw, bool):
        return None
    if setting.kind is int:
        return raw if isinstance(raw, int) else _whole(raw) if isinstance(raw, str) else None
    if setting.kind is float:
        return _real(raw) if isinstance(raw, int | float | str) else None
    if setting.field.unit == "bytes" and isinstance(raw, int):
        return str(raw)
    return raw if isinstance(raw, str) else None


def _whole(text: str) -> int | None:
    match = re.fullmatch(r"(-?\d+(?:\.\d+)?)([kmgtKMGT]?)", text.strip().replace("_", ""))
    if match is None:
        return None
    value = float(match[1]) * _SCALE.get(match[2], 1) if "." in match[1] else int(match[1]) * _SCALE.get(match[2], 1)
    return int(value) if value == int(value) else None


def _real(raw: float | str) -> float | None:
    try:
        value = float(raw)
    except ValueError:
        return None
    return value if value == value and abs(value) != float("inf") else None


def _wanted(setting: Setting) -> str:
    if setting.choices:
        return "one of " + ", ".join(setting.choices)
    return {int: "a whole number", float: "a number", bool: "true or false"}.get(setting.kind, "text")


def _range(low: float | None, high: float | None) -> str:
    if high is None:
        return f"at least {low:g}"
    return f"at most {high:g}" if low is None else f"{low:g} to {high:g}"


def settle(
    config: EngineConfig, model: ModelConfig, directory: Path | None, *, is_bench: bool = False
) -> tuple[EngineConfig, ModelConfig, DrafterConfig | None]:
    """Settle all that a model answers, and refuse what cannot work with it.

    Args:
        directory: of the model, where its drafter is looked for; None looks for none.
        is_bench: see `speculative.check`.

    Returns:
        a new configuration without "auto", the model as it is run, and the drafter of its drafts.

    Raises:
        ConfigError: settings that cannot work together or with the model.
    """
    model = without_index(model) if config.dense else model
    config = resolve_auto(config, model)
    engine_config.check(config, model)
    if directory is None:
        return config, model, None
    config, drafter = resolve_speculation(config, directory, model, is_bench=is_bench)
    return config, model, drafter


def resolve_speculation(
    config: EngineConfig, directory: Path, model: ModelConfig, *, is_bench: bool = False
) -> tuple[EngineConfig, DrafterConfig | None]:
    """Settle how drafts are made: what is asked for, or what the model's own drafter proposes, or not at all.

    Args:
        config: with every "auto" of `resolve_auto` resolved.
        directory: of the model.
        is_bench: see `speculative.check`.

    Returns:
        a new configuration, whose method is empty where nothing is drafted and whose model is the drafter's directory
            otherwise, and the drafter.

    Raises:
        ConfigError: settings that contradict each other, the drafter or the model.
    """
    asked = config.speculative_config
    is_asked, origin = asked != SpeculativeConfig(), "--speculative-config"
    if is_asked and not config.speculation:
        raise ConfigError("--no-speculation and --speculative-config are both given; leave one of them out")
    place = Path(asked.model).expanduser() if asked.model else drafter_config.find(directory)
    if not is_asked and (place is None or not config.speculation or not drafter_config.proposes(place)):
        return config, None
    try:
        drafter = None if place is None else drafter_config.read(place, model)
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from None
    if is_asked:
        asked = dataclasses.replace(asked, method="dspark")
    else:
        assert drafter is not None
        origin = f"{place}/config.json"
        asked = proposed(drafter.served, origin)
    speculative.check(asked, drafter, origin=origin, is_bench=is_bench)
    assert drafter is not None
    kv_format = asked.kv_cache_dtype
    if kv_format == "auto":
        kv_format = "fp8" if config.cache.kv_cache_dtype in ("fp8", "nvfp4") else config.cache.kv_cache_dtype  # type: ignore[assignment]
    asked = dataclasses.replace(
        asked,
        model=str(place),
        kv_cache_dtype=kv_format,
        num_speculative_tokens=asked.num_speculative_tokens or drafter.block_size,
    )
    return dataclasses.replace(config, speculative_config=asked), drafter


def proposed(served: Mapping[str, Any], origin: str) -> SpeculativeConfig:
    """How a drafter is to be served where nobody says, by its own words.

    Raises:
        ConfigError: unknown keys, or a model or another method, which a drafter does not propose.
    """
    if "model" in served or served.get("method", "dspark") != "dspark":
        raise ConfigError(f"{origin} proposes {dict(served)}; a drafter proposes no model, no other method")
    values = {f"speculative_config.{k}": v for k, v in served.items()} | {"speculative_config.method": "dspark"}
    loaded = _assemble([_Given(name=k, value=v, origin=f"file {origin}") for k, v in values.items()], {}, {})
    return loaded.config.speculative_config


def resolve_auto(config: EngineConfig, model: ModelConfig) -> EngineConfig:
    """Replace every "auto" and 0 that the model's config.json answers; the rest stays as it is.

    The device and the number of threads depend on the machine, and are settled where the engine is built.

    Returns:
        a new configuration with `dtype`, `max_model_len`, `block_size` and both cache formats set.
    """
    dtype = model.dtype if config.dtype == "auto" else config.dtype
    kv_cache_dtype = config.cache.kv_cache_dtype
    if kv_cache_dtype == "auto":
        kv_cache_dtype = model.quantization.kv_cache or dtype
    index_dtype = config.attention_config.indexer_kv_dtype
    block_size = config.cache.block_size
    if block_size == 0:
        block_size = model.sparse.block_size if any(model.sparse.is_sparse) else DEFAULT_BLOCK_SIZE
    return dataclasses.replace(
        config,
        dtype=dtype,
        max_model_len=config.max_model_len or model.max_position_embeddings,
        cache=dataclasses.replace(config.cache, kv_cache_dtype=kv_cache_dtype, block_size=block_size),
        attention_config=dataclasses.replace(
            config.attention_config, indexer_kv_dtype=kv_cache_dtype if index_dtype == "auto" else index_dtype
        ),
    )
