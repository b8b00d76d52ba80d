"""what the device has, and how an engine of a configuration would spend it"""

from dataclasses import dataclass
from pathlib import Path

import torch

from minnow.cache.layout import BlockLayout
from minnow.config import load
from minnow.config.drafter import DrafterConfig
from minnow.config.engine import EngineConfig
from minnow.config.model import ModelConfig
from minnow.engine import budget, container
from minnow.engine.budget import MemoryPlan
from minnow.parallel.mesh import Mesh


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
    config, model, drafter = load.settle(config, model, directory, is_bench=is_bench)
    blocks = budget.layout(config, model, Mesh.single(), drafter)
    return Settled(config=config, model=model, drafter=drafter, layout=blocks)


def plan(settled: Settled, device: torch.device, root: Path = container.ROOT) -> MemoryPlan:
    """Decide what the memory of the device is spent on.

    On a CPU the cache gets 4 GiB, or what one sequence of full length needs, unless it is told otherwise.

    Args:
        root: of the file system that says what memory there is; tests make their own.

    Raises:
        CapacityError: it does not fit; names limit, weights, workspace and the largest cache.
    """
    config, layout = settled.config, settled.layout
    return budget.plan_memory(
        config.cache,
        layout,
        available_bytes=available_bytes(device, root),
        weights_bytes=budget.weights_bytes(settled.model, settled.drafter, Mesh.single()),
        workspace_bytes=budget.workspace_bytes(config, settled.model),
        max_model_len=config.max_model_len,
        most_bytes=budget.most_bytes(config, layout) if device.type == "cpu" else None,
    )


def available_bytes(device: torch.device, root: Path = container.ROOT) -> int:
    """Memory that is free on the device; for a CPU, in its container where that has less."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else container.free_bytes(root)
