"""log-probabilities in the shapes of both APIs"""

from collections.abc import Sequence

from minnow.server.generate import Token
from minnow.server.schema.chat import ChatLogprobs, TokenLogprob, TopLogprob
from minnow.server.schema.completions import CompletionLogprobs
from minnow.text.tokenizer import Tokenizer

# JSON has no infinity; vLLM writes the same number.
LOWEST = -9999.0


def to_chat(tokens: Sequence[Token], tokenizer: Tokenizer) -> ChatLogprobs:
    """The chat API's shape: a list of tokens, each with its raw bytes."""
    return ChatLogprobs(
        content=[
            TokenLogprob(
                token=_spell(raw := _raw_bytes(token.token_id, tokenizer)),
                logprob=max(LOWEST, token.logprobs.logprob),
                bytes=list(raw),
                top_logprobs=[_top(token_id, logprob, tokenizer) for token_id, logprob in token.logprobs.top],
            )
            for token in tokens
        ]
    )


def to_completion(tokens: Sequence[Token], tokenizer: Tokenizer) -> CompletionLogprobs:
    """The completion API's shape: lists by kind; the drawn token is always among the likeliest."""
    drawn = [(token.token_id, token.logprobs.logprob) for token in tokens]
    return CompletionLogprobs(
        text_offset=[token.offset for token in tokens],
        token_logprobs=[max(LOWEST, logprob) for _, logprob in drawn],
        tokens=[_spell(_raw_bytes(token_id, tokenizer)) for token_id, _ in drawn],
        top_logprobs=[
            {
                _spell(_raw_bytes(token_id, tokenizer)): max(LOWEST, logprob)
                for token_id, logprob in (*token.logprobs.top, (token.token_id, token.logprobs.logprob))
            }
            for token in tokens
        ],
    )


def _top(token_id: int, logprob: float, tokenizer: Tokenizer) -> TopLogprob:
    raw = _raw_bytes(token_id, tokenizer)
    return TopLogprob(token=_spell(raw), logprob=max(LOWEST, logprob), bytes=list(raw))


def _raw_bytes(token_id: int, tokenizer: Tokenizer) -> bytes:
    """A token's bytes; none for rows of the model that its tokenizer has no word for."""
    return tokenizer.token_bytes(token_id) if token_id < tokenizer.vocab_size else b""


def _spell(raw: bytes) -> str:
    """A token as text; one that is no whole character as its bytes, so that two of them never look the same."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
