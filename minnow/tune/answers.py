"""prompts -> answers of the model itself, by the engine; kept as token ids in files"""

import json
import os
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Protocol

from minnow.config.engine import EngineConfig
from minnow.core.errors import CheckpointError
from minnow.core.request import Request, SamplingParams
from minnow.engine import build
from minnow.text import conversation
from minnow.text.template import ChatTemplate
from minnow.text.tokenizer import Tokenizer
from minnow.tune.prompts import Prompt

PART_PROMPTS = 128  # prompts of one file: some minutes of work that an interruption costs
_MAX_PROMPT_SHARE = 0.7  # of the sequence; what is left must be worth learning from
_LOOK_TOKENS = 32  # between two looks at whether an answer runs in circles
_PASSAGE_WORDS = range(40, 131)

# How users sample, and how training wants it: (share, temperature, top-p).
_SAMPLING = ((0.3, 0.0, 1.0), (0.25, 0.2, 0.9), (0.25, 0.7, 1.0), (0.2, 1.0, 1.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A conversation that ends with an answer of the model.

    Attributes:
        ids: prompt and answer; the token that ended it is the last, where it ended by itself.
        num_prompt_tokens: the answer is ids[num_prompt_tokens:].
        temperature, top_p: how it was drawn.
        is_held_out: never trained on.
    """

    ids: tuple[int, ...]
    num_prompt_tokens: int
    temperature: float
    top_p: float
    is_held_out: bool


class Author(Protocol):
    """Who writes the answers."""

    def encode(self, messages: Sequence[dict[str, str]]) -> tuple[int, ...]:
        """A conversation as the model continues it."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of an answer, without control tokens."""
        ...

    def answer(self, prompts: Sequence[tuple[int, ...]], sampling: Sequence[SamplingParams]) -> list[tuple[int, ...]]:
        """Continue all prompts; token ids with the one that ended each."""
        ...


class EngineAuthor:
    """The model of a checkpoint, run by the engine in this process.

    Args:
        config: as loaded; its model is a directory.
    """

    def __init__(self, config: EngineConfig) -> None:
        directory = Path(config.model)
        self._tokenizer = Tokenizer.load(directory)
        self._template = ChatTemplate.load(directory, None)
        self._engine = build.build(config, directory)

    def encode(self, messages: Sequence[dict[str, str]]) -> tuple[int, ...]:
        """A conversation as the model continues it."""
        return conversation.render(messages, self._template, self._tokenizer).token_ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of an answer, without control tokens."""
        return self._tokenizer.decode(ids)

    def answer(self, prompts: Sequence[tuple[int, ...]], sampling: Sequence[SamplingParams]) -> list[tuple[int, ...]]:
        """Continue all prompts; token ids with the one that ended each. Answers that loop end there."""
        answers: list[list[int]] = [[] for _ in prompts]
        for index, (ids, params) in enumerate(zip(prompts, sampling, strict=True)):
            self._engine.add(Request(request_id=str(index), token_ids=ids, sampling=params))
        while not self._engine.is_idle:
            for output in self._engine.step():
                if output.error is not None:
                    raise CheckpointError(f"the model cannot answer prompt {output.request_id}: {output.error}")
                answer = answers[int(output.request_id)]
                answer += output.token_ids
                if len(answer) % _LOOK_TOKENS == 0 and output.finish_reason is None and is_loop(answer):
                    self._engine.abort(output.request_id)  # it would only say the same again
        return [tuple(answer) for answer in answers]


def passages(documents: Iterable[str]) -> list[str]:
    """Paragraphs of running text that a prompt can ask about, from clean documents; each once."""
    found: dict[str, None] = {}
    for document in documents:
        for paragraph in document.split("\n\n"):
            words = paragraph.split()
            if len(words) in _PASSAGE_WORDS and _is_running_text(words):
                found[" ".join(words)] = None
    return list(found)


def _is_running_text(words: Sequence[str]) -> bool:
    """Sentences rather than tables or code: a capital first, a stop last, and mostly letters."""
    is_sentence = words[0][0].isupper() and words[-1][-1] in ".!?"
    return is_sentence and sum(word.strip(".,;:!?()'\"").isalpha() for word in words) >= 0.85 * len(words)


def write(
    author: Author,
    prompts: Iterator[Prompt],
    directory: Path,
    *,
    num_sequences: int,
    max_tokens: int,
    seed: int,
    is_over: Callable[[], bool] = lambda: False,
    report: Callable[[int, int], None] = lambda done, dropped: None,
) -> int:
    """Let the model answer prompts until so many sequences are there; parts that are there are not made again.

    Args:
        directory: gets part-00000.jsonl and so on, an Answer a line, each file whole or not there. Answers that loop
            are kept apart, in part-00000.loops.
        num_sequences: at least so many that do not loop.
        max_tokens: of prompt and answer.
        seed: of how each answer is drawn.
        is_over: asked before a part; true ends it early.
        report: told after each part how many sequences there are, and how many were dropped because they loop.

    Returns:
        How many sequences are there.
    """
    directory.mkdir(parents=True, exist_ok=True)
    done = dropped = 0
    for part in range(1_000_000):
        chosen = list(islice(prompts, PART_PROMPTS))
        file = directory / f"part-{part:05d}.jsonl"
        if not file.is_file():
            if done >= num_sequences or is_over():
                break
            answers = _answer_part(author, chosen, random.Random(f"{seed} {part}"), max_tokens)
            loops = [answer for answer in answers if _is_dropped(answer)]
            _write_lines(file.with_suffix(".loops"), loops)
            _write_lines(file, [answer for answer in answers if not _is_dropped(answer)])
        done += _num_lines(file)
        dropped += _num_lines(file.with_suffix(".loops"))
        report(done, dropped)
    return done


def count(directory: Path) -> int:
    """How many answers there are that do not loop."""
    return sum(_num_lines(file) for file in directory.glob("part-*.jsonl"))


def read(directory: Path) -> list[Answer]:
    """The answers that do not loop, in the order of their parts.

    Raises:
        CheckpointError: there are none, or a file is damaged.
    """
    answers = []
    for file in sorted(directory.glob("part-*.jsonl")):
        try:
            lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
            answers += [Answer(**{**line, "ids": tuple(line["ids"])}) for line in lines]
        except (ValueError, TypeError, KeyError) as error:
            raise CheckpointError(f"{file} holds no answers of minnow tune draft ({error}); delete it") from None
    if not answers:
        raise CheckpointError(f"{directory} holds no answers; minnow tune draft writes them as part-*.jsonl")
    return answers


def is_loop(ids: Sequence[int]) -> bool:
    """Whether an answer ends in circles: a phrase said three times in a row, or little that is new at its end.

    Answers that list similar things are no loops: of their last 128 tokens more than half begin 4 new ones.
    """
    for period in range(1, 65):
        same = max(2 * period, 16)
        if len(ids) >= same + period and tuple(ids[-same:]) == tuple(ids[-same - period : -period]):
            return True
    tail = [tuple(ids[at : at + 4]) for at in range(max(len(ids) - 128, 0), len(ids) - 3)]
    return len(tail) >= 64 and len(set(tail)) <= len(tail) // 2


def _is_dropped(answer: Answer) -> bool:
    return is_loop(answer.ids[answer.num_prompt_tokens :])


def _write_lines(file: Path, answers: Iterable[Answer]) -> None:
    partial = file.with_name(file.name + ".partial")
    partial.write_text("".join(json.dumps(asdict(answer)) + "\n" for answer in answers), encoding="utf-8")
    os.replace(partial, file)


def _num_lines(file: Path) -> int:
    with file.open(encoding="utf-8") as lines:
        return sum(1 for _ in lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Talk:
    """A prompt on its way: messages so far, their ids, and how the answer is drawn."""

    prompt: Prompt
    messages: list[dict[str, str]]
    ids: tuple[int, ...]
    sampling: SamplingParams


def _answer_part(author: Author, prompts: Sequence[Prompt], draw: random.Random, max_tokens: int) -> list[Answer]:
    """Answers to the first messages, then to the second ones."""
    talks = []
    for prompt in prompts:
        system = [] if prompt.system is None else [{"role": "system", "content": prompt.system}]
        talks.append((prompt, [*system, {"role": "user", "content": prompt.text}]))
    first = _answer_all(author, talks, draw, max_tokens)
    follows = []
    for talk, answer in first:
        if talk.prompt.follow is not None and not _is_dropped(answer):
            said = {"role": "assistant", "content": author.decode(answer.ids[answer.num_prompt_tokens :])}
            follows.append((talk.prompt, [*talk.messages, said, {"role": "user", "content": talk.prompt.follow}]))
    second = _answer_all(author, follows, draw, max_tokens)
    return [answer for _, answer in (*first, *second)]


def _answer_all(
    author: Author, talks: Iterable[tuple[Prompt, list[dict[str, str]]]], draw: random.Random, max_tokens: int
) -> list[tuple[_Talk, Answer]]:
    """Those that leave room for an answer, answered."""
    chosen = []
    for prompt, messages in talks:
        ids = author.encode(messages)
        sampling = _sampling(draw, max_tokens - len(ids))
        if len(ids) <= _MAX_PROMPT_SHARE * max_tokens:
            chosen.append(_Talk(prompt=prompt, messages=messages, ids=ids, sampling=sampling))
    answers = author.answer([talk.ids for talk in chosen], [talk.sampling for talk in chosen])
    return [
        (
            talk,
            Answer(
                ids=talk.ids + ids,
                num_prompt_tokens=len(talk.ids),
                temperature=talk.sampling.temperature,
                top_p=talk.sampling.top_p,
                is_held_out=talk.prompt.is_held_out,
            ),
        )
        for talk, ids in zip(chosen, answers, strict=True)
    ]


def _sampling(draw: random.Random, max_tokens: int) -> SamplingParams:
    _, temperature, top_p = draw.choices(_SAMPLING, [share for share, *_ in _SAMPLING])[0]
    seed = draw.getrandbits(32)
    return SamplingParams(temperature=temperature, top_p=top_p, max_tokens=max(max_tokens, 1), seed=seed)
