"""StepPlan, StepResult, TokenOutput: what travels between mind and muscle"""

from dataclasses import dataclass
from typing import Literal

from minnow.core.request import SamplingParams

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowStart:
    """A sequence takes a row. A resumed sequence starts anew, with all the tokens it has.

    Attributes:
        row: the sequence's fixed place on the device.
        token_ids: prompt and, after a preemption, the tokens generated before it.
        num_prompt_tokens: [0, num_prompt_tokens) of token_ids is the prompt (penalties tell them apart).
        num_computed_tokens: [0, num_computed_tokens) has K/V already, from the prefix cache.
        stop_token_ids: every id that ends the sequence; the sampler masks them before min_tokens.
        seed: random numbers are a function of (seed, position) alone.
        adapter_slot: LoRA slot of the row; 0 is none.
    """

    row: int
    request_id: str
    token_ids: tuple[int, ...]
    num_prompt_tokens: int
    num_computed_tokens: int
    sampling: SamplingParams
    stop_token_ids: tuple[int, ...]
    seed: int
    adapter_slot: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBlocks:
    """Blocks appended to a row's table."""

    row: int
    block_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowStep:
    """One row's part of a step: the tokens at positions [start, start + num_tokens).

    Attributes:
        num_drafts: how many of num_tokens, the last ones, are drafts to verify.
        num_lookahead_slots: drafts to make after the step at most; slots past the tokens are allocated for them.
        num_prompt_logprobs: from so many tokens, the first ones, the prompt's next token is to be scored.
        is_sampling: the last token's logits yield a token; False for a prefill chunk that is not the last.
    """

    row: int
    start: int
    num_tokens: int
    num_drafts: int = 0
    num_lookahead_slots: int = 0
    num_prompt_logprobs: int = 0
    is_sampling: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """All that a rank needs to run one step, in order: stops, starts, blocks, then rows.

    Preempted sequences are stops; nothing in a plan points at a tensor.
    """

    step: int
    stops: tuple[int, ...] = ()
    starts: tuple[RowStart, ...] = ()
    blocks: tuple[RowBlocks, ...] = ()
    rows: tuple[RowStep, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """Log-probabilities of one token, drawn or of the prompt: its own, its rank, and the likeliest ones.

    Natural logarithms of the distribution before temperature (raw), clipped to finite values.
    """

    logprob: float
    rank: int  # 1 is the likeliest
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RowResult:
    """What a row yielded: no token (an unfinished prefill chunk) or 1 to 1 + drafts.

    Attributes:
        prompt_logprobs: as many as its RowStep asks for: of the prompt's tokens from position start + 1 on.
        num_drafts: that were made for the next step.
        confidences: of each of them, how likely it is kept if those before it are; empty where nobody asks.
        error: set where the row failed alone, for example "logits are not finite"; others go on.
    """

    row: int
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    num_drafts: int = 0
    confidences: tuple[float, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The answer to one StepPlan: one RowResult for each of its rows, in its order."""

    step: int
    rows: tuple[RowResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenOutput:
    """What a request gained in a step.

    Attributes:
        token_ids: new tokens; a stop token that ended the sequence is included.
        prompt_logprobs: where asked for, of every token of the prompt but the first; in the first output. None where
            the request ends before its prompt is computed.
        finish_reason: None while it runs.
        stop_token_id: the token that ended it, when finish_reason is "stop".
        num_cached_tokens: prompt tokens that the prefix cache had; in the first output.
        queued_s: from its arrival at the scheduler to its first step; in the first output.
        num_preemptions: how often it has given its blocks up so far.
        error: one sentence, when finish_reason is "error".
    """

    request_id: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    num_cached_tokens: int = 0
    queued_s: float = 0.0
    num_preemptions: int = 0
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Abort:
    """The client no longer wants this request."""

    request_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """A named operation applied between steps: "reset_prefix_cache", later adapters and weights."""

    control_id: int
    name: str
    arguments: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlReply:
    """The answer to a Control of the same id."""

    control_id: int
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """The engine's gauges and counters since its start.

    Attributes:
        computed_tokens: by committed steps; those of preempted sequences count each time.
        num_drafts: rounds of verification; num_draft_tokens: drafts that they looked at.
        accepted_per_position: rounds that kept the draft of a position.
    """

    num_running: int = 0
    num_waiting: int = 0
    num_blocks: int = 0
    num_free_blocks: int = 0
    prefix_queries_tokens: int = 0
    prefix_hits_tokens: int = 0
    num_preemptions: int = 0
    num_errors: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    computed_tokens: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    accepted_per_position: tuple[int, ...] = ()
