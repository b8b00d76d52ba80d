"""what a drafter is worth: how many drafts are kept, and that greedy answers stay what they are"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from minnow.core.request import Request, SamplingParams
from minnow.core.step import TokenLogprobs
from minnow.llm import LLM
from minnow.text import conversation
from minnow.text.template import ChatTemplate
from minnow.text.tokenizer import Tokenizer
from tools.eval.finding import Finding
from tools.eval.models import Models

NO_DRAFTER = "the model has no drafter"
PROMPTS = Path(__file__).resolve().parents[2] / "benchmarks" / "prompts" / "chat.jsonl"
_WARM = 0.7
_LEAST_GAP = 1e-3
_ids = count()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one prompt got.

    Attributes:
        num_rounds, num_gained: steps after the first token's, and the tokens that they brought.
        logprobs: one a token, where they were asked for.
    """

    token_ids: tuple[int, ...]
    num_rounds: int
    num_gained: int
    logprobs: tuple[TokenLogprobs, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What prompts got that ran side by side, and the engine's own counters.

    Attributes:
        num_drafts: rounds of verification.
        accepted_per_position: rounds that kept the draft of a position.
    """

    each: tuple[Answer, ...]
    num_drafts: int
    accepted_per_position: tuple[int, ...]

    @property
    def length(self) -> float:
        """Tokens a round, the model's own included; 1 where nothing was drafted."""
        return 1 + sum(self.accepted_per_position) / max(self.num_drafts, 1)

    @property
    def noise(self) -> float:
        """Standard error of the length, prompts being what was drawn."""
        rounds = sum(one.num_rounds for one in self.each)
        if len(self.each) < 2 or not rounds:
            return 0.0
        mean = sum(one.num_gained for one in self.each) / rounds
        squares = sum((one.num_gained - mean * one.num_rounds) ** 2 for one in self.each)
        return math.sqrt(squares * len(self.each) / (len(self.each) - 1)) / rounds

    @property
    def by_position(self) -> str:
        """The share of rounds that kept each draft, in words."""
        return " ".join(f"{kept / max(self.num_drafts, 1):.3f}" for kept in self.accepted_per_position)


def chat_prompts(models: Models, number: int) -> list[tuple[int, ...]]:
    """Conversations of benchmarks/prompts/chat.jsonl as the model continues them, spread over its kinds."""
    tokenizer, template = Tokenizer.load(models.model), ChatTemplate.load(models.model, None)
    lines = PROMPTS.read_text(encoding="utf-8").splitlines()
    chosen = [json.loads(lines[i * len(lines) // number]) for i in range(min(number, len(lines)))]
    return [tuple(conversation.render(one["messages"], template, tokenizer).token_ids) for one in chosen]


def answer(llm: LLM, prompts: Sequence[Sequence[int]], sampling: SamplingParams) -> Answers:
    """Continue prompts side by side, the i-th with a seed of its own."""
    engine, before = llm.engine, llm.engine.stats()
    names = [f"eval-{next(_ids)}" for _ in prompts]
    for i, (name, prompt) in enumerate(zip(names, prompts, strict=True)):
        engine.add(Request(request_id=name, token_ids=tuple(prompt), sampling=replace(sampling, seed=i)))
    steps: dict[str, list[int]] = {name: [] for name in names}
    token_ids: dict[str, list[int]] = {name: [] for name in names}
    logprobs: dict[str, list[TokenLogprobs]] = {name: [] for name in names}
    while not engine.is_idle:
        for output in engine.step():
            if output.error is not None:
                raise RuntimeError(f"a prompt was not answered: {output.error}")
            if output.token_ids:
                steps[output.request_id].append(len(output.token_ids))
                token_ids[output.request_id] += output.token_ids
                logprobs[output.request_id] += output.logprobs
    after = engine.stats()
    pairs = zip(after.accepted_per_position, before.accepted_per_position, strict=True)
    each = (
        Answer(
            token_ids=tuple(token_ids[name]),
            num_rounds=len(steps[name]) - 1,
            num_gained=sum(steps[name][1:]),
            logprobs=tuple(logprobs[name]),
        )
        for name in names
    )
    return Answers(
        each=tuple(each),
        num_drafts=after.num_drafts - before.num_drafts,
        accepted_per_position=tuple(new - old for new, old in pairs),
    )


def lengths(models: Models) -> list[int]:
    """Numbers of drafts that are tried: what the drafter proposes, few, and as many as it makes."""
    drafter = models.drafter
    assert drafter is not None
    proposed = int(drafter.served.get("num_speculative_tokens") or 0)
    tried = {3, drafter.block_size} if models.is_quick else {2, 3, 5, drafter.block_size}
    return sorted({n for n in (*tried, proposed) if 1 <= n <= drafter.block_size})


def acceptance(models: Models) -> Iterator[Finding]:
    """Acceptance lengths of the engine itself on held-out conversations, at temperatures 0 and 0.7."""
    greedy = Finding(name="acceptance length, T = 0, best number of drafts", bar=1.8, stretch=2.0)
    block = Finding(name="acceptance length, T = 0.7, block", bar=1.6, stretch=1.8)
    more = Finding(name="acceptance length, T = 0.7, block less standard", bar=0.0, is_within_noise=True)
    if models.drafter is None:
        for row in (greedy, block, more):
            yield replace(row, reason=NO_DRAFTER)
        return
    num_prompts, num_tokens = (20, 64) if models.is_quick else (100, 128)
    prompts = chat_prompts(models, num_prompts)
    found: dict[int, Answers] = {}
    for num_drafts in lengths(models):
        greedy_sampling = SamplingParams(temperature=0.0, max_tokens=num_tokens)
        found[num_drafts] = answer(models.drafting(num_drafts), prompts, greedy_sampling)
    best = max(found, key=lambda n: found[n].length)
    details = [
        f"{n} drafts: {one.length:.3f} +- {one.noise:.2g}; kept by position {one.by_position}"
        for n, one in found.items()
    ]
    where = f"{num_prompts} conversations of benchmarks/prompts/chat.jsonl, {num_tokens} tokens at most"
    yield replace(greedy, value=found[best].length, noise=found[best].noise, details=(where, *details))
    warm = SamplingParams(temperature=_WARM, max_tokens=num_tokens)
    by_rule = {rule: answer(models.drafting(best, rule), prompts, warm) for rule in ("block", "standard")}
    one, other = by_rule["block"], by_rule["standard"]
    positions = f"{best} drafts, drawn; kept by position {one.by_position}"
    yield replace(block, value=one.length, noise=one.noise, details=(positions,))
    details = [f"standard: {other.length:.3f} +- {other.noise:.2g}; kept by position {other.by_position}"]
    noise = math.hypot(one.noise, other.noise)
    yield replace(more, value=one.length - other.length, noise=noise, details=tuple(details))


def gaps(plain: Answers, drafted: Answers) -> list[float]:
    """Of each answer that differs: how far apart the two likeliest tokens are where it first does, in log-probability.

    Args:
        plain: with the log-probabilities of two tokens a place.
    """
    found = []
    for one, other in zip(plain.each, drafted.each, strict=True):
        if one.token_ids != other.token_ids:
            pairs = enumerate(zip(one.token_ids, other.token_ids, strict=False))
            place = next((i for i, (a, b) in pairs if a != b), None)
            if place is None:  # one goes on where the other ends
                found.append(math.inf)
            else:
                (_, first), (_, second) = one.logprobs[place].top[:2]
                found.append(first - second)
    return found


def sameness(models: Models, text: Sequence[int]) -> Finding:
    """Greedy answers with drafts beside those without: conversations, and continuations of a text."""
    num_prompts, num_tokens = (40, 32) if models.is_quick else (200, 64)
    row = Finding(name=f"greedy answers changed by drafts, of {num_prompts}, ties excepted", bar=0.0, is_least=False)
    if models.drafter is None:
        return replace(row, reason=NO_DRAFTER)
    prompts: list[Sequence[int]] = [*chat_prompts(models, num_prompts // 2)]
    stride = len(text) // (num_prompts - len(prompts))
    prompts += [text[i * stride : i * stride + 32] for i in range(num_prompts - len(prompts))]
    greedy = SamplingParams(temperature=0.0, max_tokens=num_tokens)
    plain = answer(models.plain(), prompts, replace(greedy, logprobs=2))
    num_drafts = lengths(models)[-1]
    drafted = answer(models.drafting(num_drafts), prompts, greedy)
    found = gaps(plain, drafted)
    num_tokens = sum(len(one.token_ids) for one in plain.each)
    ties = sum(gap < _LEAST_GAP for gap in found)
    details = (
        f"{num_tokens:,} tokens, {num_drafts} drafts at once, {drafted.length:.2f} tokens a round",
        f"{ties} excepted, whose two likeliest tokens are less than {_LEAST_GAP:g} apart where they first differ",
    )
    return replace(row, value=float(len(found) - ties), details=details)
