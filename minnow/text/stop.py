"""StopMatcher: end a text at the first stop string, whatever the pieces it comes in"""

from collections.abc import Iterable

from minnow.core.errors import RequestError

MAX_STOPS = 16
MAX_STOP_CHARS = 1_000


class StopMatcher:
    """Finds stop strings in a text that arrives in pieces; the server and `minnow.LLM` both use it.

    Feed `step` with the new text of each token. It returns what may be shown now and, once, the stop string
    that was completed; the generation is then to be aborted, and later text to be ignored. Where the
    generation ends by itself, `flush` returns what was held back.

    The string that is complete first wins; of two that end together, the longer. So the result does not depend on
    how the text was cut. Only a suffix that is a true prefix of a stop string is held back.

    Args:
        stops: the stop strings; may be empty, none of them may.
        include: the shown text ends with the stop string instead of before it.

    Raises:
        RequestError: an empty stop string, one longer than `MAX_STOP_CHARS`, or more than `MAX_STOPS` of them.
    """

    def __init__(self, stops: Iterable[str], include: bool = False) -> None:
        self._stops = tuple(stops)
        self._include = include
        self._held = ""
        self._is_done = False
        if any(not stop for stop in self._stops):
            raise RequestError("stop holds an empty string; leave it out", param="stop")
        if len(self._stops) > MAX_STOPS:
            raise RequestError(f"stop holds {len(self._stops)} strings; at most {MAX_STOPS} are allowed", param="stop")
        longest = max(map(len, self._stops), default=0)
        if longest > MAX_STOP_CHARS:
            words = f"stop holds a string of {longest:,} characters; at most {MAX_STOP_CHARS:,} are allowed"
            raise RequestError(words, param="stop")

    def step(self, text: str) -> tuple[str, str | None]:
        """Take new text; return the text to show now and the stop string it completed, or None."""
        if self._is_done:
            return "", None
        self._held += text
        found = [(self._held.find(stop), stop) for stop in self._stops]
        ends = [(start + len(stop), start, stop) for start, stop in found if start >= 0]
        if ends:
            end, start, stop = min(ends)
            shown = self._held[: end if self._include else start]
            self._is_done, self._held = True, ""
            return shown, stop
        cut = len(self._held) - self._num_open()
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown, None

    def flush(self) -> str:
        """The text held back, when no more will come; empty after a match."""
        held, self._held = self._held, ""
        return held

    def _num_open(self) -> int:
        """Characters at the end that may be the beginning of a stop string."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for num_chars in range(min(longest, len(self._held)), 0, -1):
            suffix = self._held[-num_chars:]
            if any(len(stop) > num_chars and stop.startswith(suffix) for stop in self._stops):
                return num_chars
        return 0
