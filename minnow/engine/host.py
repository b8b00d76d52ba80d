"""where an engine runs: in a process of its own, or in a thread of this one"""

import signal
import subprocess
import sys
import threading
from multiprocessing import Pipe
from pathlib import Path
from typing import Protocol

import msgspec

from minnow.config.engine import EngineConfig
from minnow.core.errors import MinnowError
from minnow.core.log import Logger
from minnow.engine import channel, loop
from minnow.engine.channel import ClientEnd, Deliver
from minnow.engine.loop import StepEngine

# Of the engine's process: when to stop is for the process that started it to say.
IGNORED_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Host(Protocol):
    """Where an engine runs."""

    def start(self, deliver: Deliver) -> ClientEnd:
        """Start it.

        Args:
            deliver: called on a thread with each message of the engine, the last of which is `Closed`.
        """
        ...

    def join(self, timeout_s: float) -> None:
        """Wait for its end, and force it at the time-out where that is possible."""
        ...


class EngineThread:
    """Runs an engine that exists already in a thread of this process.

    Args:
        engine: touched by that thread alone.
    """

    def __init__(self, engine: StepEngine) -> None:
        self._engine = engine
        self._thread: threading.Thread | None = None

    def start(self, deliver: Deliver) -> ClientEnd:
        """Start the thread."""
        ours, theirs = channel.in_process(deliver)

        def work() -> None:
            with loop.pulse(theirs):
                loop.run(self._engine, theirs, log=Logger("engine"))

        self._thread = threading.Thread(target=work, name="engine", daemon=True)
        self._thread.start()
        return ours

    def join(self, timeout_s: float) -> None:
        """Wait for its end; a thread cannot be forced."""
        if self._thread is not None:
            self._thread.join(timeout_s)


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine's process is told first."""

    config: EngineConfig
    directory: str


class EngineProcess:
    """Makes an engine in a process of its own and runs it there.

    The process ends with this one, however that ends: its side of the channel closes then.

    Args:
        config: as loaded.
        directory: of the checkpoint.
    """

    def __init__(self, config: EngineConfig, directory: Path) -> None:
        self._start = Start(config=config, directory=str(directory))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, deliver: Deliver) -> ClientEnd:
        """Start the process.

        Raises:
            MinnowError: the machine does not let it start.
        """
        ours, theirs = Pipe()
        number = theirs.fileno()
        # Its stdout is our stderr: ours holds results only. -P: nothing in the working directory is taken for a module.
        command = [sys.executable, "-P", "-m", "minnow.engine.worker", str(number)]
        # Signals of a terminal reach it, too. It is born deaf to them, and learns to ignore them before it listens.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED_SIGNALS)
        try:
            process = subprocess.Popen(command, pass_fds=[number], stdin=subprocess.DEVNULL, stdout=2)
            ours.send_bytes(msgspec.msgpack.encode(self._start))
        except OSError as error:
            ours.close()
            raise MinnowError(f"the engine's process could not be started: {error.strerror or error}") from None
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            theirs.close()
        self._process = process
        return channel.client_end(ours, deliver, lambda: _how_it_ended(process))

    def join(self, timeout_s: float) -> None:
        """Wait for its end, and kill it at the time-out."""
        if self._process is None:
            return
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _how_it_ended(process: "subprocess.Popen[bytes]") -> str:
    """Of a process that left without a word."""
    code = process.wait()
    return (
        f"its process was ended by {signal.Signals(-code).name}" if code < 0 else f"its process left with code {code}"
    )
