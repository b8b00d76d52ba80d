"""minnow chat: talk with a model in the terminal"""

import argparse
import importlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

from minnow.cli.generate import add_sampling_arguments, sampling_of
from minnow.config import flags, load
from minnow.core.errors import ConfigError, MinnowError, RequestError
from minnow.core.request import SamplingParams

if TYPE_CHECKING:
    from minnow.llm import LLM

HELP = "talk with a model in the terminal"

_WORDS = "/reset forgets the conversation, /exit leaves"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--system", metavar="TEXT", default="", help="the system message")
    add_sampling_arguments(parser, temperature=None, max_tokens=None)
    flags.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Read messages line by line until /exit or the end of the input; works in a pipe, too."""
    config = load.load(args).config
    if not config.model:
        raise ConfigError("minnow chat needs a model: minnow chat MODEL")
    sampling_of(args)  # refuses before a model is loaded
    from minnow.llm import LLM  # only now: it loads torch

    llm = LLM(config)
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        importlib.import_module("readline")  # line editing and history at the prompt
    if is_terminal:
        print(_WORDS)
    chat = Chat(llm, args.system, sampling_of(args, llm.sampling_defaults), args.stop, sys.stdout)
    return talk(chat, _ask if is_terminal else sys.stdin.readline, is_patient=is_terminal)


def _ask() -> str:
    try:
        return input("> ") + "\n"
    except EOFError:
        print()
        return ""


class Chat:
    """A conversation: its messages, and the model that answers.

    Args:
        system: the system message; empty has none.
        out: where answers are written as they come.
    """

    def __init__(self, llm: "LLM", system: str, sampling: SamplingParams, stop: list[str], out: TextIO) -> None:
        self._llm = llm
        self._first = [{"role": "system", "content": system}] if system else []
        self._sampling = sampling
        self._stop = stop
        self._out = out
        self.messages = list(self._first)

    def reset(self) -> None:
        """Forget everything but the system message."""
        self.messages = list(self._first)

    def say(self, text: str) -> None:
        """Send a message and write the answer. An interrupt ends the answer; what came of it is kept.

        Raises:
            RequestError: it cannot be served; the conversation stays as it was.
            MinnowError: the step failed.
        """
        messages = [*self.messages, {"role": "user", "content": text}]
        ids = self._llm.render(messages).token_ids
        answer = ""
        pieces = self._llm.stream([ids], self._sampling, stop=self._stop)
        try:
            for piece in pieces:
                answer += piece.text
                self._write(piece.text)
                if piece.output is not None and piece.output.outputs[0].error is not None:
                    raise MinnowError(piece.output.outputs[0].error)
        except KeyboardInterrupt:
            pieces.close()
        finally:
            if answer:
                self._write("\n")
        self.messages = [*messages, {"role": "assistant", "content": answer}]

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


def talk(chat: Chat, read_line: Callable[[], str], *, is_patient: bool) -> int:
    """Read lines until /exit or an empty read.

    Args:
        is_patient: after a message that cannot be served, say why and go on; else the error is raised.
    """
    while line := read_line():
        text = line.strip()
        if text == "/exit":
            return 0
        if text == "/reset":
            chat.reset()
        elif text.startswith("/"):
            print(f"minnow: no command is called {text.split()[0]}; {_WORDS}", file=sys.stderr)
        elif text:
            try:
                chat.say(text)
            except RequestError as error:
                if not is_patient:
                    raise
                print(f"minnow: {error}; {_WORDS}", file=sys.stderr)
    return 0
