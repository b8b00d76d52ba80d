"""prompts, answers and the files they are kept in"""

import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import pytest

from minnow.config import load
from minnow.core.errors import CheckpointError
from minnow.core.request import SamplingParams
from minnow.llm import LLM
from minnow.tune import answers
from minnow.tune.prompts import Prompt, prompts
from tests import tiny

CHAT = Path(__file__).parents[2] / "benchmarks" / "prompts" / "chat.jsonl"
PASSAGE = "A passage that {nobody} has written before."


class Parrot:
    """An author whose answers say how they were asked for; every fourth prompt makes it stutter."""

    def __init__(self) -> None:
        self.prompts: list[tuple[int, ...]] = []

    def encode(self, messages: Sequence[dict[str, str]]) -> tuple[int, ...]:
        return tuple("|".join(f"{m['role']}:{m['content']}" for m in messages).encode())

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(ids).decode()

    def answer(self, prompts: Sequence[tuple[int, ...]], sampling: Sequence[SamplingParams]) -> list[tuple[int, ...]]:
        self.prompts += prompts
        return [
            tuple(b"so " * 40 if sum(ids) % 4 == 0 else f"{sum(ids)} at {params.temperature} {params.seed}".encode())
            for ids, params in zip(prompts, sampling, strict=True)
        ]


def written(directory: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in sorted(directory.iterdir())}


def test_prompts_are_the_same_for_a_seed_and_never_twice() -> None:
    first = list(islice(prompts(3, [PASSAGE]), 2000))
    assert first == list(islice(prompts(3, [PASSAGE]), 2000))
    assert first != list(islice(prompts(4, [PASSAGE]), 2000))
    assert len({prompt.text for prompt in first}) == 2000
    assert any(PASSAGE in prompt.text for prompt in first)
    assert not any("{" in prompt.text.replace(PASSAGE, "") for prompt in first)


def test_a_subject_is_held_out_whatever_is_asked_about_it() -> None:
    found = list(islice(prompts(0), 6000))
    held_out = [prompt for prompt in found if prompt.is_held_out]
    assert 0.03 < len(held_out) / len(found) < 0.09
    trained = {prompt.subject for prompt in found if not prompt.is_held_out}
    assert trained.isdisjoint(prompt.subject for prompt in held_out)
    assert Prompt(subject="Tea", text="a").is_held_out == Prompt(subject="tea", text="b").is_held_out


def test_the_prompts_to_compare_with_are_never_trained_on() -> None:
    kept = [json.loads(line)["messages"] for line in CHAT.read_text(encoding="utf-8").splitlines()]
    assert len(kept) == 100
    texts = {messages[0]["content"].casefold() for messages in kept}
    assert len(texts) == 100
    assert texts.isdisjoint(prompt.text.casefold() for prompt in islice(prompts(0), 20_000))


@pytest.mark.parametrize(
    ("ids", "is_loop"),
    [
        (list(range(300)), False),
        ([*range(50), *[7] * 17], True),
        ([*range(50), *[7] * 16], False),
        ([*range(50), *(list(range(20)) * 3)], True),
        ([*range(50), *(list(range(20)) * 2)], False),
        ([*range(100, 150), *(list(range(20)) * 3), 99], False),
        ([token for i in range(40) for token in (500, 501, 502, 503, 504, 505, 506, 507, 900 + i)], True),
        ([token for i in range(40) for token in (500, 501, 502, 3 * i, 3 * i + 1, 900 + i)], False),
        ([], False),
    ],
)
def test_answers_that_run_in_circles_are_told(ids: list[int], is_loop: bool) -> None:
    assert answers.is_loop(ids) == is_loop


def test_passages_are_paragraphs_of_sentences_once_each() -> None:
    sentence = "This is a sentence about nothing that goes on for exactly fourteen words in all."
    paragraph = " ".join([sentence] * 4)
    table = " ".join(["0x12"] * 50)
    long = " ".join([sentence] * 20)
    text = "\n\n".join([paragraph, "Short.", table, paragraph.replace(" ", "\n"), long, paragraph.rstrip(".")])
    assert answers.passages([text]) == [paragraph]


def test_answers_are_written_once_and_go_on_where_they_stopped(tmp_path: Path) -> None:
    def write(directory: Path, author: Parrot, num_parts: int) -> int:
        asked = iter(range(100))
        return answers.write(
            author,
            prompts(0),
            directory,
            num_sequences=250,
            max_tokens=200,
            seed=5,
            is_over=lambda: next(asked) >= num_parts,
        )

    whole = write(tmp_path / "whole", Parrot(), 9)
    first, second = Parrot(), Parrot()
    assert write(tmp_path / "pieces", first, 1) < write(tmp_path / "pieces", second, 9) == whole
    assert written(tmp_path / "pieces") == written(tmp_path / "whole")
    assert not set(first.prompts) & set(second.prompts)
    assert answers.count(tmp_path / "whole") == whole >= 250


def test_answers_are_what_the_author_said(tmp_path: Path) -> None:
    author = Parrot()
    answers.write(author, prompts(0), tmp_path, num_sequences=100, max_tokens=400, seed=0)
    kept = answers.read(tmp_path)
    for answer in kept:
        assert bytes(answer.ids[answer.num_prompt_tokens :]).decode().split()[2] == str(answer.temperature)
    kinds = {(answer.temperature, answer.top_p) for answer in kept}
    assert kinds == {(0.0, 1.0), (0.2, 0.9), (0.7, 1.0), (1.0, 1.0)}
    asked = [bytes(ids).decode() for ids in author.prompts]
    follows = [text for text in asked if "|assistant:" in text]
    assert follows
    for text in follows:
        before, said = text.split("|assistant:")
        assert said.startswith(str(sum(before.encode())))
    loops = (tmp_path / "part-00000.loops").read_text().splitlines()
    assert len(loops) + len(kept) == len(asked)
    assert all(answers.is_loop(json.loads(line)["ids"]) for line in loops)


def test_damaged_or_missing_answers_are_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds no answers; minnow tune draft writes them"):
        answers.read(tmp_path)
    (tmp_path / "part-00000.jsonl").write_text('{"ids": [1]}\n')
    with pytest.raises(CheckpointError, match=r"part-00000.jsonl holds no answers .* delete it"):
        answers.read(tmp_path)


def test_the_engine_answers_as_the_model_does(tmp_path: Path) -> None:
    tiny.write_tiny(tmp_path, family="llama", dtype="float32")
    tiny.write_tiny_tokenizer(tmp_path)
    values = {"model": str(tmp_path), "max_model_len": 256, "num_gpu_blocks_override": 40}
    author = answers.EngineAuthor(load.from_values(values).config)
    messages = [[{"role": "user", "content": text}] for text in ("Hello", "What is it?")]
    ids = [author.encode(message) for message in messages]
    sampling = SamplingParams(temperature=1.0, max_tokens=24, seed=3)
    said = author.answer(ids, [sampling] * 2)
    with LLM(str(tmp_path), max_model_len=256, num_gpu_blocks_override=40) as llm:
        assert ids[0] == llm.render(messages[0]).token_ids
        outputs = llm.generate(ids, sampling)
    assert said == [output.outputs[0].token_ids for output in outputs]
    assert author.decode(said[0]) == outputs[0].outputs[0].text
    stuck = SamplingParams(temperature=0.0, max_tokens=150, allowed_token_ids=(65,))
    assert author.answer(ids[:1], [stuck]) == [(65,) * 32]  # ended at the first look, not after 150 tokens
