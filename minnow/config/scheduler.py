"""SchedulerConfig: what runs in a step"""

from dataclasses import dataclass
from typing import Annotated, Literal

from minnow.config.field import Field


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """What runs in a step, and in which order."""

    max_num_batched_tokens: Annotated[int, Field("tokens of all sequences in one step", "tokens", at_least=1)] = 512
    max_num_seqs: Annotated[int, Field("sequences in one step", "sequences", at_least=1)] = 64
    long_prefill_token_threshold: Annotated[
        int, Field("longest prefill chunk of one request when others wait; 0 is off", "tokens", at_least=0)
    ] = 0
    scheduler_reserve_full_isl: Annotated[bool, Field("admit a request only when its whole prompt fits")] = True
    watermark: Annotated[
        float, Field("share of the blocks kept free when admitting beside others", at_least=0.0, at_most=1.0)
    ] = 0.0
    scheduling_policy: Annotated[Literal["fcfs", "priority"], Field("order of waiting requests")] = "fcfs"
