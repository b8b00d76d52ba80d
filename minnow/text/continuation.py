"""Continuation: the tokens of one generation to its text, up to a stop string"""

from collections.abc import Iterable
from dataclasses import dataclass

from minnow.core.request import SamplingParams
from minnow.core.step import FinishReason, TokenOutput
from minnow.text.detokenize import Detokenizer
from minnow.text.stop import StopMatcher
from minnow.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """What an output of the engine adds to a continuation.

    Attributes:
        text: what may be shown now.
        offsets: for each token that counts, the characters decoded before it; tokens after a stop string do not count.
        finish_reason: None while more may come; "stop" also where a stop string ends what the engine would go on with.
        stop_reason: the stop string, or the stop token that the client asked for; None for the model's own end.
    """

    text: str
    offsets: tuple[int, ...]
    finish_reason: FinishReason | None
    stop_reason: str | int | None


class Continuation:
    """Makes text of one request's tokens; the server and `minnow.LLM` both use it.

    Nothing that belongs to a stop string is shown before it is certain. Before `min_tokens` tokens no stop string
    counts, and none begins there. Ids beyond the tokenizer's vocabulary (models have padded ones) yield no text.

    Args:
        tokenizer: the model's.
        prompt_ids: what is continued.
        sampling: of the request.
        stops: the stop strings.
        includes_stop: the text ends with the stop string, or stop token, instead of before it.
        skips_special: leave control tokens out of the text.

    Raises:
        RequestError: an empty stop string, or too many of them.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_ids: tuple[int, ...],
        sampling: SamplingParams,
        *,
        stops: Iterable[str] = (),
        includes_stop: bool = False,
        skips_special: bool = True,
    ) -> None:
        self.num_tokens = 0
        self._sampling = sampling
        self._includes_stop = includes_stop
        self._detokenizer = Detokenizer(tokenizer, prompt_ids, skips_special)
        self._matcher = StopMatcher(stops, includes_stop)
        self._num_chars = 0

    def take(self, output: TokenOutput) -> Gain:
        """Take what a step yielded for the request; nothing after the gain that has a finish_reason."""
        shown: list[str] = []
        offsets: list[int] = []
        stop = None
        for position, token_id in enumerate(output.token_ids):
            self.num_tokens += 1
            offsets.append(self._num_chars)
            is_end = output.stop_token_id is not None and position == len(output.token_ids) - 1
            is_hidden = is_end and not self._includes_stop
            text, stop = self._show("" if is_hidden else self._detokenizer.step(token_id))
            shown.append(text)
            if stop is not None:
                break
        if output.finish_reason is not None and stop is None:
            text, stop = self._show(self._detokenizer.flush())
            shown += [text, self._matcher.flush()]
        is_asked = output.stop_token_id is not None and output.stop_token_id in self._sampling.stop_token_ids
        return Gain(
            text="".join(shown),
            offsets=tuple(offsets),
            finish_reason=output.finish_reason if stop is None else "stop",
            stop_reason=stop if stop is not None else output.stop_token_id if is_asked else None,
        )

    def _show(self, text: str) -> tuple[str, str | None]:
        """The text that is certain, and the stop string that it completed."""
        self._num_chars += len(text)
        if self.num_tokens < self._sampling.min_tokens:
            return text, None  # too early to stop, so nothing of this text is part of a stop string
        return self._matcher.step(text)
