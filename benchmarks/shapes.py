"""the operations of a CPU at M3.1-Flash's true shapes: python benchmarks/shapes.py THREADS QUICK PART...

Random weights, few layers, so that it fits 24 GiB. Prints a row of `minnow bench compare` as a line of JSON each.
What is read comes from memory, not from a cache: calls go round over several copies, layers or choices.
"""

import ctypes
import gc
import itertools
import json
import mmap
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from minnow.bench.limits import Limits, measure_limits
from minnow.bench.timing import Interleaved, Spread, interleave, measure, seconds
from minnow.cache.layout import BlockLayout, PageGroup, layout_of
from minnow.cache.pool import LayerCache, Pool
from minnow.checkpoint.resident import ResidentWeights
from minnow.config import model as model_config
from minnow.config.model import ModelConfig
from minnow.core.errors import MinnowError
from minnow.formats.quantized import Quantized, Weight, encode
from minnow.kernels import registry
from minnow.kernels.experts.activation import Activation
from minnow.kernels.registry import Kernels

Row = dict[str, Any]

WIDTH, INNER, NUM_EXPERTS, TOP = 6144, 3072, 128, 4
MILLION = 1_048_576
LENGTHS = (8_192, 65_536, 262_144, MILLION)
NUM_LAYERS = 4
_ACTIVATION = Activation(kind="swigluoai")
_WHOLE_MEMORY = 1 << 30  # a working set that no cache holds, to ask for the bandwidth of


class Bench:
    """What every measurement needs."""

    def __init__(self, num_threads: int, is_quick: bool) -> None:
        torch.set_num_threads(num_threads)
        self.limits: Limits = measure_limits(num_threads)
        self.kernels: Kernels = registry.bind(registry.target_of(torch.device("cpu")))
        self.is_quick = is_quick
        self._most_bytes_s = 0.0
        self.repeats = 5 if is_quick else 15

    def memory_bytes_s(self) -> float:
        """Bandwidth of reading what no cache holds, from huge pages: the best of what was seen until now."""
        fresh = replace(self.limits, _bytes_s={}).bytes_s(_WHOLE_MEMORY)
        self._most_bytes_s = max(self._most_bytes_s, fresh)
        return self._most_bytes_s

    def peak(self) -> tuple[str, float]:
        """Multiplications and additions a second of exact values in registers, and a name for that."""
        kind = max(("f32", "bf16"), key=lambda name: self.limits.operations_s.get(name, 0.0))
        return kind, self.limits.operations_s[kind]

    def time(self, call: Callable[[], object], least_repeats: int = 0) -> Spread:
        """Seconds of a call."""
        return measure(call, min_repeats=least_repeats or self.repeats)

    def backends(self, *operations: str) -> str:
        """Which backend each has, where one is not the native."""
        chosen = {choice.op: choice.backend for choice in self.kernels.choices}
        return ", ".join(f"{name} is the {chosen[name]} version" for name in operations if chosen[name] != "cpu")


def row(
    work: str,
    unit: str,
    bar: float,
    value: float,
    details: Sequence[str],
    *,
    is_least: bool = True,
    spread: tuple[float, float] | None = None,
    numbers: Mapping[str, float] | None = None,
) -> Row:
    """A row as `minnow bench compare` reads it."""
    low, high = spread or (value, value)
    return {"work": work, "unit": unit, "bar": bar, "value": value, "low": low, "high": high, "is_least": is_least,
            "details": [detail for detail in details if detail], "numbers": dict(numbers or {})}  # fmt: skip


def share(
    bench: Bench, work: str, bar: float, num_bytes: float, taken: Spread, *operations: str, num_products: float
) -> Row:
    """A row for bytes read, against what memory gives; num_products: multiplications and additions."""
    limit, (kind, peak) = bench.memory_bytes_s(), bench.peak()
    per_cent = [100 * num_bytes / s / limit for s in (taken.median, taken.high, taken.low)]
    rate = f"{num_bytes / taken.median / 1e9:.1f} GB/s of {limit / 1e9:.1f}"
    details = [f"{num_bytes / 1e6:.1f} MB in {show(taken.median)}: {rate}", bench.backends(*operations)]
    most = 100 * num_bytes / limit * peak / num_products
    if most < 100:
        details.append(f"its arithmetic at this processor's {kind} peak of {peak / 1e12:.2f} TFLOP/s takes "
                       f"{show(num_products / peak)}: {most:.0f} % is the most that can be")  # fmt: skip
    return row(work, "%", bar, per_cent[0], details, spread=(per_cent[1], per_cent[2]),
               numbers={"median_s": taken.median, "read_bytes": num_bytes, "limit_bytes_s": limit})  # fmt: skip


def least_ratio(bench: Bench, few: tuple[float, float], many: tuple[float, float]) -> str:
    """What many rows take at least, by what few do: (bytes, multiplications and additions) each."""
    limit, (kind, peak) = bench.memory_bytes_s(), bench.peak()
    least = [max(num_bytes / limit, num_products / peak) for num_bytes, num_products in (few, many)]
    return (
        f"at this processor's {kind} peak of {peak / 1e12:.2f} TFLOP/s and {limit / 1e9:.1f} GB/s it is at least "
        f"{least[1] / least[0]:.2f} x ({show(least[1])} by {show(least[0])})"
    )


def show(taken_s: float) -> str:
    """A time with a fitting unit."""
    return f"{taken_s * 1e3:.3f} ms" if taken_s < 1 else f"{taken_s:.2f} s"


def moe(bench: Bench) -> Iterator[Row]:
    """One MoE layer: 128 experts of NVFP4, top-4, and the shared one as the 129th."""
    one = (
        encode("nvfp4", torch.randn(INNER, WIDTH)),
        encode("nvfp4", torch.randn(INNER, WIDTH)),
        encode("nvfp4", torch.randn(WIDTH, INNER)),
    )
    expert_bytes = sum(_num_bytes(part) for part in one)
    memory = ResidentWeights((NUM_EXPERTS + 1) * expert_bytes, 6 * (NUM_EXPERTS + 1))
    table = [tuple(map(memory.copy, one)) for _ in range(NUM_EXPERTS + 1)]
    choices = itertools.cycle([_choose(1, seed) for seed in range(64)])
    x = torch.randn(1, WIDTH).bfloat16()
    taken = bench.time(lambda: bench.kernels.experts(x, *next(choices), table, _ACTIVATION))
    yield share(bench, "MoE layer, NVFP4, 1 row", 70.0, (TOP + 1) * expert_bytes, taken, "experts",
                num_products=6 * (TOP + 1) * WIDTH * INNER)  # fmt: skip

    x512 = torch.randn(512, WIDTH).bfloat16()
    ids, weights = _choose(512, 1)
    torch_layer = TorchExperts()
    functions: dict[str, Callable[[], float]] = {
        "minnow": seconds(lambda: bench.kernels.experts(x512, ids, weights, table, _ACTIVATION)),
        "torch": seconds(lambda: torch_layer(x512, ids, weights)),
    }
    seen = interleave(functions, 3 if bench.is_quick else 7)
    yield _against(bench, "MoE layer, NVFP4, 512 rows, against torch bf16", 2.0, seen, "torch",
                   6 * 512 * (TOP + 1) * WIDTH * INNER, "experts")  # fmt: skip


class TorchExperts:
    """The layer as torch does it best: bf16, prepacked for oneDNN, gate and up in one product, expert by expert.

    16 experts' weights stand for 129: no cache holds even one of them, so that changes no time, and saves 13 GB.
    """

    def __init__(self) -> None:
        self._up = [_pack(torch.randn(2 * INNER, WIDTH).bfloat16(), 16) for _ in range(16)]
        self._down = [_pack(torch.randn(WIDTH, INNER).bfloat16(), 16) for _ in range(16)]

    def __call__(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        y = torch.zeros(x.shape)
        for expert in range(NUM_EXPERTS + 1):
            token, place = (ids == expert).nonzero(as_tuple=True)
            if not len(token):
                continue
            gate, up = _packed(x[token], self._up[expert % 16]).chunk(2, dim=1)
            gate = gate.clamp(max=_ACTIVATION.limit)
            inner = (up.clamp(-7.0, 7.0) + _ACTIVATION.beta) * gate * torch.sigmoid(_ACTIVATION.alpha * gate)
            y.index_add_(0, token, _packed(inner, self._down[expert % 16]) * weights[token, place, None])
        return y.bfloat16()


def matrix(bench: Bench) -> Iterator[Row]:
    """A square MXFP8 matrix times few rows and many."""
    first = encode("mxfp8", torch.randn(WIDTH, WIDTH))
    num_bytes = _num_bytes(first)
    memory = ResidentWeights(8 * num_bytes, 16)
    copies = itertools.cycle([[memory.copy(first)] for _ in range(8)])  # 311 MB
    functions: dict[str, Callable[[], float]] = {}
    for num_rows in (1, 8, 32):
        x = torch.randn(num_rows, WIDTH).bfloat16()
        functions[str(num_rows)] = seconds(lambda x=x: bench.kernels.linear(x, next(copies)))  # type: ignore[misc]
    seen = interleave(functions, 4 * bench.repeats)
    one = seen.of("1").median
    speed = f"1 row: {show(one)}, {num_bytes / one / 1e9:.1f} GB/s of {bench.memory_bytes_s() / 1e9:.1f}"
    for num_rows, bar in ((8, 1.25), (32, 1.6)):
        ratio, median = seen.ratio(str(num_rows), "1"), seen.of(str(num_rows)).median
        products = 2 * WIDTH * WIDTH
        least = least_ratio(bench, (num_bytes, products), (num_bytes, num_rows * products))
        details = [speed, f"{num_rows} rows: {show(median)}", least, bench.backends("linear")]
        yield row(f"MXFP8 6144 x 6144: {num_rows} rows against 1", "x", bar, ratio.median, details, is_least=False,
                  spread=(ratio.low, ratio.high), numbers={"one_row_s": one, "rows_s": median})  # fmt: skip

    x = torch.randn(2048, WIDTH).bfloat16()
    plain = torch.randn(WIDTH, WIDTH).bfloat16()
    packed = _pack(plain, 2048)
    seen = interleave(
        {
            "minnow": seconds(lambda: bench.kernels.linear(x, next(copies))),
            "torch": seconds(lambda: torch.nn.functional.linear(x, plain)),
            "torch, prepacked": seconds(lambda: _packed(x, packed)),
        },
        3 if bench.is_quick else 7,
    )
    best = min(("torch", "torch, prepacked"), key=lambda name: seen.of(name).median)
    yield _against(bench, "MXFP8 6144 x 6144, 2,048 rows, against torch bf16", 1.2, seen, best,
                   2 * 2048 * WIDTH * WIDTH, "linear")  # fmt: skip


def attention(bench: Bench) -> Iterator[Row]:
    """The attention operations over an NVFP4 cache of four layers and a million tokens."""
    model = model_config.known("m3.1-flash")
    assert model is not None
    layout = _layout(model)
    before = _process_bytes()
    pool = _filled(layout, bench.kernels, MILLION // 128)
    formula = NUM_LAYERS * (576 + 72) * MILLION
    resident, grown = _resident_bytes(pool.rows), _process_bytes() - before
    parts = {"resident": resident, "of rows": pool.rows.nbytes, "by the formula": formula}
    parts["more in the process, with what filling them left behind"] = grown
    words = ", ".join(f"{num_bytes:,} bytes {what}" for what, num_bytes in parts.items())
    yield row("1M tokens of context resident: off the formula by", "%", 1.0, 100 * abs(resident / formula - 1), [words],
              is_least=False, numbers={"resident_bytes": resident, "formula_bytes": formula})  # fmt: skip
    table = torch.randperm(MILLION // 128, generator=torch.Generator().manual_seed(1)).to(torch.int32)[None]
    layers = itertools.cycle(pool.layers)

    where = _where(table, MILLION, 1)
    index_q = torch.randn(1, 4, 128).bfloat16()
    taken = bench.time(lambda: bench.kernels.index_score(index_q, next(layers).index, *where))
    yield share(bench, "index scan of 1M tokens, NVFP4", 70.0, 72 * MILLION, taken, "index_score",
                num_products=2 * 4 * 128 * MILLION)  # fmt: skip
    yield from _few_rows(bench, table, layers)
    yield from _by_length(bench, pool, table, model)


def _few_rows(bench: Bench, table: Tensor, layers: Iterator[LayerCache]) -> Iterator[Row]:
    functions = {}
    for num_rows in (1, 8):
        where = _where(table, MILLION, num_rows)
        q = torch.randn(num_rows, 64, 128).bfloat16()
        blocks = itertools.cycle([_blocks(num_rows, seed) for seed in range(64)])

        def call(q: Tensor = q, where: Any = where, blocks: Iterator[Tensor] = blocks) -> Tensor:
            layer = next(layers)
            out: Tensor = bench.kernels.sparse_attention(q, layer.k, layer.v, *where, next(blocks), 128**-0.5)
            return out

        functions[str(num_rows)] = seconds(call)
    seen = interleave(functions, 20 * bench.repeats, num_warmups=3)
    block_bytes, products = 4 * 128 * 2 * 72, 4 * 64 * 128 * 16 * 128  # a row scores and sums 16 blocks for 64 heads
    yield share(bench, "sparse attention over 16 blocks, 1 row", 60.0, 16 * block_bytes, seen.of("1"),
                "sparse_attention", num_products=products)  # fmt: skip
    ratio = seen.ratio("8", "1")
    details = [
        f"1 row {show(seen.of('1').median)}, 8 rows {show(seen.of('8').median)}; a head's rows share 14 of 16 blocks",
        least_ratio(bench, (16 * block_bytes, products), (30 * block_bytes, 8 * products)),
    ]
    yield row("sparse attention, 8 rows against 1", "x", 2.5, ratio.median, details, is_least=False,
              spread=(ratio.low, ratio.high),
              numbers={"one_row_s": seen.of("1").median, "rows_s": seen.of("8").median})  # fmt: skip


def _by_length(bench: Bench, pool: Pool, table: Tensor, model: ModelConfig) -> Iterator[Row]:
    """Attention of all four layers, sparse and dense, from 8K to 1M tokens."""
    q, index_q = torch.randn(1, 64, 128).bfloat16(), torch.randn(1, 4, 128).bfloat16()
    k, seen = bench.kernels, Interleaved(samples={})
    details: list[str] = []
    numbers: dict[str, float] = {}
    for context in LENGTHS:
        where = _where(table[:, : context // 128], context, 1)

        def sparse(where: tuple[Tensor, Tensor, Tensor] = where) -> None:
            for layer in pool.layers:
                scores = k.index_score(index_q, layer.index, *where)
                blocks = k.block_topk(scores, where[2], model.sparse.num_blocks, 128, 1, 0)
                k.sparse_attention(q, layer.k, layer.v, *where, blocks, 128**-0.5)

        def dense(where: tuple[Tensor, Tensor, Tensor] = where) -> None:
            for layer in pool.layers:
                k.dense_attention(q, layer.k, layer.v, *where, 128**-0.5)

        rounds = (3 if bench.is_quick else 9) if context > 100_000 else 2 * bench.repeats
        seen = interleave({"msa": seconds(sparse), "dense": seconds(dense)}, rounds)
        msa, full = seen.of("msa").median, seen.of("dense").median
        msa_bytes = NUM_LAYERS * (context * 72 + 4 * min(context, 2048) * 2 * 72)
        words = f"{context // 1024}K" if context < MILLION else "1M"
        details.append(
            f"{words}: MSA {show(msa)} ({msa_bytes / 1e6:.1f} MB, {msa_bytes / msa / 1e9:.1f} GB/s), "
            f"dense {show(full)} ({NUM_LAYERS * context * 576 / 1e6:.1f} MB)"
        )
        numbers |= {f"msa_{words}_s": msa, f"dense_{words}_s": full, f"msa_{words}_bytes": msa_bytes}
    ratio = seen.ratio("dense", "msa")
    details.append(bench.backends("index_score", "block_topk", "sparse_attention", "dense_attention"))
    yield row("attention of 4 layers at 1M: dense against MSA", "x", 6.0, ratio.median, details,
              spread=(ratio.low, ratio.high), numbers=numbers)  # fmt: skip
    yield share(bench, "dense attention of 4 layers at 1M", 60.0, NUM_LAYERS * MILLION * 576, seen.of("dense"),
                "dense_attention", num_products=NUM_LAYERS * MILLION * 4 * 64 * 128)  # fmt: skip


def _against(bench: Bench, work: str, bar: float, seen: Interleaved, other: str, operations: float, op: str) -> Row:
    """A row for our time against another's."""
    ratio = seen.ratio(other, "minnow")
    peak = max(bench.limits.operations_s.values())
    kind = max(bench.limits.operations_s, key=lambda name: bench.limits.operations_s[name])
    bf16 = bench.limits.operations_s.get("bf16", bench.limits.operations_s["f32"])
    rate = operations / seen.of("minnow").median
    details = [f"{name}: {show(seen.of(name).median)}, {operations / seen.of(name).median / 1e12:.2f} TFLOP/s"
               for name in seen.samples]  # fmt: skip
    details.append(
        f"{100 * rate / bf16:.0f} % of the bf16 register peak of {bf16 / 1e12:.2f} TFLOP/s ({kind}: {peak / 1e12:.2f})"
    )
    most = seen.of(other).median * bf16 / operations
    details.append(f"at that peak it would be {most:.2f} x")
    numbers = {"minnow_s": seen.of("minnow").median, "torch_s": seen.of(other).median, "bf16_peak_s": bf16}
    spread = (ratio.low, ratio.high)
    return row(work, "x", bar, ratio.median, [*details, bench.backends(op)], spread=spread, numbers=numbers)


def _num_bytes(weight: Weight) -> int:
    return weight.num_bytes if isinstance(weight, Quantized) else weight.nbytes


def _pack(weight: Tensor, num_rows: int) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, num_rows)
    return packed


def _packed(x: Tensor, weight: Tensor) -> Tensor:
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
    return y


def _choose(num_rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Four experts of 128 for each row, and the shared one."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.rand(num_rows, NUM_EXPERTS, generator=generator).topk(TOP).indices
    ids = torch.cat((ids, torch.full((num_rows, 1), NUM_EXPERTS)), dim=1)
    return ids, torch.tensor([0.5] * TOP + [1.0]).expand(num_rows, -1).contiguous()


def _blocks(num_rows: int, seed: int) -> Tensor:
    """i32 [T 4 16]: each head's rows share 14 blocks, the last one among them; two are the row's own."""
    generator = torch.Generator().manual_seed(seed)
    last, blocks = MILLION // 128 - 1, torch.empty(num_rows, 4, 16, dtype=torch.int32)
    for head in range(4):
        drawn = torch.randperm(last, generator=generator)[: 13 + 2 * num_rows]
        for t in range(num_rows):
            mine = torch.cat((drawn[:13], drawn[13 + 2 * t : 15 + 2 * t]))
            blocks[t, head] = torch.cat((mine.sort().values, torch.tensor([last])))
    return blocks


def _where(table: Tensor, context: int, num_rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Block table, query starts and positions of the last tokens of one request."""
    positions = torch.arange(context - num_rows, context, dtype=torch.int32)
    return table.contiguous(), torch.tensor([0, num_rows], dtype=torch.int32), positions


def _layout(model: ModelConfig) -> BlockLayout:
    """The rows of four sparse layers, NVFP4 all."""
    whole = layout_of(model, "nvfp4", "nvfp4")
    groups = tuple(_first_layers(group) for group in whole.groups)
    return BlockLayout(groups=groups, block_size=whole.block_size)


def _first_layers(group: PageGroup) -> PageGroup:
    return replace(group, layers=tuple(range(NUM_LAYERS)))


def _filled(layout: BlockLayout, kernels: Kernels, num_blocks: int) -> Pool:
    """Blocks of a cache: 64 of random keys and values, over and over."""
    pool = Pool(layout, num_blocks, torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    slots = torch.arange(64 * 128)
    for layer in pool.layers:
        for cache, heads in ((layer.k, 4), (layer.v, 4), (layer.index, 1)):
            values = torch.randn(64 * 128, heads, 128, generator=generator).bfloat16()
            kernels.kv_write(values, cache, slots)
    for first in range(64, len(pool.rows), 64):
        pool.rows[first : first + 64] = pool.rows[:64]
    return pool


def _resident_bytes(data: Tensor) -> int:
    """Those pages of a tensor that are in memory, by the system."""
    first = data.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE
    num_bytes = data.data_ptr() + data.nbytes - first
    pages = ctypes.create_string_buffer(-(-num_bytes // mmap.PAGESIZE))
    if ctypes.CDLL(None, use_errno=True).mincore(ctypes.c_void_p(first), ctypes.c_size_t(num_bytes), pages):
        raise MemoryError(f"mincore fails with {ctypes.get_errno()}")
    return sum(page & 1 for page in pages.raw) * mmap.PAGESIZE


def _process_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * mmap.PAGESIZE


def main(words: list[str]) -> int:
    """Measure some parts, a row as it is there; what fails is a row without a value."""
    bench = Bench(int(words[0]), words[1] == "1")
    parts = {"matrix": matrix, "attention": attention, "moe": moe}
    for part in (parts[name] for name in words[2:]):
        started = time.perf_counter()
        try:
            for found in part(bench):
                sys.stdout.write(json.dumps(found) + "\n")
                sys.stdout.flush()
        except (RuntimeError, MemoryError, MinnowError) as error:
            lost = f"{type(error).__name__}: {error}".split("\n")[0][:300]
            name = (part.__doc__ or part.__name__).split("\n")[0]
            found = row(f"not measured to its end: {name}", "x", 1.0, 0.0, [lost])
            sys.stdout.write(json.dumps(found) + "\n")
        most_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
        sys.stderr.write(f"{part.__name__}: {time.perf_counter() - started:.0f} s, {most_gb:.1f} GB at the most\n")
        gc.collect()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
