"""KernelConfig: which backend computes each operation"""

from dataclasses import dataclass
from typing import Annotated, Literal

from minnow.config.field import Field


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelConfig:
    """Which backend computes each operation, and on what."""

    device: Annotated[
        Literal["auto", "cpu", "cuda"], Field("where the model runs; auto takes a GPU if there is one")
    ] = "auto"
    kernel_backends: Annotated[str, Field('backend of each operation, for example "*=auto,experts=reference"')] = (
        "*=auto"
    )
    num_threads: Annotated[
        int,
        Field("CPU threads; 0 takes what the affinity mask and the quota allow", "threads", at_least=0, at_most=512),
    ] = 0
    safetensors_load_strategy: Annotated[
        Literal["auto", "lazy", "eager"],
        Field("lazy maps weights from their files, eager copies them into huge pages; auto copies up to 8 GiB"),
    ] = "auto"
    activation_quantization: Annotated[
        Literal["none", "int16", "int8"],
        Field("what float32 activations are rounded to in products with int4 and int8 weights, 32 values to a scale"),
    ] = "none"
    numa_bind: Annotated[bool, Field("keep threads and memory to the NUMA nodes of this rank")] = False
    numa_bind_nodes: Annotated[
        str, Field("NUMA node of each rank, for example 0 1; empty shares them out", takes_many=True)
    ] = ""
    numa_bind_cpus: Annotated[
        str, Field("CPUs of each rank, for example 0-3 4-7; empty takes those of its nodes", takes_many=True)
    ] = ""
