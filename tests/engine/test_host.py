"""starting the engine's process, where the machine does not let it"""

import errno
import queue
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from minnow.config.engine import EngineConfig
from minnow.core.errors import MinnowError
from minnow.engine.channel import Closed
from minnow.engine.host import EngineProcess


def test_a_process_that_cannot_be_started_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*words: object, **settings: object) -> None:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with pytest.raises(MinnowError, match="could not be started: Resource temporarily unavailable"):
        EngineProcess(EngineConfig(), Path("model")).start(lambda message: None)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


def test_a_process_that_leaves_at_once_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    popen = subprocess.Popen

    def leave(command: list[str], **settings: Any) -> "subprocess.Popen[bytes]":
        process = popen([sys.executable, "-c", ""], **settings)
        process.wait()
        return process

    monkeypatch.setattr(subprocess, "Popen", leave)
    seen: queue.SimpleQueue[object] = queue.SimpleQueue()
    host = EngineProcess(EngineConfig(), Path("model"))
    host.start(seen.put)
    assert seen.get(timeout=10) == Closed(error="its process left with code 0")
    host.join(5)
