"""block tables and caches of made-up sequences, for the inputs of cases"""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from minnow.formats.quantized import encode


def make_tables(
    device: torch.device, block_length: int, contexts: tuple[int, ...], queries: tuple[int, ...]
) -> tuple[dict[str, Tensor], int]:
    """Tables that scatter each sequence over a shuffled pool; queries are the last tokens of each context.

    Args:
        contexts, queries: tokens in all, and of the step, for each sequence.

    Returns:
        block_table i32 [S M], query_start i32 [S + 1], positions i32 [T], and the number of pool blocks.
        Entries past a sequence's end hold -1: an operation that reads them fails.
    """
    counts = [-(-context // block_length) for context in contexts]
    num_pool_blocks = sum(counts) + 1
    pool = torch.randperm(num_pool_blocks - 1, generator=torch.Generator().manual_seed(7)) + 1
    table = torch.full((len(contexts), max(counts)), -1, dtype=torch.int32)
    for s, blocks in enumerate(pool.split(counts)):
        table[s, : len(blocks)] = blocks
    places = [torch.arange(c - q, c) for c, q in zip(contexts, queries, strict=True)]
    starts = torch.tensor((0, *queries)).cumsum(0)
    named = {"block_table": table, "query_start": starts, "positions": torch.cat(places)}
    return {name: value.to(device, torch.int32) for name, value in named.items()}, num_pool_blocks


def make_attention(
    device: torch.device,
    N: int,
    G: int,
    H: int,
    L: int,
    contexts: tuple[int, ...],
    queries: tuple[int, ...],
    format: str,
    window: int = 0,
    prompts: tuple[int, ...] = (),
) -> dict[str, Any]:
    """Random queries, the last of each context, and random keys and values in a shuffled pool.

    Args:
        window: keys that a query sees back at most, and then all the queries of a sequence see each other; 0: neither.
        prompts: tokens of each context that were not generated; queries are FP32 then, BF16 where it is empty.
    """
    generator = torch.Generator().manual_seed(sum(contexts))
    tables, num_pool_blocks = make_tables(device, L, contexts, queries)
    shape = (num_pool_blocks, G, L, H)
    return {
        "q": torch.randn(sum(queries), N, H, generator=generator).to(device, query_dtype(prompts)),
        "k_cache": encode(format, torch.randn(shape, generator=generator).to(device)),
        "v_cache": encode(format, torch.randn(shape, generator=generator).to(device)),
        **tables,
        "scale": H**-0.5,
        **_windowed(tables, window),
        **ends(device, prompts),
    }


def query_dtype(prompts: tuple[int, ...]) -> torch.dtype:
    """Of the queries of a case."""
    return torch.float32 if prompts else torch.bfloat16


def ends(device: torch.device, prompts: tuple[int, ...]) -> dict[str, Tensor]:
    """prompt_end of a case, if it has one."""
    return {"prompt_end": torch.tensor(prompts, dtype=torch.int32, device=device)} if prompts else {}


def _windowed(tables: dict[str, Tensor], window: int) -> dict[str, Tensor]:
    if not window:
        return {}
    positions, bounds = tables["positions"], tables["query_start"].tolist()
    ends = torch.cat([positions[b - 1 : b].expand(b - a) for a, b in pairwise(bounds)])
    return {"first_keys": (positions - window + 1).clamp(min=0), "positions": ends}
