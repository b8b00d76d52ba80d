"""a test that takes `isa` runs once for each instruction set of this processor"""

from collections.abc import Iterator

import pytest

from minnow.kernels import native


@pytest.fixture(params=native.usable_instruction_sets())
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("MINNOW_ISA", request.param)
    native.instruction_set.cache_clear()
    native.function.cache_clear()
    yield request.param
    monkeypatch.undo()
    native.instruction_set.cache_clear()
    native.function.cache_clear()
