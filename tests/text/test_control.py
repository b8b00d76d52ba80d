"""control tokens are found, sealed and read under their secret names only"""

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Built

from minnow.text.control import ControlTokens
from minnow.text.tokenizer import Tokenizer

CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>")
SENTINELS = ("]<]minimax[>[", "]~b]", "[e~[", "]~!b[", "<mm:think>", "</mm:think>", "<tool_call>")
NESTED = ("<|x|>", "<|x|>y", "<|x", "x|>", "==", "===", "=====", "<|x|><|x|>")


def byte_level(added: tuple[str, ...], *, spelled: tuple[str, ...] = ()) -> Tokenizer:
    """Single bytes and added tokens, of which those with a bar or a wave are special.

    Args:
        spelled: those of them that the vocabulary has, too, before its bytes.
    """
    letters = [*spelled, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    built = Built(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.decoder = decoders.ByteLevel()
    built.add_tokens([AddedToken("    ", normalized=False)])
    for text in added:
        token = AddedToken(text, special="|" in text or "~" in text, normalized=False, rstrip=text == "<|im_start|>")
        built.add_tokens([token])
    built.post_processor = processors.TemplateProcessing(
        single=f"{added[1]} $A", special_tokens=[(added[1], built.token_to_id(added[1]))]
    )
    return Tokenizer(built.to_str())


TOKENIZERS = {
    "chatml": (byte_level(CHATML), CHATML),
    "sentinels": (byte_level(SENTINELS), SENTINELS),
    "chatml, some in the vocabulary": (byte_level(CHATML, spelled=CHATML[::2]), CHATML),
    "one in another": (byte_level(NESTED), NESTED),
}


def texts(added: tuple[str, ...]) -> st.SearchStrategy[str]:
    """Texts full of control tokens, whole and in pieces."""
    parts = [
        *added,
        *(text[:k] for text in added for k in (1, len(text) - 1)),
        *(text[-k:] for text in added for k in (1, 2)),
    ]
    return st.lists(st.sampled_from([*parts, " ", "    ", "\n", "a", "\u00e9", "\U000f0000"]), max_size=8).map("".join)


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
@settings(deadline=None)
def test_only_a_sealed_control_token_is_one(name: str, data: st.DataObject) -> None:
    tokenizer, added = TOKENIZERS[name]
    text = data.draw(texts(added))
    sealed = tokenizer.control.seal(text)
    for has_special in (True, False):
        ids = tokenizer.encode(sealed, add_special_tokens=has_special, parse_special_tokens=False)
        assert ids == tokenizer.encode(text, add_special_tokens=has_special)
    ids = tokenizer.encode(text, parse_special_tokens=False)
    assert not {tokenizer.id_of(token) for token in added} & set(ids)
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
@settings(deadline=None)
def test_without_their_ends_a_text_takes_part_in_no_control_token(name: str, data: st.DataObject) -> None:
    tokenizer, added = TOKENIZERS[name]
    text, before, after = (data.draw(texts(added)) for _ in range(3))
    broken = "".join("\ufffd" if c in tokenizer.control.ends else c for c in text)
    around, end = before + broken + after, len(before) + len(broken)
    for token in added:
        for at in range(len(around)):
            if around.startswith(token, at):
                # only a token written around the whole text is not covered
                assert at >= end or at + len(token) <= len(before) or at < len(before) <= end < at + len(token)


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
@settings(deadline=None)
def test_the_patterns_find_what_plain_searches_find(name: str, data: st.DataObject) -> None:
    tokenizer, added = TOKENIZERS[name]
    text = data.draw(texts(added))
    special = [token for token in added if tokenizer.id_of(token) in tokenizer.special_ids]
    for pattern, tokens in ((tokenizer.control.every, added), (tokenizer.control.special, special)):
        plain = "|".join(map(re.escape, sorted(tokens, key=len, reverse=True))) or "(?!)"
        assert [match.span() for match in pattern.finditer(text)] == [m.span() for m in re.finditer(plain, text)]
    starts = {at for at in range(len(text)) if any(text.startswith(token, at) for token in special)}
    assert {match.start() for match in tokenizer.control.special_starts.finditer(text)} == starts
    broken = tokenizer.control.special_starts.sub("\ufffd", text)
    assert not any(token in broken for token in special)


def test_many_alike_are_searched_as_fast_as_few() -> None:
    text = "<|reserved_special_token_" * 10_000
    few, many = (
        byte_level(("<a>", "<b>", *(f"<|reserved_special_token_{i}|>" for i in range(num)))).control
        for num in (10, 250)
    )

    def search_s(control: ControlTokens) -> float:
        start = time.perf_counter()
        assert control.every.search(text) is None
        return time.perf_counter() - start

    assert min(search_s(many) for _ in range(5)) < 5 * min(search_s(few) for _ in range(5))


def test_blank_added_tokens_are_words() -> None:
    tokenizer, _ = TOKENIZERS["chatml"]
    (blank,) = tokenizer.encode("    ")
    assert tokenizer.encode("    ", parse_special_tokens=False) == [blank]
    assert tokenizer.control.every.search("a     b") is None
    assert " " not in tokenizer.control.ends


def test_names_are_new_for_every_tokenizer() -> None:
    one, other = byte_level(CHATML), byte_level(CHATML)
    sealed = one.control.seal("<|im_end|>")
    assert one.encode(sealed, parse_special_tokens=False) == [one.id_of("<|im_end|>")]
    # neither another tokenizer nor the usual reading knows the name
    for ids in (other.encode(sealed, parse_special_tokens=False), one.encode(sealed)):
        assert len(ids) == len(sealed.encode())
        assert one.decode(ids) == sealed


def test_a_vocabulary_without_control_tokens() -> None:
    built = Built(models.BPE(vocab={"a": 0}, merges=[]))
    tokenizer = Tokenizer(built.to_str())
    assert tokenizer.control.seal("aa") == "aa"
    assert tokenizer.control.ends == set()
    for pattern in (tokenizer.control.every, tokenizer.control.special, tokenizer.control.special_starts):
        assert pattern.search("aa") is None
    assert tokenizer.encode("aa", parse_special_tokens=False) == [0, 0]
