"""case D03: characters split over tokens come out whole, and nothing is lost"""

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Built
from tokenizers import decoders, models

from minnow.text.detokenize import Detokenizer
from minnow.text.tokenizer import Tokenizer
from tests import tiny
from tests.text.lines import varied

GAP = "\ufffd"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    directory = tmp_path_factory.mktemp("words")
    tiny.write_tiny_tokenizer(directory)
    return Tokenizer.load(directory)


def streamed(tokenizer: Tokenizer, ids: list[int], prompt: list[int]) -> tuple[list[str], str]:
    detokenizer = Detokenizer(tokenizer, prompt)
    return [detokenizer.step(i) for i in ids], detokenizer.flush()


def test_whole_characters_come_with_their_last_byte(tokenizer: Tokenizer) -> None:
    pieces, rest = streamed(tokenizer, list("\xe9\u4f60\U0001f44dx".encode()), [])
    assert pieces == ["", "\xe9", "", "", "\u4f60", "", "", "", "\U0001f44d", "x"]
    assert rest == ""


def test_text_that_ends_inside_a_character_says_so_only_in_the_flush(tokenizer: Tokenizer) -> None:
    pieces, rest = streamed(tokenizer, list("ok \U0001f44d".encode())[:-1], list(b"prompt"))
    assert "".join(pieces) == "ok "
    assert rest == GAP


def test_varied_lines_cut_anywhere(tokenizer: Tokenizer) -> None:
    chance = random.Random(3)
    for line in varied(400, seed=2):
        ids = list(line.encode())
        prompt, ids = ids[: (cut := chance.randint(0, len(ids)))], ids[cut:][:200]
        pieces, rest = streamed(tokenizer, ids, prompt)
        assert "".join(pieces) + rest == tokenizer.decode(ids)
        whole = all(GAP not in piece for piece in pieces)
        assert whole or tokenizer.decode(prompt).endswith(GAP) or GAP in line


@given(ids=st.lists(st.integers(0, 258), max_size=60), prompt=st.lists(st.integers(0, 258), max_size=12))
def test_any_ids_give_the_decoded_text(tokenizer: Tokenizer, ids: list[int], prompt: list[int]) -> None:
    """Invalid bytes and control tokens among them."""
    pieces, rest = streamed(tokenizer, ids, prompt)
    assert "".join(pieces) + rest == tokenizer.decode(ids)


def test_a_real_replacement_character_is_text(tokenizer: Tokenizer) -> None:
    pieces, rest = streamed(tokenizer, list(f"a{GAP}b{GAP}".encode()), [])
    assert "".join(pieces) + rest == f"a{GAP}b{GAP}"


def test_control_tokens_are_shown_when_asked_for(tokenizer: Tokenizer) -> None:
    hidden, shown = Detokenizer(tokenizer, []), Detokenizer(tokenizer, [], skip_special_tokens=False)
    assert hidden.step(tiny.EOS_TOKEN_ID) == ""
    assert shown.step(tiny.EOS_TOKEN_ID) == "<|im_end|>"


def test_ids_beyond_the_vocabulary_are_no_text(tokenizer: Tokenizer) -> None:
    pieces, rest = streamed(tokenizer, [ord("a"), 261, 10**6, ord("b")], [ord("x"), 261])
    assert (pieces, rest) == (["a", "", "", "b"], "")


def test_flush_twice_adds_nothing(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(tokenizer, [])
    detokenizer.step(0xF0)
    assert detokenizer.flush() == GAP
    assert detokenizer.flush() == ""


def test_bytes_that_are_no_text_are_not_held_for_ever(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(tokenizer, [])
    pieces = [detokenizer.step(0x80) for _ in range(100)]
    assert len("".join(pieces)) >= 80


def test_the_prompt_decides_on_the_first_blank(tmp_path: Path) -> None:
    """A SentencePiece decoder drops the blank before the first word of a text, not of a continuation."""
    built = Built(models.BPE({"\u2581hi": 0, "\u2581you": 1}, []))
    built.decoder = decoders.Metaspace()
    built.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.load(tmp_path)
    assert Detokenizer(tokenizer, [0]).step(1) == " you"
    assert Detokenizer(tokenizer, []).step(1) == "you"
