"""how a side of a comparison is asked: a line of JSON in, a line of JSON out (standard library only)

A side is a process that has its model loaded and waits. It prints {"ready": version} first. Each question names a
work, its size and the settings to run it with; the answer is {"seconds": ...} of one repetition, or {"error": ...}.
"""

import json
import os
import random
import sys
from collections.abc import Callable
from typing import Any, TextIO

Work = Callable[[dict[str, Any]], float]


def take_stdout() -> TextIO:
    """Keep standard output for answers alone; what libraries print goes where errors go. Call it before imports."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


def serve(answers: TextIO, version: str, works: dict[str, Work]) -> None:
    """Answer questions until there are no more.

    Args:
        version: of the software that is measured.
        works: name -> runs one repetition and gives its seconds.
    """
    _say(answers, {"ready": version})
    for line in sys.stdin:
        question = json.loads(line)
        try:
            answer: dict[str, Any] = {"seconds": works[question["work"]](question)}
        except Exception as error:  # whatever a library raises is the answer; the table shows it
            answer = {"error": f"{type(error).__name__}: {error}".split("\n")[0]}
        _say(answers, answer)


def prompt(num_tokens: int, seed: int) -> list[int]:
    """Token ids that every side gets alike; none of them is a control token of the demo.

    Prompts of two lengths have nothing in common: a prefix that is known would be no work.
    """
    numbers = random.Random(f"{num_tokens} {seed}")
    return [numbers.randrange(100, 40_000) for _ in range(num_tokens)]


def _say(answers: TextIO, words: dict[str, Any]) -> None:
    answers.write(json.dumps(words) + "\n")
    answers.flush()
