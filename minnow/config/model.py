"""ModelConfig from a checkpoint's config.json; names unknown fields"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from minnow.core.errors import ConfigError

ARCHITECTURE = "MiniMaxM3SparseForConditionalGeneration"
KNOWN = Path(__file__).parent / "known"


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseConfig:
    """MSA: which layers are sparse and how blocks are chosen.

    Attributes:
        is_sparse: one flag a layer; False is plain causal attention.
        index_dim: width of an index head (J).
        num_index_heads: index query heads (I), one for each key/value head.
        num_blocks: blocks kept for a query (K), the local ones among them.
        block_size: tokens in a block (L).
        num_init_blocks, num_local_blocks: always kept, at the start and at the query.
    """

    is_sparse: tuple[bool, ...]
    index_dim: int = 128
    num_index_heads: int = 4
    num_blocks: int = 16
    block_size: int = 128
    num_init_blocks: int = 0
    num_local_blocks: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """Llama 3's stretched rotary frequencies; lengths in tokens."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizationConfig:
    """How the checkpoint stores its weights.

    Attributes:
        scheme: "none" (BF16), "mxfp8", "mxfp8-nvfp4" (M3.1-Flash), "modelopt-nvfp4", "modelopt-mxfp4",
            or "minnow" (our own conversions, which name the format of each module).
        ignored: module names (prefixes) that stay in BF16.
        format_by_module: for "minnow": module name with "*" for layer and expert numbers -> format.
        kv_cache: format that the keys and values were trained for, or None.
    """

    scheme: Literal["none", "mxfp8", "mxfp8-nvfp4", "modelopt-nvfp4", "modelopt-mxfp4", "minnow"] = "none"
    ignored: tuple[str, ...] = ()
    format_by_module: tuple[tuple[str, str], ...] = ()
    kv_cache: Literal["bfloat16", "fp8", "nvfp4"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionConfig:
    """The vision tower as far as its checkpoint tensors need it."""

    hidden_size: int = 1280
    intermediate_size: int = 5120
    num_hidden_layers: int = 32
    num_channels: int = 3
    patch_size: int = 14
    temporal_patch_size: int = 2
    spatial_merge_size: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The network: names as in config.json, one value a fact.

    A Llama-family model is the same network with other values: no sparse layer, no expert layer,
    `use_gemma_norm` and `use_qk_norm` off, `hidden_act` silu, full rotary, tied head.
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    dense_intermediate_size: int
    intermediate_size: int = 0  # one routed expert
    shared_intermediate_size: int = 0
    num_local_experts: int = 0
    num_experts_per_tok: int = 0
    n_shared_experts: int = 0
    is_moe: tuple[bool, ...]
    use_routing_bias: bool = True
    routed_scaling_factor: float = 1.0
    hidden_act: Literal["swigluoai", "silu"] = "swigluoai"
    swiglu_alpha: float = 1.702
    swiglu_limit: float = 7.0
    swiglu_beta: float = 1.0
    rms_norm_eps: float = 1e-6
    use_gemma_norm: bool = True
    use_qk_norm: bool = True
    use_qk_mix: bool = False  # ours: queries and keys are mixed behind the rotation, so that NVFP4 errs less
    rope_theta: float = 5e6
    rotary_dim: int = 64
    rope_scaling: RopeScaling | None = None
    max_position_embeddings: int = 524288
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    tie_word_embeddings: bool = False
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    num_mtp_modules: int = 0
    sparse: SparseConfig
    quantization: QuantizationConfig = QuantizationConfig()
    vision: VisionConfig | None = None
    projector_hidden_size: int = 0
    unknown_fields: tuple[str, ...] = ()

    @property
    def norm_offset(self) -> float:
        """Added to stored norm weights: 1 in the Gemma form, else 0."""
        return 1.0 if self.use_gemma_norm else 0.0


def without_index(config: ModelConfig) -> ModelConfig:
    """The same network with plain causal attention in every layer."""
    plain = (False,) * config.num_hidden_layers
    return dataclasses.replace(config, sparse=dataclasses.replace(config.sparse, is_sparse=plain))


def read(directory: Path) -> ModelConfig:
    """Read `config.json` of a checkpoint directory.

    Raises:
        ConfigError: the file is missing, no JSON, or describes a network this decoder is not.
    """
    path = directory / "config.json"
    if not path.is_file():
        raise ConfigError(f"{path} does not exist; name a directory that holds a checkpoint")
    return parse(read_object(path))


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object that a file of a checkpoint holds.

    Raises:
        ConfigError: it is no JSON, or no object.
    """
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path} is no JSON: {error}") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{path} holds no JSON object")
    return raw


def known(name: str) -> ModelConfig | None:
    """A published model's config by name ("m3.1-flash") or hub name, or None when it is not known.

    A path is no name, whatever its last part is called.
    """
    bare = name.removeprefix("MiniMaxAI/MiniMax-")
    if "/" in bare:
        return None
    path = KNOWN / f"{known_directory(name).name}.json"
    return parse(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None


def known_names() -> list[str]:
    """Names of the published models."""
    return sorted(path.stem for path in KNOWN.glob("*.json"))


def known_directory(name: str) -> Path:
    """Where the configs lie that a published model's checkpoint bundles, such as its drafter's; it need not exist."""
    return KNOWN / name.rsplit("/", 1)[-1].lower().removeprefix("minimax-")


def parse(raw: Mapping[str, Any]) -> ModelConfig:
    """Turn the JSON object of a config.json into a ModelConfig.

    Raises:
        ConfigError: names the field, its value, and what this decoder can do.
    """
    from minnow.config import model_json

    return model_json.parse(raw)
