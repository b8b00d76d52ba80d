"""minnow simulate: how fast a deployment answers a load, played through the engine's own scheduler"""

import argparse
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

from minnow.config import flags, load
from minnow.config.load import Loaded
from minnow.config.parallel import ParallelConfig
from minnow.core.errors import ConfigError
from minnow.plan import (
    acceptance,
    agentx,
    asked,
    calibration,
    capacity,
    cluster,
    document,
    frontier,
    hardware,
    plot,
    routing,
    simulation,
    simulation_text,
    speed,
    trace,
    workload,
)
from minnow.plan.acceptance import AcceptanceLaw
from minnow.plan.capacity import Capacity
from minnow.plan.cluster import Cluster
from minnow.plan.frontier import Point
from minnow.plan.hardware import Sheet
from minnow.plan.roofline import StepModel
from minnow.plan.work import Work
from minnow.plan.workload import Session, Workload

HELP = "play a load on a deployment, and say how fast it answers and what that costs"

_LENGTHS = ("random_input_len", "random_output_len", "random_range_ratio", "random_prefix_len")
_NAMED = ("poisson", "closed", "agentx")
_TEXTS = (
    ("--hardware", "NAME", "a sheet by name (minnow plan --sheets lists them) or a .toml file of your own"),
    ("--prefill", "WORD", "strategy of engines for prefill before them, on the same hardware"),
    ("--link", "NAME", f"from prefill to decode: the sheet of a link, or scale-up (default: {cluster.LINK})"),
    ("--reserve", "BYTES", "as minnow plan takes it"),
    ("--experts-format", "FORMAT", "convert routed experts when they are loaded"),
    ("--host-memory", "BYTES", "host memory of a rank for blocks that its device has no room for: 560GiB"),
    ("--calibration", "NAME", "shares of the rates that are reached: gpu, cpu, bound (all), or a .toml file"),
    ("--acceptance-length", "X", "tokens of a round of drafts on average, the model's own included (default: 1)"),
    ("--acceptance-rates", "LIST", "instead: of each draft, how likely it is kept if those before it are: 0.8,0.7"),
    ("--save-trace", "FILE", "write the workload as JSON lines, and stop"),
    ("--plot", "FILE", "draw the loads' frontier: a file that ends in .svg or .png"),
)
_COUNTS = (
    ("--replicas", 1, "of the deployment, each on devices of its own"),
    ("--prefill-replicas", 1, "of the engine for prefill"),
    ("--num-prompts", 0, "requests that are counted (default: 1000; of a trace all)"),
    ("--random-input-len", 1024, "tokens of a prompt, of poisson and closed"),
    ("--random-output-len", 128, "tokens of an answer"),
    ("--random-prefix-len", 0, "tokens before all prompts, the same"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments; those that `vllm bench serve` has are spelt and meant as there."""
    flags.add_arguments(parser)
    for flag, metavar, text in _TEXTS:
        parser.add_argument(flag, metavar=metavar, default="", help=text)
    parser.add_argument("--strategy", nargs="+", metavar="WORD", default=[], help="tp4, tep8, dp2, dep4; many: a sweep")
    parser.add_argument(
        "--routing", default="cache-aware", metavar="NAME", help="cache-aware, least-loaded, round-robin"
    )
    parser.add_argument(
        "--workload", metavar="NAME", default="poisson", help="poisson, closed, agentx, or a trace of JSON lines"
    )
    for flag, default, text in _COUNTS:
        parser.add_argument(flag, type=int, default=default, metavar="N", help=text)
    parser.add_argument("--request-rate", type=float, default=math.inf, metavar="R", help="a second, of poisson")
    parser.add_argument(
        "--burstiness", type=float, default=1.0, metavar="X", help="1 is a Poisson process, less: bursts"
    )
    parser.add_argument("--random-range-ratio", type=float, default=0.0, metavar="R", help="lengths are within 1 +- R")
    parser.add_argument(
        "--max-concurrency", type=int, nargs="+", metavar="N", default=[], help="sessions alive at once; many: a sweep"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Play every load on every strategy; 1 where nothing ended."""
    _check(args)
    loaded = load.load(args, is_planning=True)
    if args.save_trace:
        count = (args.max_concurrency or [0])[0]
        num_lines = trace.write(Path(args.save_trace), _sessions_to_write(args, _workload(args, loaded, count)))
        print(f"{num_lines:,} requests")
        return 0
    device = hardware.read(args.hardware or hardware.HERE)
    clusters = [_cluster(args, loaded, device, strategy) for strategy in args.strategy or [""]]
    lines: list[str] = []
    points: list[Point] = []
    for name, played in clusters:
        for count in args.max_concurrency or [0]:
            asked_for = _workload(args, loaded, count)
            found = simulation.simulate(played, asked_for, device, loaded.config.seed)
            points.append(Point(topology=name, load=_load(args, count), outcome=found))
        times = f"{asked_for.words}", f"roofline at the shares of calibration {args.calibration or device.kind}"
        lines += [name, *simulation_text.assumptions(played, *times), ""]
    points = frontier.mark(points)
    if len(points) == 1:
        lines += simulation_text.outcome(points[0].outcome, points[0].load, is_replay=args.workload == "agentx")
    else:
        lines += simulation_text.sweep(points)
    if args.plot:
        title = f"{loaded.config.model} on {device.title}, {args.workload}"
        plot.save(simulation_text.chart(points, title), Path(args.plot))
    print(json.dumps(document.plain({"points": points}), indent=2) if args.json else "\n".join(lines))
    return 0 if all(point.outcome.num_requests for point in points) else 1


def _check(args: argparse.Namespace) -> None:
    """Refuse what cannot be before any work."""
    routing.make(args.routing)
    if args.plot:
        plot.check(Path(args.plot))
    for name, least in (("replicas", 1), ("prefill_replicas", 1), ("num_prompts", 0), ("random_input_len", 1),
                        ("random_output_len", 1), ("random_prefix_len", 0)):  # fmt: skip
        if getattr(args, name) < least:
            raise ConfigError(f"--{name.replace('_', '-')} is {getattr(args, name)}; it must be {least} or more")
    for count in args.max_concurrency:
        if count < 1:
            raise ConfigError(f"--max-concurrency is {count}; it must be 1 or more")
    if args.workload in ("closed", "agentx") and not args.max_concurrency:
        raise ConfigError(f"--workload {args.workload} needs --max-concurrency N, how many are alive at once")
    if args.workload != "poisson" and not math.isinf(args.request_rate):
        raise ConfigError(f"--request-rate is {args.request_rate:g}, but only --workload poisson has one; leave it out")
    _check_effect(args)
    if not args.prefill and (args.link or args.prefill_replicas > 1):
        raise ConfigError(
            "--link and --prefill-replicas are about engines for prefill; name their strategy (--prefill)"
        )
    if args.acceptance_length and args.acceptance_rates:
        raise ConfigError("--acceptance-length and --acceptance-rates are both given; leave one out")


def _check_effect(args: argparse.Namespace) -> None:
    """Refuse what would be without one."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    used = {"poisson": ("burstiness", *_LENGTHS), "closed": _LENGTHS}.get(args.workload, ())
    for name in ("burstiness", *_LENGTHS):
        if name not in used and getattr(args, name) != parser.get_default(name):
            raise ConfigError(f"--{name.replace('_', '-')} has no effect on --workload {args.workload}; leave it out")
    if args.save_trace and len(args.max_concurrency) > 1:
        raise ConfigError(f"--save-trace writes one load, and --max-concurrency has {len(args.max_concurrency)}")


def _workload(args: argparse.Namespace, loaded: Loaded, max_concurrency: int) -> Workload:
    rng, count = Random(f"workload {loaded.config.seed}"), args.num_prompts or 1000
    beside = f", {', '.join(map(str, args.max_concurrency))} at once" if max_concurrency else ""
    if args.workload == "agentx":
        longest = loaded.config.max_model_len or agentx.MAX_CONTEXT_TOKENS
        generator = agentx.Generator(rng, agentx.profile_within(longest))
        return Workload(
            sessions=generator.replay(max_concurrency),
            max_concurrency=max_concurrency,
            max_idle_s=agentx.MAX_IDLE_S,
            max_turns=count,
            words=f"agentx: {count:,} turns of generated coding sessions{beside}",
        )
    if args.workload not in _NAMED:
        return Workload(
            sessions=trace.read(Path(args.workload)),
            max_concurrency=max_concurrency,
            max_turns=args.num_prompts,
            words=f"the trace {args.workload}{beside}",
        )
    lengths = [workload.uniform(n, args.random_range_ratio) for n in (args.random_input_len, args.random_output_len)]
    rate = f" at {args.request_rate:g} a second" if math.isfinite(args.request_rate) else ""
    prefix = f" after {args.random_prefix_len:,} shared ones" if args.random_prefix_len else ""
    sizes = f"{args.random_input_len:,} tokens{prefix}, answers of {args.random_output_len:,}"
    return Workload(
        sessions=workload.independent(
            workload.arrivals(args.request_rate, args.burstiness, rng),
            *lengths,
            count=count,
            num_prefix_tokens=args.random_prefix_len,
            rng=rng,
        ),
        max_concurrency=max_concurrency,
        words=f"{args.workload}: {count:,} prompts of {sizes}{rate}{beside}",
    )


def _sessions_to_write(args: argparse.Namespace, of: Workload) -> Iterator[Session]:
    """Of those without end as many as have so many turns, one for each lane at least."""
    left, lanes = args.num_prompts or 1000, of.max_concurrency
    for count, session in enumerate(of.sessions):
        if args.workload == "agentx" and left <= 0 and count >= lanes:
            return
        left -= len(session.turns)
        yield session


def _cluster(args: argparse.Namespace, loaded: Loaded, device: Sheet, strategy: str) -> tuple[str, Cluster]:
    """A strategy in a word, and its engines."""
    if strategy and loaded.config.parallel != ParallelConfig():
        raise ConfigError(f"--strategy {strategy} and -tp, -dp or -ep are both given; leave one out")
    found = _measure(args, loaded, device, strategy)
    pool = cluster.pool_of(
        found,
        _seconds(args, found),
        num_replicas=args.replicas,
        host_memory="" if args.prefill else args.host_memory,
    )
    law = _law(args, found.deployment.num_drafts)
    times = f" x {args.replicas}" if args.replicas > 1 else ""
    if not args.prefill:
        return f"{found.deployment.strategy}{times}", Cluster(pool=pool, law=law, routing=args.routing)
    before = _measure(args, loaded, device, args.prefill)
    front = cluster.pool_of(
        before, _seconds(args, before), num_replicas=args.prefill_replicas, host_memory=args.host_memory
    )
    more = f" x {args.prefill_replicas}" if args.prefill_replicas > 1 else ""
    return f"{before.deployment.strategy}{more} + {found.deployment.strategy}{times}", Cluster(
        pool=cluster.without_prefixes(pool),
        prefill=front,
        handover=cluster.handover_of(before, found, args.link or cluster.LINK),
        law=law,
        routing=args.routing,
    )


def _measure(args: argparse.Namespace, loaded: Loaded, device: Sheet, strategy: str) -> Capacity:
    return capacity.measure(
        asked.settle(loaded, device, strategy, reserve=args.reserve, experts_format=args.experts_format)
    )


def _seconds(args: argparse.Namespace, found: Capacity) -> Callable[[Work], float]:
    of = found.deployment
    lacking = speed.needs_rates(of)
    if lacking:
        raise ConfigError(lacking)
    return StepModel(of, calibration.read(args.calibration or of.device.kind)).seconds


def _law(args: argparse.Namespace, num_drafts: int) -> AcceptanceLaw | None:
    if args.acceptance_rates:
        rates = [asked.real(text, "--acceptance-rates") for text in args.acceptance_rates.split(",")]
        return acceptance.from_rates(rates, num_drafts)
    length = asked.real(args.acceptance_length or "1", "--acceptance-length")
    return acceptance.from_length(length, num_drafts) if num_drafts or length != 1 else None


def _load(args: argparse.Namespace, max_concurrency: int) -> str:
    if max_concurrency:
        return f"{max_concurrency}"
    return f"{args.request_rate:g}/s" if args.workload == "poisson" else "as traced"
