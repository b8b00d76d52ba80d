"""wire types of /v1/chat/completions; names as OpenAI and vLLM have them"""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from minnow.server.schema.completions import Int64, PromptLogprob, StreamOptions, Usage


class ContentPart(msgspec.Struct, kw_only=True):
    """A piece of a message; only text is served, so the payloads of other kinds are not read."""

    type: str
    text: str | None = None


class FunctionCall(msgspec.Struct, kw_only=True):
    """The function of a tool call; arguments are JSON in a string."""

    name: str
    arguments: str = ""


class ToolCall(msgspec.Struct, kw_only=True):
    """A tool call that an assistant message of the history made."""

    function: FunctionCall
    id: str | None = None
    type: Literal["function"] = "function"


class ChatMessage(msgspec.Struct, kw_only=True):
    """One message of the conversation; what this server answers with can be sent back as it is."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None


class ChatRequest(msgspec.Struct, kw_only=True):
    """The body of a chat request."""

    messages: list[ChatMessage]
    model: str | None = None
    max_tokens: Int64 | None = None
    max_completion_tokens: Int64 | None = None
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
    logprobs: bool | None = None
    top_logprobs: Int64 | None = None
    prompt_logprobs: Int64 | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    priority: Int64 | None = None
    cache_salt: str | None = None
    echo: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class TopLogprob(msgspec.Struct, kw_only=True):
    """A token that could have been drawn; `bytes` are its own, also when they are no whole character."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct, kw_only=True):
    """A token that was drawn, and the likeliest at its place."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, kw_only=True):
    """Log-probabilities of a choice's tokens, in order."""

    content: list[TokenLogprob]


class AnswerMessage(msgspec.Struct, kw_only=True):
    """What the model said."""

    content: str
    role: str = "assistant"


class ChatChoice(msgspec.Struct, kw_only=True):
    """One of n answers."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None


class ChatResponse(msgspec.Struct, kw_only=True):
    """The answer to a chat request that does not stream; `prompt_logprobs` are absent unless asked for."""

    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | UnsetType = UNSET
    object: str = "chat.completion"


class DeltaMessage(msgspec.Struct, kw_only=True):
    """What is new in a chunk; the role comes with a choice's first one only."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, kw_only=True):
    """What is new in one of n answers."""

    index: int
    delta: DeltaMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None


class ChatChunk(msgspec.Struct, kw_only=True):
    """One event of a streamed answer; `usage` is absent unless the client asked for it."""

    id: str
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    object: str = "chat.completion.chunk"
