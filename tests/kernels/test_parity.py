"""every operation x backend x case against the reference"""

import copy
import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from minnow.core import folder
from minnow.formats.quantized import Quantized
from minnow.kernels import registry
from minnow.kernels.check import check_call
from minnow.kernels.compare import compare
from minnow.kernels.contract import Op, Target

_CPU = torch.device("cpu")


def _cases(key: str) -> Iterator[Any]:
    for name, op in registry.operations().items():
        for case in getattr(op, key):
            yield pytest.param(op, case, id=f"{name}-{'-'.join(str(v) for v in case.values())}")


def _make(op: Op, case: dict[str, Any], device: torch.device) -> dict[str, Any]:
    return folder.load(f"minnow.kernels.{op.name}", "inputs").make(device, **case)


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else copy.deepcopy(value)


def _run(op: Op, backend: str, inputs: dict[str, Any], device: torch.device) -> Any:
    kernels = registry.bind(registry.target_of(device), "*=reference")
    function = registry.implementation(op.name, backend, kernels)
    return function(**{name: _copy(value) for name, value in inputs.items()})


def _to(value: Any, device: torch.device) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, Quantized):
        return value.map(lambda part: part.to(device))
    return type(value)(_to(v, device) for v in value) if isinstance(value, tuple | list) else value


def _check_parity(op: Op, case: dict[str, Any], target: Target, device: torch.device) -> None:
    """The reference computes on the CPU, so that it is an independent witness for a GPU, itself included."""
    inputs = _make(op, case, _CPU)
    bound = inspect.signature(getattr(folder.load(f"minnow.kernels.{op.name}", "reference"), op.name)).bind(**inputs)
    bound.apply_defaults()
    check_call(op, bound.arguments)
    expected = _run(op, "reference", inputs, _CPU)
    there = {name: _to(value, device) for name, value in inputs.items()}
    ran = 0
    for backend in registry.backends(op.name):
        if folder.load(f"minnow.kernels.{op.name}", backend).refusal(target) is None:
            assert compare(op, _to(_run(op, backend, there, device), _CPU), expected) == []
            ran += 1
    assert ran >= 1


@pytest.mark.parametrize(("op", "case"), [*_cases("cases")])
def test_backends_equal_the_reference(op: Op, case: dict[str, Any]) -> None:
    _check_parity(op, case, registry.target_of(_CPU), _CPU)


@pytest.mark.gpu
@pytest.mark.parametrize(("op", "case"), [*_cases("cases"), *_cases("device_cases")])
def test_backends_equal_the_reference_on_a_gpu(op: Op, case: dict[str, Any]) -> None:
    device = torch.device("cuda")
    _check_parity(op, case, registry.target_of(device), device)


@pytest.mark.parametrize("op", [*registry.operations().values()], ids=lambda op: op.name)
def test_a_contract_names_its_arguments_in_order(op: Op) -> None:
    function = getattr(folder.load(f"minnow.kernels.{op.name}", "reference"), op.name)
    assert list(inspect.signature(function).parameters) == list(op.inputs)
    operations, moved_bytes = op.cost(**{name: 2 for name in _dims(op)})
    assert operations >= 0 and moved_bytes >= 0


def _dims(op: Op) -> list[str]:
    parameters = inspect.signature(op.cost).parameters.values()
    return [p.name for p in parameters if p.default is inspect.Parameter.empty]
