"""what index heads and an NVFP4 cache cost a tuned model: perplexity, attention kept, needles

    python -m tools.quality [--model NAME_OR_DIR] [--parts DIR ...] [--text PATH ...] [--quick]

The tuned model is the model with the parts, or the model itself where it is sparse already; what it is measured
against is the same model (or --base) with exact attention over all positions and a BF16 cache. The text is Python's
topic documentation (pydoc_data.topics), which training must not see, or the held-out documents of --text.
"""

import argparse
import math
import pydoc_data.topics
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from minnow.checkpoint import demo
from minnow.core.errors import ConfigError
from minnow.text.tokenizer import Tokenizer
from minnow.tune import target, text
from minnow.tune.attend import Attend, attend_densely, attend_rounded, sparsely
from minnow.tune.index_heads import kept_mass, record
from minnow.tune.target import Target
from minnow.tune.text import Stream

_LEAST_CASES = 40
_CHUNK = 512  # rows of logits at a time
_WORDS = "tiger apple river candle piano rocket garden winter button copper pepper island mirror ladder".split()
_PLACES = "Oslo Lima Cairo Quito Delhi Rome Tunis Seoul Bogota Accra Riga Hanoi Sofia Dakar Minsk Turin".split()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the table.

    Attributes:
        value: in the unit that the name says; None where it is not measurable.
        bar: what it must be at most (or at least, for `is_least`); None where there is none.
    """

    name: str
    value: float | None
    bar: float | None = None
    is_least: bool = False

    @property
    def verdict(self) -> str:
        """In a word or two."""
        if self.value is None:
            return "not measurable"
        if self.bar is None:
            return ""
        return "met" if (self.value >= self.bar if self.is_least else self.value <= self.bar) else "missed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Needles:
    """One long text with facts in it and questions for them at its end.

    Attributes:
        ids: i64 [T].
        answers: of each question, the half-open interval of ids that is its answer.
    """

    ids: Tensor
    answers: tuple[tuple[int, int], ...]


@torch.no_grad()
def losses(target: Target, windows: Tensor, attend: Attend) -> Tensor:
    """Mean negative log-likelihood of each window (natural logarithm): i64 [count T] -> f32 [count]."""
    found = []
    for ids in windows:
        hidden = target.hidden(target.forward(ids[None], attend=attend).last)[0]
        pairs = zip(torch.split(hidden[:-1], _CHUNK), torch.split(ids[1:], _CHUNK), strict=True)
        parts = [functional.cross_entropy(target.logits(rows), labels, reduction="sum") for rows, labels in pairs]
        found.append(torch.stack(parts).sum() / (len(ids) - 1))
    return torch.stack(found)


def costs(base: Target, tuned: Target, windows: Tensor) -> list[Finding]:
    """Perplexity of the tuned model by cache and attention, against the base with neither."""
    sparse = tuned.config.sparse
    dense = losses(base, windows, attend_densely)

    def cost(model: Target, attend: Attend, against: Tensor) -> tuple[float, Tensor]:
        found = losses(model, windows, attend)
        return 100 * math.expm1(float((found - against).mean())), found

    tuned_dense, own = cost(tuned, attend_densely, dense)
    findings = [
        Finding(name="perplexity of the dense model, BF16 cache", value=math.exp(float(dense.mean()))),
        Finding(name="untuned, NVFP4 K/V: % above", value=cost(base, attend_rounded, dense)[0]),
        Finding(name="tuned, dense, BF16 cache: % above", value=tuned_dense),
        Finding(name="tuned, dense, NVFP4 K/V: % above", value=cost(tuned, attend_rounded, dense)[0]),
    ]
    if any(sparse.is_sparse):
        plain, rounded = (sparsely(tuned.index, sparse, is_rounded=is_rounded) for is_rounded in (False, True))
        findings += [
            Finding(name="MSA: % above the tuned model, dense", value=cost(tuned, plain, own)[0], bar=1.5),
            Finding(name="MSA, all caches NVFP4: % above", value=cost(tuned, rounded, dense)[0], bar=4.0),
        ]
    return findings


def make_needles(tokenizer: Tokenizer, filler: Tensor, num_tokens: int, seed: int) -> Needles:
    """Ten facts ("The secret word of Oslo is tiger.") at ten depths of a filler text, then ten questions.

    Args:
        filler: i64, at least num_tokens.
        num_tokens: of the text before the questions, roughly.
    """
    chance = random.Random(seed)
    places = chance.sample(_PLACES, 10)
    word_by_place = dict(zip(places, chance.sample(_WORDS, len(places)), strict=True))
    step = num_tokens // len(places)
    ids: list[int] = []
    for i, place in enumerate(places):
        fact = tokenizer.encode(f"\n\nThe secret word of {place} is {word_by_place[place]}.\n\n")
        ids += [*filler[i * step : (i + 1) * step - len(fact)].tolist(), *fact]
    answers = []
    for place in chance.sample(places, len(places)):
        ids += tokenizer.encode(f"\n\nThe secret word of {place} is")
        answer = tokenizer.encode(f" {word_by_place[place]}")
        answers.append((len(ids), len(ids) + len(answer)))
        ids += [*answer, *tokenizer.encode(".")]
    return Needles(ids=torch.tensor(ids), answers=tuple(answers))


@torch.no_grad()
def found_needles(model: Target, needles: Needles, attend: Attend) -> list[bool]:
    """For each question, whether the likeliest token is the right one at every place of the answer."""
    last = model.forward(needles.ids[None], attend=attend).last[0]
    places = torch.cat([torch.arange(start, stop) for start, stop in needles.answers])
    guessed = model.logits(model.hidden(last[places - 1])).argmax(-1)
    is_right = dict(zip(places.tolist(), (guessed == needles.ids[places]).tolist(), strict=True))
    return [all(is_right[place] for place in range(start, stop)) for start, stop in needles.answers]


def needle_share(base: Target, tuned: Target, cases: Sequence[Needles]) -> list[Finding]:
    """How many of the facts that the dense base finds the tuned model finds with MSA and NVFP4 caches."""
    attend = sparsely(tuned.index, tuned.config.sparse, is_rounded=True)
    num_asked = num_dense = num_kept = 0
    for needles in cases:
        dense, own = found_needles(base, needles, attend_densely), found_needles(tuned, needles, attend)
        num_asked += len(dense)
        num_dense += sum(dense)
        num_kept += sum(d and o for d, o in zip(dense, own, strict=True))
    share = 100 * num_kept / num_dense if num_dense >= _LEAST_CASES else None
    return [
        Finding(name=f"needles that the dense model finds, of {num_asked}", value=num_dense),
        Finding(name="needles kept: % of those", value=share, bar=95.0, is_least=True),
    ]


def measure(base: Target, tuned: Target, tokenizer: Tokenizer, held_out: Stream, *, is_quick: bool) -> list[Finding]:
    """Everything; the quick form looks at two windows and five needle texts."""
    num_tokens = min(8192, tuned.config.max_position_embeddings)
    windows = held_out.spaced(2 if is_quick else 12, num_tokens)
    findings = costs(base, tuned, windows)
    if any(tuned.config.sparse.is_sparse):
        parts = [kept_mass(tuned, record(tuned, ids[None], 256, 0)) for ids in windows[: 1 if is_quick else 4]]
        mass = torch.stack(parts).mean(0)
        findings += [Finding(name=f"mass in chosen blocks, layer {i}", value=v) for i, v in enumerate(mass.tolist())]
        findings.append(Finding(name="mass in chosen blocks, mean", value=mass.mean().item(), bar=0.93, is_least=True))
        lengths = [num_tokens // 2 + (num_tokens * 7 // 16) * i // 9 for i in range(10)][:: 2 if is_quick else 1]
        cases = [make_needles(tokenizer, windows.flatten()[i * 1000 :], count, i) for i, count in enumerate(lengths)]
        findings += needle_share(base, tuned, cases)
    return findings


def main() -> int:
    """Print the table; 1 where a bar is missed."""
    parser = argparse.ArgumentParser(description="what index heads and an NVFP4 cache cost")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--base", help="the model before it was tuned (default: --model without the parts)")
    parser.add_argument("--parts", type=Path, nargs="*", default=[])
    parser.add_argument("--text", type=Path, nargs="*", default=[])
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    start_s = time.perf_counter()
    directory = demo.resolve(args.model)
    if args.text and not all(path.exists() for path in args.text):
        raise ConfigError("--text names a path that does not exist")
    base = target.load(demo.resolve(args.base or args.model), torch.bfloat16)
    tuned = target.load(directory, torch.bfloat16, args.parts)
    tokenizer = Tokenizer.load(directory)
    if args.text:
        held_out = text.streams(text.read(args.text), tokenizer, 0)[1]
    else:
        topics = "\n\n".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))
        held_out = Stream(ids=torch.tensor(tokenizer.encode(topics)))
    findings = measure(base, tuned, tokenizer, held_out, is_quick=args.quick)
    for finding in findings:
        value = "" if finding.value is None else f"{finding.value:.3f}"
        bar = "" if finding.bar is None else f"{'>=' if finding.is_least else '<='} {finding.bar:g}"
        print(f"{finding.name:48} {value:>10} {bar:>8}  {finding.verdict}".rstrip(), flush=True)
    print(f"{len(held_out.ids):,} tokens of held-out text, {time.perf_counter() - start_s:.0f} s")
    return 1 if any(finding.verdict == "missed" for finding in findings) else 0


if __name__ == "__main__":
    sys.exit(main())
