"""control tokens are found, sealed and read under their secret names only"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Built

from minnow.text.tokenizer import Tokenizer

CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>")
SENTINELS = ("]<]minimax[>[", "]~b]", "[e~[", "]~!b[", "<mm:think>", "</mm:think>", "<tool_call>")


def byte_level(added: tuple[str, ...], *, spelled: tuple[str, ...] = ()) -> Tokenizer:
    """Single bytes and added tokens, of which those in <|bars|> are special.

    Args:
        spelled: those of them that the vocabulary has, too, before its bytes.
    """
    letters = [*spelled, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    built = Built(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.decoder = decoders.ByteLevel()
    built.add_tokens([AddedToken("    ", normalized=False)])
    for text in added:
        token = AddedToken(text, special="|" in text, normalized=False, rstrip=text == "<|im_start|>")
        built.add_tokens([token])
    built.post_processor = processors.TemplateProcessing(
        single=f"{added[1]} $A", special_tokens=[(added[1], built.token_to_id(added[1]))]
    )
    return Tokenizer(built.to_str())


TOKENIZERS = {
    "chatml": (byte_level(CHATML), CHATML),
    "sentinels": (byte_level(SENTINELS), SENTINELS),
    "chatml, some in the vocabulary": (byte_level(CHATML, spelled=CHATML[::2]), CHATML),
}


def texts(added: tuple[str, ...]) -> st.SearchStrategy[str]:
    """Texts full of control tokens, whole and in pieces."""
    parts = [*added, *(text[:k] for text in added for k in (1, len(text) - 1)), *(text[-2:] for text in added)]
    return st.lists(st.sampled_from([*parts, " ", "    ", "\n", "a", "\u00e9", "\U000f0000"]), max_size=8).map("".join)


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
@settings(deadline=None)
def test_a_sealed_text_is_encoded_as_the_text(name: str, data: st.DataObject) -> None:
    tokenizer, added = TOKENIZERS[name]
    text = data.draw(texts(added))
    sealed = tokenizer.control.seal(text)
    for has_special in (True, False):
        ids = tokenizer.encode(sealed, add_special_tokens=has_special, parse_special_tokens=False)
        assert ids == tokenizer.encode(text, add_special_tokens=has_special)


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
@settings(deadline=None)
def test_what_is_not_sealed_is_ordinary_text(name: str, data: st.DataObject) -> None:
    tokenizer, added = TOKENIZERS[name]
    text = data.draw(texts(added))
    ids = tokenizer.encode(text, parse_special_tokens=False)
    assert not {tokenizer.id_of(token) for token in added} & set(ids)
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
@settings(deadline=None)
def test_without_its_spots_a_text_takes_part_in_no_control_token(name: str, data: st.DataObject) -> None:
    tokenizer, added = TOKENIZERS[name]
    text, before, after = (data.draw(texts(added)) for _ in range(3))
    spots = tokenizer.control.spots(text)
    broken = "".join("\ufffd" if i in spots else c for i, c in enumerate(text)).strip()
    around = before + broken + after
    inside = range(len(before), len(before) + len(broken))
    for token in added:
        for at in range(len(around)):
            if around.startswith(token, at):
                touched = set(range(at, at + len(token))) & set(inside)
                # only a token written around the whole text is not covered
                assert not touched or len(touched) == len(broken) < len(token)


def test_blank_added_tokens_are_words() -> None:
    tokenizer, _ = TOKENIZERS["chatml"]
    (blank,) = tokenizer.encode("    ")
    assert tokenizer.encode("    ", parse_special_tokens=False) == [blank]
    assert tokenizer.control.first_in("    ") is None
    assert tokenizer.control.spots("a     b") == set()


def test_names_are_new_for_every_tokenizer() -> None:
    one, other = byte_level(CHATML), byte_level(CHATML)
    sealed = one.control.seal("<|im_end|>")
    assert one.encode(sealed, parse_special_tokens=False) == one.encode("<|im_end|>")
    assert other.encode(sealed, parse_special_tokens=False) == list(sealed.encode()) or len(other.encode(sealed)) > 9
    assert one.encode(sealed) != one.encode("<|im_end|>")  # the usual reading does not know it


def test_a_vocabulary_without_control_tokens() -> None:
    built = Built(models.BPE(vocab={"a": 0}, merges=[]))
    tokenizer = Tokenizer(built.to_str())
    assert tokenizer.control.seal("aa") == "aa"
    assert tokenizer.control.spots("aa") == set()
    assert tokenizer.control.first_in("") is None
    assert tokenizer.encode("aa", parse_special_tokens=False) == [0, 0]
