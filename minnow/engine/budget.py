"""what a rank holds and how many blocks fit: size.py + layout.py + free memory"""

from dataclasses import dataclass

from minnow.arch import size
from minnow.arch.sharding import Ranks
from minnow.cache.layout import BlockLayout, draft_pages, layout_of
from minnow.config.cache import CacheConfig
from minnow.config.drafter import DrafterConfig
from minnow.config.engine import EngineConfig
from minnow.config.model import ModelConfig
from minnow.core.errors import CapacityError, ConfigError
from minnow.core.units import parse_bytes, show_bytes
from minnow.engine import policy
from minnow.parallel.mesh import Mesh

_CPU_CACHE_BYTES = 4 << 30  # unless asked for more: a CPU's memory is shared with other programs
_CHUNK_BYTES = 512 << 20  # what the reference operations hold at once


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
        return self.num_sequences(self.max_model_len)

    def num_sequences(self, num_tokens_each: int, watermark: float = 0.0) -> int:
        """Sequences of a length that are admitted side by side beneath a watermark."""
        return self.num_usable_blocks(watermark) // -(-num_tokens_each // self.block_size)

    def num_usable_blocks(self, watermark: float = 0.0) -> int:
        """Blocks that sequences may take beneath a watermark; each takes whole ones."""
        return max(self.num_blocks - 1 - policy.num_reserved_blocks(watermark, self.num_blocks), 0)


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


def weights_bytes(model: ModelConfig, drafter: DrafterConfig | None, mesh: Mesh) -> int:
    """Bytes of the weights on the fullest rank of a mesh, a drafter's among them."""
    ranks = ranks_of(mesh)
    return size.measure(model, ranks=ranks).num_bytes + size.drafter_bytes(drafter, ranks)


def ranks_of(mesh: Mesh) -> Ranks:
    """How weights split over a mesh."""
    return Ranks(tp=mesh.ranks_of("tp"), ep=mesh.ranks_of("ep"))


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


def most_bytes(config: EngineConfig, layout: BlockLayout) -> int:
    """Bytes that the cache gets on a CPU at most, unless more are asked for: 4 GiB, or one sequence of full length."""
    return max(_CPU_CACHE_BYTES, (-(-config.max_model_len // layout.block_size) + 1) * layout.row_bytes)


def _num_drafts(config: EngineConfig) -> int:
    return config.speculative_config.num_speculative_tokens if config.speculative_config.method else 0


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
