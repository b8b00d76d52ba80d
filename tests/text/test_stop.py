"""stop strings across any cut of the text"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minnow.core.errors import RequestError
from minnow.text.stop import StopMatcher


def _stream(pieces: list[str], stops: list[str], include: bool = False) -> tuple[list[str], str | None]:
    matcher = StopMatcher(stops, include)
    shown: list[str] = []
    for piece in pieces:
        text, matched = matcher.step(piece)
        shown.append(text)
        if matched is not None:
            assert matcher.flush() == ""
            return shown, matched
    return [*shown, matcher.flush()], None


def _cuts(text: str) -> list[list[str]]:
    return [[text[i : i + n] for i in range(0, len(text), n)] for n in (1, 2, 3, 5, 7, len(text))]


@pytest.mark.parametrize("pieces", _cuts("ABC DEF GHI JKL"))
def test_text_ends_before_the_stop_string_at_any_cut(pieces: list[str]) -> None:
    shown, matched = _stream(pieces, ["DEF GHI"])
    assert ("".join(shown), matched) == ("ABC ", "DEF GHI")


def test_included_once() -> None:
    shown, matched = _stream(list("ABC DEF GHI JKL"), ["DEF GHI"], include=True)
    assert ("".join(shown), matched) == ("ABC DEF GHI", "DEF GHI")


@pytest.mark.parametrize("pieces", _cuts("ABC DEF GHI JKL"))
def test_of_stops_that_begin_alike_the_first_complete_one_wins(pieces: list[str]) -> None:
    shown, matched = _stream(pieces, ["DEF GHI JKL", "DEF", "DEF GHI", "XYZ"])
    assert ("".join(shown), matched) == ("ABC ", "DEF")


@pytest.mark.parametrize("pieces", _cuts("ABC DEF GHI JKL"))
def test_of_stops_that_end_together_the_longer_wins(pieces: list[str]) -> None:
    shown, matched = _stream(pieces, ["GHI", "DEF GHI"])
    assert ("".join(shown), matched) == ("ABC ", "DEF GHI")


def test_only_a_true_prefix_is_held_back() -> None:
    matcher = StopMatcher(["</end>"])
    assert matcher.step("a long text <") == ("a long text ", None)
    assert matcher.step("/e") == ("", None)
    assert matcher.step("x") == ("</ex", None)
    assert matcher.step("y") == ("y", None)


def test_what_was_held_back_comes_out_at_the_end() -> None:
    shown, matched = _stream(["say </", "en"], ["</end>"])
    assert ("".join(shown), matched) == ("say </en", None)


def test_repeating_prefix() -> None:
    shown, matched = _stream(list("aaaab"), ["aab"])
    assert ("".join(shown), matched) == ("aa", "aab")


def test_without_stops_everything_passes() -> None:
    assert _stream(["ab", "c"], []) == (["ab", "c", ""], None)


def test_nothing_after_a_match() -> None:
    matcher = StopMatcher(["."])
    assert matcher.step("a.b") == ("a", ".")
    assert matcher.step("c.") == ("", None)


def test_empty_stop_is_refused() -> None:
    with pytest.raises(RequestError, match="empty"):
        StopMatcher(["a", ""])


def test_too_many_stops_are_refused() -> None:
    with pytest.raises(RequestError, match="17"):
        StopMatcher([str(i) for i in range(17)])


@given(
    text=st.text("abc", max_size=20),
    stops=st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
    cut=st.integers(1, 5),
    include=st.booleans(),
)
def test_any_cut_gives_the_same_result(text: str, stops: list[str], cut: int, include: bool) -> None:
    whole, matched = _stream(list(text), stops, include)
    pieces = [text[i : i + cut] for i in range(0, len(text), cut)]
    shown, matched_too = _stream(pieces, stops, include)
    assert ("".join(shown), matched_too) == ("".join(whole), matched)
    expected = min(((text.find(s) + len(s), text.find(s)) for s in stops if s in text), default=None)
    if expected is None:
        assert ("".join(whole), matched) == (text, None)
    else:
        assert "".join(whole) == text[: expected[0 if include else 1]]
