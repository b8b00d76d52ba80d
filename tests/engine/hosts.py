"""a host for tests: an engine of this process behind the sockets that a process of its own would have"""

import threading
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from minnow.core.log import Logger
from minnow.engine import channel, loop
from minnow.engine.channel import ClientEnd, Deliver
from minnow.engine.loop import StepEngine


class EngineBehindSocket:
    """Runs an engine in a thread, with every message as bytes through a socket.

    Attributes:
        was_left: the other side closed its end.
    """

    def __init__(self, engine: StepEngine) -> None:
        self._engine = engine
        self._thread: threading.Thread | None = None
        self._ours: Connection | None = None
        self.was_left = threading.Event()

    def start(self, deliver: Deliver) -> ClientEnd:
        self._ours, theirs = Pipe()
        end = channel.engine_end(theirs, self.was_left.set)

        def work() -> None:
            with loop.pulse(end):
                loop.run(self._engine, end, log=Logger("engine"))
            self.was_left.wait(timeout=10)
            theirs.close()

        self._thread = threading.Thread(target=work, name="engine", daemon=True)
        self._thread.start()
        return channel.client_end(self._ours, deliver, lambda: "it left without a word")

    def join(self, timeout_s: float) -> None:
        assert self._ours is not None and self._thread is not None
        if not self.was_left.is_set():
            self._thread.join(min(timeout_s, 0.2))
        self._ours.close()
        self._thread.join(timeout_s)
