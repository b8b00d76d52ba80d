"""tokenizers rebuilt from GGUF metadata give llama.cpp's ids"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from pydoc_data import topics

import gguf
import llama_cpp
import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from minnow.checkpoint import demo
from minnow.checkpoint import gguf as gguf_file
from minnow.core.errors import CheckpointError
from minnow.text import pretokenizer, vocabulary
from minnow.text.tokenizer import Tokenizer
from minnow.text.vocabulary import Vocabulary
from tests.text.lines import varied

SPECIAL = ("<|end|>", "<|start|>", "<|pad|>")


@pytest.fixture(scope="module")
def trained() -> Vocabulary:
    """A small vocabulary with merges over blanks, digits and other scripts, which tell pre-tokenizers apart."""
    learner = tokenizers.Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(r"\s*\S+|\s+"), behavior="isolated")
    learner.pre_tokenizer = pre_tokenizers.Sequence(
        [learner.pre_tokenizer, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=2500, special_tokens=list(SPECIAL), initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    texts = [text[:3000] for text in list(topics.topics.values())[:30]]
    numbers = [f"{'  ' * (n % 5)}{n * 7919 % 5000}  {n % 100}" for n in range(3000)]
    learner.train_from_iterator([*texts, *numbers, *varied(1000, seed=9)], trainer)
    model = json.loads(learner.to_str())["model"]
    tokens = tuple(sorted(model["vocab"], key=model["vocab"].get))
    types = tuple(3 if token in SPECIAL else 1 for token in tokens)
    merges = tuple(" ".join(pair) for pair in model["merges"])
    ids = (("bos_token", 1), ("eos_token", 0), ("pad_token", 2))
    return Vocabulary(tokens=tokens, merges=merges, token_types=types, pre="gpt-2", special_ids=ids)


def write_gguf(path: Path, words: Vocabulary, pre: str) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(list(words.tokens))
    writer.add_token_types(list(words.token_types))
    writer.add_token_merges(list(words.merges))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def differences(path: Path, lines: list[str], encode: Callable[[str], list[int]]) -> list[tuple[object, ...]]:
    model = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    pairs = ((line, model.tokenize(line.encode(), add_bos=False, special=False), encode(line)) for line in lines)
    wrong = [(line, right, seen) for line, right, seen in pairs if right != seen]
    model.close()
    return wrong


@pytest.mark.parametrize("pre", sorted(pretokenizer.PATTERNS_BY_NAME))
def test_every_pretokenizer_cuts_as_llama_cpp_does(pre: str, trained: Vocabulary, tmp_path: Path) -> None:
    path = tmp_path / "words.gguf"
    write_gguf(path, trained, pre)
    rebuilt = vocabulary.build(vocabulary.from_metadata(gguf_file.read(path).metadata))
    lines = varied(800, seed=1)
    assert differences(path, lines, lambda text: rebuilt.encode(text, add_special_tokens=False).ids) == []


def test_pretokenizers_differ_where_they_should(trained: Vocabulary) -> None:
    def cut(pre: str) -> list[str]:
        return vocabulary.build(replace(trained, pre=pre)).encode("   1234 it's", add_special_tokens=False).tokens

    assert "".join(cut("smollm")) == "".join(cut("gpt-2"))
    assert len({tuple(cut(pre)) for pre in ("smollm", "gpt-2", "llama-bpe", "qwen2")}) >= 3


@pytest.mark.system
def test_the_demo_has_llama_cpps_ids_on_ten_thousand_lines(tmp_path: Path) -> None:
    gguf_path = demo.fetch(demo.DEMO_BY_NAME["smollm2-135m"], demo.home() / "downloads", say=print)
    vocabulary.write(vocabulary.from_metadata(gguf_file.read(gguf_path).metadata), tmp_path)
    rebuilt = Tokenizer.load(tmp_path)
    assert differences(gguf_path, varied(10_000), lambda text: rebuilt.encode(text, parse_special_tokens=False)) == []


def test_control_tokens_become_special(trained: Vocabulary, tmp_path: Path) -> None:
    vocabulary.write(trained, tmp_path)
    rebuilt = Tokenizer.load(tmp_path)
    assert rebuilt.special_ids == {0, 1, 2}
    assert rebuilt.encode("<|start|>a<|end|>")[::2] == [1, 0]
    assert rebuilt.encode("a", add_special_tokens=True) == rebuilt.encode("a")
    assert json.loads((tmp_path / "generation_config.json").read_text()) == {
        "bos_token_id": 1, "eos_token_id": 0, "pad_token_id": 2,
    }  # fmt: skip
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["eos_token"] == "<|end|>"
    assert not (tmp_path / "chat_template.jinja").exists()


def test_plain_text_begins_with_bos_where_the_gguf_says_so(trained: Vocabulary, tmp_path: Path) -> None:
    vocabulary.write(replace(trained, adds_bos=True, chat_template="{{ messages }}"), tmp_path)
    rebuilt = Tokenizer.load(tmp_path)
    assert rebuilt.encode("a", add_special_tokens=True) == [1, *rebuilt.encode("a")]
    assert (tmp_path / "chat_template.jinja").read_text() == "{{ messages }}"


def metadata(**changed: object) -> dict[str, object]:
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": ["a", "b", "ab"],
        "tokenizer.ggml.merges": ["a b"],
    } | {f"tokenizer.ggml.{key}": value for key, value in changed.items()}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"model": "llama"}, "'llama'; only byte-level BPE"),
        ({"pre": "tekken"}, "'tekken'; known are default, gpt-2, llama-bpe"),
        ({"tokens": None}, "no list of strings tokenizer.ggml.tokens"),
        ({"merges": [1]}, "no list of strings tokenizer.ggml.merges"),
        ({"tokens": ["a", "b", "a"]}, "3 tokens, 2 of them different"),
        ({"token_type": [1]}, "1 token types"),
        ({"merges": ["a c"]}, "'a c'"),
        ({"merges": ["ab"]}, "'ab'"),
        ({"eos_token_id": 3}, "eos_token is 3; ids are 0 to 2"),
    ],
)
def test_metadata_that_make_no_tokenizer_are_refused(changed: dict[str, object], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        vocabulary.build(vocabulary.from_metadata(metadata(**changed)))
