"""wire types of /v1/completions, and those that both generating endpoints share"""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

# Larger ones would break arithmetic on floats, and mean nothing.
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


class StreamOptions(msgspec.Struct, kw_only=True):
    """What a stream carries besides text.

    Attributes:
        include_usage: a last chunk without choices holds the totals.
        continuous_usage_stats: with include_usage, every chunk holds the numbers so far.
    """

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class PromptTokensDetails(msgspec.Struct, kw_only=True):
    """Where the prompt's tokens came from."""

    cached_tokens: int


class Usage(msgspec.Struct, kw_only=True):
    """Tokens of a request; a prompt counts once, whatever the number of choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class CompletionRequest(msgspec.Struct, kw_only=True):
    """The body of a completion request; a prompt is text or token ids, one or several."""

    prompt: str | list[str | Int64 | list[Int64]]
    model: str | None = None
    max_tokens: Int64 | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Int64 | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[Int64] | None = None
    min_tokens: Int64 | None = None
    ignore_eos: bool | None = None
    seed: Int64 | None = None
    n: Int64 | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[Int64] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    logprobs: Int64 | None = None
    prompt_logprobs: Int64 | None = None
    echo: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    priority: Int64 | None = None
    cache_salt: str | None = None
    add_special_tokens: bool | None = None


class CompletionLogprobs(msgspec.Struct, kw_only=True):
    """Log-probabilities of a choice's tokens, with echo those of its prompt first; four lists of equal length.

    A token that is no whole character by itself is written as "bytes:" and its bytes, for example
    "bytes:\\xe4\\xb8". `text_offset` counts the characters of the choice's text before the token. The first token of a
    prompt has no log-probabilities.
    """

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class PromptLogprob(msgspec.Struct, kw_only=True):
    """A token at a place of the prompt; rank 1 is the likeliest there."""

    logprob: float
    rank: int
    decoded_token: str


class CompletionChoice(msgspec.Struct, kw_only=True):
    """One of the texts, or what is new in it when it streams; `prompt_logprobs` are absent unless asked for."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | UnsetType = UNSET


class CompletionResponse(msgspec.Struct, kw_only=True):
    """The answer to a completion request, or one event of it when it streams."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET
    object: str = "text_completion"
