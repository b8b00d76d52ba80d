"""what the answers to a prompt give back of it: its text, its tokens and their log-probabilities"""

from collections.abc import Sequence

from minnow.core.step import TokenLogprobs
from minnow.server.logprob import Token
from minnow.server.prompt import Prompt, text_of
from minnow.text.detokenize import Detokenizer
from minnow.text.tokenizer import Tokenizer


class Echo:
    """Shared by all choices of a prompt, so that they give back the same.

    Args:
        prompt: what is continued.
        tokenizer: the model's.
        has_text: each choice begins with the text of the prompt.
        has_logprobs: the log-probabilities of its tokens are asked for.

    Attributes:
        text: comes before what a choice draws; empty unless asked for.
    """

    def __init__(self, prompt: Prompt, tokenizer: Tokenizer, *, has_text: bool, has_logprobs: bool) -> None:
        self.text = ""
        if has_text:
            self.text = text_of(prompt.token_ids, tokenizer) if prompt.text is None else prompt.text
        offsets = _offsets(prompt.token_ids, self.text, tokenizer) if has_logprobs else []
        self._places = list(zip(prompt.token_ids, offsets, strict=False))
        self._tokens: tuple[Token, ...] = ()

    def take(self, logprobs: Sequence[TokenLogprobs]) -> tuple[Token, ...]:
        """The prompt's tokens, where they are asked for; scored by whichever choice comes first.

        Args:
            logprobs: that the engine found for a choice, from the second token on; none where it ended too early.
        """
        if not self._tokens and len(logprobs) == len(self._places) - 1:
            scored = zip(self._places, (None, *logprobs), strict=True)
            self._tokens = tuple(
                Token(token_id=token_id, offset=offset, logprobs=found) for (token_id, offset), found in scored
            )
        return self._tokens


def _offsets(token_ids: Sequence[int], text: str, tokenizer: Tokenizer) -> list[int]:
    """Characters of a text before each of its tokens.

    Tokens that were put before the text, such as one that begins every prompt, stand at 0.
    """
    detokenizer = Detokenizer(tokenizer, (), skip_special_tokens=False)
    offsets, num_chars = [], 0
    for token_id in token_ids:
        offsets.append(num_chars)
        num_chars += len(detokenizer.step(token_id))
    num_added = num_chars + len(detokenizer.flush()) - len(text)
    return [min(max(offset - num_added, 0), len(text)) for offset in offsets]
