"""minnow plan: what a deployment holds, before anything is bought; published numbers beside computed ones"""

import argparse
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from minnow.config import flags, load
from minnow.config.parallel import ParallelConfig
from minnow.core.errors import CapacityError, ConfigError
from minnow.core.units import parse_bytes
from minnow.plan import (
    anchors,
    asked,
    calibration,
    capacity,
    claims,
    command,
    document,
    forecast,
    hardware,
    published,
    recipe,
    recipe_build,
    report,
    speed,
    speed_text,
    transfer,
)
from minnow.plan.capacity import Capacity

HELP = "show what a model takes and holds on given hardware"


_VALUES = (
    ("--hardware", "NAME", "a sheet by name (--sheets lists them) or a .toml file of your own (default: this machine)"),
    ("--strategy", "WORD", "tp, tep, dp or dep and the number of devices: dep4; instead of -tp, -dp and -ep"),
    ("--prefill", "WORD", "strategy of an engine for prefill beside it, on the same hardware"),
    ("--nodes", "N", "machines of the engine (default: as few as hold its devices)"),
    ("--context", "TOKENS", "length of the sequences to count (default: 256K, or the longest there is)"),
    (
        "--reserve",
        "BYTES",
        "memory of a rank beside weights and cache (default: 9GB, fitted; on a CPU the engine's own)",
    ),
    ("--experts-format", "FORMAT", "convert routed experts when they are loaded"),
    ("--acceptance-length", "X", "tokens that a sequence gets in a step that verifies drafts (default: 1)"),
    ("--calibration", "NAME", "shares of the rates that are reached: gpu, cpu, bound (all), or a .toml file"),
    ("--host-memory", "BYTES", "host memory of a rank for cache, whole GiB: 560GiB; with --prefill of that engine"),
)
_SWITCHES = (
    ("--sequence-parallel-prefill", "shard long prefills by tokens, with whole output projections on each rank"),
    ("--hybrid-kv-cache-manager", "keep a drafter's pages for its window only, as vLLM would"),
    ("--claims", "published numbers beside computed ones; 1 if one is off"),
    ("--assumptions", "what reproduces the published comparison"),
    ("--forecast", "M3.1-Flash on every device"),
    ("--steps", "published times of steps beside the roofline's"),
    ("--sheets", "every hardware sheet, with statuses and sources"),
    ("--page", "serve plans as a page, on --host and --port, until a signal comes"),
    ("--json", "print JSON"),
)

_PAGE_SETTINGS = ("model", "host", "port", "api_key")  # that the page takes; all others are chosen on it

_TABLES: dict[str, tuple[Callable[[], Any], Callable[[Any], Iterator[str]]]] = {
    "claims": (claims.judge_all, report.claims),
    "assumptions": (published.examine, report.assumptions),
    "forecast": (forecast.all_rows, report.forecasts),
    "steps": (anchors.compare_all, speed_text.steps),
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
    """Print one of the tables, 1 where a claim is off; or serve the page."""
    if args.page:
        return _page(args)
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


def _page(args: argparse.Namespace) -> int:
    """Serve the planner's page alone: without an engine, so no model is needed."""
    from minnow.cli import serve
    from minnow.plan import page
    from minnow.server import app, computed, listen  # only now: a plan on the terminal needs no HTTP server

    loaded = load.load(args, is_planning=True)
    own = [flag for flag, *_ in (*_VALUES, *_SWITCHES, ("--recipe",)) if flag != "--page"]
    given = [flag for flag in own if getattr(args, flag[2:].replace("-", "_"))]
    given += [
        origin.removeprefix("flag ")
        for name, origin in loaded.origin_by_field.items()
        if origin.startswith("flag ") and name not in _PAGE_SETTINGS
    ]
    if given:
        raise ConfigError(f"--page and {given[0]} are both given; leave {given[0]} out and choose it on the page")
    serve.check_key(loaded)
    config = loaded.config
    served = {config.model: config.model} if config.model else {}
    for model in served:
        asked.find(model)  # an unknown one is said now
    listening = listen.bind(config.server.host, config.server.port)
    door = app.build_alone(config.server, computed.routes(page.paths(served)))

    def say() -> None:
        print(f"minnow plans on {listen.address_of(listening)}", flush=True)

    listen.serve_alone(door, listening, when_ready=say)
    return 0


def _plan(args: argparse.Namespace) -> int:
    if args.recipe:
        return _recipe(args)
    loaded, device = load.load(args, is_planning=True), hardware.read(args.hardware or hardware.HERE)
    if args.strategy and loaded.config.parallel != ParallelConfig():
        raise ConfigError(f"--strategy {args.strategy} and -tp, -dp or -ep are both given; leave one out")
    found = capacity.measure(asked.settle(loaded, device, args.strategy, **_asked(args)))
    checked = command.check(loaded, found.deployment)
    shown: dict[str, object] = {"plan": found, "command": checked}
    lines, keeper = [*report.plan(found), *_speed(args, found, shown)], found
    if args.prefill:
        beside = {**_asked(args), "num_nodes": 0}  # --nodes is about the engine that decodes
        prefill = keeper = capacity.measure(asked.settle(loaded, device, args.prefill, **beside))
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


def _speed(args: argparse.Namespace, found: Capacity, shown: dict[str, object]) -> Iterator[str]:
    """Steps of a plan, and what tokens cost; why not, where the device's rates are not known."""
    of = found.deployment
    length = asked.real(args.acceptance_length or "1", "--acceptance-length")
    speed.check_acceptance(of, length)
    calibrated = calibration.read(args.calibration or of.device.kind)
    lacking = speed.needs_rates(of)
    yield ""
    if lacking:
        yield f"No times: {lacking}"
        return
    shown["speed"] = timed = speed.measure(found, calibrated, length)
    yield from speed_text.speed(timed)


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
        engine = asked.settle(loaded, hardware.read(choice.hardware), is_drafting=False, **_asked(args))
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
        "context_tokens": asked.whole(args.context, "--context"),
        "num_nodes": asked.whole(args.nodes, "--nodes"),
        "reserve": args.reserve,
        "experts_format": args.experts_format,
        "has_sequence_parallel": args.sequence_parallel_prefill,
        "has_hybrid_manager": args.hybrid_kv_cache_manager,
    }


def _print(args: argparse.Namespace, shown: object, lines: Iterable[str]) -> None:
    print(json.dumps(document.plain(shown), indent=2) if args.json else "\n".join(lines))
