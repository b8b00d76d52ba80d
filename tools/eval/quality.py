"""what index heads and an NVFP4 cache cost: perplexity, facts found in long texts, attention inside chosen blocks"""

import math
import os
import pydoc_data.topics
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from minnow.llm import LLM
from minnow.text.tokenizer import Tokenizer
from minnow.tune import target
from minnow.tune.index_heads import kept_mass, record
from minnow.tune.text import Stream
from tools.eval.finding import Finding
from tools.eval.models import Models, caches, open_llm, score

NO_INDEX = "the model has no index heads"
LEAST_CASES = 40
_NUM_LAST = 2048  # the end of a window, where most blocks are left out
_NUM_DEPTHS = 10
_PLACES = """Oslo Lima Cairo Quito Delhi Rome Tunis Seoul Bogota Accra Riga Hanoi Sofia Dakar Minsk Turin""".split()
_WORDS = """tiger apple river candle piano rocket garden winter button copper pepper island mirror ladder silver monkey
castle bridge forest hammer""".split()


@dataclass(frozen=True, slots=True, kw_only=True)
class Needles:
    """One long text with facts in it and questions for them at its end, each followed by its answer.

    Attributes:
        answers: of each question, the half-open interval of ids that is its answer.
        depths: of each question, where its fact stands, from 0 to 9.
    """

    ids: tuple[int, ...]
    answers: tuple[tuple[int, int], ...]
    depths: tuple[int, ...]


def held_out(tokenizer: Tokenizer) -> Stream:
    """Python's topic documentation, which training never sees."""
    topics = "\n\n".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))
    return Stream(ids=torch.tensor(tokenizer.encode(topics)))


def losses(llm: LLM, windows: Tensor) -> Tensor:
    """Negative log-likelihood of every token but the first: i64 [count T] -> f64 [count T-1]."""
    rows = [[-one.logprob for one in score(llm, ids)] for ids in windows.tolist()]
    return torch.tensor(rows, dtype=torch.float64)


def cost(found: Tensor, against: Tensor) -> tuple[float, float | None]:
    """How many % the perplexity is above another's on the same windows, and the standard error over windows."""
    differences = (found - against).mean(1)
    percent = 100 * math.expm1(float(differences.mean()))
    if len(differences) < 2:
        return percent, None
    return percent, (100 + percent) * float(differences.std()) / math.sqrt(len(differences))


def perplexity(models: Models, windows: Tensor) -> Iterator[Finding]:
    """Perplexity with index heads and with an NVFP4 cache, beside dense attention and BF16."""
    base = losses(models.dense_base(), windows)
    num_tokens = f"{windows.shape[1]:,} tokens of context"
    yield Finding(
        name=f"perplexity of the dense base, BF16 cache, {num_tokens}",
        value=math.exp(float(base.mean())),
        details=(f"{windows.shape[0]} windows of text that training never sees, each computed from its begin",),
    )
    msa = Finding(name=f"perplexity, MSA above dense, {num_tokens}", unit="%", bar=1.5, is_least=False)
    rounded = Finding(name="perplexity, MSA, all caches NVFP4, above the base", unit="%", bar=4.0, is_least=False)
    if not models.is_sparse:
        for row in (msa, rounded):
            yield _absent(row)
        return
    dense = losses(models.plain(dense=True, kv_cache_dtype="bfloat16"), windows)
    yield _filled(msa, losses(models.plain(**caches("bfloat16")), windows), dense)
    yield _filled(rounded, losses(models.plain(**caches("nvfp4")), windows), base)
    yield _filled(Finding(name="the same weights, dense, BF16 cache, above the base", unit="%"), dense, base)
    if not models.is_quick:
        settings = {"dense": True, "kv_cache_dtype": "nvfp4"}
        found = losses(models.plain(**settings), windows)
        yield _filled(Finding(name="the same weights, dense, NVFP4 cache, above the base", unit="%"), found, base)
        found = losses(open_llm(models.base, speculation=False, **settings), windows)
        yield _filled(Finding(name="the base itself, dense, NVFP4 cache, above the base", unit="%"), found, base)


def make_needles(tokenizer: Tokenizer, filler: Sequence[int], num_tokens: int, seed: int) -> Needles:
    """A fact ("Oslo: tiger") at each of ten depths of a filler text, then a question for each ("Oslo:").

    Of eight forms that were tried it is one that the dense base answers often (16 of 20 questions in 4,096 tokens, 19
    of 20 in 7,400); how MSA answers played no role.

    Args:
        filler: at least num_tokens.
        num_tokens: of the whole text, at most and nearly.
    """
    chance = random.Random(seed)
    places = chance.sample(_PLACES, _NUM_DEPTHS)
    word_by_place = dict(zip(places, chance.sample(_WORDS, len(places)), strict=True))
    questions: list[int] = []
    answers, depths = [], []
    for place in chance.sample(places, len(places)):
        questions += tokenizer.encode(f"\n\n{place}:")
        answer = tokenizer.encode(f" {word_by_place[place]}")
        answers.append((len(questions), len(questions) + len(answer)))
        depths.append(places.index(place))
        questions += answer
    ids: list[int] = []
    step = (num_tokens - len(questions)) // len(places)
    for i, (place, word) in enumerate(word_by_place.items()):
        fact = tokenizer.encode(f"\n\n{place}: {word}\n\n")
        ids += [*filler[i * step : (i + 1) * step - len(fact)], *fact]
    shifted = tuple((len(ids) + start, len(ids) + stop) for start, stop in answers)
    return Needles(ids=(*ids, *questions), answers=shifted, depths=tuple(depths))


def found_needles(llm: LLM, needles: Needles) -> list[bool]:
    """For each question, whether the likeliest token is the right one at every place of the answer."""
    scored = score(llm, needles.ids)
    return [all(scored[place - 1].rank == 1 for place in range(start, stop)) for start, stop in needles.answers]


def needles(models: Models, tokenizer: Tokenizer, filler: Sequence[int]) -> Finding:
    """The score of the model as it is served, as a share of the dense base's with a BF16 cache."""
    row = Finding(name="facts found in 4K-8K tokens, of dense's score", unit="%", bar=95.0)
    if not models.is_sparse:
        return _absent(row)
    most = min(8192, models.config.max_position_embeddings)
    num_texts, longest = (6, most * 3 // 4) if models.is_quick else (10, most)
    lengths = [most // 2 + (longest - most // 2) * i // (num_texts - 1) for i in range(num_texts)]
    cases = [make_needles(tokenizer, filler[2000 * i :], length, i) for i, length in enumerate(lengths)]
    llm = models.dense_base()
    by_dense = [found_needles(llm, case) for case in cases]
    llm = models.plain()
    by_model = [found_needles(llm, case) for case in cases]
    row = judged(row, cases, by_dense, by_model)
    if models.is_quick:
        return row
    llm = models.plain(**caches("nvfp4"))
    count = sum(sum(found_needles(llm, case)) for case in cases)
    return replace(row, details=(*row.details, f"with all caches NVFP4 the model answers {count}"))


def judged(
    row: Finding, cases: Sequence[Needles], by_dense: Sequence[Sequence[bool]], by_model: Sequence[Sequence[bool]]
) -> Finding:
    """The row with its value, or without one where the dense model answers too few."""
    depths = [depth for case in cases for depth in case.depths]
    dense, own = ([answer for answers in found for answer in answers] for found in (by_dense, by_model))
    by_depth = [[sum(a for a, d in zip(found, depths, strict=True) if d == depth) for found in (dense, own)]
                for depth in range(_NUM_DEPTHS)]  # fmt: skip
    kept = sum(a and b for a, b in zip(dense, own, strict=True))
    details = (
        f"{len(cases)} texts of {len(cases[0].ids):,} to {len(cases[-1].ids):,} tokens",
        f"of {len(dense)} questions dense answers {sum(dense)}, the model {sum(own)}, both {kept}",
        "dense/model by depth, from the begin: " + " ".join(f"{a}/{b}" for a, b in by_depth),
    )
    if sum(dense) < LEAST_CASES:
        reason = f"dense answers {sum(dense)}, fewer than {LEAST_CASES}"
        return replace(row, reason=reason, absence="not measurable", details=details)
    return replace(row, value=100 * sum(own) / sum(dense), details=details)


def mass(models: Models, windows: Tensor) -> Finding:
    """The share of the dense attention inside the chosen blocks, by training's own code in torch."""
    row = Finding(name="dense attention inside the chosen blocks, mean of layers", bar=0.93)
    if not models.is_sparse:
        return _absent(row)
    torch.set_num_threads(len(os.sched_getaffinity(0)))  # engines leave one: their teams have the others
    model = target.load(models.model, torch.bfloat16)
    found = torch.stack([kept_mass(model, record(model, ids[None], 256, 0)) for ids in windows])
    by_layer = " ".join(f"{value:.3f}" for value in found.mean(0).tolist())
    noise = None if len(found) < 2 else float(found.mean(1).std()) / math.sqrt(len(found))
    details = (f"by layer: {by_layer}", f"256 places of {len(found)} windows, behind the first that have to choose")
    return replace(row, value=found.mean().item(), noise=noise, details=details)


def _filled(row: Finding, found: Tensor, against: Tensor) -> Finding:
    value, noise = cost(found, against)
    last, _ = cost(found[:, -_NUM_LAST:], against[:, -_NUM_LAST:])
    each = [cost(found[i : i + 1], against[i : i + 1])[0] for i in range(len(found))]
    details = (
        f"{last:.3g} % in the last {_NUM_LAST:,} tokens; windows one by one: {' '.join(f'{one:.3g}' for one in each)}",
    )
    return replace(row, value=value, noise=noise, details=details)


def _absent(row: Finding) -> Finding:
    return replace(row, reason=NO_INDEX)
