"""tokens of a request to text: whatever a step yields, the same text, offsets and reasons"""

import pytest

from minnow.core.request import SamplingParams
from minnow.core.step import TokenOutput
from minnow.text.continuation import Continuation, Gain
from tests.server.ask import BYTES, END_ID, spell

WORDS = "ABC DEF GHI JKL"


def run(
    ids: list[int], tokens_a_step: int, sampling: SamplingParams | None = None, **how: object
) -> tuple[str, list[int], Gain]:
    """The text, the offsets and the last gain of a request that draws some ids."""
    continuation = Continuation(BYTES, (1,), sampling or SamplingParams(), **how)  # type: ignore[arg-type]
    text = ""
    offsets: list[int] = []
    for start in range(0, len(ids), tokens_a_step):
        step = tuple(ids[start : start + tokens_a_step])
        is_last = start + tokens_a_step >= len(ids)
        is_stop = is_last and ids[-1] == END_ID
        gain = continuation.take(
            TokenOutput(
                request_id="r",
                token_ids=step,
                finish_reason="stop" if is_stop else "length" if is_last else None,
                stop_token_id=END_ID if is_stop else None,
            )
        )
        text += gain.text
        offsets += gain.offsets
        if gain.finish_reason is not None:
            break
    assert continuation.num_tokens == len(offsets)
    return text, offsets, gain


@pytest.mark.parametrize("tokens_a_step", [1, 2, 3, 7, 50])
@pytest.mark.parametrize(
    ("how", "min_tokens", "text", "reason", "num_tokens"),
    [
        ({}, 0, WORDS, None, 16),
        ({"stops": ["DEF"]}, 0, "ABC ", "DEF", 7),
        ({"stops": ["DEF"], "includes_stop": True}, 0, "ABC DEF", "DEF", 7),
        ({"stops": ["DEF", "L"]}, 6, WORDS[:-1], "L", 15),
        ({"stops": ["JKLM"]}, 0, WORDS, None, 16),
        ({"skips_special": False}, 0, WORDS, None, 16),
        ({"skips_special": False, "includes_stop": True}, 0, f"{WORDS}<|end|>", None, 16),
    ],
)
def test_text_and_reason(
    tokens_a_step: int, how: dict[str, object], min_tokens: int, text: str, reason: str | None, num_tokens: int
) -> None:
    got, offsets, last = run(spell(WORDS), tokens_a_step, SamplingParams(min_tokens=min_tokens), **how)
    assert got == text
    assert offsets == list(range(num_tokens))
    assert (last.finish_reason, last.stop_reason) == ("stop", reason)


@pytest.mark.parametrize("tokens_a_step", [1, 2, 50])
def test_ids_beyond_the_vocabulary_yield_no_text(tokens_a_step: int) -> None:
    a, b = spell("ab")[:-1]
    text, offsets, last = run([a, 299, b, 10**6], tokens_a_step)
    assert (text, offsets, last.finish_reason) == ("ab", [0, 1, 1, 2], "length")


def test_a_stop_token_that_was_asked_for_is_named() -> None:
    _, _, last = run(spell("a"), 1, SamplingParams(stop_token_ids=(END_ID or 0,)))
    assert last.stop_reason == END_ID
