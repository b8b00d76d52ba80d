"""a conversation -> its text and token ids; what a person types never acts as a control token"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minnow.core.errors import RequestError
from minnow.text.control import ControlTokens
from minnow.text.template import ChatTemplate
from minnow.text.tokenizer import Tokenizer

# Whose words may hold control tokens. System and developer messages are the operator's own. An assistant message is
# what the model said: its marks meant what they mean, and unless they are encoded as they were drawn, the prefix
# cache misses. Everybody else is quoted.
_TRUSTED_ROLES = ("system", "developer", "root", "assistant")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """A conversation as the model reads it.

    Attributes:
        text: what the chat template makes of it.
    """

    text: str
    token_ids: tuple[int, ...]


def render(
    messages: Sequence[Mapping[str, Any]],
    template: ChatTemplate,
    tokenizer: Tokenizer,
    *,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    add_special_tokens: bool = False,
    variables: Mapping[str, Any] | None = None,
) -> Rendered:
    """Render messages with a chat template and encode them.

    The text of control tokens in messages of users and tools is encoded as ordinary text; the template's own become
    the tokens. To tell the two apart, the messages are rendered a second time with one character of each typed
    control token replaced by a private one. That must give the same text; where the template looks into messages
    (tests how one starts, escapes it) so that it does not, the request is refused. Also covered is what only begins or
    ends a control token at the edge of a message; that is never refused. Not covered are templates that make control
    tokens of a message: by changing its letters, by cutting one off in the middle, or by writing one around it.

    Args:
        messages: objects with role and content, as in the chat API.
        add_generation_prompt: end with the words that make the model answer.
        continue_final_message: end within the last message, so that the model goes on with it.
        add_special_tokens: put the tokenizer's own start around it; most templates write it themselves.
        variables: more names for the template.

    Raises:
        RequestError: the template refuses the messages, or cannot keep typed control tokens apart; or the last message
            cannot be continued.
    """
    mark = f"\ue002{secrets.token_hex(16)}\ue002"
    if continue_final_message:
        messages = _marked(messages, mark, add_generation_prompt=add_generation_prompt)

    def say(messages: Sequence[Mapping[str, Any]]) -> str:
        text = template.render(messages, add_generation_prompt=add_generation_prompt, variables=variables)
        if not continue_final_message:
            return text
        if text.count(mark) != 1:
            words = "the chat template does not show the last message once, as it is; it cannot be continued"
            raise RequestError(words, param="continue_final_message")
        return text[: text.index(mark)]

    text = say(messages)
    token_ids = _encode_apart(messages, say, text, tokenizer, add_special_tokens=add_special_tokens)
    if token_ids is None:
        token_ids = tokenizer.encode(text, add_special_tokens=add_special_tokens)
    return Rendered(text=text, token_ids=tuple(token_ids))


def _marked(
    messages: Sequence[Mapping[str, Any]], mark: str, *, add_generation_prompt: bool
) -> Sequence[Mapping[str, Any]]:
    """The messages with a mark where the last one ends."""
    if add_generation_prompt:
        words = "continue_final_message needs add_generation_prompt: false; an answer cannot begin and go on"
        raise RequestError(words, param="continue_final_message")
    *others, last = messages
    if last.get("role") != "assistant" or not isinstance(last.get("content"), str) or last.get("tool_calls"):
        words = "continue_final_message needs a last message of the assistant, of text alone"
        raise RequestError(words, param="continue_final_message")
    return [*others, {**last, "content": last["content"] + mark}]


def _encode_apart(
    messages: Sequence[Mapping[str, Any]],
    say: Callable[[Sequence[Mapping[str, Any]]], str],
    text: str,
    tokenizer: Tokenizer,
    *,
    add_special_tokens: bool,
) -> list[int] | None:
    """Token ids with typed control tokens as ordinary text; None where there is nothing to keep apart."""
    control = tokenizer.control
    shield = _Shield(control, text)
    shielded = [m if m.get("role") in _TRUSTED_ROLES else shield.cover(m) for m in messages]
    if not shield.is_used:
        return None
    said = say(shielded)
    if shield.lift(said) == text:
        sealed = shield.lift(control.seal(said))
        return tokenizer.encode(sealed, add_special_tokens=add_special_tokens, parse_special_tokens=False)
    if shield.typed is None:
        return None
    raise RequestError(
        f"a message holds {shield.typed!a}, which is a control token of this model, and the chat template changes "
        "such a message so that it cannot be kept apart; leave it out",
        param="messages",
    )


class _Shield:
    """Replaces single characters of control tokens in messages by private ones, and puts them back.

    Args:
        text: has none of the private characters.

    Attributes:
        is_used: something was replaced.
        typed: a control token that a message spells out whole.
    """

    def __init__(self, control: ControlTokens, text: str) -> None:
        self.is_used = False
        self.typed: str | None = None
        self._control = control
        self._text = text
        self._private: dict[str, str] = {}  # character -> its stand-in
        self._next = 0xF0000 + secrets.randbelow(0x8000)  # a private plane has 65,534 of them

    def cover(self, value: Any) -> Any:
        """A message, or a part of one, without control tokens."""
        if isinstance(value, str):
            return self._cover_text(value)
        if isinstance(value, Mapping):
            return {key: item if key in ("role", "type") else self.cover(item) for key, item in value.items()}
        return [self.cover(item) for item in value] if isinstance(value, list | tuple) else value

    def lift(self, text: str) -> str:
        """The text with the characters put back."""
        return text.translate({ord(private): character for character, private in self._private.items()})

    def _cover_text(self, text: str) -> str:
        spots = self._control.spots(text)
        if not spots:
            return text
        self.is_used = True
        self.typed = self.typed or self._control.first_in(text)
        return "".join(self._stand_in(c) if i in spots else c for i, c in enumerate(text))

    def _stand_in(self, character: str) -> str:
        if character not in self._private:
            while chr(self._next) in self._text:
                self._next += 1
            self._private[character] = chr(self._next)
            self._next += 1
        return self._private[character]
