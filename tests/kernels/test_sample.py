"""sample against the reference and by its limits, on every instruction set"""

import itertools
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from minnow.kernels import native
from minnow.kernels.probabilities import OP as DISTRIBUTIONS
from minnow.kernels.probabilities import cpu as distributions
from minnow.kernels.probabilities import inputs as distribution_inputs
from minnow.kernels.probabilities import reference as plain_distributions
from minnow.kernels.sample import NONE_OPEN, NOT_FINITE, OP, cpu, inputs, reference


@pytest.fixture(params=[1, 2, 3])
def team(request: pytest.FixtureRequest) -> Iterator[None]:
    native.set_threads(request.param)
    yield
    native.set_threads(1)


def _call(logits: torch.Tensor, **settings: Any) -> dict[str, torch.Tensor]:
    """Arguments of a call: a number for all rows, or a list."""
    named = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "uniform": 0.5, **settings}
    dtypes = {"top_k": torch.int64, "uniform": torch.float64}
    columns = {
        name: torch.as_tensor(value, dtype=dtypes.get(name, torch.float32)).expand(len(logits)).contiguous()
        for name, value in named.items()
    }
    return {"logits": logits, **columns}


@pytest.mark.parametrize("case", OP.cases, ids=str)
def test_every_instruction_set_draws_what_the_reference_draws(isa: str, case: dict[str, Any]) -> None:
    arguments = inputs.make(torch.device("cpu"), **case)
    assert cpu.sample(**arguments).tolist() == reference.sample(**arguments).tolist()


@pytest.mark.parametrize("scale", [1e-3, 0.1, 1.0, 4.0, 60.0])
@pytest.mark.parametrize("grid", [None, 4])
def test_any_mix_of_settings_draws_what_the_reference_draws(isa: str, scale: float, grid: int | None) -> None:
    """On a grid many logits are equal, so the order of ids decides."""
    generator = torch.Generator().manual_seed(7)
    choices = itertools.product((0.2, 1.0, 1.7), (0, 1, 40), (1.0, 0.93, 0.2), (0.0, 0.03, 0.7))
    temperature, top_k, top_p, min_p = zip(*choices, strict=True)
    logits = torch.randn(81, 1531, generator=generator) * scale
    logits = logits if grid is None else (logits * grid).round() / grid
    logits[::5, ::3] = -torch.inf
    uniform = torch.rand(81, generator=generator, dtype=torch.float64)
    arguments = _call(logits, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, uniform=uniform)
    assert cpu.sample(**arguments).tolist() == reference.sample(**arguments).tolist()


def test_a_row_is_drawn_the_same_alone_and_by_any_team(team: None) -> None:
    arguments = inputs.make(torch.device("cpu"), S=7, V=50_001)
    together = cpu.sample(**arguments)
    alone = [cpu.sample(**{name: value[row : row + 1] for name, value in arguments.items()}) for row in range(7)]
    assert together.tolist() == torch.cat(alone).tolist() == reference.sample(**arguments).tolist()


def test_equal_logits_go_to_the_lower_id(isa: str) -> None:
    logits = torch.zeros(1, 5000)
    logits[0, ::2] = -0.0
    assert cpu.sample(**_call(logits, temperature=0.0)).tolist() == [0]
    rows = logits.expand(200, 5000).contiguous()
    uniform = (torch.arange(200, dtype=torch.float64) + 0.3) / 200
    expected = (uniform * 5000).long().tolist()
    assert cpu.sample(**_call(rows, uniform=uniform)).tolist() == expected
    quarters = _call(torch.zeros(4, 4), uniform=[0.0, 0.25, 0.5, 0.75])  # a draw on an edge belongs to what follows
    assert cpu.sample(**quarters).tolist() == reference.sample(**quarters).tolist() == [0, 1, 2, 3]
    assert cpu.sample(**_call(rows, uniform=uniform, top_k=3)).tolist() == (uniform * 3).long().tolist()


def test_banned_tokens_are_never_drawn(isa: str) -> None:
    logits = torch.full((4, 70_000), -torch.inf)
    logits[:, [5, 64_000]] = torch.tensor([1.0, 3.0])
    uniform = [0.0, 0.5, 0.9999, math.nextafter(1.0, 0.0)]
    assert cpu.sample(**_call(logits, uniform=uniform)).tolist() == [64_000, 64_000, 5, 5]
    assert cpu.sample(**_call(logits, uniform=uniform, top_k=9, min_p=0.5)).tolist() == [64_000] * 4


@pytest.mark.parametrize("sample", [reference.sample, cpu.sample])
def test_rows_without_an_answer_say_why_and_leave_others_alone(sample: Any) -> None:
    """E07: NaN or infinity ends that row alone."""
    logits = torch.randn(6, 40, generator=torch.Generator().manual_seed(3))
    clean = sample(**_call(logits, temperature=[1.0, 0.0, 1.0, 0.0, 1.0, 1.0]))
    logits[1, 39], logits[2, 0], logits[3], logits[4] = math.nan, math.inf, -math.inf, -math.inf
    logits[4, 3] = math.nan
    seen = sample(**_call(logits, temperature=[1.0, 0.0, 1.0, 0.0, 1.0, 1.0]))
    assert seen.tolist() == [int(clean[0]), NOT_FINITE, NOT_FINITE, NONE_OPEN, NOT_FINITE, int(clean[5])]


def test_draws_follow_the_distribution(isa: str) -> None:
    logits = torch.randn(1, 300, generator=torch.Generator().manual_seed(1)) * 2
    num = 20_000
    uniform = (torch.arange(num, dtype=torch.float64) + 0.5) / num
    seen = cpu.sample(**_call(logits.expand(num, 300), uniform=uniform, temperature=1.3, top_k=50))
    p = (logits[0].double() / 1.3).softmax(0)
    kept = p.sort(descending=True).indices[:50]
    share = torch.bincount(seen, minlength=300).double() / num
    assert torch.allclose(share[kept], p[kept] / p[kept].sum(), atol=1e-4)
    assert float(share[kept].sum()) == 1.0


@pytest.mark.parametrize("case", DISTRIBUTIONS.cases, ids=str)
def test_every_instruction_set_has_the_distributions_of_the_reference(isa: str, case: dict[str, Any]) -> None:
    arguments = distribution_inputs.make(torch.device("cpu"), **case)
    whole = arguments | {"top_k": arguments["top_k"] * 0, "top_p": torch.ones_like(arguments["top_p"])}
    for given in (arguments, whole):  # nothing is ranked for the latter
        found = distributions.probabilities(**given)
        torch.testing.assert_close(
            found, plain_distributions.probabilities(**given), rtol=1e-6, atol=1e-9, equal_nan=True
        )
