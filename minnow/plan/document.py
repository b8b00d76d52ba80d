"""what a table shows as plain objects, for --json: bytes as whole numbers, units in the names"""

import dataclasses
from typing import Any

from minnow.cache.layout import BlockLayout
from minnow.engine.budget import MemoryPlan
from minnow.plan.deployment import Deployment


def plain(value: Any) -> Any:
    """A value of the planner as JSON can hold it: fields by name; what computes a claim is left out."""
    if isinstance(value, Deployment):
        return _deployment(value)
    if isinstance(value, BlockLayout):
        return _layout(value)
    if dataclasses.is_dataclass(value):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        more = {"num_tokens": value.num_tokens} if isinstance(value, MemoryPlan) else {}
        return {name: plain(entry) for name, entry in fields.items() if not callable(entry)} | more
    if isinstance(value, dict):
        return {str(name): plain(entry) for name, entry in value.items()}
    return [plain(entry) for entry in value] if isinstance(value, tuple | list) else value


def _deployment(of: Deployment) -> dict[str, Any]:
    """By what it is asked for; the settings of a server, keys among them, are nobody's business here."""
    return {
        "model": of.name,
        "hardware": of.device.name,
        "memory": plain(of.device.figures["memory"]),
        "strategy": of.strategy,
        "num_ranks": of.num_ranks,
        "num_nodes": of.num_nodes,
        "context_tokens": of.context_tokens,
        "reserve": plain(of.reserve),
        "drafter_bytes": of.drafter_bytes,
        "num_drafts": of.num_drafts,
        "experts_format": of.experts_format,
        "has_hybrid_manager": of.has_hybrid_manager,
        "cache": plain(of.config.cache),
        "scheduler": plain(of.config.scheduler),
    }


def _layout(layout: BlockLayout) -> dict[str, Any]:
    return {
        "layout_id": layout.layout_id,
        "block_size": layout.block_size,
        "num_pages": layout.num_pages,
        "row_bytes": layout.row_bytes,
        "token_bytes": layout.token_bytes,
        "token_bytes_by_group": {group.name: group.token_bytes * group.num_layers for group in layout.groups},
    }
