"""EngineConfig: holds the above; cross-checks between them live here"""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from minnow.config.cache import CacheConfig, CacheFormat
from minnow.config.field import Field
from minnow.config.kernel import KernelConfig
from minnow.config.model import ModelConfig
from minnow.config.parallel import ParallelConfig
from minnow.config.scheduler import SchedulerConfig
from minnow.config.server import ServerConfig
from minnow.config.speculative import SpeculativeConfig
from minnow.core.errors import ConfigError

_NVFP4_BLOCK = 16  # values that one NVFP4 scale covers


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionConfig:
    """Choices inside the sparse attention."""

    indexer_kv_dtype: Annotated[CacheFormat, Field("format of the index keys; auto follows K and V")] = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """The model, and what holds for all of the engine."""

    model: Annotated[str, Field("directory of the checkpoint, or a name such as smollm2-135m")] = ""
    dtype: Annotated[
        Literal["auto", "bfloat16", "float32"], Field("type of the activations; auto takes the model's")
    ] = "auto"
    max_model_len: Annotated[int, Field("longest prompt plus output; 0 takes the model's", "tokens", at_least=0)] = 0
    seed: Annotated[int, Field("seed of requests that bring none")] = 0
    generation_config: Annotated[
        Literal["auto", "vllm"],
        Field("what a request leaves out: auto asks the model's generation_config.json, vllm is neutral"),
    ] = "auto"
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    kernel: KernelConfig = field(default_factory=KernelConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    attention_config: Annotated[
        AttentionConfig, Field("""sparse attention, as JSON: '{"indexer_kv_dtype": "nvfp4"}'""")
    ] = field(default_factory=AttentionConfig)
    speculative_config: Annotated[
        SpeculativeConfig,
        Field("""drafts, as JSON: '{"method": "dspark", "num_speculative_tokens": 3}'"""),
    ] = field(default_factory=SpeculativeConfig)
    dense: Annotated[bool, Field("attend to every key, also in layers whose index heads would choose blocks")] = False
    speculation: Annotated[bool, Field("draft with the model's own drafter, where it proposes how")] = True


def check(config: EngineConfig, model: ModelConfig) -> None:
    """Refuse settings that cannot work together or with the model, before any weight is read.

    Args:
        config: with every "auto" resolved (`load.resolve_auto`).

    Raises:
        ConfigError: every problem in one message; each names the flag to change, the value and what would do.
    """
    found = problems(config, model)
    if found:
        raise ConfigError("; ".join(found))


def problems(config: EngineConfig, model: ModelConfig) -> tuple[str, ...]:
    """What `check` refuses, one sentence each."""
    return (*_parallel_problems(config), *_cache_problems(config, model), *_length_problems(config, model))


def _parallel_problems(config: EngineConfig) -> list[str]:
    found = []
    ranks, replicas = config.parallel.tensor_parallel_size, config.parallel.data_parallel_size
    if ranks > 1:
        found.append(f"--tensor-parallel-size is {ranks}; an engine runs on one device for now, leave it out")
    if replicas > 1:
        found.append(f"--data-parallel-size is {replicas}; an engine runs as one replica for now, leave it out")
    return found


def _cache_problems(config: EngineConfig, model: ModelConfig) -> list[str]:
    found = []
    is_sparse = any(model.sparse.is_sparse)
    if is_sparse and config.cache.block_size != model.sparse.block_size:
        found.append(
            f"--block-size is {config.cache.block_size}; the sparse attention of this model needs "
            f"{model.sparse.block_size}, set that or leave it out"
        )
    if config.cache.num_gpu_blocks_override == 1:
        found.append("--num-gpu-blocks-override is 1; the first block is never used, set 2 or more")
    if config.cache.block_size < 1:
        found.append("--block-size is 0 after loading; set 128")
    if config.cache.kv_cache_dtype == "nvfp4" and model.head_dim % _NVFP4_BLOCK:
        found.append(_width_problem("--kv-cache-dtype", "head_dim", model.head_dim))
    if is_sparse and config.attention_config.indexer_kv_dtype == "nvfp4" and model.sparse.index_dim % _NVFP4_BLOCK:
        found.append(_width_problem("--attention-config.indexer_kv_dtype", "sparse_index_dim", model.sparse.index_dim))
    return found


def _width_problem(flag: str, name: str, width: int) -> str:
    return f"{flag} is nvfp4, but {name} is {width}, no multiple of {_NVFP4_BLOCK}; set fp8 or bfloat16"


def _length_problems(config: EngineConfig, model: ModelConfig) -> list[str]:
    found = []
    if config.max_model_len > model.max_position_embeddings:
        found.append(
            f"--max-model-len is {config.max_model_len}; the model was made for "
            f"{model.max_position_embeddings} tokens, set at most that"
        )
    return found
