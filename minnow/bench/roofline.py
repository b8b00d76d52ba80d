"""a model's steps on this machine beside the planner's roofline: calibrated on some, judged on others"""

import argparse
import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from minnow.bench import check_least, record, step, timing
from minnow.bench.limits import Limits, measure_limits
from minnow.checkpoint import demo
from minnow.config import flags, load
from minnow.config import model as model_config
from minnow.core.errors import ConfigError
from minnow.core.units import show_seconds
from minnow.engine import build
from minnow.engine.engine import Engine
from minnow.kernels import native
from minnow.plan import deployment, hardware, speed, work
from minnow.plan.calibration import BOUND, Calibration
from minnow.plan.deployment import Deployment
from minnow.plan.roofline import StepModel
from minnow.plan.work import Row

HELP = "predict a model's steps on this machine from measured rates, and say how far off that is"

BAR = 0.20  # median error on points that nothing was calibrated on
BAR_NOISE = 1.2  # 90th over 10th percentile of a point's repeats, from which on nothing is judged
_CALIBRATED_CONTEXTS = [320, 3072, 7680]
_CONTEXTS = [640, 1280, 2048, 4096, 6144]
_SIZES = (128 << 20, 192 << 20, 256 << 20)  # of working sets whose rate is measured: those of steps of a small model
_NUM_STEPS = 24  # of decoding behind each value


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A kind of step.

    Attributes:
        context_tokens: of the prompt that is computed, or behind which a token is decoded.
        num_sequences: that decode together; 0 for a prompt.
        is_held_out: nothing is calibrated on it.
    """

    context_tokens: int
    num_sequences: int
    is_held_out: bool

    @property
    def name(self) -> str:
        """For people."""
        if not self.num_sequences:
            return f"prompt of {self.context_tokens:,}"
        return f"decode {self.num_sequences} x {self.context_tokens:,}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A point and its prediction.

    Attributes:
        measured_s, predicted_s: of the prompt, or of one step of decoding.
        spread: 90th over 10th percentile of the repeats.
    """

    point: Point
    measured_s: float
    predicted_s: float
    spread: float

    @property
    def error(self) -> float:
        """Of the prediction, as a share of what was measured."""
        return self.predicted_s / self.measured_s - 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments: which steps, and every setting of the engine."""
    group = parser.add_argument_group("steps")
    group.add_argument("--context", type=int, nargs="+", default=_CONTEXTS, metavar="TOKENS", help="that are predicted")
    group.add_argument(
        "--calibrate", type=int, nargs="+", default=_CALIBRATED_CONTEXTS, metavar="TOKENS", help="calibrated on, others"
    )
    group.add_argument(
        "--batch", type=int, nargs="+", default=[1], metavar="N", help="requests that decode together, 1 among them"
    )
    group.add_argument("--num-repeats", type=int, default=5, metavar="N", help="of everything, in turns")
    group.add_argument("--record", type=Path, metavar="FILE", help="append the results to a file of JSON lines")
    group.add_argument("--save-calibration", type=Path, metavar="FILE", help="write it as a .toml file")
    flags.add_arguments(parser)


def run(args: argparse.Namespace, say: Callable[[str], None]) -> int:
    """Measure limits and steps in turns, calibrate, predict; 1 where the bar is missed."""
    config = load.load(args).config
    if not config.model:
        raise ConfigError("minnow bench roofline needs a model: minnow bench roofline MODEL")
    check_least(args, 1, "--context", "--calibrate", "--batch", "--num-repeats")
    if 1 not in args.batch:
        raise ConfigError(f"--batch is {args.batch}; it must have 1, whose prompts are timed")
    both = sorted(set(args.context) & set(args.calibrate))
    if both:
        raise ConfigError(f"--context and --calibrate both have {both[0]}; what is calibrated on cannot be predicted")
    directory = demo.resolve(config.model)
    config = replace(config, speculation=False)  # rounds of drafts vary with what is drafted
    model = model_config.read(directory)
    of = deployment.settle(config.model, model, directory, config, hardware.read(hardware.HERE))
    points = points_of(args.context, args.calibrate, args.batch)
    longest = max(point.context_tokens for point in points) + _NUM_STEPS + 8
    if longest > of.config.max_model_len:
        raise ConfigError(
            f"the longest context with {_NUM_STEPS + 8} tokens more is {longest}, but --max-model-len is "
            f"{of.config.max_model_len}; take shorter ones"
        )
    engine = build.build(config, directory, is_bench=True)
    native.pin_caller()
    seconds_by_point, limits = measure(engine, points, args.num_repeats, say)
    engine.close()
    found, calibrated = judge(of, limits, seconds_by_point)
    errors = [abs(judged.error) for judged in found if judged.point.is_held_out]
    calibrated = replace(calibrated, held_out_error=round(median(errors), 4))
    lines, is_met = report(found, calibrated, limits)
    for line in lines:
        say(line)
    if args.save_calibration:
        args.save_calibration.write_text(as_toml(calibrated), encoding="utf-8")
    if args.record:
        results: dict[str, object] = {
            j.point.name: {"measured_s": j.measured_s, "predicted_s": j.predicted_s, "spread": j.spread} for j in found
        }
        results["calibration"] = as_toml(calibrated)
        settings = {"model": config.model, "calibrate": list(args.calibrate), "repeats": args.num_repeats}
        record.append(args.record, record.new("roofline", settings, results))
    return 0 if is_met else 1


def points_of(contexts: Iterable[int], calibrated: Iterable[int], batches: Iterable[int]) -> list[Point]:
    """Prompts and decoding of every length, those to calibrate on first."""
    lengths = [(n, False) for n in calibrated] + [(n, True) for n in contexts]
    return [
        Point(context_tokens=context, num_sequences=count, is_held_out=is_held_out)
        for context, is_held_out in lengths
        for count in (0, *batches)
    ]


def measure(
    engine: Engine,
    points: Sequence[Point],
    num_repeats: int,
    say: Callable[[str], None],
    between: Callable[[int], None] | None = None,
) -> tuple[dict[Point, list[float]], Limits]:
    """Seconds of every point, one value a repeat; all points and the limits take turns.

    Args:
        between: done once a turn, the first that warms up among them.
    """
    seconds: dict[Point, list[float]] = {point: [] for point in points}
    decoded = [point for point in points if point.num_sequences]
    rates: list[Limits] = []
    for turn in range(num_repeats + 1):  # the first one warms up
        started, first = time.perf_counter(), turn % len(decoded)
        now = measure_limits()
        for size in _SIZES:
            now.bytes_s(size)  # measured when it is asked for
        rates += [now] if turn else []
        for point in (*decoded[first:], *decoded[:first]):
            count = point.num_sequences
            prompt_s, step_s = once(engine, point.context_tokens, count, f"{turn}-{point.name}")
            if turn:
                seconds[point].append(step_s)
                if count == 1:
                    seconds[replace(point, num_sequences=0)].append(prompt_s)
        if between is not None:
            between(turn)
        say(f"turn {turn} of {num_repeats}: {time.perf_counter() - started:.0f} s")
    kinds = rates[0].operations_s
    limits = Limits(
        num_threads=rates[0].num_threads,
        instruction_set=rates[0].instruction_set,
        operations_s={kind: median(rate.operations_s[kind] for rate in rates) for kind in kinds},
        _bytes_s={size: median(rate.bytes_s(size) for rate in rates) for size in _SIZES},
    )
    return seconds, limits


def once(engine: Engine, context: int, batch: int, name: str) -> tuple[float, float]:
    """Seconds from some prompts to the first token of each, and the median of the steps that decode behind them."""
    clock = time.perf_counter
    names = [f"{name}-{i}" for i in range(batch)]
    started = clock()
    for one in names:
        step.add(engine, one, context, None)
    waiting = set(names)
    while waiting:
        waiting -= {output.request_id for output in engine.step() if output.token_ids}
    prompt_s = clock() - started
    taken = []
    for _ in range(_NUM_STEPS):
        started = clock()
        engine.step()
        taken.append(clock() - started)
    for one in names:
        engine.abort(one)
    while not engine.is_idle:
        engine.step()
    return prompt_s, median(taken)


# -- prediction -----------------------------------------------------------------------------------------------------


def predict(model: StepModel, point: Point) -> float:
    """Seconds of a point by the roofline."""
    if point.num_sequences:
        row = Row(1, point.context_tokens + _NUM_STEPS // 2)
        return model.seconds(work.add_up([row] * point.num_sequences, model.limits))
    return speed.prompt_seconds(model, point.context_tokens)


def judge(
    of: Deployment, limits: Limits, seconds_by_point: Mapping[Point, Sequence[float]]
) -> tuple[list[Judged], Calibration]:
    """Calibrate on the points that are not held out, and predict all."""
    measured = {point: median(values) for point, values in seconds_by_point.items()}
    calibrated = calibrate(of, limits, {p: s for p, s in measured.items() if not p.is_held_out})
    model = model_of(of, limits, calibrated)
    found = []
    for point, values in seconds_by_point.items():
        low, high = (timing.percentile(values, percent) for percent in (10, 90))
        found.append(
            Judged(point=point, measured_s=measured[point], predicted_s=predict(model, point), spread=high / low)
        )
    return found, calibrated


def model_of(of: Deployment, limits: Limits, calibrated: Calibration) -> StepModel:
    """The planner's roofline with this machine's measured rates."""
    return StepModel(of, calibrated, bytes_s=limits.bytes_s, operations_s=limits.operations_s)


def calibrate(of: Deployment, limits: Limits, measured: Mapping[Point, float]) -> Calibration:
    """The shares of the rates that come nearest to some measured points, each error as a ratio.

    One share or time after the other is varied until none of them helps.
    """
    names = ("memory_weights", "memory_attention", "arithmetic_weights", "arithmetic_attention", "step_s", "prompt_s")
    least, most = 1e-5, 0.1  # seconds that are tried
    values = {name: 0.5 if not name.endswith("_s") else 1e-4 for name in names}

    def loss(tried: Mapping[str, float]) -> float:
        model = model_of(of, limits, _calibration(tried))
        return sum(math.log(predict(model, point) / seconds) ** 2 for point, seconds in measured.items())

    best, factor = loss(values), 2.0
    while factor > 1.001:
        has_gained = False
        for name in names:
            for tried in (values[name] * factor, values[name] / factor):
                tried = min(max(tried, least), most) if name.endswith("_s") else min(tried, 1.0)
                found = loss({**values, name: tried})
                if found < best:
                    best, values[name], has_gained = found, tried, True
        if not has_gained:
            factor = math.sqrt(factor)
    return _calibration(values, tuple(point.name for point in measured))


def _calibration(values: Mapping[str, float], fitted_on: tuple[str, ...] = ()) -> Calibration:
    return replace(
        BOUND,
        name="here",
        overlaps=False,
        memory={"weights": values["memory_weights"], "attention": values["memory_attention"]},
        arithmetic={"weights": values["arithmetic_weights"], "attention": values["arithmetic_attention"]},
        step_s=values["step_s"],
        prompt_s=values["prompt_s"],
        fitted_on=fitted_on,
    )


def report(found: Sequence[Judged], calibrated: Calibration, limits: Limits) -> tuple[list[str], bool]:
    """Lines for people, and whether the bar is reached; where the run is noisy it is not judged, and not missed."""
    rates = ", ".join(f"{kind} {rate / 1e12:.3g} TFLOP/s" for kind, rate in limits.operations_s.items())
    lines = [f"limits: {rates}; {limits.bytes_s(192 << 20) / 1e9:.1f} GB/s of 192 MiB"]
    for judged in sorted(found, key=lambda j: (j.point.is_held_out, j.point.num_sequences, j.point.context_tokens)):
        use = "predicted" if judged.point.is_held_out else "calibrated on"
        lines.append(
            f"  {judged.point.name:22} measured {show_seconds(judged.measured_s):>9}  roofline "
            f"{show_seconds(judged.predicted_s):>9}  {judged.error:+7.1%}  p90/p10 {judged.spread:.2f}  {use}"
        )
    errors = [abs(judged.error) for judged in found if judged.point.is_held_out]
    spread = max(judged.spread for judged in found if judged.point.is_held_out)
    is_noisy, error = spread >= BAR_NOISE, median(errors)
    verdict = "noisy: not judged" if is_noisy else "met" if error <= BAR else "MISSED"
    lines.append(
        f"median error {error:.1%} of {len(errors)} predicted points (worst {max(errors):.1%}), bar {BAR:.0%}: "
        f"{verdict}; p90/p10 of the repeats {spread:.2f} at most"
    )
    lines += [f"  {line}" for line in as_toml(calibrated).splitlines() if line.startswith(("[", "value"))]
    return lines, is_noisy or error <= BAR


def as_toml(of: Calibration) -> str:
    """A calibration as a file that minnow plan reads."""
    shares = {f"memory_{kind}": share for kind, share in of.memory.items()}
    shares |= {f"arithmetic_{kind}": share for kind, share in of.arithmetic.items()}
    lines = [f"overlaps = {str(of.overlaps).lower()}", f"fitted_on = {json.dumps(of.fitted_on)}"]
    lines += [] if of.held_out_error is None else [f"held_out_error = {of.held_out_error}"]
    for name, value in (shares | {"step_s": of.step_s, "prompt_s": of.prompt_s}).items():
        lines += ["", f"[{name}]", f"value = {value:.4g}", 'source = "fitted by minnow bench roofline"']
    return "\n".join(lines) + "\n"
