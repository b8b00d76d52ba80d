"""what this machine can do at most: read bandwidth by working set, multiplications by number format"""

import argparse
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from minnow.bench import check_least, record
from minnow.bench.timing import measure
from minnow.checkpoint.resident import huge_pages
from minnow.config.kernel import KernelConfig
from minnow.core.errors import ConfigError
from minnow.engine import container, processors
from minnow.kernels import native
from minnow.kernels.limits import cpu

HELP = "measure what this machine can do at most: reading memory, multiplying; writes a sheet for minnow plan"

_LEAST_BYTES, _MOST_BYTES = 1 << 20, 1 << 30
_GRAIN_BYTES = 256  # of what is read
_NEAR = 0.03  # working sets that differ by less share a measurement
_ROUNDS = 200_000  # milliseconds
_SHOWN_MIB = (1, 4, 16, 64, 256, 1024)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Rates that the present team of threads reaches, measured when they are first asked for.

    Attributes:
        operations_s: number format -> multiplications and additions a second, of those that have an instruction.
    """

    num_threads: int
    instruction_set: str
    operations_s: Mapping[str, float]
    _bytes_s: dict[int, float] = field(default_factory=dict)

    def bytes_s(self, num_bytes: float) -> float:
        """Bytes a second that repeated reading of so large a working set reaches, caches included.

        Of less than 1 MiB it is the rate of 1 MiB, of more than 1 GiB that of 1 GiB.
        """
        size = int(min(max(num_bytes, _LEAST_BYTES), _MOST_BYTES)) // _GRAIN_BYTES * _GRAIN_BYTES
        nearest = min(self._bytes_s, key=lambda known: abs(known - size), default=0)
        if abs(nearest - size) >= _NEAR * size:
            self._bytes_s[size] = size / _least_s(size)
            nearest = size
        return self._bytes_s[nearest]

    def least_s(self, operations: float, num_bytes: float) -> float:
        """The time that work takes at least: that of its bytes or of its arithmetic, whichever is longer.

        The arithmetic is that of exact values: FP32 or BF16, whichever is faster here.
        """
        rate = max(self.operations_s.get(kind, 0.0) for kind in ("f32", "bf16"))
        return max(num_bytes / self.bytes_s(num_bytes), operations / rate)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--num-threads", type=int, default=0, metavar="N", help="default: as an engine chooses")
    parser.add_argument("--sheet", type=Path, metavar="FILE", help="write a hardware sheet, a .toml file")
    parser.add_argument("--record", type=Path, metavar="FILE", help="append the results to a file of JSON lines")


def run(args: argparse.Namespace, say: Callable[[str], None]) -> int:
    """Measure the rates and print them."""
    check_least(args, 0, "--num-threads")
    if args.sheet is not None and args.sheet.suffix != ".toml":
        raise ConfigError(f"--sheet is {args.sheet}; a sheet is a .toml file")
    threads = processors.settle(KernelConfig(num_threads=args.num_threads))
    native.set_threads(threads.count, threads.cpus)
    limits = measure_limits()
    say(f"{limits.instruction_set}, {limits.num_threads} threads")
    for kind, rate in limits.operations_s.items():
        say(f"  {kind:6} {rate / 1e12:8.3f} TFLOP/s")
    for mebibytes in _SHOWN_MIB:
        say(f"  {mebibytes:4} MiB {limits.bytes_s(mebibytes << 20) / 1e9:8.1f} GB/s")
    if args.sheet is not None:
        args.sheet.write_text(sheet(limits), encoding="utf-8")
        say(f"wrote {args.sheet}: minnow plan MODEL --hardware {args.sheet}")
    if args.record is not None:
        rates = {f"{kind}_operations_s": rate for kind, rate in limits.operations_s.items()}
        sizes = {f"bytes_s_{mebibytes}_mib": limits.bytes_s(mebibytes << 20) for mebibytes in _SHOWN_MIB}
        settings = {"threads": limits.num_threads, "instruction_set": limits.instruction_set}
        record.append(args.record, record.new("limits", settings, rates | sizes))
    return 0


def sheet(limits: Limits) -> str:
    """A hardware sheet of this machine (minnow/plan/hardware.py reads it)."""
    host, source = socket.gethostname(), "minnow bench limits"
    lines = [f'title = "{host}, {limits.num_threads} threads, {limits.instruction_set}"', 'kind = "cpu"']
    figures = {
        "memory": f"{container.free_bytes() >> 20} MiB",
        "memory_bandwidth": f"{limits.bytes_s(_MOST_BYTES) / 1e9:.4g} GB/s",
        **{kind: f"{rate / 1e12:.4g} TFLOP/s" for kind, rate in limits.operations_s.items()},
    }
    for name, value in figures.items():
        lines += ["", f"[{name}]", f'value = "{value}"', 'status = "measured"', f'source = "{source}"']
    return "\n".join(lines) + "\n"


def measure_limits(num_threads: int | None = None) -> Limits:
    """Measure the rates of arithmetic now.

    Args:
        num_threads: makes a team of so many, not pinned; None measures the library's team as it is.
    """
    if num_threads is not None:
        native.set_threads(num_threads)
    rates = {}
    for kind in cpu.KINDS:
        operations = cpu.multiply(kind, _ROUNDS)
        if operations:
            rates[kind] = operations / measure(partial(cpu.multiply, kind, _ROUNDS)).least
    return Limits(num_threads=native.num_threads(), instruction_set=native.instruction_set(), operations_s=rates)


def _least_s(num_bytes: int) -> float:
    """Time of the quickest read: what slows the others down is no limit."""
    data = huge_pages(num_bytes)
    data.fill_(1)
    return measure(partial(cpu.read_bytes, data)).least
