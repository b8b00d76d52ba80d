"""a conversation in the terminal"""

import io
from collections.abc import Generator, Sequence
from typing import Any

import pytest

from minnow.cli.chat import Chat, talk
from minnow.core.errors import RequestError
from minnow.core.request import SamplingParams
from minnow.text.conversation import Rendered


class _Piece:
    def __init__(self, text: str) -> None:
        self.text = text
        self.output = None


class _Echo:
    """Answers with its prompt in capitals, a letter at a time; refuses "bad", is interrupted at "!"."""

    def __init__(self) -> None:
        self.is_closed = False

    def render(self, messages: Sequence[dict[str, str]]) -> Rendered:
        text = "|".join(f"{message['role'][0]}:{message['content']}" for message in messages)
        return Rendered(text=text, token_ids=tuple(text.encode()))

    def stream(
        self, prompts: list[tuple[int, ...]], sampling: object, *, stop: list[str]
    ) -> Generator[_Piece, None, None]:
        text = bytes(prompts[0]).decode()
        if text.endswith("bad"):
            raise RequestError("the prompt is bad", param="prompt")
        try:
            for letter in text.upper():
                if letter == "!":
                    raise KeyboardInterrupt
                yield _Piece(letter)
        finally:
            self.is_closed = True


def _talk(*lines: str, system: str = "", is_patient: bool = False) -> tuple[Chat, str, int]:
    out = io.StringIO()
    llm: Any = _Echo()
    chat = Chat(llm, system, SamplingParams(), [], out)
    status = talk(chat, iter([f"{line}\n" for line in lines] + [""]).__next__, is_patient=is_patient)
    assert llm.is_closed or not chat.messages or chat.messages[-1]["role"] == "system"
    return chat, out.getvalue(), status


def test_history_is_sent_with_every_message() -> None:
    chat, out, status = _talk("one", "", "two")
    assert (out, status) == ("U:ONE\nU:ONE|A:U:ONE|U:TWO\n", 0)
    assert [message["role"] for message in chat.messages] == ["user", "assistant"] * 2


def test_reset_keeps_the_system_message() -> None:
    chat, out, _ = _talk("one", "/reset", "two", system="be short")
    assert out == "S:BE SHORT|U:ONE\nS:BE SHORT|U:TWO\n"
    assert chat.messages[0] == {"role": "system", "content": "be short"}


def test_exit_leaves_the_rest_unread() -> None:
    assert _talk("one", "/exit", "two")[1] == "U:ONE\n"


def test_an_interrupt_ends_the_answer_and_keeps_what_came() -> None:
    chat, out, _ = _talk("go!on", "/exit")
    assert out == "U:GO\n"
    assert chat.messages[-1] == {"role": "assistant", "content": "U:GO"}


def test_in_a_pipe_a_bad_message_is_an_error() -> None:
    with pytest.raises(RequestError, match="bad"):
        _talk("bad")


def test_in_a_terminal_a_bad_message_is_said_and_forgotten(capsys: pytest.CaptureFixture[str]) -> None:
    chat, out, _ = _talk("one", "bad", "two", "/what", is_patient=True)
    assert out == "U:ONE\nU:ONE|A:U:ONE|U:TWO\n"
    assert [message["content"] for message in chat.messages if message["role"] == "user"] == ["one", "two"]
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("minnow: the prompt is bad; /reset")
    assert lines[1].startswith("minnow: no command is called /what; /reset")
