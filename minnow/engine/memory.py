"""what the device has, and how an engine of a configuration would spend it"""

from dataclasses import dataclass
from pathlib import Path

import torch

from minnow.arch import size
from minnow.cache.layout import BlockLayout, draft_pages, layout_of
from minnow.config import engine as engine_config
from minnow.config.drafter import DrafterConfig
from minnow.config.engine import EngineConfig
from minnow.config.load import resolve_auto, resolve_speculation
from minnow.config.model import ModelConfig, without_index
from minnow.engine import budget, container, policy
from minnow.engine.budget import MemoryPlan
from minnow.parallel.mesh import Mesh

_CPU_CACHE_BYTES = 4 << 30  # unless asked for more: a CPU's memory is shared with other programs
_CHUNK_BYTES = 512 << 20  # what the reference operations hold at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """What a configuration comes to for a model.

    Attributes:
        config: without "auto".
        model: as it is run: without its index heads where `dense` says so.
        drafter: of drafts, if any are made.
        layout: the row of a cache block, the drafter's pages in it.
    """

    config: EngineConfig
    model: ModelConfig
    drafter: DrafterConfig | None
    layout: BlockLayout


def settle(config: EngineConfig, model: ModelConfig, directory: Path | None, *, is_bench: bool = False) -> Settled:
    """Settle a configuration and check it, before any weight is read.

    Args:
        directory: of the model, where its drafter is looked for; None for a model that is only described.
        is_bench: see `config.speculative.check`.

    Raises:
        ConfigError: settings that cannot work together or with the model.
    """
    model = without_index(model) if config.dense else model
    config = resolve_auto(config, model)
    engine_config.check(config, model)
    drafter = None
    if directory is not None:
        config, drafter = resolve_speculation(config, directory, model, is_bench=is_bench)
    blocks = layout(config, model, Mesh.single(), drafter)
    return Settled(config=config, model=model, drafter=drafter, layout=blocks)


def layout(config: EngineConfig, model: ModelConfig, mesh: Mesh, drafter: DrafterConfig | None = None) -> BlockLayout:
    """The row of a cache block on a rank, a drafter's pages in it; `config` has no "auto" left."""
    pages = None
    if drafter is not None:
        backbone = drafter.backbone
        pages = draft_pages(
            backbone.num_hidden_layers,
            mesh.share(backbone.num_key_value_heads, "tp"),
            backbone.head_dim,
            config.speculative_config.kv_cache_dtype,
        )
    return layout_of(
        model,
        config.cache.kv_cache_dtype,
        config.attention_config.indexer_kv_dtype,
        num_kv_heads=mesh.share(model.num_key_value_heads, "tp"),
        block_size=config.cache.block_size,
        drafter=pages,
    )


def plan(settled: Settled, device: torch.device, root: Path = container.ROOT) -> MemoryPlan:
    """Decide what the memory of the device is spent on.

    On a CPU the cache gets 4 GiB, or what one sequence of full length needs, unless it is told otherwise.

    Args:
        root: of the file system that says what memory there is; tests make their own.

    Raises:
        CapacityError: it does not fit; names limit, weights, workspace and the largest cache.
    """
    config, layout = settled.config, settled.layout
    longest_blocks = -(-config.max_model_len // layout.block_size) + 1
    most_bytes = max(_CPU_CACHE_BYTES, longest_blocks * layout.row_bytes) if device.type == "cpu" else None
    return budget.plan_memory(
        config.cache,
        layout,
        available_bytes=available_bytes(device, root),
        weights_bytes=size.measure(settled.model).num_bytes + size.drafter_bytes(settled.drafter),
        workspace_bytes=workspace_bytes(config, settled.model),
        max_model_len=config.max_model_len,
        most_bytes=most_bytes,
    )


def workspace_bytes(config: EngineConfig, model: ModelConfig) -> int:
    """Bytes of activations and logits of the largest step, from above."""
    widest = max(
        model.num_attention_heads * model.head_dim,
        2 * model.dense_intermediate_size,
        2 * model.intermediate_size * model.num_experts_per_tok,
        model.hidden_size,
    )
    activations = config.scheduler.max_num_batched_tokens * (4 * model.hidden_size + 2 * widest) * 4
    logits = config.scheduler.max_num_seqs * model.vocab_size * 4 * 8  # sampling sorts and sums in f64
    scored = min(policy.MAX_PROMPT_LOGPROBS, config.scheduler.max_num_batched_tokens) * model.vocab_size * 4 * 2
    # Of each draft a row of logits, one of them adjusted, and the distributions of both models.
    drafts = config.scheduler.max_num_seqs * _num_drafts(config) * model.vocab_size * 4 * 4
    return activations + logits + scored + drafts + _CHUNK_BYTES


def _num_drafts(config: EngineConfig) -> int:
    return config.speculative_config.num_speculative_tokens if config.speculative_config.method else 0


def available_bytes(device: torch.device, root: Path = container.ROOT) -> int:
    """Memory that is free on the device; for a CPU, in its container where that has less."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    lines = (root / "proc/meminfo").read_text(encoding="ascii").splitlines()
    free = int(dict(line.split(":", 1) for line in lines)["MemAvailable"].split()[0]) * 1024
    left = container.left_bytes(root)
    return free if left is None else min(free, left)
