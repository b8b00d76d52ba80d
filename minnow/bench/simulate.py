"""one trace through the engine and through the planner's simulator: how far apart they are"""

import argparse
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from statistics import median

from minnow.bench import check_least, record, roofline, timing
from minnow.bench.roofline import BAR_NOISE
from minnow.checkpoint import demo
from minnow.config import flags, load
from minnow.config import model as model_config
from minnow.core.errors import ConfigError
from minnow.core.request import Request, SamplingParams
from minnow.engine import build
from minnow.engine.engine import Engine
from minnow.kernels import native
from minnow.plan import capacity, cluster, deployment, hardware, simulation, workload
from minnow.plan.capacity import Capacity
from minnow.plan.cluster import Cluster
from minnow.plan.roofline import StepModel
from minnow.plan.workload import Session, Workload

HELP = "play one trace on the engine and in the planner's simulator, and say how far apart they are"

BAR = 0.15
METRICS = ("output tokens/s", "TTFT p50", "TTFT p90")
_CALIBRATED_CONTEXTS, _CALIBRATED_BATCHES = (96, 384), (1, 4, 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a trace came to.

    Attributes:
        values: by METRICS: tokens a second, seconds.
    """

    values: Mapping[str, float]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments: the trace as `minnow bench serve` has it, and every setting of the engine."""
    group = parser.add_argument_group("trace")
    group.add_argument("--num-prompts", type=int, default=200, metavar="N")
    group.add_argument(
        "--request-rate", type=float, nargs="+", default=[3.0, math.inf], metavar="R",
        help="a second, one trace each; inf is all at once",
    )  # fmt: skip
    group.add_argument("--random-input-len", type=int, default=128, metavar="TOKENS")
    group.add_argument("--random-output-len", type=int, default=32, metavar="TOKENS")
    group.add_argument(
        "--random-range-ratio", type=float, default=0.5, metavar="X", help="lengths within 1 - X to 1 + X"
    )
    group.add_argument("--num-repeats", type=int, default=5, metavar="N", help="of everything, in turns")
    group.add_argument("--record", type=Path, metavar="FILE", help="append the results to a file of JSON lines")
    flags.add_arguments(parser)


def run(args: argparse.Namespace, say: Callable[[str], None]) -> int:
    """Calibrate, play and simulate; 1 where the bar is missed."""
    config = load.load(args).config
    if not config.model:
        raise ConfigError("minnow bench simulate needs a model: minnow bench simulate MODEL")
    check_least(args, 1, "--num-prompts", "--random-input-len", "--random-output-len", "--num-repeats")
    traces = {rate: sessions_of(args, rate, config.seed) for rate in args.request_rate}
    directory = demo.resolve(config.model)
    config = replace(config, speculation=False)  # what drafts are worth here depends on what is drafted
    here = hardware.read(hardware.HERE)
    held = capacity.measure(deployment.settle(config.model, model_config.read(directory), directory, config, here))
    engine = build.build(config, directory, is_bench=True)
    native.pin_caller()
    played: dict[float, list[Result]] = {rate: [] for rate in traces}
    points = roofline.points_of((), _CALIBRATED_CONTEXTS, _CALIBRATED_BATCHES)

    def play_all(turn: int) -> None:
        for rate, sessions in traces.items():
            played[rate].append(play(engine, sessions, f"{turn}-{rate}"))

    seconds, limits = roofline.measure(engine, points, args.num_repeats, say, between=play_all)
    engine.close()
    measured = {point: median(values) for point, values in seconds.items()}
    model = roofline.model_of(held.deployment, limits, roofline.calibrate(held.deployment, limits, measured))
    simulated = {rate: simulate(held, sessions, model) for rate, sessions in traces.items()}
    is_met = True
    results: dict[str, object] = {}
    for rate in traces:
        lines, is_good = report(rate, played[rate][1:], simulated[rate])
        is_met &= is_good
        for line in lines:
            say(line)
        turns = [dict(result.values) for result in played[rate][1:]]
        results[f"{rate:g}"] = {"engine": turns, "simulator": dict(simulated[rate].values)}
    if args.record:
        settings = {
            "model": config.model, "num_prompts": args.num_prompts, "input": args.random_input_len,
            "output": args.random_output_len, "ratio": args.random_range_ratio, "seed": config.seed,
        }  # fmt: skip
        record.append(args.record, record.new("simulate", settings, results))
    return 0 if is_met else 1


def sessions_of(args: argparse.Namespace, rate: float, seed: int) -> list[Session]:
    """The trace: requests that know nothing of each other."""
    rng = Random(f"{seed} {rate}")
    lengths = [workload.uniform(n, args.random_range_ratio) for n in (args.random_input_len, args.random_output_len)]
    starts = workload.arrivals(rate, 1.0, rng)
    return list(workload.independent(starts, *lengths, count=args.num_prompts, rng=rng))


def play(engine: Engine, sessions: Sequence[Session], name: str) -> Result:
    """The trace on the engine: requests are added when they are due, between its steps."""
    rng, vocabulary = Random(name), engine.model.vocab_size
    waiting = deque(
        (session.start_s, Request(
            request_id=f"{name}-{number}",
            token_ids=tuple(rng.randrange(vocabulary) for _ in range(turn.num_input_tokens)),
            sampling=SamplingParams(temperature=0.0, max_tokens=turn.num_output_tokens, ignore_eos=True),
            arrival_s=session.start_s,
        ))
        for number, session in enumerate(sessions) for turn in session.turns
    )  # fmt: skip
    due_s = {request.request_id: start_s for start_s, request in waiting}
    first_s: dict[str, float] = {}
    num_tokens, started = 0, time.perf_counter()
    now_s = 0.0
    while waiting or not engine.is_idle:
        now_s = time.perf_counter() - started
        while waiting and waiting[0][0] <= now_s:
            engine.add(waiting.popleft()[1])
        if engine.is_idle:
            time.sleep(min(waiting[0][0] - now_s, 0.001))
            continue
        outputs = engine.step()
        now_s = time.perf_counter() - started
        for output in outputs:
            num_tokens += len(output.token_ids)
            first_s.setdefault(output.request_id, now_s)
    return _result(num_tokens, now_s - min(due_s.values()), [first_s[one] - due_s[one] for one in due_s])


def simulate(held: Capacity, sessions: Iterable[Session], model: StepModel) -> Result:
    """The trace in the simulator, with times of steps by the roofline that was calibrated here."""
    of = Cluster(pool=cluster.pool_of(held, model.seconds))
    outcome = simulation.simulate(of, Workload(sessions=sessions), held.deployment.device)
    return Result(
        values={
            "output tokens/s": outcome.output_tokens / outcome.duration_s,
            "TTFT p50": outcome.ttft_s.p50,
            "TTFT p90": outcome.ttft_s.p90,
        }
    )


def _result(num_tokens: int, duration_s: float, ttfts_s: Sequence[float]) -> Result:
    p50, p90 = (timing.percentile(ttfts_s, percent) for percent in (50, 90))
    return Result(values=dict(zip(METRICS, (num_tokens / duration_s, p50, p90), strict=True)))


def report(rate: float, played: Sequence[Result], simulated: Result) -> tuple[list[str], bool]:
    """Lines for people, and whether every metric is within the bar; a noisy run is not judged, and not missed."""
    lines = [f"{'all at once' if math.isinf(rate) else f'{rate:g} requests a second'}:"]
    errors, spreads = [], []
    for metric in METRICS:
        values = [result.values[metric] for result in played]
        low, high = (timing.percentile(values, percent) for percent in (10, 90))
        error = simulated.values[metric] / median(values) - 1
        errors.append(abs(error))
        spreads.append(high / low)
        scale, unit = (1, "tokens/s") if metric == METRICS[0] else (1e3, "ms")
        lines.append(
            f"  {metric:16} engine {median(values) * scale:10,.1f}  simulator "
            f"{simulated.values[metric] * scale:10,.1f} {unit:9} {error:+7.1%}  p90/p10 {spreads[-1]:.2f}"
        )
    is_noisy = max(spreads) >= BAR_NOISE
    verdict = "noisy: not judged" if is_noisy else "met" if max(errors) <= BAR else "MISSED"
    lines.append(f"  worst error {max(errors):.1%}, bar {BAR:.0%}: {verdict}")
    return lines, is_noisy or max(errors) <= BAR
