"""server-sent events, and clients that leave before the answer"""

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from minnow.core.errors import RequestError
from minnow.core.log import Logger
from minnow.server.schema.errors import to_body

T = TypeVar("T")

_DONE = b"data: [DONE]\n\n"
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # asks proxies not to collect events
]
# Characters that end a line for some readers, though not in JSON and not in events; the others are always escaped.
_LINE_ENDS = tuple((character.encode(), f"\\u{ord(character):04x}".encode()) for character in "\x85\u2028\u2029")
_RETRY_AFTER_S = "5"
_encoder = msgspec.json.Encoder()


class ClientGone(Exception):
    """The client closed its connection; there is nobody to answer."""


def json_response(value: msgspec.Struct, status: int = 200) -> Response:
    """A whole answer."""
    return Response(_encoder.encode(value), status_code=status, media_type="application/json")


def error_response(error: RequestError) -> Response:
    """The answer that an error becomes."""
    response = json_response(to_body(error), error.status)
    return unavailable(response) if error.status == 503 else response


def unavailable(response: Response) -> Response:
    """The same answer, with when to ask again."""
    response.headers["Retry-After"] = _RETRY_AFTER_S
    return response


async def until_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of some work, unless the client leaves first; then the work is cancelled.

    Args:
        receive: of a request whose body has been read.
        work: does the waiting.

    Raises:
        ClientGone: the client left.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def encode_event(value: msgspec.Struct) -> bytes:
    """One event, on a line of its own for any reader of lines."""
    content = _encoder.encode(value)
    for raw, escaped in _LINE_ENDS:
        content = content.replace(raw, escaped)
    return b"data: " + content + b"\n\n"


async def encode_events(chunks: AsyncGenerator[msgspec.Struct]) -> AsyncGenerator[bytes]:
    """Chunks as events, with the end mark; an error after the first chunk becomes an event, too.

    Raises:
        RequestError: before the first chunk, when the answer can still have a status of its own.
    """
    is_begun = False
    try:
        async for chunk in chunks:
            yield encode_event(chunk)
            is_begun = True
    except RequestError as error:
        if not is_begun:
            raise
        yield encode_event(to_body(error))
    except Exception as error:
        if not is_begun:
            raise
        Logger("server").error("stream broke", error=f"{type(error).__name__}: {error}")
        yield encode_event(to_body(RequestError("internal error; the log of the server says more", status=500)))
    finally:
        await chunks.aclose()
    yield _DONE


class EventStream:
    """A response of events that stops its source as soon as the client leaves.

    Args:
        first: the first event, so that what fails before it can be answered with a status.
        rest: the events after it; closed at the end, whatever happens.
    """

    def __init__(self, first: bytes, rest: AsyncGenerator[bytes]) -> None:
        self._first = first
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await until_gone(receive, self._send(send))
        except (ClientGone, OSError):  # OSError: the connection broke while writing
            pass
        finally:
            await self._rest.aclose()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        await send({"type": "http.response.body", "body": self._first, "more_body": True})
        async for event in self._rest:
            await send({"type": "http.response.body", "body": event, "more_body": True})
            await asyncio.sleep(0)  # amid a backlog, others get their turn, and a client that left is noticed
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def start_stream(request: Request, chunks: AsyncGenerator[msgspec.Struct]) -> EventStream:
    """Wait for the first chunk and make the response.

    Raises:
        RequestError: the request is refused.
        ClientGone: the client left before the first chunk.
    """
    events = encode_events(chunks)

    async def first() -> bytes:
        return await anext(events)

    try:
        return EventStream(await until_gone(request.receive, first()), events)
    except BaseException:
        await events.aclose()
        raise
