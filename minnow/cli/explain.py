"""minnow explain: every setting, where its value came from, and what the memory is spent on"""

import argparse
from collections.abc import Iterator
from pathlib import Path

from minnow.config import engine as engine_config
from minnow.config import flags, load
from minnow.config import model as model_config
from minnow.config.engine import EngineConfig
from minnow.config.flags import Setting
from minnow.config.load import Loaded
from minnow.config.model import ModelConfig
from minnow.core.errors import CapacityError, ConfigError
from minnow.core.units import show_bytes

HELP = "show every setting, its origin, and the memory plan"

_SECRET = ("api_key",)
_NAME_WIDTH = 48


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    flags.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Print settings, memory and kernels; 2 where the settings cannot work with the model."""
    loaded = load.load(args)
    model, directory = (None, None) if not loaded.config.model else _find(loaded.config.model)
    config, problems = (loaded.config, ()) if model is None else _settled(loaded.config, model, directory)
    print("\n".join(_settings(loaded, config)))
    for sentence in problems:
        print(f"\nproblem: {sentence}")
    if problems:
        return 2
    if model is not None:
        print("\n" + "\n".join(_memory(loaded.config, model, directory)))
    print("\n" + _kernels(config))
    return 0


def _find(name: str) -> tuple[ModelConfig, Path | None]:
    """The configuration in a directory, or of a published model (its weights need not be here)."""
    directory = Path(name).expanduser()
    if (directory / "config.json").is_file():
        return model_config.read(directory), directory
    known = model_config.known(name)
    if known is not None:
        return known, None
    from minnow.checkpoint import demo  # only now: it loads torch

    directory = demo.resolve(name)
    return model_config.read(directory), directory


def _settled(config: EngineConfig, model: ModelConfig, directory: Path | None) -> tuple[EngineConfig, tuple[str, ...]]:
    """What the settings come to for a model, drafts included, and what cannot be."""
    config = load.resolve_auto(config, model)
    problems = engine_config.problems(config, model)
    if directory is not None:
        try:
            config, _ = load.resolve_speculation(config, directory, model)
        except ConfigError as error:
            problems = (*problems, str(error))
    return config, problems


def _settings(loaded: Loaded, config: EngineConfig) -> Iterator[str]:
    """A line a setting, under the heading of its class."""
    group = ""
    for name, setting in flags.settings().items():
        if setting.group != group:
            yield ("\n" if group else "") + setting.group.rstrip(".")
            group = setting.group
        chosen, value = _value(loaded.config, setting), _value(config, setting)
        origin = loaded.origin_by_field[name]
        if chosen != value:
            origin += f" ({chosen}), settled by the model"
        shown = _show(setting, value)
        yield f"  {name:{_NAME_WIDTH}} {shown:24} {origin}"


def _value(config: EngineConfig, setting: Setting) -> object:
    value: object = config
    for attribute in setting.path:
        value = getattr(value, attribute)
    return value


def _show(setting: Setting, value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if value == "":
        return "-"
    if setting.name in _SECRET:
        return "(set)"
    return str(value) if isinstance(value, str) else f"{value} {setting.field.unit}".rstrip()


def _memory(config: EngineConfig, model: ModelConfig, directory: Path | None) -> Iterator[str]:
    """What the memory of the device is spent on, or why it does not suffice."""
    from minnow.arch import size
    from minnow.engine import memory  # only now: it loads torch
    from minnow.engine.build import device_of

    settled = memory.settle(config, model, directory)
    layout = settled.layout
    weights = size.measure(model)
    pages = ", ".join(f"{group.num_layers} pages of {group.name} in {group.format.name}" for group in layout.groups)
    yield "Memory"
    yield _line("weights", show_bytes(weights.num_bytes), f"{weights.num_tensors:,} tensors")
    if settled.drafter is not None:
        words = f"{settled.config.speculative_config.num_speculative_tokens} tokens at once"
        yield _line("drafter", show_bytes(size.drafter_bytes(settled.drafter)), words)
    yield _line("cache of one token", f"{layout.token_bytes:,} bytes")
    yield _line("block row", f"{layout.row_bytes:,} bytes", pages)
    try:
        plan = memory.plan(settled, device_of(settled.config.kernel.device))
    except CapacityError as error:
        yield _line("does not fit here", str(error))
        return
    yield _line("workspace", show_bytes(plan.workspace_bytes))
    yield _line("cache", show_bytes(plan.cache_bytes), f"{plan.num_blocks:,} blocks, one of them the null block")
    yield _line("sum", show_bytes(plan.total_bytes), f"of {show_bytes(plan.limit_bytes)} that may be used")
    yield _line("tokens in the cache", f"{plan.num_tokens:,}")
    yield _line("concurrency", str(plan.max_concurrency), f"sequences of {plan.max_model_len:,} tokens")


def _line(name: str, value: str, note: str = "") -> str:
    return f"  {name:{_NAME_WIDTH}} {value:24} {note}".rstrip()


def _kernels(config: EngineConfig) -> str:
    """The backend of each operation on this machine, in one line."""
    from minnow.engine.build import device_of  # only now: it loads torch
    from minnow.kernels import registry

    target = registry.target_of(device_of(config.kernel.device))
    choices = registry.bind(target, config.kernel.kernel_backends).choices
    chosen = " ".join(f"{choice.op}={choice.backend}" for choice in choices)
    return f"Kernels on {target.kind} ({target.name})\n  {chosen}"
