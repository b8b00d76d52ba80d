"""SpeculativeConfig: how drafts are made and verified"""

from dataclasses import dataclass
from typing import Annotated, Literal

from minnow.config.drafter import DrafterConfig
from minnow.config.field import Field
from minnow.core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeConfig:
    """Drafts: who makes them, and how they are verified. Keys and defaults are vLLM's."""

    method: Annotated[
        Literal["", "dspark"], Field("kind of drafter; without one, what the model's own drafter proposes")
    ] = ""
    model: Annotated[str, Field("directory of the drafter; empty is dspark/ in the model's directory")] = ""
    num_speculative_tokens: Annotated[
        int, Field("drafts at once; 0 is as many as the drafter makes", "tokens", at_least=0)
    ] = 0
    draft_sample_method: Annotated[
        Literal["greedy", "probabilistic"],
        Field("greedy drafts the likeliest tokens; probabilistic draws them, with the request's own settings"),
    ] = "greedy"
    rejection_sample_method: Annotated[
        Literal["standard", "block", "synthetic"],
        Field("standard looks at drafts one by one, block at all together; synthetic is for minnow bench alone"),
    ] = "standard"
    enable_adaptive_verification: Annotated[
        bool, Field("verify as many drafts as pay, by the drafter's confidence and what steps cost here")
    ] = False
    kv_cache_dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "fp8"],
        Field("format of the drafter's K and V; auto is fp8 where the model's are fp8 or nvfp4, else theirs"),
    ] = "auto"
    attention_backend: Annotated[
        Literal["", "FLASHINFER_TS", "TRITON_ATTN", "FLASHINFER", "FLASH_ATTN"],
        Field("read for recipes' sake; --kernel-backends chooses the backend of each operation"),
    ] = ""
    synthetic_acceptance_length: Annotated[
        float, Field("tokens of a round on average, the model's own included; 0 is not given", "tokens", at_least=0.0)
    ] = 0.0


def check(
    config: SpeculativeConfig,
    drafter: DrafterConfig | None,
    *,
    origin: str = "--speculative-config",
    is_bench: bool = False,
) -> None:
    """Refuse what cannot be, before any weight is read.

    Args:
        config: that asks for drafts.
        drafter: the one found; None where there is none.
        origin: who asks: the flag, or the drafter's own file.
        is_bench: only `minnow bench` may accept drafts whatever they are.

    Raises:
        ConfigError: names the key, its value, and what would do.
    """
    count = config.num_speculative_tokens
    if drafter is None:
        raise ConfigError(
            f"{origin} has method {config.method}, but the model's directory bundles no drafter (dspark/); "
            'name one with "model", or leave it out'
        )
    if count > drafter.block_size:
        raise ConfigError(
            f"{origin} has num_speculative_tokens {count}; this drafter was trained to make "
            f"{drafter.block_size} at once, set at most that"
        )
    is_synthetic = config.rejection_sample_method == "synthetic"
    if is_synthetic and not is_bench:
        raise ConfigError(
            f"{origin} has rejection_sample_method synthetic, which keeps drafts whatever they are; "
            "only minnow bench may, set standard or block"
        )
    length = config.synthetic_acceptance_length
    if is_synthetic and not 1 <= length <= (count or drafter.block_size) + 1:
        raise ConfigError(
            f"{origin} has synthetic_acceptance_length {length:g}; it must be 1 to {(count or drafter.block_size) + 1}"
        )
    if config.enable_adaptive_verification and (is_synthetic or not drafter.has_confidence_head):
        why = "drafts are kept whatever they are" if is_synthetic else "this drafter has no confidence head"
        raise ConfigError(f"{origin} has enable_adaptive_verification, but {why}; leave it out")
    if length and not is_synthetic:
        raise ConfigError(
            f"{origin} has a synthetic_acceptance_length, but rejection_sample_method is "
            f"{config.rejection_sample_method}; leave it out"
        )
