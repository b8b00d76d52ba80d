"""EngineClient: submit, abort, stream; what the server holds"""

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from minnow.core.errors import MinnowError, RequestError
from minnow.core.log import Logger
from minnow.core.request import Request
from minnow.core.step import Abort, Control, ControlReply, EngineStats, TokenOutput
from minnow.engine.channel import Alive, ClientEnd, Closed, FromEngine, Loading, Outputs, Ready, Refusal
from minnow.engine.host import Host
from minnow.engine.outputs import OutputStream

STEP_TIMEOUT_S = 300.0
FROZEN_AFTER_S = 8.0
_WATCH_S = 0.5
_GRACE_S = 2.0


class EngineClient:
    """Talks to an engine, wherever it runs.

    All methods belong to one event loop, the one that `start` ran in.

    Args:
        host: starts the engine.
        step_timeout_s: a step that takes longer counts as stuck.
        frozen_after_s: an engine that has not said for so long that it lives counts as stuck, whatever it does.
        clock: seconds, monotonic.

    Attributes:
        on_step: told after each step how many tokens it computed.
    """

    def __init__(
        self,
        host: Host,
        *,
        step_timeout_s: float = STEP_TIMEOUT_S,
        frozen_after_s: float = FROZEN_AFTER_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.on_step: Callable[[int], None] = lambda num_tokens: None
        self._host = host
        self._step_timeout_s = step_timeout_s
        self._frozen_after_s = frozen_after_s
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: ClientEnd | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._streams: dict[str, OutputStream] = {}
        self._replies: dict[int, asyncio.Future[ControlReply]] = {}
        self._control_ids = itertools.count(1)
        self._stats = EngineStats()
        self._heard_at_s = clock()
        self._owed_since_s: float | None = None  # the engine's last move, while it owes one
        self._loading: Loading | None = None
        self._ready: Ready | None = None
        self._closed: Closed | None = None
        self._draining = asyncio.Event()
        self._is_closing = False
        self._is_settled = asyncio.Event()  # ready, or closed before
        self._is_over = asyncio.Event()

    # -- life -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the engine; its messages arrive on the running event loop."""
        assert self._end is None, "a client starts once"
        self._loop = asyncio.get_running_loop()
        self._heard_at_s = self._clock()
        self._end = self._host.start(self._deliver)
        self._watcher = asyncio.create_task(self._watch())

    async def ready(self) -> bool:
        """Wait until the engine takes requests; False where it was told to end before.

        Raises:
            MinnowError: it could not be made; of the class that says it best.
        """
        await self._is_settled.wait()
        if self._ready is None and self._closed is not None and self._closed.error is not None:
            raise self._closed.to_error()
        return self._ready is not None

    async def ended(self) -> str | None:
        """Wait for the engine's end; what went wrong, or None when it was told to end."""
        await self._is_over.wait()
        return self._closed.error if self._closed is not None else None

    @property
    def was_ready(self) -> bool:
        """Whether the engine has ever taken requests."""
        return self._ready is not None

    def drain(self) -> None:
        """Take no more requests; what is open goes on."""
        self._draining.set()

    async def drained(self) -> None:
        """Wait until no more requests are taken."""
        await self._draining.wait()

    async def close(self, *, grace_s: float = _GRACE_S) -> None:
        """End open requests with an error, and the engine after its current step.

        Args:
            grace_s: a step that lasts longer is cut; one that is still loading gets no grace.
        """
        if self._end is None:
            return
        self._draining.set()
        self._is_closing = True
        self._end_streams("the server was stopped")
        self._end.stop()
        await asyncio.to_thread(self._host.join, grace_s if self.was_ready else 0.0)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._is_over.wait(), _GRACE_S)
        self._end_all(Closed())
        if self._watcher is not None:
            self._watcher.cancel()

    # -- requests -------------------------------------------------------------------------------------------------

    def submit(self, requests: Sequence[Request], observe: Callable[[TokenOutput], None] | None = None) -> OutputStream:
        """Hand requests to the engine and stream their outputs, all in one stream.

        Args:
            observe: told of each output when it arrives, however late the stream is read; must not raise.

        Raises:
            RequestError: the engine takes none now. A refusal of these comes out of the stream.
        """
        self._check()
        stream = OutputStream([request.request_id for request in requests], self._forget, observe)
        for request in requests:
            assert request.request_id not in self._streams, "request ids are unique"
            self._send(request)
            self._streams[request.request_id] = stream
        return stream

    def abort(self, request_id: str) -> None:
        """Stop a request between two steps; its stream ends with finish_reason "abort".

        Args:
            request_id: unknown and ended ones are ignored.
        """
        if request_id in self._streams:
            self._send(Abort(request_id=request_id))

    async def control(self, name: str, arguments: Mapping[str, str] | None = None) -> None:
        """Apply a named operation between two steps and wait for it.

        Raises:
            MinnowError: it is unknown, it failed, or the engine does not run or ended first.
        """
        self._check()
        control_id = next(self._control_ids)
        reply: asyncio.Future[ControlReply] = asyncio.get_running_loop().create_future()
        self._replies[control_id] = reply
        self._send(Control(control_id=control_id, name=name, arguments=tuple((arguments or {}).items())))
        answer = await reply
        if answer.error is not None:
            raise MinnowError(answer.error)

    # -- what is known --------------------------------------------------------------------------------------------

    @property
    def vocab_size(self) -> int:
        """Of the network.

        Raises:
            RequestError: the engine is not ready yet.
        """
        return self._known().vocab_size

    @property
    def max_model_len(self) -> int:
        """Longest prompt plus output, in tokens.

        Raises:
            RequestError: the engine is not ready yet.
        """
        return self._known().max_model_len

    def stats(self) -> EngineStats:
        """The newest gauges and counters that the engine sent."""
        return self._stats

    @property
    def num_open(self) -> int:
        """Requests that have not ended."""
        return len(self._streams)

    @property
    def silent_s(self) -> float:
        """Seconds since the engine last ended a step or answered, or was asked; 0 while it has nothing to do."""
        return 0.0 if self._owed_since_s is None else self._clock() - self._owed_since_s

    @property
    def trouble(self) -> str | None:
        """Why the engine takes no requests, in words; None while it does."""
        if self._end is None:
            return "it has not started"
        if self._closed is not None:
            return self._closed.error or "it has been stopped"
        if self._draining.is_set():
            return "the server is shutting down"
        return self._hang() or self._progress()

    def _progress(self) -> str | None:
        """How far an engine is that is not ready."""
        if self._ready is not None:
            return None
        if self._loading is None:
            return "it is starting"
        return f"it is loading: {self._loading.stage}, {self._loading.share:.0%}"

    def _hang(self) -> str | None:
        """What does not move any more."""
        if (unheard_s := self._clock() - self._heard_at_s) > self._frozen_after_s:
            return f"its process has given no sign of life for {unheard_s:.0f} s"
        if self.silent_s > self._step_timeout_s:
            return f"a step has run for {self.silent_s:.0f} s"
        return None

    def _check(self) -> None:
        if (reason := self.trouble) is not None:
            raise RequestError(f"the engine takes no requests: {reason}", code="engine_unavailable", status=503)

    def _known(self) -> Ready:
        if self._ready is None:
            self._check()
        assert self._ready is not None, "an engine without trouble is ready"
        return self._ready

    # -- messages -------------------------------------------------------------------------------------------------

    def _send(self, message: Request | Abort | Control) -> None:
        assert self._end is not None
        self._end.send(message)
        if self._owed_since_s is None:
            self._owed_since_s = self._clock()

    def _deliver(self, message: FromEngine) -> None:
        """On a thread of the channel: pass a message to the event loop."""
        self._heard_at_s = self._clock()
        with contextlib.suppress(RuntimeError):  # the event loop has ended
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._take, message)

    def _take(self, message: FromEngine) -> None:
        """On the event loop: give a message to whom it concerns."""
        self._note(message)
        match message:
            case Outputs():
                for output in message.outputs:
                    self._give(output.request_id, output, is_last=output.finish_reason is not None)
                if message.num_tokens:
                    self.on_step(message.num_tokens)
            case Refusal():
                self._give(message.request_id, message.to_error(), is_last=True)
            case ControlReply():
                self._answer(message)
            case EngineStats():
                self._stats = message
            case Loading():
                self._loading = message
            case Ready():
                self._ready = message
                self._is_settled.set()
            case Closed():
                self._end_all(message)

    def _note(self, message: FromEngine) -> None:
        """Whether the engine moves, and whether it has to: the next answer is due from its last move on."""
        if self._owed_since_s is None or isinstance(message, Alive):
            return
        is_idle = isinstance(message, EngineStats) and not (message.num_running or message.num_waiting)
        is_settled = is_idle and not self._streams and not self._replies
        self._owed_since_s = None if is_settled else self._heard_at_s

    def _give(self, request_id: str, item: TokenOutput | RequestError, *, is_last: bool) -> None:
        stream = self._streams.pop(request_id, None) if is_last else self._streams.get(request_id)
        if stream is not None:  # else it was aborted while this was on its way
            stream.push(request_id, item)

    def _forget(self, request_id: str) -> None:
        """Stop a request whose stream wants to hear no more of it."""
        if self._streams.pop(request_id, None) is not None:
            self._send(Abort(request_id=request_id))

    def _answer(self, reply: ControlReply) -> None:
        waiter = self._replies.pop(reply.control_id)
        if not waiter.done():  # a cancelled one does not wait any more
            waiter.set_result(reply)

    # -- ends -----------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """End what is open when the engine hangs; should it move again, it finds it all aborted, and serves again."""
        was_hanging = False
        while self._closed is None:
            await asyncio.sleep(_WATCH_S)
            reason = self._hang()
            # Seen twice: after a pause of this very process, the messages of the meantime come first.
            if reason is not None and was_hanging and self._streams:
                Logger("server").error("engine hangs", reason=reason, requests=self.num_open)
                self._end_streams(f"the engine hangs: {reason}")
            elif reason is None and was_hanging and self._closed is None:
                Logger("server").info("engine moves again")
            was_hanging = reason is not None

    def _end_streams(self, error: str) -> None:
        for request_id in tuple(self._streams):
            output = TokenOutput(request_id=request_id, finish_reason="error", error=error)
            self._give(request_id, output, is_last=True)
            self._send(Abort(request_id=request_id))

    def _end_all(self, closed: Closed) -> None:
        """End everything that is open, with the reason."""
        if self._closed is not None:
            return
        self._stats = replace(
            self._stats, num_running=0, num_waiting=0, num_free_blocks=self._stats.num_blocks
        )  # whatever held them is gone
        self._closed = Closed() if self._is_closing else closed  # what is forced to end has not failed
        error = f"the engine failed: {closed.error}" if closed.error else "the server was stopped"
        if self._closed.error and self.was_ready:
            Logger("server").error("engine failed", reason=closed.error, requests=self.num_open)
        self._end_streams(error)
        self._owed_since_s = None
        for control_id in tuple(self._replies):
            self._answer(ControlReply(control_id=control_id, error=error))
        self._is_settled.set()
        self._is_over.set()
