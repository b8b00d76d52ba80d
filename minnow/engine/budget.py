"""how many blocks fit: size.py + layout.py + measured free memory"""

from dataclasses import dataclass

from minnow.cache.layout import BlockLayout
from minnow.config.cache import CacheConfig
from minnow.core.errors import CapacityError, ConfigError
from minnow.core.units import parse_bytes, show_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """What the memory of one device is spent on.

    Attributes:
        limit_bytes: that the engine may use: available memory times its utilization.
        weights_bytes: weights of this rank that take memory of the device.
        workspace_bytes: activations and buffers of the largest step.
        row_bytes: one block over all layers.
        block_size: tokens in a block.
        num_blocks: rows of the pool; block 0 is the null block and holds no tokens.
        max_model_len: longest prompt plus output, in tokens.
    """

    limit_bytes: int
    weights_bytes: int
    workspace_bytes: int
    row_bytes: int
    block_size: int
    num_blocks: int
    max_model_len: int

    @property
    def cache_bytes(self) -> int:
        """Bytes of the pool."""
        return self.num_blocks * self.row_bytes

    @property
    def total_bytes(self) -> int:
        """Bytes of everything."""
        return self.weights_bytes + self.workspace_bytes + self.cache_bytes

    @property
    def num_tokens(self) -> int:
        """Tokens that all usable blocks hold."""
        return (self.num_blocks - 1) * self.block_size

    @property
    def max_concurrency(self) -> int:
        """Sequences of full length that fit side by side."""
        return self.num_tokens // self.max_model_len


def plan_memory(
    cache: CacheConfig,
    layout: BlockLayout,
    *,
    available_bytes: int,
    weights_bytes: int,
    workspace_bytes: int,
    max_model_len: int,
    most_bytes: int | None = None,
) -> MemoryPlan:
    """Decide how many blocks the pool gets.

    `num_gpu_blocks_override` is taken as it is, whatever the memory. `kv_cache_memory_bytes` is taken where it fits.
    Else the cache gets all that weights and workspace leave, or most_bytes where that is less.

    Args:
        available_bytes: memory of the device, or of the container where that is less.
        weights_bytes, workspace_bytes: measured, or from arch.size.
        max_model_len: one sequence of that length must fit, unless the number of blocks is overridden.

    Raises:
        CapacityError: names limit, weights, workspace, cache, and the largest cache that fits.
        ConfigError: a utilization that is no share, or a negative number of blocks.
    """
    if not 0 < cache.gpu_memory_utilization <= 1:
        raise ConfigError(
            f"gpu_memory_utilization is {cache.gpu_memory_utilization}; it is a share, above 0 and at most 1"
        )
    if cache.num_gpu_blocks_override < 0:
        raise ConfigError(f"num_gpu_blocks_override is {cache.num_gpu_blocks_override}; it must be 0 (off) or more")
    limit_bytes = int(available_bytes * cache.gpu_memory_utilization)
    left_bytes = max(limit_bytes - weights_bytes - workspace_bytes, 0)
    spent = (
        f"limit {show_bytes(limit_bytes)} ({cache.gpu_memory_utilization:g} of {show_bytes(available_bytes)}), "
        f"weights {show_bytes(weights_bytes)}, workspace {show_bytes(workspace_bytes)}"
    )
    granted_bytes = left_bytes if most_bytes is None else min(left_bytes, most_bytes)
    wanted_bytes = parse_bytes(cache.kv_cache_memory_bytes) if cache.kv_cache_memory_bytes else granted_bytes
    num_blocks = cache.num_gpu_blocks_override or wanted_bytes // layout.row_bytes
    if not cache.num_gpu_blocks_override:
        if wanted_bytes > left_bytes:
            raise CapacityError(
                f"a cache of {show_bytes(wanted_bytes)} does not fit: {spent}; the largest cache that fits has "
                f"{show_bytes(left_bytes)}: set --kv-cache-memory-bytes {left_bytes} or less"
            )
        num_wanted_blocks = -(-max_model_len // layout.block_size) + 1  # and the null block
        if num_blocks < num_wanted_blocks:
            longest = max(num_blocks - 1, 0) * layout.block_size
            way_out = f"set --max-model-len {longest} or less, or give" if longest else "give"
            raise CapacityError(
                f"one sequence of max_model_len {max_model_len} needs a cache of "
                f"{show_bytes(num_wanted_blocks * layout.row_bytes)}; it has {show_bytes(wanted_bytes)}: {spent}, "
                f"the largest cache that fits {show_bytes(left_bytes)}; {way_out} it more memory"
            )
    return MemoryPlan(
        limit_bytes=limit_bytes,
        weights_bytes=weights_bytes,
        workspace_bytes=workspace_bytes,
        row_bytes=layout.row_bytes,
        block_size=layout.block_size,
        num_blocks=num_blocks,
        max_model_len=max_model_len,
    )
