import argparse
import json
from pathlib import Path

import pytest

from minnow.bench import dataset
from minnow.config import flags
from minnow.core.errors import ConfigError
from minnow.text.tokenizer import Tokenizer
from tests import tiny


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    directory = tmp_path_factory.mktemp("tokenizer")
    tiny.write_tiny_tokenizer(directory)
    return Tokenizer.load(directory)


def _args(*words: object) -> argparse.Namespace:
    parser = flags.new_parser("bench", "")
    dataset.add_arguments(parser)
    return flags.parse(parser, [str(word) for word in words])


def test_random_prompts_have_the_length_asked_for(tokenizer: Tokenizer) -> None:
    args = _args("--random-input", 50, "--random_output", 7, "--num-prompts", 6, "--random-prefix-len", 10)
    samples = dataset.read(args, tokenizer)
    assert [len(tokenizer.encode(sample.prompt)) for sample in samples] == [60] * 6
    assert {sample.max_tokens for sample in samples} == {7}
    assert len({sample.prompt for sample in samples}) == 6
    assert dataset.read(args, tokenizer) == samples
    assert dataset.read(_args("--seed", 1, "--num-prompts", 1), tokenizer)[0] != samples[0]


def test_lengths_vary_within_the_ratio(tokenizer: Tokenizer) -> None:
    words = ("--input-len", 40, "--output-len", 20, "--random-range-ratio", 0.5, "--num-prompts", 60)
    samples = dataset.read(_args(*words), tokenizer)
    lengths = {len(tokenizer.encode(sample.prompt)) for sample in samples}
    assert 20 <= min(lengths) < 30 and 50 < max(lengths) <= 60
    assert min(s.max_tokens for s in samples) >= 10 and max(s.max_tokens for s in samples) <= 30


def test_without_a_tokenizer_a_prompt_is_words() -> None:
    samples = dataset.read(_args("--random-input-len", 30, "--num-prompts", 2), None)
    assert [len(sample.prompt.split()) for sample in samples] == [30, 30]


def test_conversations_ask_for_as_much_as_their_answer(tokenizer: Tokenizer, tmp_path: Path) -> None:
    def talk(*turns: str) -> dict[str, object]:
        return {"conversations": [{"from": "human", "value": turn} for turn in turns]}

    path = tmp_path / "talk.json"
    talks = [talk("How are you?", "Well."), talk("alone"), talk("Hi", "too short"), talk("x" * 2000, "too long to ask")]
    path.write_text(json.dumps(talks))
    words = ("--dataset-name", "sharegpt", "--dataset-path", path, "--num-prompts", 3)
    assert dataset.read(_args(*words), tokenizer) == [dataset.Sample(prompt="How are you?", max_tokens=5)] * 3
    assert dataset.read(_args(*words, "--sharegpt-output-len", 9), tokenizer)[0].max_tokens == 9
    with pytest.raises(ConfigError, match="needs --tokenizer DIR"):
        dataset.read(_args(*words), None)


def test_a_file_of_ones_own_is_taken_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text('{"prompt": "a", "output_tokens": 3}\n\n{"prompt": "b"}\n')
    words = ("--dataset-name", "custom", "--dataset-path", path, "--num-prompts", 4)
    samples = dataset.read(_args(*words), None)
    assert sorted((s.prompt, s.max_tokens) for s in samples) == [("a", 3), ("a", 3), ("b", 256), ("b", 256)]
    assert {s.max_tokens for s in dataset.read(_args(*words, "--custom-output-len", 8), None)} == {8}


@pytest.mark.parametrize(
    ("text", "sentence"), [("{", "is no custom file"), ('{"text": "a"}', "is no custom file"), ("\n", "no prompt")]
)
def test_a_file_that_cannot_be_read_is_said(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        dataset.read(_args("--dataset-name", "custom", "--dataset-path", path), None)


def test_wrong_values_are_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--dataset-name custom needs --dataset-path FILE"):
        dataset.read(_args("--dataset-name", "custom"), None)
    with pytest.raises(ConfigError, match="--random-range-ratio is 1; it must be"):
        dataset.read(_args("--random-range-ratio", 1), None)
