"""operation x backend x case -> time and share of roofline"""

import argparse
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minnow.bench import record
from minnow.bench.limit import Limits, measure_limits
from minnow.bench.timing import measure
from minnow.config.kernel import KernelConfig
from minnow.core import folder
from minnow.core.errors import ConfigError, FormatError
from minnow.core.units import show_bytes, show_seconds
from minnow.engine import processors
from minnow.formats.quantized import Quantized
from minnow.formats.spec import SPEC_BY_NAME
from minnow.kernels import native, registry
from minnow.kernels.contract import Cost, Op, parse
from minnow.kernels.registry import Kernels

HELP = "time each operation, and say which share of the machine's limit it reaches"

Case = Mapping[str, Any]
_CPU = torch.device("cpu")
_CACHE_FORMATS = ("bf16", "fp8", "nvfp4")
_HEAD = f"{'operation':18}{'backend':11}{'time':>9} {'+-':>6} {'GB/s':>8} {'GFLOP/s':>9} {'share':>6}  of         case"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--ops", metavar="NAMES", help="default: every operation")
    parser.add_argument("--backends", metavar="NAMES", help="default: of each operation the one that the engine takes")
    parser.add_argument("--formats", metavar="NAMES", help="of weights and caches, instead of the cases' own")
    parser.add_argument("--shapes", choices=("true", "small"), default="true", help="a real model's, or the tests'")
    parser.add_argument("--rows", metavar="NUMBERS", help="rows of activations, instead of the cases' own: 1,8,512")
    parser.add_argument("--contexts", metavar="NUMBERS", help="tokens of context, instead of the cases' own")
    parser.add_argument("--num-threads", type=int, default=0, metavar="N", help="0 takes what the machine allows")
    parser.add_argument("--record", type=Path, metavar="FILE", help="append the results to a file of JSON lines")


def run(args: argparse.Namespace, say: Callable[[str], None]) -> int:
    """Measure the limits, then case after case, one line each."""
    threads = processors.settle(KernelConfig(num_threads=args.num_threads))
    native.set_threads(threads.count, threads.cpus)
    torch.set_num_threads(threads.count)
    kernels = registry.bind(registry.target_of(_CPU))
    limits = measure_limits()
    rates = ", ".join(f"{name} {rate / 1e9:,.0f} GFLOP/s" for name, rate in limits.operations_s.items())
    reads = ", ".join(f"{show_bytes(n)} {limits.bytes_s(n) / 1e9:.1f} GB/s" for n in (1 << 20, 1 << 26, 1 << 30))
    say(f"{record.machine()['processor']}, {threads.count} threads, {limits.instruction_set}")
    say(f"limits: multiply in {rates}; read {reads}\n\n{_HEAD}")
    for op, case in _cases(args):
        for backend in _backends(op, args.backends, kernels):
            try:
                numbers = time_case(op, backend, case, kernels, limits)
            except FormatError as error:
                say(f"{op.name:18}{backend:11}skipped: {error}")
                continue
            say(_line(op, backend, case, numbers))
            if args.record:
                settings = {"op": op.name, "backend": backend, "case": dict(case), "threads": threads.count}
                record.append(args.record, record.new("kernel", settings, numbers))
    return 0


def time_case(op: Op, backend: str, case: Case, kernels: Kernels, limits: Limits) -> dict[str, Any]:
    """Time one backend on one case's inputs, which repeat: what fits the caches stays there.

    Returns:
        "seconds" (of a call, the median), "spread" (between the quartiles, as a share of it), "num", "operations" and
        "bytes" by the contract, "share" of the least time that those need here, and "bound" by which of the two.
    """
    inputs = folder.load(f"minnow.kernels.{op.name}", "inputs").make(_CPU, **case)
    function = registry.implementation(op.name, backend, kernels)
    operations, num_bytes = cost_of(op, case, inputs)
    with torch.inference_mode():
        taken = measure(lambda: function(**inputs), num_warmups=2)
    least = limits.least_s(operations, num_bytes)
    return {
        "seconds": taken.median, "spread": (taken.high - taken.low) / taken.median, "num": taken.num,
        "operations": operations, "bytes": num_bytes, "share": least / taken.median,
        "bound": "bytes" if least > limits.least_s(operations, 0) else "arithmetic",
    }  # fmt: skip


def cost_of(op: Op, case: Case, inputs: Mapping[str, Any]) -> Cost:
    """Arithmetic operations and bytes of a call, by the contract; sequences of different lengths count one by one."""
    dims: dict[str, Any] = {name: value for name, value in case.items() if isinstance(value, int)}
    for name, text in op.inputs.items():
        if isinstance(inputs.get(name), Tensor | Quantized):
            dims |= dict(zip(parse(text).axes, inputs[name].shape, strict=True))
    dims["itemsize"] = next(v for v in inputs.values() if isinstance(v, Tensor)).element_size()
    spec = SPEC_BY_NAME[case.get("format", "bf16")]
    dims["key_bytes"] = dims["cache_bytes"] = spec.num_bytes(1024) / 1024
    if op.name == "linear":
        dims |= {"O": sum(case["rows"]), "weight_bytes": sum(spec.num_bytes(rows * case["D"]) for rows in case["rows"])}
    elif op.name == "experts":
        num_read = 1 if inputs["ids"] is None else len(inputs["ids"].unique())
        dims |= {"A": max(1, case["A"]), "num_read": num_read}
        dims["weight_bytes"] = 3 * spec.num_bytes(case["D"] * case["F"])
    wanted = inspect.signature(op.cost).parameters
    parts = zip(case["contexts"], case["queries"], strict=True) if "contexts" in case else [(None, None)]
    costs = []
    for context, queries in parts:
        if context is not None:
            num_keys = min(context, case.get("K", 1) * case["L"])
            dims |= {"T": queries, "context_tokens": context if queries else 0, "num_keys": num_keys}
        costs.append(op.cost(**{name: value for name, value in dims.items() if name in wanted}))
    return sum(cost[0] for cost in costs), sum(cost[1] for cost in costs)


def _line(op: Op, backend: str, case: Case, numbers: Mapping[str, Any]) -> str:
    seconds = numbers["seconds"]
    words = " ".join(f"{k}={'+'.join(map(str, v[:4])) if isinstance(v, tuple) else v}" for k, v in case.items())
    return (
        f"{op.name:18}{backend:11}{show_seconds(seconds):>9} {numbers['spread']:>6.0%} "
        f"{numbers['bytes'] / seconds / 1e9:>8.2f} {numbers['operations'] / seconds / 1e9:>9.1f} "
        f"{numbers['share']:>6.0%}  {numbers['bound']:11}{words}"
    )


def _names(text: str | None, known: Sequence[str], flag: str) -> list[str]:
    names = list(known) if text is None else [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            raise ConfigError(f"{flag}: there is no {name!r}; there are {', '.join(known)}")
    return names


def _numbers(text: str, flag: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise ConfigError(f"{flag} is {text!r}; write whole numbers: 1,8,512") from None


def _backends(op: Op, text: str | None, kernels: Kernels) -> list[str]:
    if text is None:
        return [choice.backend for choice in kernels.choices if choice.op == op.name]
    asked = [name for name in registry.backends(op.name) if name in text.split(",")]
    return [b for b in asked if folder.load(f"minnow.kernels.{op.name}", b).refusal(kernels.target) is None]


def _cases(args: argparse.Namespace) -> Iterator[tuple[Op, Case]]:
    """The contracts' cases, with what the arguments put in place of their own values."""
    operations = registry.operations()
    formats = _names(args.formats, list(SPEC_BY_NAME), "--formats")
    for op in (operations[name] for name in _names(args.ops, list(operations), "--ops")):
        has_cache = any(parse(text).kind == "cache" for text in op.inputs.values())
        for case in op.device_cases if args.shapes == "true" else op.cases:
            ways: list[Case] = [case]
            if args.formats is not None and "format" in case:
                ways = [{**case, "format": f} for f in formats if not has_cache or f in _CACHE_FORMATS]
            if args.contexts is not None and "contexts" in case:
                ways = [{**way, "contexts": (n,)} for way in ways for n in _numbers(args.contexts, "--contexts")]
            if args.rows is not None:
                rows = _numbers(args.rows, "--rows")
                ways = [
                    {**way, **({"T": n} if "T" in case else {"queries": (n,)})}
                    for way in ways if "T" in case or len(way.get("queries", ())) == 1 for n in rows
                ]  # fmt: skip
            yield from ((op, way) for way in ways)
