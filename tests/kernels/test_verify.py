"""verify: what comes out has the model's law, by enumeration of all that can happen; cases B01 to B03"""

import importlib.util
import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from minnow.kernels import registry
from minnow.kernels.verify import NONE_OPEN, NOT_FINITE, cpu, reference

Prefix = tuple[int, ...]
Model = Callable[[Prefix], Tensor]
# Of a round: what each draft passes with, whether the last pass counts or the first failure, what follows each.
Round = tuple[list[float], bool, list[Tensor]]
Rule = Callable[[Tensor, Tensor, Prefix], Round]
NUM_IDS, NUM_DRAFTS = 3, 3
# The specification's own check, where it lies beside the project.
SHARED = Path(__file__).resolve().parents[3] / "shared" / "spec" / "block_verification_check.py"


def standard_rule(p: Tensor, q: Tensor, drafts: Prefix) -> Round:
    limits = [min(1.0, float(p[i, x] / q[i, x])) for i, x in enumerate(drafts)]
    return limits, False, [(p[i] - q[i]).clamp(min=0) for i in range(len(drafts))]


def block_rule(p: Tensor, q: Tensor, drafts: Prefix) -> Round:
    weights = [1.0]
    for i, x in enumerate(drafts):
        weights.append(min(1.0, weights[-1] * float(p[i, x] / q[i, x])))
    rests = [(weights[i] * p[i] - q[i]).clamp(min=0) for i in range(len(drafts))]
    limits = []
    for i in range(1, len(drafts)):
        mass = float(rests[i].sum())
        limits.append(mass / (mass + 1 - weights[i]) if mass + 1 - weights[i] > 0 else 1.0)
    return [*limits, weights[-1]], True, rests


RULES: dict[str, Rule] = {"standard": standard_rule, "block": block_rule}


def kept(passes: list[bool], counts_last: bool) -> int:
    if counts_last:
        return max((i + 1 for i, passed in enumerate(passes) if passed), default=0)
    return next((i for i, passed in enumerate(passes) if not passed), len(passes))


def next_law(p: Tensor, rests: list[Tensor], num: int) -> Tensor:
    row = p[num] if num == len(rests) or float(rests[num].sum()) <= 0 else rests[num]
    return row / row.sum()


def random_model(seed: int, depth: int, beside: Model | None = None, share: float = 0.0) -> Model:
    """A distribution for each prefix, some with a token that cannot be; a share of it is that of another model."""
    generator = torch.Generator().manual_seed(seed)
    table = {}
    for length in range(depth + 1):
        for prefix in itertools.product(range(NUM_IDS), repeat=length):
            row = (torch.rand(NUM_IDS, generator=generator, dtype=torch.float64) - 0.2).clamp(min=0)
            row[int(torch.randint(NUM_IDS, (1,), generator=generator))] += 0.1
            row = row / row.sum()
            table[prefix] = row if beside is None else share * beside(prefix) + (1 - share) * row
    return lambda prefix: table[prefix]


def target_law(model: Model, length: int) -> dict[Prefix, float]:
    law = {(): 1.0}
    for _ in range(length):
        law = {(*s, v): pr * float(a) for s, pr in law.items() for v, a in enumerate(model(s))}
    return law


def rounds(p: Model, q: Model, rule: Rule) -> Iterator[tuple[Prefix, float]]:
    """What a round commits, and how likely: all drafts, all passes and failures, all tokens after them."""
    for drafts, share in target_law(q, NUM_DRAFTS).items():
        if share == 0:
            continue
        rows = torch.stack([p(drafts[:i]) for i in range(NUM_DRAFTS + 1)])
        limits, counts_last, rests = rule(rows, torch.stack([q(drafts[:i]) for i in range(NUM_DRAFTS)]), drafts)
        for passes in itertools.product((False, True), repeat=NUM_DRAFTS):
            chance = share * math.prod(
                limit if passed else 1 - limit for limit, passed in zip(limits, passes, strict=True)
            )
            num = kept(list(passes), counts_last)
            if chance > 0:
                yield from (((*drafts[:num], v), chance * float(a)) for v, a in enumerate(next_law(rows, rests, num)))


def output_law(p: Model, q: Model, rule: Rule) -> dict[Prefix, float]:
    """Of the first NUM_DRAFTS + 1 tokens: those of a round, then plain p."""
    law = dict.fromkeys(itertools.product(range(NUM_IDS), repeat=NUM_DRAFTS + 1), 0.0)
    for committed, chance in rounds(p, q, rule):
        for rest in itertools.product(range(NUM_IDS), repeat=NUM_DRAFTS + 1 - len(committed)):
            share, tokens = chance, committed
            for v in rest:
                share, tokens = share * float(p(tokens)[v]), (*tokens, v)
            law[tokens] += share
    return law


def run(p: Tensor, q: Tensor | None, drafts: Prefix, uniform: list[float], rule: str, backend: str) -> tuple[int, int]:
    function = registry.implementation("verify", backend, None)  # type: ignore[arg-type]
    num, ids = function(
        p.float(),
        None if q is None else q.float(),
        torch.tensor(drafts, dtype=torch.int64),
        torch.tensor([0, len(drafts) + 1]),
        torch.tensor(uniform, dtype=torch.float64),
        rule,
    )
    return int(num[0]), int(ids[0])


@pytest.fixture(params=registry.backends("verify"))
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("seed", range(6))
def test_the_rules_give_the_models_law(rule: str, seed: int) -> None:
    p = random_model(seed, NUM_DRAFTS + 1)
    q = random_model(100 + seed, NUM_DRAFTS + 1, p, share=seed % 3 / 3)
    expected = target_law(p, NUM_DRAFTS + 1)
    seen = output_law(p, q, RULES[rule])
    assert max(abs(seen[s] - expected[s]) for s in expected) < 1e-12


def test_rules_that_look_alike_do_not() -> None:
    """B03: the residual without the prefix's weight, a stop at the first failure, an inner limit for the last draft."""

    def plain_rest(rows: Tensor, proposed: Tensor, drafts: Prefix) -> Round:
        limits, counts_last, _ = block_rule(rows, proposed, drafts)
        return limits, counts_last, standard_rule(rows, proposed, drafts)[2]

    def early_stop(rows: Tensor, proposed: Tensor, drafts: Prefix) -> Round:
        limits, _, rests = block_rule(rows, proposed, drafts)
        return limits, False, rests

    def inner_last(rows: Tensor, proposed: Tensor, drafts: Prefix) -> Round:
        limits, counts_last, rests = block_rule(rows, proposed, drafts)
        return [*limits[:-1], float(limits[-1] >= 1.0)], counts_last, rests

    for wrong in (plain_rest, early_stop, inner_last):
        gaps = []
        for seed in range(4):
            p = random_model(seed, NUM_DRAFTS + 1)
            q = random_model(100 + seed, NUM_DRAFTS + 1, p, share=seed % 3 / 3)
            expected, seen = target_law(p, NUM_DRAFTS + 1), output_law(p, q, wrong)
            gaps.append(max(abs(seen[s] - expected[s]) for s in expected))
        assert max(gaps) > 1e-3


@pytest.mark.parametrize("rule", RULES)
def test_every_round_is_the_rules(rule: str, backend: str) -> None:
    """All drafts of small models, all passes and failures, the middle of every token's share of the draw."""
    num_rounds = sum(_check_rounds(seed, rule, backend) for seed in range(3, 7))
    assert num_rounds > 300


def _check_rounds(seed: int, rule: str, backend: str) -> int:
    p = random_model(seed, NUM_DRAFTS)
    q = random_model(100 + seed, NUM_DRAFTS, p, share=0.5)
    num_rounds = 0
    for drafts in itertools.product(range(NUM_IDS), repeat=NUM_DRAFTS):
        rows = torch.stack([p(drafts[:i]) for i in range(NUM_DRAFTS + 1)]).float().double()
        proposed = torch.stack([q(drafts[:i]) for i in range(NUM_DRAFTS)]).float().double()
        if any(float(proposed[i, x]) == 0 for i, x in enumerate(drafts)):
            continue
        limits, counts_last, rests = RULES[rule](rows / rows.sum(1, keepdim=True), proposed, drafts)
        for passes in itertools.product((False, True), repeat=NUM_DRAFTS):
            pairs = list(zip(limits, passes, strict=True))
            if any(limit < 1e-6 if passed else limit > 1 - 1e-6 for limit, passed in pairs):
                continue  # it cannot happen
            uniform = [limit - 1e-7 if passed else limit + 1e-7 for limit, passed in pairs]
            num = kept(list(passes), counts_last)
            law = next_law(rows, rests, num)
            for v, (share, end) in enumerate(zip(law.tolist(), law.cumsum(0).tolist(), strict=True)):
                if share > 1e-4:
                    assert run(rows, proposed, drafts, [*uniform, end - share / 2], rule, backend) == (num, v)
                    num_rounds += 1
    return num_rounds


@pytest.mark.parametrize("num_calls", [3, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("rule", RULES)
def test_random_rounds_are_the_rules(rule: str, num_calls: int, backend: str, isa: str) -> None:
    """Many sequences at once, with more tokens and drafts than enumeration allows; next to a limit either may be."""
    generator = torch.Generator().manual_seed(5)
    num_sequences, num_ids = 500, 20
    for _ in range(num_calls):
        counts = torch.randint(0, 8, (num_sequences,), generator=generator)
        starts = torch.cat([torch.zeros(1, dtype=torch.int64), (counts + 1).cumsum(0)])
        p = (torch.randn(int(starts[-1]), num_ids, generator=generator) * 2).softmax(-1)
        keep = torch.ones(len(p), dtype=torch.bool)
        keep[starts[1:] - 1] = False
        q = (p[keep].log() + torch.randn(int(counts.sum()), num_ids, generator=generator)).softmax(-1)
        drafts = q.multinomial(1, generator=generator)[:, 0]
        uniform = torch.rand(len(p), generator=generator, dtype=torch.float64)
        function = registry.implementation("verify", backend, None)  # type: ignore[arg-type]
        nums, ids = function(p, q, drafts, starts, uniform, rule)
        for s in range(num_sequences):
            first, n = int(starts[s]), int(counts[s])
            rows = p[first : first + n + 1].double()
            some = tuple(drafts[first - s : first - s + n].tolist())
            limits, counts_last, rests = (
                RULES[rule](rows / rows.sum(1, keepdim=True), q[first - s : first - s + n].double(), some)
                if n
                else ([], True, [])
            )
            own = uniform[first : first + n + 1].tolist()
            if any(abs(u - limit) < 1e-6 for u, limit in zip(own, limits, strict=False)):
                continue
            num = kept([u < limit for u, limit in zip(own, limits, strict=False)], counts_last)
            ends = next_law(rows, rests, num).cumsum(0)
            if float((ends - own[n]).abs().min()) > 1e-6:
                assert (int(nums[s]), int(ids[s])) == (num, int((ends < own[n]).sum()))


@pytest.mark.skipif(not SHARED.exists(), reason="the specification does not lie beside the project")
def test_the_rules_are_the_specifications(backend: str) -> None:
    spec = importlib.util.spec_from_file_location("block_verification_check", SHARED)
    assert spec is not None and spec.loader is not None
    oracle: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(oracle)
    generator = torch.Generator().manual_seed(2)
    for name, rule in (("standard", oracle.token_rule), ("block", oracle.block_rule)):
        for _ in range(300):
            n, num_ids = int(torch.randint(1, 6, (1,), generator=generator)), 9
            p = torch.randn(n + 1, num_ids, generator=generator).mul(2).softmax(-1)
            q = torch.randn(n, num_ids, generator=generator).mul(2).softmax(-1)
            drafts = tuple(q.multinomial(1, generator=generator)[:, 0].tolist())
            uniform = torch.rand(n + 1, generator=generator, dtype=torch.float64).tolist()
            rows = (p.double() / p.double().sum(1, keepdim=True)).numpy()
            limits, kind, rests = rule(list(rows), list(q.double().numpy()), drafts)
            tau = oracle.pick_tau([u <= limit for u, limit in zip(uniform, limits, strict=False)], kind)
            ends = oracle.next_law(rows, rests, tau, n).cumsum()
            is_close = [abs(u - limit) < 1e-6 for u, limit in zip(uniform, limits, strict=False)]
            if not any(is_close) and abs(ends - uniform[n]).min() > 1e-6:
                assert run(p, q, drafts, uniform, name, backend) == (tau, int((ends < uniform[n]).sum()))


@pytest.mark.parametrize("rule", RULES)
def test_drafts_without_a_distribution_are_its_only_token(rule: str, backend: str) -> None:
    generator = torch.Generator().manual_seed(4)
    for _ in range(50):
        p = torch.randn(4, 9, generator=generator).mul(2).softmax(-1)
        drafts = tuple(torch.randint(9, (3,), generator=generator).tolist())
        q = torch.nn.functional.one_hot(torch.tensor(drafts), 9).float()
        uniform = torch.rand(4, generator=generator, dtype=torch.float64).tolist()
        assert run(p, None, drafts, uniform, rule, backend) == run(p, q, drafts, uniform, rule, backend)


@pytest.mark.parametrize("rule", RULES)
def test_a_greedy_model_keeps_what_it_would_have_said(rule: str, backend: str) -> None:
    said = (4, 1, 7, 7)
    p = torch.nn.functional.one_hot(torch.tensor(said), 9).float()
    q = torch.full((3, 9), 1 / 9)
    for drafts, expected in (((4, 1, 7), (3, 7)), ((4, 1, 0), (2, 7)), ((0, 1, 7), (0, 4)), ((4, 2, 7), (1, 1))):
        for uniform in ([0.0] * 4, [0.999] * 4):
            assert run(p, q, drafts, uniform, rule, backend) == expected
            assert run(p, None, drafts, uniform, rule, backend) == expected


@pytest.mark.parametrize("rule", RULES)
def test_rows_that_are_no_distributions(rule: str, backend: str) -> None:
    p, q = torch.full((3, 4), 0.25), torch.full((2, 4), 0.25)
    for row in range(3):
        broken, closed = p.clone(), p.clone()
        broken[row, 2], closed[row] = float("nan"), 0.0
        assert run(broken, q, (1, 2), [0.5, 0.5, 0.5], rule, backend) == (0, NOT_FINITE)
        assert run(closed, q, (1, 2), [0.5, 0.5, 0.5], rule, backend) == (0, NONE_OPEN)


@pytest.mark.parametrize("num_drafts", [0, 2])
def test_every_instruction_set_draws_from_many_ids_as_the_reference(isa: str, num_drafts: int) -> None:
    """Of more ids than are passed over at once, most of which have no mass."""
    generator = torch.Generator().manual_seed(num_drafts)
    num_sequences, num_ids = 60, 3001
    starts = torch.arange(num_sequences + 1) * (num_drafts + 1)
    p, q = (
        (torch.randn(num_sequences * rows, num_ids, generator=generator) * 3).softmax(-1)
        * (torch.rand(num_sequences * rows, num_ids, generator=generator) < 0.1)
        for rows in (num_drafts + 1, num_drafts)
    )
    drafts = torch.randint(0, num_ids, (num_sequences * num_drafts,), generator=generator)
    uniform = torch.rand(len(p), generator=generator, dtype=torch.float64)
    uniform[::5], uniform[1::5] = 0.0, 1.0 - 2.0**-53
    for rule in RULES:
        found = cpu.verify(p, q if num_drafts else None, drafts, starts, uniform, rule)
        wanted = reference.verify(p, q if num_drafts else None, drafts, starts, uniform, rule)
        assert [part.tolist() for part in found] == [part.tolist() for part in wanted]
