"""Tokenizer: text to token ids and back, from a checkpoint's tokenizer.json"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers.decoders import DecodeStream

from minnow.core.errors import CheckpointError, RequestError
from minnow.text import byte_level
from minnow.text.control import ControlTokens

# a SentencePiece vocabulary's stand-in for a blank
_BLANK = "\u2581"


class Tokenizer:
    """The vocabulary of a model; safe to use from several threads.

    Args:
        source: the JSON text of a tokenizer.json.

    Attributes:
        vocab_size: one more than the highest id.
        special_ids: ids of the special tokens, which `decode` leaves out.
        control: the control tokens, special or not.
    """

    def __init__(self, source: str) -> None:
        self._tokenizer = tokenizers.Tokenizer.from_str(source)
        self._added = {i: token for i, token in self._tokenizer.get_added_tokens_decoder().items()}
        decoder = self._tokenizer.decoder
        self._is_byte_level = decoder is not None and _names_type(json.loads(decoder.__getstate__()), "ByteLevel")
        self.vocab_size = max(self._tokenizer.get_vocab().values(), default=-1) + 1
        self.special_ids = frozenset(i for i, token in self._added.items() if token.special)
        self.control = ControlTokens(self._tokenizer)

    @classmethod
    def load(cls, directory: Path) -> Tokenizer:
        """Read `tokenizer.json` of a checkpoint directory.

        Raises:
            CheckpointError: the file is missing or broken.
        """
        path = directory / "tokenizer.json"
        if not path.is_file():
            raise CheckpointError(f"{path} does not exist; a model needs its tokenizer.json beside its weights")
        try:
            return cls(path.read_text(encoding="utf-8"))
        except Exception as error:  # the tokenizers package raises plain Exception
            raise CheckpointError(f"{path} is no tokenizer: {error}") from None

    def encode(self, text: str, *, add_special_tokens: bool = False, parse_special_tokens: bool = True) -> list[int]:
        """Token ids of a text.

        Args:
            text: what to encode.
            add_special_tokens: put the tokens around it that the model wants at the start of plain text; a rendered
                chat template has them already.
            parse_special_tokens: read the text of a control token as that token; False keeps a person's words from
                acting as one, and takes only what `control.seal` wrote.

        Raises:
            RequestError: half of a surrogate pair, which is no text.
        """
        tokenizer = self._tokenizer if parse_special_tokens else self.control.twin
        try:
            # the batch form gives other threads their turn while a long text is encoded; the plain one does not
            ids = tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        except (UnicodeEncodeError, TypeError):
            raise RequestError("the text holds half of a surrogate pair, which is no character") from None
        return list(ids) if parse_special_tokens else self.control.restore(ids)

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """The text of token ids; bytes that are no UTF-8 become U+FFFD.

        Raises:
            RequestError: an id outside the vocabulary.
        """
        ids = list(ids)
        for token_id in ids:
            self._check(token_id)
        # in a batch, for the same reason as in `encode`
        return self._tokenizer.decode_batch([ids], skip_special_tokens=skip_special_tokens)[0]

    def token_bytes(self, token_id: int) -> bytes:
        """The raw bytes of one token, be they whole characters or not.

        Raises:
            RequestError: an id outside the vocabulary.
        """
        self._check(token_id)
        if token_id in self._added:
            return self._added[token_id].content.encode()
        token = self._tokenizer.id_to_token(token_id) or ""
        if self._is_byte_level:
            raw = byte_level.to_bytes(token)
            return token.encode() if raw is None else raw
        if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            return bytes.fromhex(token[3:5])
        return token.replace(_BLANK, " ").encode()

    def id_of(self, token: str) -> int | None:
        """The id of a token as the vocabulary writes it, or None."""
        return self._tokenizer.token_to_id(token)

    def token_of(self, token_id: int) -> str:
        """The token as the vocabulary writes it; byte-level ones have an alphabet of their own.

        Raises:
            RequestError: an id outside the vocabulary.
        """
        self._check(token_id)
        return self._tokenizer.id_to_token(token_id) or ""

    def stream_step(self, stream: DecodeStream, token_id: int) -> str | None:
        """Feed one id to a decode stream; the text that became whole, if any."""
        return stream.step(self._tokenizer, token_id)

    def _check(self, token_id: int) -> None:
        if not 0 <= token_id < self.vocab_size:
            raise RequestError(f"token id {token_id} is outside the vocabulary; ids are 0 to {self.vocab_size - 1}")


def _names_type(node: Any, name: str) -> bool:
    """Whether a part of a tokenizer.json, or one inside it, is of that type."""
    if isinstance(node, dict):
        return node.get("type") == name or any(_names_type(value, name) for value in node.values())
    return isinstance(node, list) and any(_names_type(value, name) for value in node)
