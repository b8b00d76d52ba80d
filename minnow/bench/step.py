"""one decode or prefill step, stage by stage"""

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from minnow.arch import size
from minnow.bench import check_least, record
from minnow.bench.limits import measure_limits
from minnow.bench.timing import Clock, spread
from minnow.cache.layout import BlockLayout
from minnow.checkpoint import demo
from minnow.config import flags, load
from minnow.config import model as model_config
from minnow.config.engine import EngineConfig
from minnow.config.model import ModelConfig
from minnow.core.errors import ConfigError
from minnow.core.request import Request, SamplingParams
from minnow.core.units import show_seconds
from minnow.engine import build, inputs, memory, sampler
from minnow.engine.engine import Engine
from minnow.kernels import native

HELP = "run a model in this process, and say where the time of its steps goes"

STAGES = ("plan", "inputs", "model", "sample", "commit", "rest")
_NUM_WARMUPS = 3

# Seconds of "step", of its stages and of "native", and how often each was called: "native calls".
Sample = dict[str, float]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments: what to run, and every setting of the engine."""
    group = parser.add_argument_group("steps")
    group.add_argument("--context", type=int, nargs="+", default=[16], metavar="TOKENS", help="before decoding begins")
    group.add_argument("--batch", type=int, default=1, metavar="N", help="requests that decode together")
    group.add_argument("--num-steps", type=int, default=64, metavar="N", help="decode steps measured")
    group.add_argument("--prefill", type=int, nargs="*", default=[512], metavar="TOKENS", help="lengths of prompts")
    group.add_argument("--num-repeats", type=int, default=5, metavar="N", help="prompts of each length")
    group.add_argument("--record", type=Path, metavar="FILE", help="append the results to a file of JSON lines")
    flags.add_arguments(parser)


def run(args: argparse.Namespace, say: Callable[[str], None]) -> int:
    """Build the engine, prefill and decode, and print each one's stages."""
    config = load.load(args).config
    if not config.model:
        raise ConfigError("minnow bench step needs a model: minnow bench step MODEL")
    check_least(args, 1, "--context", "--batch", "--num-steps", "--prefill", "--num-repeats")
    for name in ("max_num_seqs", "max_num_batched_tokens"):
        most, flag = getattr(config.scheduler, name), f"--{name.replace('_', '-')}"
        if args.batch > most:
            raise ConfigError(f"--batch is {args.batch}, but {flag} {most}; raise that one")
    directory = demo.resolve(config.model)
    layout = _settled(args, config, directory)
    with watching() as watch:
        engine = build.build(config, directory, is_bench=True)
        native.pin_caller()  # as the server's engine does
        watch.attach(engine)
        for num_tokens in args.prefill:
            samples = prefill(engine, watch, num_tokens, args.num_repeats)
            results = _report(f"prefill, {num_tokens:,} tokens", samples, num_tokens, say)
            _keep(args, config.model, {"prefill": num_tokens}, results)
        limits = measure_limits()
        for context in args.context:
            samples = decode(engine, watch, context, args.batch, args.num_steps)
            words = f"decode, {args.batch} x {context:,} tokens of context"
            num_tokens = fmean(sample["tokens"] for sample in samples)  # with drafts a request gets several
            results = _report(words, samples, num_tokens, say)
            if engine.stats().num_drafts:
                results["acceptance_length"] = length = num_tokens / args.batch
                say(f"  drafts         {length:.2f} tokens a request and step; those of random prompts are no measure")
            weights = weight_bytes(engine.model, args.batch)
            cached = args.batch * cache_bytes(engine.model, layout, context + _NUM_WARMUPS + args.num_steps // 2)
            rate = limits.bytes_s(weights + cached)
            results |= {"weight_bytes": weights, "cache_bytes": cached, "bytes_s": rate}
            results["share_of_limit"] = share = (weights + cached) / rate / results["step_s"]
            say(f"  bytes          {weights / 1e6:.1f} MB of weights and {cached / 1e6:.1f} MB of keys and values, "
                f"read at {rate / 1e9:.1f} GB/s, are {share:.0%} of the step")  # fmt: skip
            _keep(args, config.model, {"context": context, "batch": args.batch}, results)
        engine.close()
    return 0


def _settled(args: argparse.Namespace, config: EngineConfig, directory: Path) -> BlockLayout:
    """The blocks of the cache that the engine will have; ConfigError if they cannot hold what is to be measured."""
    model = model_config.read(directory)
    settled = memory.settle(config, model, directory, is_bench=True)
    config, layout = settled.config, settled.layout
    room = memory.plan(settled, build.device_of(config.kernel.device)).num_tokens
    most, limits = min(config.max_model_len, room), config.scheduler
    chunk = min(limits.max_num_batched_tokens - args.batch + 1, limits.long_prefill_token_threshold or most)
    asked = [("--prefill", tokens, 1, 1) for tokens in args.prefill]
    for tokens in args.context:  # requests that have their first token draw more while others are prefilled
        num_waiting = (args.batch - 1) * -(-tokens // chunk)
        steps = num_waiting + _NUM_WARMUPS + args.num_steps
        asked.append(("--context", tokens, 1 + steps * _most_tokens(config), args.batch))
    for flag, tokens, more, batch in asked:
        if tokens + more > most:
            way_out = f"give at most {most - more}" if most > more else "give fewer --num-steps"
            what = f"{more} more for --num-steps {args.num_steps} and warming up" if more > 1 else "the one it yields"
            raise ConfigError(f"{flag} is {tokens}, with {what}, but a request holds {most} tokens; {way_out}")
        wanted = batch * -(-(tokens + more) // layout.block_size) * layout.block_size
        if batch > 1 and wanted > room * (1 - limits.watermark):
            raise ConfigError(
                f"--batch {batch} with {flag} {tokens} needs a cache of {wanted} tokens, and there is one of "
                f"{room}; give less, or more --kv-cache-memory-bytes"
            )
    return layout


def _most_tokens(config: EngineConfig) -> int:
    """That a request gets in a step at most; `config` is settled."""
    settings = config.speculative_config
    return 1 + settings.num_speculative_tokens * bool(settings.method)


class Watch:
    """Counts the seconds of what it is wrapped around."""

    def __init__(self, clock: Clock = time.perf_counter) -> None:
        self._clock = clock
        self._seconds: Sample = defaultdict(float)

    def wrap(self, function: Callable[..., Any], stage: str) -> Callable[..., Any]:
        """The function, with its time added to a stage."""

        def timed(*args: Any, **named: Any) -> Any:
            started = self._clock()
            try:
                return function(*args, **named)
            finally:
                self._seconds[stage] += self._clock() - started
                self._seconds[f"{stage} calls"] += 1

        return timed

    def attach(self, engine: Engine) -> None:
        """Time the stages of an engine's steps."""
        scheduler, runner = engine._scheduler, engine.runner
        for place, name, stage in (
            (engine, "step", "step"), (scheduler, "plan", "plan"), (scheduler, "commit", "commit"),
            (runner, "_step_function", "model"),
        ):  # fmt: skip
            setattr(place, name, self.wrap(getattr(place, name), stage))

    def take(self) -> Sample:
        """What was counted since the last time; "rest" is the part of the step that no stage has."""
        seconds, self._seconds = self._seconds, defaultdict(float)
        seconds["rest"] = seconds["step"] - sum(seconds[stage] for stage in STAGES if stage != "rest")
        return seconds


@contextmanager
def watching() -> Iterator[Watch]:
    """Time what engines call by name, until the end: native kernels, the gathering of inputs, the sampling."""
    watch = Watch()
    names = ((native, "function"), (inputs, "build"), (sampler, "sample"))
    before = [getattr(module, name) for module, name in names]
    find = cache(lambda *key: watch.wrap(before[0](*key), "native"))
    new = (find, watch.wrap(inputs.build, "inputs"), watch.wrap(sampler.sample, "sample"))
    for (module, name), function in zip(names, new, strict=True):
        setattr(module, name, function)
    try:
        yield watch
    finally:
        for (module, name), function in zip(names, before, strict=True):
            setattr(module, name, function)


def prefill(engine: Engine, watch: Watch, num_tokens: int, num_repeats: int) -> list[Sample]:
    """Seconds by stage from prompt to first token; a first prompt warms up."""
    samples = []
    for repeat in range(num_repeats + 1):
        add(engine, f"prefill-{num_tokens}-{repeat}", num_tokens, 1)
        watch.take()
        while not engine.is_idle:
            engine.step()
        samples.append(watch.take())
    return samples[1:]


def decode(engine: Engine, watch: Watch, context: int, batch: int, num_steps: int) -> list[Sample]:
    """Seconds by stage of each step, once every request has its first token and some more."""
    names = {f"decode-{context}-{i}" for i in range(batch)}
    for name in sorted(names):
        add(engine, name, context, None)
    waiting = set(names)
    while waiting:
        waiting -= {output.request_id for output in engine.step() if output.token_ids}
    samples = []
    for _ in range(_NUM_WARMUPS + num_steps):
        watch.take()
        num_tokens = sum(len(output.token_ids) for output in engine.step())
        samples.append(watch.take() | {"tokens": num_tokens})
    for name in names:
        engine.abort(name)
    while not engine.is_idle:
        engine.step()
    return samples[_NUM_WARMUPS:]


def weight_bytes(model: ModelConfig, batch: int) -> float:
    """Bytes of weights that a decode step reads.

    Of routed experts it is the expected number of different ones; the embedding counts where it is the head, too.
    """
    share = {"vision": 0.0, "embedding": float(model.tie_word_embeddings)}
    if model.num_local_experts:
        share["routed expert"] = 1 - (1 - model.num_experts_per_tok / model.num_local_experts) ** batch
    return sum(part.num_bytes * share.get(part.kind, 1.0) for part in size.measure(model).shares)


def cache_bytes(model: ModelConfig, layout: BlockLayout, context: int) -> int:
    """Bytes of keys and values that one sequence reads for a token: of sparse layers the index and chosen blocks."""
    chosen = min(context, model.sparse.num_blocks * model.sparse.block_size)
    return sum(
        group.token_bytes * (chosen if group.name == "kv" and model.sparse.is_sparse[layer] else context)
        for group in layout.groups
        for layer in group.layers
    )


def add(engine: Engine, name: str, num_tokens: int, max_tokens: int | None) -> None:
    """Queue a greedy request of made-up tokens; max_tokens None goes on until it is aborted."""
    rng = Random(name)  # prompts differ, so that none finds another's blocks
    ids = tuple(rng.randrange(engine.model.vocab_size) for _ in range(num_tokens))
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    engine.add(Request(request_id=name, token_ids=ids, sampling=sampling, arrival_s=time.monotonic()))


def _report(title: str, samples: Sequence[Sample], num_tokens: float, say: Callable[[str], None]) -> dict[str, Any]:
    """Say what a kind of step takes; medians of each stage, and of what is outside native code."""
    step = spread([sample["step"] for sample in samples])
    outside = spread([1 - sample["native"] / sample["step"] for sample in samples])
    results: dict[str, Any] = {
        "step_s": step.median, "step_low_s": step.low, "step_high_s": step.high, "num": step.num,
        "tokens_s": num_tokens / step.median, "python_share": outside.median,
    }  # fmt: skip
    say(f"{title}: {show_seconds(step.median)} (quartiles {show_seconds(step.low)} to {show_seconds(step.high)}, "
        f"{step.num} times), {results['tokens_s']:,.1f} tokens/s")  # fmt: skip
    for stage in STAGES:
        results[f"{stage}_s"] = median = spread([sample[stage] for sample in samples]).median
        say(f"  {stage:14} {show_seconds(median):>10} {median / step.median:>6.1%}")
    calls = spread([sample["native calls"] for sample in samples]).median
    say(f"  Python's share {outside.median:.1%} of the step is outside native code ({calls:g} native calls)")
    return results


def _keep(args: argparse.Namespace, model: str, settings: dict[str, Any], results: dict[str, Any]) -> None:
    if args.record:
        record.append(args.record, record.new("step", {"model": model, **settings}, results))
