"""prompts to send: random ones of given lengths, conversations in ShareGPT's form, or a file of one's own"""

import argparse
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from minnow.core.errors import ConfigError
from minnow.text.tokenizer import Tokenizer

# Each is one token in the vocabularies of today's models, with the blank before it.
_WORDS = (
    "the of and to in is that it was for on are as with his they at be this from have or by one had not but what all "
    "were when we there can an your which their said if do will each about how up out them then she many some so"
).split()
_MOST_IDS = 8192
_LEAST_TOKENS, _MOST_INPUT_TOKENS, _MOST_TOKENS = 4, 1024, 2048  # of a conversation that is taken, as in vLLM


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One prompt, and how many tokens to ask for."""

    prompt: str
    max_tokens: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what chooses the prompts, as `vllm bench serve` spells it."""
    group = parser.add_argument_group("prompts")
    group.add_argument("--dataset-name", choices=("random", "sharegpt", "custom"), default="random")
    group.add_argument("--dataset-path", type=Path, metavar="FILE", help="of sharegpt (JSON) or custom (JSON lines)")
    group.add_argument("--num-prompts", type=int, default=1000, metavar="N")
    group.add_argument("--seed", type=int, default=0, help="of prompts, their order and their arrival")
    for name, default in (("input", 1024), ("output", 128)):
        group.add_argument(f"--random-{name}-len", f"--random-{name}", f"--{name}-len", type=int, default=default,
                           metavar="TOKENS")  # fmt: skip
    group.add_argument("--random-range-ratio", type=float, default=0.0, metavar="R", help="lengths are within 1 +- R")
    group.add_argument("--random-prefix-len", type=int, default=0, metavar="TOKENS", help="before all, the same")
    for name in ("sharegpt", "custom"):
        group.add_argument(f"--{name}-output-len", type=int, metavar="TOKENS", help="instead of what the file says")


def read(args: argparse.Namespace, tokenizer: Tokenizer | None) -> list[Sample]:
    """The prompts that the arguments ask for; a file with fewer is used again from its start.

    Raises:
        ConfigError: a wrong value, no such file, or nothing fitting in it.
    """
    rng = Random(args.seed)
    if not 0 <= args.random_range_ratio < 1:
        raise ConfigError(f"--random-range-ratio is {args.random_range_ratio:g}; it must be at least 0 and below 1")
    if args.dataset_name == "random":
        return list(_random(args, tokenizer, rng))
    if args.dataset_path is None:
        raise ConfigError(f"--dataset-name {args.dataset_name} needs --dataset-path FILE")
    try:
        text = args.dataset_path.read_text(encoding="utf-8")
        found = list(_conversations(args, text, tokenizer) if args.dataset_name == "sharegpt" else _lines(args, text))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{args.dataset_path} is no {args.dataset_name} file: {error!r}") from None
    if not found:
        raise ConfigError(f"{args.dataset_path} holds no prompt that fits")
    rng.shuffle(found)
    return [found[i % len(found)] for i in range(args.num_prompts)]


def _random(args: argparse.Namespace, tokenizer: Tokenizer | None, rng: Random) -> Iterator[Sample]:
    ids = [] if tokenizer is None else _whole_tokens(tokenizer, rng)
    prefix: list[Any] = rng.choices(ids or _WORDS, k=args.random_prefix_len)

    def near(length: int) -> int:
        ratio = args.random_range_ratio
        return max(1, rng.randint(math.floor(length * (1 - ratio)), math.ceil(length * (1 + ratio))))

    for _ in range(args.num_prompts):
        num_tokens, max_tokens = len(prefix) + near(args.random_input_len), near(args.random_output_len)
        if tokenizer is None:
            words = prefix + rng.choices(_WORDS, k=num_tokens - len(prefix))
            yield Sample(prompt=" ".join(words), max_tokens=max_tokens)
            continue
        tokens = prefix + rng.choices(ids, k=num_tokens - len(prefix))
        for _ in range(10):  # the text of random tokens is read as others: mend its length, mostly once or twice
            text = tokenizer.decode(tokens)
            tokens = tokenizer.encode(text)
            if len(tokens) == num_tokens:
                break
            tokens = tokens[:num_tokens] + rng.choices(ids, k=max(0, num_tokens - len(tokens)))
        yield Sample(prompt=text, max_tokens=max_tokens)


def _whole_tokens(tokenizer: Tokenizer, rng: Random) -> list[int]:
    """Ids to draw from: some thousands that are text of their own, not a piece of a character."""
    some = rng.sample(range(tokenizer.vocab_size), min(tokenizer.vocab_size, _MOST_IDS))
    texts = {i: tokenizer.decode([i]) for i in some}  # special ones give none
    return [i for i, text in texts.items() if text and "\ufffd" not in text]


def _conversations(args: argparse.Namespace, text: str, tokenizer: Tokenizer | None) -> Iterator[Sample]:
    """The first question of each conversation; its answer says how many tokens to ask for."""
    if tokenizer is None:
        raise ConfigError("--dataset-name sharegpt needs --tokenizer DIR, to know how long the answers are")
    for item in json.loads(text):
        turns = item["conversations"]
        if len(turns) < 2:
            continue
        prompt, answer = turns[0]["value"], turns[1]["value"]
        num_input, num_output = len(tokenizer.encode(prompt)), args.sharegpt_output_len or len(tokenizer.encode(answer))
        is_usual = min(num_input, num_output) >= _LEAST_TOKENS and num_input <= _MOST_INPUT_TOKENS
        if is_usual and num_input + num_output <= _MOST_TOKENS:
            yield Sample(prompt=prompt, max_tokens=num_output)


def _lines(args: argparse.Namespace, text: str) -> Iterator[Sample]:
    """{"prompt": ..., "output_tokens": ...} a line."""
    for line in filter(str.strip, text.splitlines()):
        item = json.loads(line)
        max_tokens = args.custom_output_len or item.get("output_tokens") or 256
        yield Sample(prompt=str(item["prompt"]), max_tokens=int(max_tokens))
