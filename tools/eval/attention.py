"""what choosing blocks saves at decoding: the attention alone, and the whole step beside its bytes"""

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from minnow.bench import step
from minnow.bench.timing import interleave, seconds, spread
from minnow.cache.layout import BlockLayout
from minnow.cache.pool import LayerCache, Pool
from minnow.config.load import from_values
from minnow.config.model import ModelConfig, without_index
from minnow.engine import memory
from minnow.engine.engine import Engine
from minnow.kernels import native, registry, words
from tools.eval.finding import Finding
from tools.eval.models import Models, pinned
from tools.eval.quality import NO_INDEX

CONTEXT = 6144
_CPU = torch.device("cpu")


def attention(models: Models) -> Iterator[Finding]:
    """Dense attention over index_score, block_topk and sparse_attention, all layers of one token."""
    title = f"attention of a decode step at {CONTEXT:,} tokens, dense against MSA"
    row = Finding(name=title, unit="x", bar=1.6)
    whole = Finding(name=f"whole decode step at {CONTEXT:,} tokens, dense against MSA", unit="x")
    if not models.is_sparse:
        yield replace(row, reason=NO_INDEX)
        yield replace(whole, reason=NO_INDEX)
        return
    layouts = {name: _layout(models, is_dense=name == "dense") for name in ("MSA", "dense")}
    # They come first: with them the team of threads is what it is when they serve.
    engines = {"MSA": models.plain().engine, "dense": models.plain(dense=True).engine}
    with pinned():
        model = models.config
        functions = Parts(model, layouts["MSA"], CONTEXT).calls()
        seen = interleave({name: seconds(call) for name, call in functions.items()}, 11 if models.is_quick else 41)
        ratio = seen.ratio("dense", "MSA")
        formats = ", ".join(f"{group.name} in {group.format.name}" for group in layouts["MSA"].groups)
        details = [f"{name}: {1e3 * seen.of(name).median:.3f} ms (least {1e3 * seen.of(name).least:.3f})"
                   for name in functions]  # fmt: skip
        details.append(f"quartiles of the ratio {ratio.low:.3f} to {ratio.high:.3f}; {model.num_hidden_layers} layers, "
                       f"{formats}, random keys, {native.num_threads()} threads")  # fmt: skip
        yield replace(row, value=ratio.median, details=tuple(details))
        yield whole_step(models, whole, engines, layouts)


class Parts:
    """The operations of one token's attention in all sparse layers, over caches of random keys and values."""

    def __init__(self, model: ModelConfig, layout: BlockLayout, context: int) -> None:
        self._kernels, self._sparse = registry.bind(registry.target_of(_CPU)), model.sparse
        self._generator, self._dtype = torch.Generator().manual_seed(0), _dtype(model)
        num_blocks = -(-context // layout.block_size)
        self._layers = [layer for layer in Pool(layout, num_blocks, _CPU).layers if layer.index is not None]
        slots = torch.arange(num_blocks * layout.block_size)
        for layer in self._layers:
            for cache in (layer.k, layer.v):
                values = self._random(len(slots), model.num_key_value_heads, model.head_dim)
                self._kernels.kv_write(values, cache, slots)
            self._kernels.kv_write(self._random(len(slots), 1, model.sparse.index_dim), layer.index, slots)
        self._q = self._random(1, model.num_attention_heads, model.head_dim)
        self._index_q = self._random(1, model.sparse.num_index_heads, model.sparse.index_dim)
        table = torch.randperm(num_blocks, generator=self._generator).to(torch.int32)[None]
        start, positions = (torch.tensor(values, dtype=torch.int32) for values in ([0, 1], [context - 1]))
        self._where, self._scale = (table, start, positions), model.head_dim**-0.5

    def calls(self) -> dict[str, Callable[[], None]]:
        """Each does its part for all layers, as a decode step does it: no more than the native functions is timed."""
        sparse, (table, start, positions), generated = self._sparse, self._where, torch.zeros(1, dtype=torch.int32)
        where = words.pack(*words.of_sequences(table, start, positions, generated))
        q, index_q, is_bf16 = self._q.float(), self._index_q.float(), self._dtype == torch.bfloat16
        num_heads, index_heads, num_table_blocks = q.shape[1], index_q.shape[1], table.shape[1]
        self.out = out = torch.empty_like(q)  # of the last layer
        scores = torch.empty(1, index_heads, num_table_blocks)
        blocks = torch.empty(1, index_heads, sparse.num_blocks, dtype=torch.int32)
        self._kept = (where, generated, q, index_q, scores, blocks)  # what the addresses below belong to
        rule = (sparse.num_blocks, sparse.block_size, sparse.num_local_blocks, sparse.num_init_blocks)
        index_score, block_topk = native.function("index_score", "ppppii"), native.function("block_topk", "pppiiiiiii")
        sparse_attention = native.function("sparse_attention", "ppppppiifi")
        dense_attention = native.function("dense_attention", "pppppifi")
        caches = [_packed(layer) for layer in self._layers]
        queries = (where, q.data_ptr())

        def score() -> None:
            for _, _, index in caches:
                index_score(where, index_q.data_ptr(), index, scores.data_ptr(), index_heads, is_bf16)

        def choose() -> None:
            ranked = (scores.data_ptr(), positions.data_ptr(), blocks.data_ptr(), 1, index_heads, num_table_blocks)
            for _ in caches:
                block_topk(*ranked, *rule)

        def attend() -> None:
            chosen = (blocks.data_ptr(), out.data_ptr(), num_heads, sparse.num_blocks)
            for k, v, _ in caches:
                sparse_attention(*queries, k, v, *chosen, self._scale, is_bf16)

        def attend_densely() -> None:
            for k, v, _ in caches:
                dense_attention(*queries, k, v, out.data_ptr(), num_heads, self._scale, is_bf16)

        parts = (score, choose, attend)
        _each(parts)
        return {"MSA": lambda: _each(parts), "dense": attend_densely, "index_score": score, "block_topk": choose,
                "sparse_attention": attend}  # fmt: skip

    def _random(self, rows: int, heads: int, width: int) -> Tensor:
        return torch.randn(rows, heads, width, generator=self._generator).to(self._dtype)


def _each(parts: Sequence[Callable[[], None]]) -> None:
    for part in parts:
        part()


def _packed(layer: LayerCache) -> tuple[ctypes.Array[ctypes.c_int64], ...]:
    assert layer.index is not None
    return tuple(words.pack(*words.of_cache(cache)) for cache in (layer.k, layer.v, layer.index))


def whole_step(
    models: Models, row: Finding, engines: Mapping[str, Engine], layouts: Mapping[str, BlockLayout]
) -> Finding:
    """Decode steps of two engines in turns, and how many bytes each reads."""
    configs = {"MSA": models.config, "dense": without_index(models.config)}
    contexts = (16, CONTEXT)
    taken: dict[tuple[str, int], list[float]] = {(name, context): [] for name in engines for context in contexts}
    with step.watching() as watch:
        for engine in engines.values():
            watch.attach(engine)
        for _ in range(2 if models.is_quick else 5):  # all but the first find their prompt in the prefix cache
            for name, context in taken:
                samples = step.decode(engines[name], watch, context, 1, 16)
                taken[name, context] += [sample["step"] for sample in samples]
    medians = {where: spread(values).median for where, values in taken.items()}
    num_bytes = {
        name: step.weight_bytes(configs[name], 1) + step.cache_bytes(configs[name], layouts[name], CONTEXT)
        for name in engines
    }
    ratio = medians["dense", CONTEXT] / medians["MSA", CONTEXT]
    by_bytes = num_bytes["dense"] / num_bytes["MSA"]
    details = [f"{name}: {1e3 * medians[name, CONTEXT]:.2f} ms for {num_bytes[name] / 1e6:.1f} MB, "
               f"{1e3 * medians[name, 16]:.2f} ms at 16 tokens" for name in engines]  # fmt: skip
    details.append(f"by bytes it would be {by_bytes:.3f} x; measured is {100 * (ratio / by_bytes - 1):+.1f} %")
    return replace(row, value=ratio, details=tuple(details))


def _layout(models: Models, *, is_dense: bool) -> BlockLayout:
    """Cache blocks as they are served."""
    config = from_values({"model": str(models.model), "dense": is_dense, "speculation": False}).config
    return memory.settle(config, models.config, models.model).layout


def _dtype(model: ModelConfig) -> torch.dtype:
    return torch.float32 if model.dtype == "float32" else torch.bfloat16
