"""what this machine can do at most: read bandwidth by working set, multiplications by number format"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from minnow.bench.timing import measure
from minnow.checkpoint.resident import huge_pages
from minnow.kernels import native
from minnow.kernels.limits import cpu

_LEAST_BYTES, _MOST_BYTES = 1 << 20, 1 << 30
_GRAIN_BYTES = 256  # of what is read
_NEAR = 0.03  # working sets that differ by less share a measurement
_ROUNDS = 200_000  # milliseconds


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
