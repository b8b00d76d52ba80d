"""typed message pipe: in-process queue now, a local socket with the same behaviour later"""

import queue
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from minnow.core.errors import RequestError
from minnow.core.request import Request
from minnow.core.step import Abort, Control, ControlReply, EngineStats, TokenOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The engine did not take a request; the parts of its RequestError, as plain values."""

    request_id: str
    message: str
    param: str | None = None
    code: str | None = None
    status: int = 400

    @classmethod
    def of(cls, request_id: str, error: RequestError) -> "Refusal":
        """The message that carries an error."""
        return cls(request_id=request_id, message=str(error), param=error.param, code=error.code, status=error.status)

    def to_error(self) -> RequestError:
        """The error again, on the other side."""
        return RequestError(self.message, param=self.param, code=self.code, status=self.status)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """What a step or an abort yielded; sent after every step, also an empty one: silence means a stuck engine."""

    outputs: tuple[TokenOutput, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """The last message: the engine ended, by order (no error) or by a failure."""

    error: str | None = None


ToEngine = Request | Abort | Control
FromEngine = Outputs | Refusal | ControlReply | EngineStats | Closed
Deliver = Callable[[FromEngine], None]


class EngineEnd:
    """The end that the engine's loop holds."""

    def __init__(self, inbox: "queue.SimpleQueue[ToEngine | None]", deliver: Deliver) -> None:
        self._inbox = inbox
        self._deliver = deliver

    def receive(self, *, is_blocking: bool) -> Sequence[ToEngine] | None:
        """All messages that have come, in order; None once the other end asked to stop.

        Args:
            is_blocking: wait for the first message instead of returning none.
        """
        messages: list[ToEngine] = []
        while True:
            try:
                message = self._inbox.get(block=is_blocking and not messages)
            except queue.Empty:
                return messages
            if message is None:
                return None
            messages.append(message)

    def send(self, message: FromEngine) -> None:
        """Hand a message to the other end at once."""
        self._deliver(message)


class ClientEnd:
    """The end that the engine's client holds."""

    def __init__(self, inbox: "queue.SimpleQueue[ToEngine | None]") -> None:
        self._inbox = inbox

    def send(self, message: ToEngine) -> None:
        """Hand a message to the engine; it is read between two steps. Never blocks."""
        self._inbox.put(message)

    def stop(self) -> None:
        """Ask the engine's loop to end after its current step."""
        self._inbox.put(None)


def in_process(deliver: Deliver) -> tuple[ClientEnd, EngineEnd]:
    """Two ends of a channel between threads of one process.

    Args:
        deliver: called on the engine's thread with each message for the client.
    """
    inbox: queue.SimpleQueue[ToEngine | None] = queue.SimpleQueue()
    return ClientEnd(inbox), EngineEnd(inbox, deliver)
