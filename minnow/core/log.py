"""one structured logger (event name and key=value pairs)"""

import sys
import time
from typing import TextIO

from minnow.core import env
from minnow.core.errors import ConfigError

_LEVELS = ("debug", "info", "warning", "error")


class Logger:
    """Writes one line an event: time, level, part, event, key=value pairs."""

    def __init__(self, part: str, *, stream: TextIO | None = None, level: str | None = None) -> None:
        """Make one for a part of the program.

        Args:
            part: named in every line.
            stream: where lines go; None is stderr.
            level: the least one that is written; None asks MINNOW_LOG.

        Raises:
            ConfigError: there is no such level.
        """
        level = env.read("MINNOW_LOG") if level is None else level
        if level not in _LEVELS:
            raise ConfigError(f"MINNOW_LOG is {level!r}; it can be {', '.join(_LEVELS[:-1])} or {_LEVELS[-1]}")
        self._part = part
        self._stream = stream
        self._least = _LEVELS.index(level)

    def _write(self, level: str, event: str, pairs: dict[str, object]) -> None:
        if _LEVELS.index(level) < self._least:
            return
        words = " ".join(f"{key}={_show(value)}" for key, value in pairs.items())
        clock = time.strftime("%H:%M:%S")
        print(f"{clock} {level} {self._part}: {event} {words}".rstrip(), file=self._stream or sys.stderr, flush=True)

    def debug(self, event: str, **pairs: object) -> None:
        """Of use to someone who reads the code."""
        self._write("debug", event, pairs)

    def info(self, event: str, **pairs: object) -> None:
        """Of use to the operator."""
        self._write("info", event, pairs)

    def warning(self, event: str, **pairs: object) -> None:
        """Works, but not as asked."""
        self._write("warning", event, pairs)

    def error(self, event: str, **pairs: object) -> None:
        """Does not work."""
        self._write("error", event, pairs)


def _show(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    return repr(text) if " " in text or not text else text
