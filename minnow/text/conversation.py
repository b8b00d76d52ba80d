"""a conversation -> its text and token ids; what a person types never acts as a control token"""

import secrets
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from minnow.core.errors import RequestError
from minnow.text.control import ControlTokens
from minnow.text.template import ChatTemplate
from minnow.text.tokenizer import Tokenizer

# System and developer messages are the operator's own: their control tokens act. An assistant message is what the model
# said: its markers that decoding shows meant what they mean, and unless they are encoded as they were drawn, the prefix
# cache misses. Special tokens are never shown, so one that stands there was spelled as text. Everybody else is quoted.
_TRUSTED_ROLES = ("system", "developer", "root")


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

    The text of control tokens in messages of users and tools and in variables is encoded as ordinary text, and in
    messages of the assistant that of special ones; the template's own become the tokens. To tell the two apart, the
    messages are rendered a second time with the characters that control tokens begin and end with replaced by private
    ones. That must give the same text; where the template looks into messages (tests how one starts, escapes it) so
    that it does not, the request is refused if it spells a control token out, and else encoded as it is. Not covered
    are templates that make control tokens of a message, by changing its letters or by writing one around it, and a
    special token that stands in two places of the assistant's which the template writes side by side.

    Args:
        messages: objects with role and content, as in the chat API.
        add_generation_prompt: end with the words that make the model answer.
        continue_final_message: end within the last message, so that the model goes on with it.
        add_special_tokens: put the tokenizer's own start around it; most templates write it themselves.
        variables: more names for the template.

    Raises:
        RequestError: the template refuses the messages, or cannot keep typed control tokens apart; they are nested too
            deeply; or the last message cannot be continued.
    """
    mark = f"\ue002{secrets.token_hex(16)}\ue002"
    if continue_final_message:
        messages = _marked(messages, mark, add_generation_prompt=add_generation_prompt)

    def say(messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]) -> str:
        text = template.render(messages, add_generation_prompt=add_generation_prompt, variables=variables)
        if not continue_final_message:
            return text
        if text.count(mark) != 1:
            words = "the chat template does not show the last message once, as it is; it cannot be continued"
            raise RequestError(words, param="continue_final_message")
        return text[: text.index(mark)]

    try:
        text = say(messages, variables or {})
        sealed = _sealed(messages, variables or {}, say, text, tokenizer.control)
    except RecursionError:
        raise RequestError("the messages are nested too deeply", param="messages") from None
    token_ids = tokenizer.encode(
        text if sealed is None else sealed, add_special_tokens=add_special_tokens, parse_special_tokens=sealed is None
    )
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


def _sealed(
    messages: Sequence[Mapping[str, Any]],
    variables: Mapping[str, Any],
    say: Callable[[Sequence[Mapping[str, Any]], Mapping[str, Any]], str],
    text: str,
    control: ControlTokens,
) -> str | None:
    """The text with only those control tokens sealed that nobody typed; None where there is nothing to keep apart."""
    shield = _Shield(control, text)
    covered = [m if m.get("role") in _TRUSTED_ROLES else shield.cover_message(m) for m in messages]
    holder, param = (
        ("a template variable", "chat_template_kwargs") if shield.typed is None else ("a message", "messages")
    )
    covered_variables = {name: shield.cover(value) for name, value in variables.items()}
    if shield.stand_ins:
        with suppress(RequestError):  # the template may refuse what is covered
            said = say(covered, covered_variables)
            if shield.lift(said) == text:
                return shield.lift(control.seal(said))
    if shield.typed is None:
        return None
    raise RequestError(
        f"{holder} holds {shield.typed!a}, which is a control token of this model, and the chat template changes such "
        "a text so that it cannot be kept apart; leave it out",
        param=param,
    )


class _Shield:
    """Replaces characters of control tokens in messages by private ones, and puts them back.

    Args:
        text: has none of the private characters.

    Attributes:
        stand_ins: the private character for each that was replaced.
        typed: a control token that what was covered spells out whole.
    """

    def __init__(self, control: ControlTokens, text: str) -> None:
        self.stand_ins: defaultdict[str, str] = defaultdict(_private_characters(text).__next__)
        self.typed: str | None = None
        self._control = control

    def cover_message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """A message without control tokens."""
        is_answer = message.get("role") == "assistant"
        return {key: item if key == "role" else self.cover(item, is_answer) for key, item in message.items()}

    def cover(self, value: Any, is_answer: bool = False) -> Any:
        """A value, its keys too, without control tokens; of the model's answer, without special ones."""
        if isinstance(value, Mapping):
            return {self.cover(key, is_answer): self.cover(item, is_answer) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.cover(item, is_answer) for item in value]
        if not isinstance(value, str):
            return value
        typed = (self._control.special if is_answer else self._control.every).search(value)
        self.typed = self.typed or (typed and typed[0])
        if is_answer:
            return self._control.special_starts.sub(lambda match: self.stand_ins[match[0]], value) if typed else value
        for character in self._control.ends:
            value = value.replace(character, self.stand_ins[character]) if character in value else value
        return value

    def lift(self, text: str) -> str:
        """The text with the characters put back."""
        for character, private in self.stand_ins.items():
            text = text.replace(private, character)
        return text


def _private_characters(text: str) -> Iterator[str]:
    """Characters of the private planes that a text has not, from any one on."""
    taken = {character for character in text if character >= "\U000f0000"}
    start = secrets.randbelow(0x20000)
    yield from (c for i in range(0x20000) if (c := chr(0xF0000 + (start + i) % 0x20000)) not in taken)
    raise RequestError("the messages hold nearly all private characters; leave some out", param="messages")
