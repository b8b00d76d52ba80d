"""a host for tests: an engine of this process behind the sockets that a process of its own would have"""

import contextlib
import os
import socket
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
        self._theirs: Connection | None = None
        self.was_left = threading.Event()

    def start(self, deliver: Deliver) -> ClientEnd:
        ours, theirs = Pipe()
        self._theirs = theirs
        end = channel.engine_end(theirs, self.was_left.set)

        def work() -> None:
            with loop.pulse(end):
                loop.run(self._engine, end, log=Logger("engine"))
            self._leave(theirs)

        self._thread = threading.Thread(target=work, name="engine", daemon=True)
        self._thread.start()
        return channel.client_end(ours, deliver, lambda: "it left without a word")

    def join(self, timeout_s: float) -> None:
        assert self._theirs is not None and self._thread is not None
        self._thread.join(timeout_s)
        self._leave(self._theirs)

    @staticmethod
    def _leave(end: Connection) -> None:
        """What the end of a process does to its socket, also while a thread reads from it."""
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(end.fileno())) as own:
            own.shutdown(socket.SHUT_RDWR)
