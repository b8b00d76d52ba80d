"""bind an address, serve on it, stop on a signal"""

import asyncio
import logging
import math
import signal
import socket
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from minnow.core.errors import ConfigError, MinnowError
from minnow.core.log import Logger
from minnow.engine.client import EngineClient

_log = Logger("server")
_CUT_S = 1  # for the last events of what has ended; then connections are cut
_LAST_WORDS_S = 3.0  # a server whose engine has failed says so for as long
_LOOK_S = 0.05
_BACKLOG = 2048


def bind(host: str, port: int) -> socket.socket:
    """Take an address without answering on it yet: until `serve`, connections are refused.

    Args:
        host: a name or address, IPv4 or IPv6.
        port: 0 takes a free one.

    Raises:
        ConfigError: the address is taken, is not this machine's, or may not be used.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise ConfigError(f"--host {host} is no address of this machine: {error.strerror}") from None
    taken = socket.socket(family, kind, protocol)
    try:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(address)
    except OSError as error:
        taken.close()
        raise _taken(host, port, error) from None
    return taken


def address_of(listening: socket.socket) -> str:
    """The address as a browser takes it; the one of this machine where it listens on all."""
    host, port = listening.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(
    app: ASGIApp, listening: socket.socket, client: EngineClient, *, when_ready: Callable[[], None], drain_s: float
) -> None:
    """Serve until SIGINT or SIGTERM, then finish what runs; or until the engine fails.

    From a signal on nothing new is let in and the health check fails, but answers that run go on. What still runs at
    the end of the time to drain ends with an error of its own. A second signal cuts everything at once.

    Args:
        app: asks the client.
        listening: from `bind`; closed at the end.
        client: its engine is started and ended here.
        when_ready: called once, when requests are answered.
        drain_s: how long answers may go on after a signal, in seconds.

    Raises:
        ConfigError: the address was taken in the meantime.
        MinnowError: the engine could not be made, or failed.
    """
    _listen(listening)
    server = Server(app, client, drain_s=drain_s)
    _run_until_signal(server.run(listening, when_ready), listening, server.on_signal)


def serve_alone(app: ASGIApp, listening: socket.socket, *, when_ready: Callable[[], None]) -> None:
    """Serve an application without an engine until SIGINT or SIGTERM.

    Args:
        listening: from `bind`; closed at the end.
        when_ready: called once, when requests are answered.

    Raises:
        ConfigError: the address was taken in the meantime.
    """
    _listen(listening)
    server = _new_uvicorn(app)

    def stop(sig: int, frame: FrameType | None) -> None:
        server.should_exit = True

    async def run() -> None:
        when_ready()  # whoever connects from here on is heard
        await server.serve(sockets=[listening])

    server.handle_exit = stop  # type: ignore[method-assign]  # uvicorn's own raises the signal again
    _run_until_signal(run(), listening, stop)


def _listen(listening: socket.socket) -> None:
    try:
        listening.listen(_BACKLOG)  # fails where another process took the address since `bind`
    except OSError as error:
        host, port = listening.getsockname()[:2]
        raise _taken(host, port, error) from None


def _run_until_signal(
    running: Coroutine[Any, Any, None], listening: socket.socket, on_signal: Callable[[int, FrameType | None], None]
) -> None:
    # For signals before uvicorn looks at them.
    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        asyncio.run(running)
    finally:
        for number, action in before.items():
            signal.signal(number, action)
        listening.close()


def _new_uvicorn(app: ASGIApp) -> uvicorn.Server:
    _log_as_we_do()
    return uvicorn.Server(
        uvicorn.Config(
            app,
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=_CUT_S,
            server_header=False,
            backlog=_BACKLOG,
        )
    )


class Server:
    """The HTTP server around an application and the engine that it asks.

    Args:
        app, client, drain_s: as in `serve`.
    """

    def __init__(self, app: ASGIApp, client: EngineClient, *, drain_s: float) -> None:
        self._client = client
        self._drain_s = drain_s
        self._num_signals = 0
        self._uvicorn = _new_uvicorn(app)
        self._uvicorn.handle_exit = self.on_signal  # type: ignore[method-assign]  # uvicorn's own would not drain

    def stop(self) -> None:
        """Drain and leave; from any thread. The second call cuts everything."""
        self._num_signals += 1
        if self._num_signals > 1:
            self._uvicorn.force_exit = self._uvicorn.should_exit = True

    def on_signal(self, sig: int, frame: FrameType | None) -> None:
        """As `stop`; only sets flags, as a signal may come at any moment."""
        self.stop()

    async def run(self, listening: socket.socket, when_ready: Callable[[], None]) -> None:
        """Start the engine and serve until told to stop.

        Raises:
            MinnowError: the engine could not be made, or failed.
        """
        await self._client.start()
        serving = asyncio.create_task(self._uvicorn.serve(sockets=[listening]))
        living = asyncio.create_task(self._live(when_ready))
        try:
            while not (serving.done() or living.done() or self._num_signals):
                await asyncio.sleep(_LOOK_S)
            if self._num_signals:
                _log.info("stopping", open_requests=self._client.num_open, drain_s=self._drain_s)
                self._client.drain()
                await self._until(lambda: self._is_done or self._uvicorn.force_exit, self._drain_s)
            elif living.done() and self._client.was_ready:
                # Probes and clients hear why before the address is gone.
                await self._until(lambda: bool(self._num_signals), _LAST_WORDS_S)
        finally:
            await self._close()
            self._uvicorn.should_exit = True
            await serving
        await living

    async def _close(self) -> None:
        """End the engine; at once as soon as everything is to be cut."""
        closing = asyncio.create_task(self._client.close())
        await self._until(lambda: closing.done() or self._uvicorn.force_exit, math.inf)
        await self._client.close(grace_s=0.0)
        await closing

    @property
    def _is_done(self) -> bool:
        """Every answer has left this process, not only the engine."""
        state = self._uvicorn.server_state
        transports = [connection.transport for connection in state.connections]
        num_unsent_bytes = sum(each.get_write_buffer_size() for each in transports if each is not None)
        return not (self._client.num_open or state.tasks or num_unsent_bytes)

    async def _live(self, when_ready: Callable[[], None]) -> None:
        """The engine's life; ends with it."""
        if not await self._client.ready():
            return
        if not self._num_signals:
            when_ready()
        error = await self._client.ended()
        if error is not None:
            raise MinnowError(f"the engine failed: {error}")

    @staticmethod
    async def _until(is_true: Callable[[], bool], timeout_s: float) -> None:
        clock = asyncio.get_running_loop().time
        deadline_s = clock() + timeout_s
        while not is_true() and clock() < deadline_s:
            await asyncio.sleep(min(_LOOK_S, max(deadline_s - clock(), 0.0)))


class _Handler(logging.Handler):
    """Writes records of libraries as events of ours."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one."""
        if record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError):
            return  # an answer was cut, as it was to be
        level = "error" if record.levelno >= logging.ERROR else "warning"
        pairs = {} if not record.exc_info else {"traceback": logging.Formatter().formatException(record.exc_info)}
        getattr(_log, level)(record.getMessage(), **pairs)


def _log_as_we_do() -> None:
    """Send what uvicorn and asyncio have to warn of to our log."""
    for name in ("uvicorn", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers[:] = [_Handler(logging.WARNING)]
        logger.propagate = False


def _taken(host: str, port: int, error: OSError) -> ConfigError:
    return ConfigError(f"port {port} on {host} cannot be taken ({error.strerror}); choose another --port")
