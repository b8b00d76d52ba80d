"""ControlTokens: which texts are control tokens, and names for them that nobody can type"""

import re
import secrets
from collections.abc import Iterable

import tokenizers
from tokenizers import AddedToken


class ControlTokens:
    """The control tokens of a tokenizer.

    Every added token that shows something is one. Whether the tokenizer calls it special does not matter: markers of
    tool calls and of reasoning often are not, as they must survive decoding. Added tokens that are blank (some
    vocabularies have runs of spaces there) are words like any other.

    A text is sealed when its control tokens stand under secret names, new ones for every tokenizer. `twin` reads a
    sealed text: a name becomes the token, and the text of a control token is ordinary text. So one text can hold
    both, and is otherwise encoded as ever: in one piece, cut where the tokenizer itself would cut it.

    Not covered: a control token that the model's own vocabulary spells as one piece, or that the tokenizer's
    normalizer makes of another text. Byte-level vocabularies, split by their pre-tokenizer, have neither.

    Args:
        tokenizer: the one whose tokens these are.

    Attributes:
        twin: shares the vocabulary; ids go through `restore`.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        added = sorted(tokenizer.get_added_tokens_decoder().items())
        control = {token.content: token_id for token_id, token in added if token.content.strip()}
        nonce = secrets.token_hex(16)
        self._sealed = {text: f"\ue000{nonce}.{token_id}\ue001" for text, token_id in control.items()}
        alternatives = "|".join(map(re.escape, sorted(control, key=len, reverse=True))) or "(?!)"
        self._whole = re.compile(alternatives)
        self._starts = re.compile(f"(?={alternatives})")
        self._longest = max(map(len, control), default=0)
        self._heads = {text[:k] for text in control for k in range(1, len(text))}
        self._tails = {text[-k:] for text in control for k in range(1, len(text))}
        self.twin = tokenizers.Tokenizer(tokenizer.model)
        for part in ("normalizer", "pre_tokenizer", "post_processor"):
            if getattr(tokenizer, part) is not None:
                setattr(self.twin, part, getattr(tokenizer, part))
        # Those that the vocabulary lacks come first, in order: so they get the ids that they have, which the
        # post-processor writes, too. The names of the others get new ids, beyond all that exist.
        for _, token in sorted(added, key=lambda item: tokenizer.model.token_to_id(item[1].content) is not None):
            self.twin.add_tokens([self._renamed(token)])
        self._id_by_twin_id = {self.twin.token_to_id(name): control[text] for text, name in self._sealed.items()}

    def _renamed(self, token: AddedToken) -> AddedToken:
        name = self._sealed.get(token.content)
        if name is None:
            return token
        return AddedToken(name, lstrip=token.lstrip, rstrip=token.rstrip, normalized=False, special=token.special)

    def restore(self, twin_ids: Iterable[int]) -> list[int]:
        """Ids of the tokenizer for those of its twin."""
        return [self._id_by_twin_id.get(i, i) for i in twin_ids]

    def seal(self, text: str) -> str:
        """Write all control tokens of a text under their secret names."""
        return self._whole.sub(lambda match: self._sealed[match[0]], text)

    def first_in(self, text: str) -> str | None:
        """The first control token that a text spells out."""
        match = self._whole.search(text)
        return match[0] if match else None

    def spots(self, text: str) -> set[int]:
        """Positions of characters without which no control token could begin or end in this text.

        It may spell one out, begin one that the text after it completes, or complete one that began before it. Blanks
        around it are ignored, as it may be trimmed.
        """
        spots = {match.start() for match in self._starts.finditer(text)} if self._whole.search(text) else set()
        end = len(text.rstrip())
        start = min(len(text) - len(text.lstrip()), end)
        for k in range(1, min(self._longest, end - start + 1)):
            if text[end - k : end] in self._heads:
                spots.add(end - k)
            if text[start : start + k] in self._tails:
                spots.add(start + k - 1)
        return spots
