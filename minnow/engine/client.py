"""EngineClient: submit, abort, stream; what the server holds"""

import asyncio
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

from minnow.core.errors import MinnowError, RequestError
from minnow.core.log import Logger
from minnow.core.request import Request
from minnow.core.step import Abort, Control, ControlReply, EngineStats, TokenOutput
from minnow.engine import loop
from minnow.engine.channel import ClientEnd, Closed, FromEngine, Outputs, Refusal, in_process
from minnow.engine.loop import StepEngine

STUCK_AFTER_S = 60.0


class OutputStream:
    """The outputs of some requests, in the order in which the engine sends them.

    An asynchronous iterator that ends when every request has ended; each request's last output has a
    finish_reason. Leaving it early (`async with`, or `close`) aborts what still runs.
    """

    def __init__(self, client: "EngineClient", request_ids: Sequence[str]) -> None:
        self._client = client
        self._open = dict.fromkeys(request_ids)
        self._ready: deque[TokenOutput | RequestError] = deque()
        self._wake = asyncio.Event()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TokenOutput:
        """The next output.

        Raises:
            RequestError: the engine refused one of the requests; the others are aborted.
        """
        while not self._ready:
            if not self._open:
                raise StopAsyncIteration
            self._wake.clear()
            await self._wake.wait()
        item = self._ready.popleft()
        if isinstance(item, RequestError):
            self.close()
            raise item
        return item

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def abort(self, request_id: str) -> None:
        """Stop one of the requests; none of its later outputs appear."""
        if request_id in self._open:
            del self._open[request_id]
            self._client.abort(request_id, is_forgotten=True)
        self._ready = deque(o for o in self._ready if isinstance(o, RequestError) or o.request_id != request_id)
        self._wake.set()

    def close(self) -> None:
        """Stop all of the requests that still run."""
        for request_id in tuple(self._open):
            self.abort(request_id)

    def push(self, request_id: str, item: TokenOutput | RequestError) -> None:
        """Take what the engine said about a request; for the client that made this stream."""
        if isinstance(item, RequestError) or item.finish_reason is not None:
            self._open.pop(request_id, None)
        self._ready.append(item)
        self._wake.set()


class EngineClient:
    """Talks to an engine that runs in a thread of this process.

    All methods belong to one event loop, the one that `start` ran in. The engine is touched by its own
    thread alone.

    Args:
        engine: built, and idle.
        stuck_after_s: with requests open, so long a silence counts as stuck; above the longest step.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        engine: StepEngine,
        *,
        stuck_after_s: float = STUCK_AFTER_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.vocab_size = engine.model.vocab_size
        self.max_model_len = engine.max_model_len
        self._engine = engine
        self._stuck_after_s = stuck_after_s
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: ClientEnd | None = None
        self._thread: threading.Thread | None = None
        self._streams: dict[str, OutputStream] = {}
        self._replies: dict[int, asyncio.Future[ControlReply]] = {}
        self._control_ids = itertools.count(1)
        self._stats = EngineStats()
        self._heard_at_s = 0.0
        self._closed: Closed | None = None

    async def start(self) -> None:
        """Start the engine's thread; outputs arrive on the running event loop."""
        assert self._thread is None, "a client starts once"
        self._loop = asyncio.get_running_loop()
        self._end, engine_end = in_process(self._deliver)
        self._thread = threading.Thread(
            target=loop.run,
            args=(self._engine, engine_end),
            kwargs={"log": Logger("engine"), "clock": self._clock},
            name="engine",
            daemon=True,
        )
        self._thread.start()

    async def close(self) -> None:
        """Stop the engine after its current step; open requests end with an error."""
        if self._end is not None and self._thread is not None:
            self._end.stop()
            await asyncio.to_thread(self._thread.join)

    def submit(self, requests: Sequence[Request]) -> OutputStream:
        """Hand requests to the engine and stream their outputs, all in one stream.

        Raises:
            RequestError: the engine does not run. A refusal by the engine comes out of the stream.
        """
        reason = self.refusal
        if reason is not None or self._end is None:
            raise RequestError(f"the engine does not run: {reason}", code="engine_unavailable", status=503)
        stream = OutputStream(self, [request.request_id for request in requests])
        if not self._streams:
            self._heard_at_s = self._clock()  # an idle engine is silent; the silence that counts starts now
        for request in requests:
            assert request.request_id not in self._streams, "request ids are unique"
            self._streams[request.request_id] = stream
            self._end.send(request)
        return stream

    def abort(self, request_id: str, *, is_forgotten: bool = False) -> None:
        """Stop a request between two steps; its stream ends with finish_reason "abort".

        Args:
            request_id: unknown and ended ones are ignored.
            is_forgotten: its stream wants to hear no more of it.
        """
        if request_id not in self._streams or self._end is None:
            return
        if is_forgotten:
            del self._streams[request_id]
        self._end.send(Abort(request_id=request_id))

    async def control(self, name: str, arguments: Mapping[str, str] | None = None) -> None:
        """Apply a named operation between two steps and wait for it.

        Raises:
            MinnowError: it is unknown, it failed, or the engine ended first.
        """
        reason = self.refusal
        if reason is not None or self._end is None:
            raise MinnowError(f"the engine does not run: {reason}")
        control_id = next(self._control_ids)
        reply: asyncio.Future[ControlReply] = asyncio.get_running_loop().create_future()
        self._replies[control_id] = reply
        self._end.send(Control(control_id=control_id, name=name, arguments=tuple((arguments or {}).items())))
        answer = await reply
        if answer.error is not None:
            raise MinnowError(answer.error)

    def stats(self) -> EngineStats:
        """The newest gauges and counters that the engine sent."""
        return self._stats

    @property
    def num_open(self) -> int:
        """Requests that have not ended."""
        return len(self._streams)

    @property
    def silent_s(self) -> float:
        """Seconds since the engine last ended a step, or got its first request; 0 while nothing is open."""
        return self._clock() - self._heard_at_s if self._streams else 0.0

    @property
    def refusal(self) -> str | None:
        """Why the engine takes no requests, in words; None while it does."""
        if self._thread is None:
            return "it has not started"
        if self._closed is not None:
            return self._closed.error or "it has been stopped"
        return None

    @property
    def trouble(self) -> str | None:
        """Why the engine is not healthy, in words: it does not run, or a step takes too long."""
        if self.refusal is None and self.silent_s > self._stuck_after_s:
            return f"a step has run for {self.silent_s:.0f} s"
        return self.refusal

    def _deliver(self, message: FromEngine) -> None:
        """On the engine's thread: pass a message to the event loop."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._take, message)

    def _take(self, message: FromEngine) -> None:
        """On the event loop: give a message to whom it concerns."""
        self._heard_at_s = self._clock()
        match message:
            case Outputs():
                for output in message.outputs:
                    self._give(output.request_id, output, is_last=output.finish_reason is not None)
            case Refusal():
                self._give(message.request_id, message.to_error(), is_last=True)
            case ControlReply():
                self._answer(message)
            case EngineStats():
                self._stats = message
            case Closed():
                self._end_all(message)

    def _give(self, request_id: str, item: TokenOutput | RequestError, *, is_last: bool) -> None:
        stream = self._streams.pop(request_id, None) if is_last else self._streams.get(request_id)
        if stream is not None:  # else it was aborted while this was on its way
            stream.push(request_id, item)

    def _answer(self, reply: ControlReply) -> None:
        waiter = self._replies.pop(reply.control_id)
        if not waiter.done():  # a cancelled one does not wait any more
            waiter.set_result(reply)

    def _end_all(self, closed: Closed) -> None:
        """End everything that is open, with the reason."""
        self._closed = closed
        error = f"the engine failed: {closed.error}" if closed.error else "the engine was stopped"
        for request_id in tuple(self._streams):
            output = TokenOutput(request_id=request_id, finish_reason="error", error=error)
            self._give(request_id, output, is_last=True)
        for control_id in tuple(self._replies):
            self._answer(ControlReply(control_id=control_id, error=error))
