"""what holds for every test: one thread, no network beyond this machine, settings of its own"""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import torch

from minnow.kernels import native

hypothesis.settings.register_profile("minnow", deadline=None, derandomize=True)  # machines are shared; runs repeat
hypothesis.settings.load_profile("minnow")
torch.set_num_threads(1)  # tensors are tiny, and a second thread that waits for a busy core costs ten times more


@pytest.fixture(autouse=True)
def _only_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    connect = socket.socket.connect

    def connect_here(self: socket.socket, address: object) -> None:
        host = address[0] if isinstance(address, tuple) else "localhost"
        if not (host == "localhost" or host == "::1" or str(host).startswith("127.")):
            raise AssertionError(f"a test tried to reach {host}")
        connect(self, address)  # type: ignore[arg-type]

    monkeypatch.setattr(socket.socket, "connect", connect_here)


@pytest.fixture(autouse=True)
def _own_settings(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if request.node.get_closest_marker("system") is not None:
        return  # the demo model lies where the user keeps models
    for name in [n for n in os.environ if n.startswith(("MINNOW_", "VLLM_"))]:
        if name not in ("MINNOW_NATIVE", "MINNOW_ISA"):  # what is tested is for the one who starts the tests to say
            monkeypatch.delenv(name)
    monkeypatch.setenv("MINNOW_HOME", str(tmp_path / "minnow-home"))
    monkeypatch.setenv("MINNOW_CHECK", "1")


@pytest.fixture(params=native.usable_instruction_sets())
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A test that takes it runs once for each instruction set of this processor."""
    monkeypatch.setenv("MINNOW_ISA", request.param)
    native.instruction_set.cache_clear()
    native.function.cache_clear()
    yield request.param
    monkeypatch.undo()
    native.instruction_set.cache_clear()
    native.function.cache_clear()
