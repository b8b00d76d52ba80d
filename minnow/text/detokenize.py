"""Detokenizer: text as its tokens come, never half a character"""

from collections.abc import Sequence

from tokenizers.decoders import DecodeStream

from minnow.text.tokenizer import Tokenizer

# A character has at most four bytes. More tokens held than this are no character in the making but bytes that
# are none; letting go keeps a step's cost from growing with them.
_MAX_HELD_TOKENS = 16
_CONTEXT_TOKENS = 8
_REPLACEMENT = "\ufffd"


class Detokenizer:
    """Turns the tokens of one generation into text, piece by piece.

    All pieces and the flush together are the decoded text of all tokens. No piece holds U+FFFD for a character
    that the next token would have completed; only `flush` says U+FFFD for one that stayed incomplete. Ids beyond
    the tokenizer's vocabulary are no text; models that pad their vocabularies have such.

    Args:
        tokenizer: the model's.
        prompt_ids: what the generation continues; the last few decide on a blank before the first word.
        skip_special_tokens: leave control tokens out of the text.
    """

    def __init__(self, tokenizer: Tokenizer, prompt_ids: Sequence[int], skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        context = [i for i in prompt_ids[-_CONTEXT_TOKENS:] if i < tokenizer.vocab_size]
        if self._decode(context).endswith(_REPLACEMENT):  # a prompt cut inside a character
            context = []
        self._context = context  # of the text to come; decodes to whole characters
        self._held: list[int] = []  # tokens since, whose text is not certain yet
        self._stream = self._new_stream()

    def step(self, token_id: int) -> str:
        """The text that this token makes certain; often one word, sometimes nothing."""
        if token_id >= self._tokenizer.vocab_size or (self._skip and token_id in self._tokenizer.special_ids):
            return ""
        piece = self._tokenizer.stream_step(self._stream, token_id)
        self._held.append(token_id)
        if piece is not None:
            self._context, self._held = self._held, []
            return piece
        return self.flush() if len(self._held) >= _MAX_HELD_TOKENS else ""

    def flush(self) -> str:
        """What is still held back: bytes that became no whole character, as U+FFFD."""
        before = self._decode(self._context)
        text = self._decode([*self._context, *self._held])[len(before) :]
        self._context, self._held = [], []
        self._stream = self._new_stream()
        return text

    def _new_stream(self) -> DecodeStream:
        return DecodeStream(ids=list(self._context), skip_special_tokens=self._skip)

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=self._skip)
