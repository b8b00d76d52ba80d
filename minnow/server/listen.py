"""bind an address, serve on it, stop on a signal"""

import asyncio
import signal
import socket
from collections.abc import Awaitable, Callable
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from minnow.core.errors import ConfigError

# Streams that still run at a signal may go on for so long; a second signal ends them at once.
DRAIN_S = 5
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
    app: ASGIApp,
    listening: socket.socket,
    *,
    when_ready: Callable[[], None],
    at_deadline: Callable[[], Awaitable[None]],
    drain_s: int = DRAIN_S,
) -> None:
    """Serve until SIGINT or SIGTERM; then finish what runs, within the time to drain.

    Args:
        listening: from `bind`; closed at the end.
        when_ready: called once, when requests are answered.
        at_deadline: ends what still runs, each with an error of its own; called a second before connections
            are cut.
        drain_s: streams that last longer are cut, in seconds.

    Raises:
        ConfigError: the address was taken in the meantime.
    """
    try:
        listening.listen(_BACKLOG)  # fails where another process took the address since `bind`
    except OSError as error:
        host, port = listening.getsockname()[:2]
        raise _taken(host, port, error) from None
    server = new_server(app, drain_s=drain_s)

    def stop(number: int, frame: FrameType | None) -> None:
        server.should_exit = True

    # For signals before uvicorn looks at them, and for those that it raises again after it has stopped for them.
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        asyncio.run(run_server(server, listening, when_ready, at_deadline))
    finally:
        for number, action in before.items():
            signal.signal(number, action)
        listening.close()


def new_server(app: ASGIApp, *, drain_s: int) -> uvicorn.Server:
    """The server, quiet but for what goes wrong."""
    return uvicorn.Server(
        uvicorn.Config(
            app,
            lifespan="on",
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=drain_s,
            server_header=False,
            backlog=_BACKLOG,
        )
    )


async def run_server(
    server: uvicorn.Server,
    listening: socket.socket,
    when_ready: Callable[[], None],
    at_deadline: Callable[[], Awaitable[None]],
) -> None:
    """Serve until the server is told to exit."""
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    while not server.started and not serving.done():
        await asyncio.sleep(0.005)
    if server.started:
        when_ready()
    ending = asyncio.create_task(_end_streams(server, at_deadline))
    await serving
    ending.cancel()


async def _end_streams(server: uvicorn.Server, at_deadline: Callable[[], Awaitable[None]]) -> None:
    while not server.should_exit:
        await asyncio.sleep(0.05)
    await asyncio.sleep(max((server.config.timeout_graceful_shutdown or 0) - 1, 0))
    await at_deadline()


def _taken(host: str, port: int, error: OSError) -> ConfigError:
    return ConfigError(f"port {port} on {host} cannot be taken ({error.strerror}); choose another --port")
