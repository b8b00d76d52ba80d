"""typed message pipe: in-process queue or local socket, same behaviour"""

import contextlib
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from minnow.core import errors
from minnow.core.errors import MinnowError, RequestError
from minnow.core.request import Request
from minnow.core.step import Abort, Control, ControlReply, EngineStats, TokenOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """The engine is being made.

    Attributes:
        stage: what is done now, such as "weights".
        share: of the stage, 0 to 1.
    """

    stage: str
    share: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The engine takes requests from now on.

    Attributes:
        vocab_size: of the network.
        max_model_len: longest prompt plus output, in tokens.
    """

    vocab_size: int
    max_model_len: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Alive:
    """Sent once a second whatever the engine does: silence means that it hangs, or is gone."""


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
    """What a step or an abort yielded; sent after every step, also an empty one.

    Attributes:
        num_tokens: that the step computed; 0 for an abort.
    """

    outputs: tuple[TokenOutput, ...] = ()
    num_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """The last message: the engine ended, by order (no error) or by a failure.

    Attributes:
        error: what went wrong, in words.
        kind: the class of core/errors.py that says it best, where the engine could not be made.
    """

    error: str | None = None
    kind: str | None = None

    def to_error(self) -> MinnowError:
        """The error that kept the engine from being made."""
        kind: type[MinnowError] = getattr(errors, self.kind or "MinnowError")
        return kind(self.error or "the engine was stopped")


ToEngine = Request | Abort | Control
FromEngine = Loading | Ready | Alive | Outputs | Refusal | ControlReply | EngineStats | Closed
Deliver = Callable[[FromEngine], None]
Inbox = queue.SimpleQueue[ToEngine | None]


class EngineEnd:
    """The end that the engine's loop holds."""

    def __init__(self, inbox: Inbox, deliver: Deliver) -> None:
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
        """Hand a message to the other end at once; from any thread."""
        self._deliver(message)


class ClientEnd:
    """The end that the engine's client holds.

    Args:
        put: takes what `pack` makes of a message, and None to stop; never blocks.
        pack: called by whoever sends, so that a message that cannot be sent is that caller's error.
    """

    def __init__(self, put: Callable[[Any], None], pack: Callable[[ToEngine], Any]) -> None:
        self._put = put
        self._pack = pack

    def send(self, message: ToEngine) -> None:
        """Hand a message to the engine; it is read between two steps. Never blocks."""
        self._put(self._pack(message))

    def stop(self) -> None:
        """Ask the engine's loop to end after its current step."""
        self._put(None)


def in_process(deliver: Deliver) -> tuple[ClientEnd, EngineEnd]:
    """Two ends of a channel between threads of one process.

    Args:
        deliver: called on the engine's thread with each message for the client.
    """
    inbox: Inbox = queue.SimpleQueue()
    return ClientEnd(inbox.put, lambda message: message), EngineEnd(inbox, deliver)


def client_end(connection: Connection, deliver: Deliver, how_it_ended: Callable[[], str]) -> ClientEnd:
    """The client's end of a channel between processes.

    Args:
        connection: both ways; closed once the other process is gone.
        deliver: called on a thread with each message; the last one is always `Closed`.
        how_it_ended: asked when the other process is gone without its last message.
    """
    outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    def write() -> None:
        content: bytes | None = b""
        while content is not None:
            content = outbox.get()
            try:
                connection.send_bytes(_STOP if content is None else content)
            except OSError:
                return  # the reader says why

    def read() -> None:
        message: FromEngine = Alive()
        while not isinstance(message, Closed):
            try:
                message = decode(connection.recv_bytes())
            except (EOFError, OSError):
                message = Closed(error=how_it_ended())
            except Exception as error:  # of our own making; a deaf client would wait for ever
                message = Closed(error=f"a message of it could not be read: {error}")
            deliver(message)
        with contextlib.suppress(EOFError, OSError):
            while True:
                connection.recv_bytes()
        outbox.put(None)
        writer.join()
        connection.close()

    writer = threading.Thread(target=write, name="channel write", daemon=True)
    writer.start()
    threading.Thread(target=read, name="channel read", daemon=True).start()
    return ClientEnd(outbox.put, encode)


def engine_end(connection: Connection, when_gone: Callable[[], None]) -> EngineEnd:
    """The engine's end of a channel between processes.

    Args:
        connection: both ways.
        when_gone: called on any thread when the other process is gone.
    """
    inbox: Inbox = queue.SimpleQueue()
    lock = threading.Lock()

    def read() -> None:
        while True:
            try:
                content = connection.recv_bytes()
            except (EOFError, OSError):
                return when_gone()
            inbox.put(None if content == _STOP else decode(content))

    def deliver(message: FromEngine) -> None:
        content = encode(message)
        try:
            with lock:
                connection.send_bytes(content)
        except OSError:
            when_gone()

    threading.Thread(target=read, name="channel read", daemon=True).start()
    return EngineEnd(inbox, deliver)


# On the wire: a byte that names the type, then the value as MessagePack. Both ends are of one installation.
_STOP = b""
_TYPES = (Request, Abort, Control, Loading, Ready, Alive, Outputs, Refusal, ControlReply, EngineStats, Closed)
_NUMBER_BY_TYPE = {each: number for number, each in enumerate(_TYPES)}
_encoder = msgspec.msgpack.Encoder()
_decoders = [msgspec.msgpack.Decoder(each) for each in _TYPES]


def encode(message: ToEngine | FromEngine) -> bytes:
    """A message as bytes."""
    return bytes([_NUMBER_BY_TYPE[type(message)]]) + _encoder.encode(message)


def decode(content: bytes) -> Any:
    """The message that `encode` made bytes of."""
    return _decoders[content[0]].decode(memoryview(content)[1:])
