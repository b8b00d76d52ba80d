"""binding, refusals, contract checks, comparison"""

import pytest
import torch

from minnow.core.errors import ConfigError
from minnow.formats.quantized import encode
from minnow.kernels import registry
from minnow.kernels.check import check_call
from minnow.kernels.compare import compare
from minnow.kernels.contract import Target, parse
from minnow.kernels.count import CallCount

CPU = registry.target_of(torch.device("cpu"))


def test_auto_binds_every_operation_and_says_why() -> None:
    kernels = registry.bind(CPU)
    assert {c.op for c in kernels.choices} == set(registry.operations())
    for choice in kernels.choices:
        assert callable(getattr(kernels, choice.op))
        assert set(choice.refusal_by_backend) == set(registry.backends(choice.op)) - {choice.backend}


def test_an_explicit_choice_is_taken() -> None:
    kernels = registry.bind(CPU, "*=auto,norm=reference")
    (norm,) = [c for c in kernels.choices if c.op == "norm"]
    assert norm.backend == "reference"
    assert norm.refusal_by_backend["cpu"] == "reference was asked for"


def test_an_explicit_choice_that_refuses_is_an_error() -> None:
    with pytest.raises(ConfigError, match="norm=cpu cannot run here"):
        registry.bind(Target(kind="cuda", name="some GPU", capability=90), "norm=cpu")


@pytest.mark.parametrize("text", ["nrom=cpu", "norm", "norm=fast"])
def test_unknown_words_are_named(text: str) -> None:
    with pytest.raises(ConfigError, match=text.partition("=")[0]):
        registry.bind(CPU, text)


def test_checks_name_the_axis_that_disagrees() -> None:
    norm = registry.operations()["norm"]
    good = {"x": torch.zeros(2, 8), "w": torch.zeros(8), "eps": 1e-6, "offset": 0.0}
    check_call(norm, good)
    with pytest.raises(TypeError, match=r"norm\.w: axis D is 7, elsewhere 8"):
        check_call(norm, {**good, "w": torch.zeros(7)})
    with pytest.raises(TypeError, match=r"norm\.x has dtype torch\.int64"):
        check_call(norm, {**good, "x": torch.zeros(2, 8, dtype=torch.int64)})
    with pytest.raises(TypeError, match=r"norm\.x has shape"):
        check_call(norm, {**good, "x": torch.zeros(8)})


def test_checks_can_be_switched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINNOW_CHECK", "1")
    with pytest.raises(TypeError, match="axis D"):
        registry.bind(CPU).norm(torch.zeros(2, 8), torch.zeros(7), 1e-6, 0.0)


def test_contract_entries_are_read() -> None:
    assert parse("bf16|f32? [T D]").is_optional
    assert parse("cache [B 1 L J]").axes == ("B", "1", "L", "J")
    with pytest.raises(ValueError, match="not understood"):
        parse("what is this")


def test_compare_reports_the_worst_position() -> None:
    op = registry.operations()["norm"]
    x = torch.arange(6.0).reshape(2, 3)
    assert compare(op, x, x) == []
    y = x.clone()
    y[1, 2] += 3
    assert "strays too far at [1, 2]" in compare(op, y, x)[0]
    y[1, 2] = torch.nan
    assert "finite in one only at [1, 2]" in compare(op, y, x)[0]
    assert "differs" in compare(op, torch.tensor([1, 2]), torch.tensor([1, 3]))[0]
    a, b = (encode("nvfp4", torch.full((1, 16), v)) for v in (1.0, 2.0))
    assert compare(op, a, b)


def test_calls_are_counted() -> None:
    count = CallCount()
    kernels = count.wrap(registry.bind(CPU))
    kernels.norm(torch.zeros(2, 8), torch.zeros(8), 1e-6, 0.0)
    assert count.calls == {"norm": 1}
    assert count.input_bytes["norm"] == (16 + 8) * 4
