"""operation x backend x case -> time and share of roofline"""

import argparse
import inspect
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minnow.bench import names_in, record
from minnow.bench.limits import Limits, measure_limits
from minnow.bench.timing import measure
from minnow.config import flags, load
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
_NEEDS = {  # what these flags need of a case
    "backends": "minnow kernels says which there are, and which run here",
    "formats": f"caches are {', '.join(_CACHE_FORMATS)}",
    "rows": "rows go with cases that have a T, or one sequence whose context is as long",
    "contexts": "contexts go with cases of one sequence",
}
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
    load.convert(flags.settings()["num_threads"], args.num_threads, "flag --num-threads")  # as the engine does
    kernels = registry.bind(registry.target_of(_CPU))
    cases = _cases(args, kernels)
    threads = processors.settle(KernelConfig(num_threads=args.num_threads))
    native.set_threads(threads.count, threads.cpus)
    torch.set_num_threads(threads.count)
    limits = measure_limits()
    rates = ", ".join(f"{name} {rate / 1e9:,.0f} GFLOP/s" for name, rate in limits.operations_s.items())
    reads = ", ".join(f"{show_bytes(n)} {limits.bytes_s(n) / 1e9:.1f} GB/s" for n in (1 << 20, 1 << 26, 1 << 30))
    say(f"{record.machine()['processor']}, {threads.count} threads, {limits.instruction_set}")
    say(f"limits: multiply in {rates}; read {reads}\n\n{_HEAD}")
    for op, backend, case in cases:
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


def _numbers(text: str | None, flag: str) -> list[int]:
    try:
        numbers = [] if text is None else [int(word) for word in text.split(",")]
    except ValueError:
        numbers = [0]
    if min(numbers, default=1) < 1:
        raise ConfigError(f"{flag} is {text!r}; write whole numbers above 0: 1,8,512")
    return numbers


def _cases(args: argparse.Namespace, kernels: Kernels) -> list[tuple[Op, str, Case]]:
    """Operation, backend and case of each measurement.

    Raises:
        ConfigError: a wrong word, or some that leave nothing to measure of an operation that was asked for.
    """
    operations = registry.operations()
    asked = names_in(args.ops, operations, "--ops")
    present = dict.fromkeys(backend for name in operations for backend in registry.backends(name))
    backends = names_in(args.backends, present, "--backends")
    formats = names_in(args.formats, SPEC_BY_NAME, "--formats")
    rows, contexts = _numbers(args.rows, "--rows"), _numbers(args.contexts, "--contexts")
    given = {f"--{name} {getattr(args, name)}": need for name, need in _NEEDS.items() if getattr(args, name)}
    found: list[tuple[Op, str, Case]] = []
    without: list[str] = []
    for op in (operations[name] for name in asked or operations):
        cases = op.device_cases if args.shapes == "true" else op.cases
        needed = [key for key, words in (("format", formats), ("contexts", contexts)) if words and asked]
        cases = tuple(case for case in cases if all(key in case for key in needed))
        here = _backends(op, backends, kernels)
        mine = [(op, b, way) for case in cases for way in _ways(op, case, formats, rows, contexts) for b in here]
        found += mine
        without += [] if mine else [op.name]
    if without and (asked or not found):
        words = f"{' '.join(given)} of {', '.join(without)}"
        raise ConfigError(f"there is no case with {words}: {'; '.join(given.values())}")
    return found


def _ways(op: Op, case: Case, formats: Sequence[str], rows: Sequence[int], contexts: Sequence[int]) -> Iterator[Case]:
    """A case with each of the values in place of its own; none where it cannot have them, or has nothing to compute."""
    needs_one = (contexts and "contexts" in case) or (rows and "T" not in case)  # sequence
    if 0 in (case.get("T"), case.get("S")) or (needs_one and len(case.get("queries", ())) != 1):
        return
    has_cache = any(parse(text).kind == "cache" for text in op.inputs.values())
    fitting: list[Case] = [{"format": f} for f in formats if f in _CACHE_FORMATS or not has_cache]
    lengths: list[Case] = [{"contexts": (n,)} for n in contexts if "contexts" in case]
    counts: list[Case] = [{"T": n} if "T" in case else {"queries": (n,)} for n in rows]
    for parts in product(fitting if formats and "format" in case else [{}], lengths or [{}], counts or [{}]):
        way = reduce(operator.or_, parts, dict(case))
        if "B" in case:  # blocks enough that each row has a slot
            way["B"] = max(case["B"], -(-way["T"] // case["L"]))
        if all(map(operator.le, way.get("queries", ()), way.get("contexts", ()))):
            yield way
        elif contexts:
            raise ConfigError(
                f"--contexts {way['contexts'][0]} is less than the {way['queries'][0]} rows of {op.name}, which are its"
                " last tokens; give longer ones, or fewer --rows"
            )


def _backends(op: Op, asked: Sequence[str], kernels: Kernels) -> list[str]:
    if not asked:
        return [choice.backend for choice in kernels.choices if choice.op == op.name]
    found = [name for name in registry.backends(op.name) if name in asked]
    return [b for b in found if folder.load(f"minnow.kernels.{op.name}", b).refusal(kernels.target) is None]
