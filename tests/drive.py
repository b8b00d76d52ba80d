"""drive a decoder by hand: a sequence, in chunks, through a shuffled pool"""

from collections.abc import Sequence

import torch
from torch import Tensor

from minnow.cache.layout import layout_of
from minnow.cache.pool import Pool
from minnow.config.model import ModelConfig
from minnow.kernels import registry
from minnow.kernels.registry import Kernels
from minnow.model.decoder import Decoder
from minnow.model.step import StepFunction, StepInputs

CPU = torch.device("cpu")


class Driver:
    """One decoder with its pool; sequences get block tables that are scattered over the pool."""

    def __init__(
        self,
        decoder: Decoder,
        config: ModelConfig,
        *,
        num_blocks: int,
        kv_format: str = "f32",
        index_format: str | None = None,
        seed: int = 0,
    ) -> None:
        self.decoder: StepFunction = decoder
        layout = layout_of(config, kv_format, index_format or kv_format)
        self.block_size = layout.block_size
        self.pool = Pool(layout, num_blocks, CPU)
        order = torch.randperm(num_blocks - 1, generator=torch.Generator().manual_seed(seed)) + 1
        self._free = order.tolist()

    def table(self, num_tokens: int) -> Tensor:
        """Blocks for a sequence: i32 [1 M]."""
        num_blocks = -(-num_tokens // self.block_size)
        blocks, self._free = self._free[:num_blocks], self._free[num_blocks:]
        return torch.tensor([blocks], dtype=torch.int32)

    def step(self, parts: Sequence[tuple[Tensor, int, Tensor]]) -> list[Tensor]:
        """One step of several sequences, each (ids of the chunk, its first position, table): logits of each."""
        counts = [len(ids) for ids, _, _ in parts]
        width = max(table.shape[1] for _, _, table in parts)
        tables = torch.cat([torch.nn.functional.pad(t, (0, width - t.shape[1]), value=-1) for _, _, t in parts])
        positions = torch.cat([torch.arange(start, start + len(ids)) for ids, start, _ in parts])
        sequence = torch.repeat_interleave(torch.arange(len(parts)), torch.tensor(counts))
        slots = tables[sequence, positions // self.block_size].long() * self.block_size + positions % self.block_size
        inputs = StepInputs(
            ids=torch.cat([ids for ids, _, _ in parts]).to(torch.int32),
            positions=positions.to(torch.int32),
            slots=slots,
            query_start=torch.tensor([0, *counts]).cumsum(0).to(torch.int32),
            block_table=tables,
            logits_rows=torch.arange(sum(counts)),
        )
        return list(self.decoder(inputs, self.pool.layers).logits.split(counts))

    def run(self, ids: Tensor, chunks: Sequence[int]) -> Tensor:
        """Logits of a whole sequence, computed chunk by chunk: f32 [T V]; its blocks are free again."""
        assert sum(chunks) == len(ids)
        table, start, logits = self.table(len(ids)), 0, []
        for count in chunks:
            logits += self.step([(ids[start : start + count], start, table)])
            start += count
        self._free = table[0].tolist() + self._free
        return torch.cat(logits)


def even_chunks(num_tokens: int, count: int) -> list[int]:
    """num_tokens in pieces of count, the last one shorter."""
    return [min(count, num_tokens - start) for start in range(0, num_tokens, count)]


def make_kernels(backends: str = "*=auto") -> Kernels:
    """Operations bound for this machine's CPU."""
    return registry.bind(registry.target_of(CPU), backends)
