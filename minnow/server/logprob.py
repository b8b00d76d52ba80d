"""log-probabilities in the shapes of both APIs"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from minnow.core.step import TokenLogprobs
from minnow.server.schema.chat import ChatLogprobs, TokenLogprob, TopLogprob
from minnow.server.schema.completions import CompletionLogprobs, PromptLogprob
from minnow.text.tokenizer import Tokenizer

# JSON has no infinity; vLLM writes the same number.
LOWEST = -9999.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A token of an answer or of its prompt, as far as log-probabilities need it.

    Attributes:
        offset: characters of the choice's text before it.
        logprobs: None for the first token of a prompt, as nothing comes before it.
    """

    token_id: int
    offset: int
    logprobs: TokenLogprobs | None


def to_chat(tokens: Sequence[Token], tokenizer: Tokenizer) -> ChatLogprobs:
    """The chat API's shape: a list of tokens, each with its raw bytes."""
    return ChatLogprobs(
        content=[
            TokenLogprob(
                token=_spelling(token.token_id, tokenizer),
                logprob=max(LOWEST, token.logprobs.logprob),
                bytes=list(_raw_bytes(token.token_id, tokenizer)),
                top_logprobs=[_top(token_id, logprob, tokenizer) for token_id, logprob in token.logprobs.top],
            )
            for token in tokens
            if token.logprobs is not None
        ]
    )


def to_completion(tokens: Sequence[Token], num_top: int, tokenizer: Tokenizer) -> CompletionLogprobs:
    """The completion API's shape: lists by kind; the token itself is always among the likeliest.

    Args:
        num_top: likeliest tokens to list; there may be more.
    """

    def likeliest(token_id: int, found: TokenLogprobs) -> dict[str, float]:
        pairs = (*found.top[:num_top], (token_id, found.logprob))
        return {_spelling(each, tokenizer): max(LOWEST, logprob) for each, logprob in pairs}

    return CompletionLogprobs(
        text_offset=[token.offset for token in tokens],
        token_logprobs=[None if (found := token.logprobs) is None else max(LOWEST, found.logprob) for token in tokens],
        tokens=[_spelling(token.token_id, tokenizer) for token in tokens],
        top_logprobs=[
            None if (found := token.logprobs) is None else likeliest(token.token_id, found) for token in tokens
        ],
    )


def to_prompt(tokens: Sequence[Token], num_top: int, tokenizer: Tokenizer) -> list[dict[str, PromptLogprob] | None]:
    """The shape of vLLM's `prompt_logprobs`: for each token of the prompt, itself and the likeliest, by id.

    Args:
        num_top: likeliest tokens to list; there may be more.
    """

    def entries(token_id: int, found: TokenLogprobs) -> dict[str, PromptLogprob]:
        ranked = enumerate(found.top[:num_top], start=1)
        triples = [(token_id, found.logprob, found.rank), *((each, logprob, rank) for rank, (each, logprob) in ranked)]
        return {
            str(each): PromptLogprob(logprob=max(LOWEST, logprob), rank=rank, decoded_token=_spelling(each, tokenizer))
            for each, logprob, rank in triples
        }

    return [None if (found := token.logprobs) is None else entries(token.token_id, found) for token in tokens]


def _top(token_id: int, logprob: float, tokenizer: Tokenizer) -> TopLogprob:
    return TopLogprob(
        token=_spelling(token_id, tokenizer),
        logprob=max(LOWEST, logprob),
        bytes=list(_raw_bytes(token_id, tokenizer)),
    )


def _raw_bytes(token_id: int, tokenizer: Tokenizer) -> bytes:
    """A token's bytes; none for rows of the model that its tokenizer has no word for."""
    return tokenizer.token_bytes(token_id) if token_id < tokenizer.vocab_size else b""


@lru_cache(maxsize=1 << 16)
def _spelling(token_id: int, tokenizer: Tokenizer) -> str:
    """A token as text; one that is no whole character as its bytes, so that two of them never look the same."""
    raw = _raw_bytes(token_id, tokenizer)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
