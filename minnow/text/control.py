"""ControlTokens: which texts are control tokens, and names for them that nobody can type"""

import re
import secrets
from collections.abc import Iterable
from itertools import groupby

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
        every: matches any of them; the longest, where several begin.
        special: matches those that the tokenizer calls special.
        special_starts: matches the first character of each such.
        ends: the characters that they begin and end with; a text without these takes part in none.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        added = sorted(tokenizer.get_added_tokens_decoder().items())
        control = {token.content: token_id for token_id, token in added if token.content.strip()}
        nonce = secrets.token_hex(16)
        self._sealed = {text: f"\ue000{nonce}.{token_id}\ue001" for text, token_id in control.items()}
        special = [token.content for _, token in added if token.special and token.content in control]
        self.ends = frozenset(character for text in control for character in (text.strip()[0], text.strip()[-1]))
        self.every = re.compile(_any_of(list(control)))
        self.special = re.compile(_any_of(special))
        self.special_starts = re.compile(f"(?s)(?={_any_of(special)}).")
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
        return self.every.sub(lambda match: self._sealed[match[0]], text)


def _any_of(texts: list[str]) -> str:
    """A pattern of the longest of some texts; what several begin with is read once, so no text takes long to search."""
    if not any(texts):
        return "" if texts else "(?!)"
    groups = groupby(sorted(filter(None, texts)), key=lambda text: text[0])
    parts = [re.escape(first) + _any_of([text[1:] for text in group]) for first, group in groups]
    return f"(?:{'|'.join(parts)})" + "?" * ("" in texts)
