"""starting the engine's process, where the machine does not let it"""

import errno
import os
import queue
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from minnow.config.engine import EngineConfig
from minnow.config.kernel import KernelConfig
from minnow.config.load import from_values
from minnow.core.errors import MinnowError
from minnow.engine import processors
from minnow.engine.channel import Closed, Ready
from minnow.engine.host import EngineProcess
from tests import tiny


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


def test_the_thread_that_steps_has_a_cpu_beside_those_of_the_workers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its other threads, such as torch's, are not kept to that CPU."""
    popen, started = subprocess.Popen, []

    def remember(command: list[str], **settings: Any) -> "subprocess.Popen[bytes]":
        started.append(popen(command, **settings))
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", remember)
    tiny.write_tiny(tmp_path)
    host = EngineProcess(from_values({"model": str(tmp_path), "num_gpu_blocks_override": 60}).config, tmp_path)
    seen: queue.SimpleQueue[object] = queue.SimpleQueue()
    end = host.start(seen.put)
    while not isinstance(seen.get(timeout=60), Ready):
        pass
    threads = processors.decide(KernelConfig(), processors.read())
    pinned = threads.cpus[:1] if threads.cpus and threads.count > 1 else None
    masks = {
        int(task.name): os.sched_getaffinity(int(task.name)) for task in Path(f"/proc/{started[0].pid}/task").iterdir()
    }
    assert masks.pop(started[0].pid) == set(pinned or os.sched_getaffinity(0))
    assert os.sched_getaffinity(0) in masks.values()
    end.stop()
    host.join(10)
