"""ParallelConfig: how many devices, and how they share the work"""

from dataclasses import dataclass
from typing import Annotated

from minnow.config.field import Field


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelConfig:
    """How many devices, and how they share the work."""

    tensor_parallel_size: Annotated[int, Field("devices that share each layer", "devices", ("-tp",), at_least=1)] = 1
    data_parallel_size: Annotated[int, Field("replicas that share the requests", "replicas", ("-dp",), at_least=1)] = 1
    enable_expert_parallel: Annotated[bool, Field("spread experts over the devices", aliases=("-ep",))] = False
