"""minnow plan: what a deployment holds, before anything is bought; published numbers beside computed ones"""

import argparse
import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from minnow.checkpoint import demo
from minnow.config import flags, load
from minnow.config import model as model_config
from minnow.config.load import Loaded
from minnow.config.model import ModelConfig
from minnow.config.parallel import ParallelConfig
from minnow.core.errors import CapacityError, ConfigError
from minnow.core.units import parse_bytes
from minnow.plan import (
    capacity,
    claims,
    command,
    deployment,
    document,
    forecast,
    hardware,
    published,
    recipe,
    recipe_build,
    report,
    transfer,
)
from minnow.plan.capacity import Capacity
from minnow.plan.deployment import Deployment
from minnow.plan.hardware import Sheet

HELP = "show what a model takes and holds on given hardware"


_VALUES = (
    ("--hardware", "NAME", "a sheet by name (--sheets lists them) or a .toml file of your own (default: this machine)"),
    ("--strategy", "WORD", "tp, tep, dp or dep and the number of devices: dep4; instead of -tp, -dp and -ep"),
    ("--prefill", "WORD", "strategy of an engine for prefill beside it, on the same hardware"),
    ("--nodes", "N", "machines (default: as few as hold the devices)"),
    ("--context", "TOKENS", "length of the sequences to count (default: 256K, or the longest there is)"),
    (
        "--reserve",
        "BYTES",
        "memory of a rank beside weights and cache (default: 9GB, fitted; on a CPU the engine's own)",
    ),
    ("--experts-format", "FORMAT", "convert routed experts when they are loaded"),
    ("--host-memory", "BYTES", "host memory of a rank for cache, whole GiB: 560GiB; with --prefill of that engine"),
)
_SWITCHES = (
    ("--sequence-parallel-prefill", "shard long prefills by tokens, with whole output projections on each rank"),
    ("--hybrid-kv-cache-manager", "keep a drafter's pages for its window only, as vLLM would"),
    ("--claims", "published numbers beside computed ones; 1 if one is off"),
    ("--assumptions", "what reproduces the published comparison"),
    ("--forecast", "M3.1-Flash on every device"),
    ("--sheets", "every hardware sheet, with statuses and sources"),
    ("--json", "print JSON"),
)

_TABLES: dict[str, tuple[Callable[[], Any], Callable[[Any], Iterator[str]]]] = {
    "claims": (claims.judge_all, report.claims),
    "assumptions": (published.examine, report.assumptions),
    "forecast": (forecast.all_rows, report.forecasts),
    "sheets": (hardware.read_all, report.sheets),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    flags.add_arguments(parser)
    for flag, metavar, text in _VALUES:
        parser.add_argument(flag, metavar=metavar, default="", help=text)
    parser.add_argument("--recipe", nargs="+", metavar="KEY=VALUE", default=(), help="a choice of minnow recipe")
    for flag, text in _SWITCHES:
        parser.add_argument(flag, action="store_true", help=text)


def run(args: argparse.Namespace) -> int:
    """Print one of the tables; 1 where a claim is off."""
    chosen = [word for word in _TABLES if getattr(args, word)]
    if len(chosen) > 1:
        raise ConfigError(f"--{chosen[0]} and --{chosen[1]} are both given; ask for one at a time")
    if not chosen:
        return _plan(args)
    model = getattr(args, flags.DEST + "model tag", "")
    if model:
        raise ConfigError(f"--{chosen[0]} is about published models and takes none; leave {model} out")
    find, show = _TABLES[chosen[0]]
    rows = find()
    _print(args, rows, show(rows))
    return 1 if args.claims and not all(verdict.is_ok for verdict in rows) else 0


def _plan(args: argparse.Namespace) -> int:
    if args.recipe:
        return _recipe(args)
    loaded, device = load.load(args, is_planning=True), hardware.read(args.hardware or hardware.HERE)
    if args.strategy and loaded.config.parallel != ParallelConfig():
        raise ConfigError(f"--strategy {args.strategy} and -tp, -dp or -ep are both given; leave one out")
    found = capacity.measure(settle(loaded, device, args.strategy, **_asked(args)))
    checked = command.check(loaded, found.deployment)
    shown: dict[str, object] = {"plan": found, "command": checked}
    lines, keeper = [*report.plan(found)], found
    if args.prefill:
        prefill = keeper = capacity.measure(settle(loaded, device, args.prefill, **_asked(args)))
        moved = transfer.between(prefill, found)
        shown |= {"prefill": prefill, "move": moved}
        lines = ["Decode", *lines, "", "Prefill", *report.plan(prefill), "", *report.move(moved)]
    if args.host_memory:
        if checked.host is not None:
            raise ConfigError(f"--host-memory is {args.host_memory}, but a connector keeps some, too; leave one out")
        of, size = keeper.deployment, parse_bytes(args.host_memory)
        kept = transfer.offload(keeper.allocated.layout, size, of.num_ranks, num_nodes=of.num_nodes)
        shown["host"] = kept
        lines += ["", *report.host(kept, "prefill" if args.prefill else "")]
    _print(args, shown, [*lines, *report.command(checked)])
    return 1 if checked.problems else 0


def _recipe(args: argparse.Namespace) -> int:
    """Add up each engine of a recipe, settings given beside it first; 1 where something in it is to be mended."""
    for name in ("hardware", "strategy", "prefill", "nodes", "host_memory"):
        if getattr(args, name):
            raise ConfigError(f"--recipe says so itself, and --{name.replace('_', '-')} is given, too; leave it out")
    choice = recipe.choose(args.recipe)
    built = recipe_build.build(choice)
    shown: dict[str, object] = {"recipe": choice, "status": built.status}
    lines = [f"{built.model} by a recipe: {choice.hardware}, {choice.strategy}, {built.status}"]
    found: dict[str, Capacity] = {}
    num_problems = 0
    for process in (process for process in built.processes if not process.node):
        loaded = command.read(built, process, command.own_settings(args))
        engine = settle(loaded, hardware.read(choice.hardware), is_drafting=False, **_asked(args))
        try:
            found[process.role] = capacity.measure(engine)
        except CapacityError as error:
            raise CapacityError(f"{process.role}: {error}") from None
        checked = command.check(loaded, engine)
        shown[process.role] = {"plan": found[process.role], "command": checked}
        lines += ["", process.role.capitalize(), *report.plan(found[process.role]), *report.command(checked)]
        num_problems += len(checked.problems)
    if len(found) > 1:
        moved = transfer.between(found["prefill"], found["decode"])
        shown["move"] = moved
        lines += ["", *report.move(moved)]
    _print(args, shown, lines)
    return 1 if num_problems else 0


def _asked(args: argparse.Namespace) -> dict[str, Any]:
    """What the command's own arguments say about a deployment."""
    return {
        "context_tokens": _whole(args.context, "--context"),
        "num_nodes": _whole(args.nodes, "--nodes"),
        "reserve": args.reserve,
        "experts_format": args.experts_format,
        "has_sequence_parallel": args.sequence_parallel_prefill,
        "has_hybrid_manager": args.hybrid_kv_cache_manager,
    }


def settle(
    loaded: Loaded,
    device: Sheet,
    strategy: str = "",
    *,
    context_tokens: int = 0,
    num_nodes: int = 0,
    reserve: str = "",
    experts_format: str = "",
    has_sequence_parallel: bool = False,
    has_hybrid_manager: bool = False,
    is_drafting: bool = True,
) -> Deployment:
    """A deployment from settings, vLLM's words among them, and what is asked for beside them.

    Args:
        strategy: in a word, instead of the settings'.
        is_drafting: a published model drafts without being asked to.

    Raises:
        ConfigError: no model is named, or as `deployment.settle`.
    """
    config, foreign = loaded.config, loaded.foreign
    if not config.model:
        raise ConfigError("minnow plan needs a model: a directory, or a published name such as minimax-m3.1-flash")
    name, model, directory, is_published = find(config.model)
    if strategy:
        config = dataclasses.replace(config, parallel=deployment.parallel_of(strategy))
    if loaded.origin_by_field["gpu_memory_utilization"] == "default" and device.kind == "gpu":
        cache = dataclasses.replace(config.cache, gpu_memory_utilization=deployment.UTILIZATION)
        config = dataclasses.replace(config, cache=cache)
    return deployment.settle(
        name,
        model,
        directory,
        config,
        device,
        context_tokens=context_tokens,
        num_nodes=num_nodes or command.num_nodes(foreign),
        reserve=reserve,
        experts_format=experts_format or command.experts_format(foreign),
        has_sequence_parallel=has_sequence_parallel or command.has_sequence_parallel(foreign),
        has_hybrid_manager=has_hybrid_manager,
        is_drafting=is_drafting and is_published,
    )


def _whole(text: str, flag: str) -> int:
    """A whole number as settings have it (256K is 262144); 0 where nothing is given."""
    if not text:
        return 0
    value = load.convert(dataclasses.replace(flags.settings()["max_model_len"], name=flag), text, flag)
    assert isinstance(value, int)
    return value


def find(name: str) -> tuple[str, ModelConfig, Path, bool]:
    """A model's name, configuration and directory, and whether only its published configuration is here."""
    directory = Path(name).expanduser()
    published_config = None if (directory / "config.json").is_file() else model_config.known(name)
    if published_config is not None:
        directory = model_config.known_directory(name)
        return directory.name, published_config, directory, True
    try:
        directory = demo.resolve(name)
    except ConfigError as error:
        raise ConfigError(f"{error}; published models are {', '.join(model_config.known_names())}") from None
    return name, model_config.read(directory), directory, False


def _print(args: argparse.Namespace, shown: object, lines: Iterable[str]) -> None:
    print(json.dumps(document.plain(shown), indent=2) if args.json else "\n".join(lines))
