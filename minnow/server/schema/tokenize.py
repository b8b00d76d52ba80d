"""wire types of /tokenize and /detokenize, as vLLM has them"""

from typing import Any

import msgspec

from minnow.server.schema.chat import ChatMessage
from minnow.server.schema.completions import Int64


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """The body of a tokenize request: a prompt or messages, not both.

    Attributes:
        add_special_tokens: the tokens that the model wants around plain text; None puts them around a prompt, not
            around messages, whose template writes them.
        return_token_strs: also answer with each token as the vocabulary writes it.
    """

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class TokenizeResponse(msgspec.Struct, kw_only=True):
    """Token ids and how many; max_model_len is in tokens."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """The body of a detokenize request."""

    tokens: list[Int64]
    model: str | None = None


class DetokenizeResponse(msgspec.Struct, kw_only=True):
    """The text of some tokens, control tokens included."""

    prompt: str
