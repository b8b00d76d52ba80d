"""CacheConfig: where keys and values are kept"""

from dataclasses import dataclass
from typing import Annotated, Literal

from minnow.config.field import Field

CacheFormat = Literal["auto", "float32", "bfloat16", "fp8", "nvfp4"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """Where keys and values are kept."""

    block_size: Annotated[
        int, Field("tokens in one block; 0 takes the model's, 128 where it has none", "tokens", at_least=0)
    ] = 0
    kv_cache_dtype: Annotated[CacheFormat, Field("format of K and V; auto takes the model card's")] = "auto"
    kv_cache_memory_bytes: Annotated[
        str, Field("memory for the cache, for example 2GiB; empty derives it from the device", "bytes")
    ] = ""
    gpu_memory_utilization: Annotated[
        float, Field("share of the device memory that may be used, on any device", at_least=0.01, at_most=1.0)
    ] = 0.92
    num_gpu_blocks_override: Annotated[
        int, Field("so many cache blocks, whatever the memory; 0 is off", "blocks", at_least=0)
    ] = 0
    enable_prefix_caching: Annotated[bool, Field("reuse blocks of equal prefixes")] = True
