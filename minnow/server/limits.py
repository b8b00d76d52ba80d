"""keys, body sizes, long work: what one request may not do to the others"""

import asyncio
import contextlib
import hmac
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar, cast

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from minnow.core.errors import RequestError
from minnow.server.stream import error_response

T = TypeVar("T")

# Files of the page, which hold nothing of the model's or of anybody's; the page asks for the key itself.
PAGE_PATHS = (
    "/", "/app.js", "/planner.js", "/figures.js", "/chart.js", "/server.js", "/style.css", "/planner.css", "/icon.svg",
)  # fmt: skip
_OPEN_PATHS = {path.encode() for path in ("/health", *PAGE_PATHS)}

BODY_TIMEOUT_S = 60

# The text of such a body takes about a millisecond to encode.
_MAX_INLINE_BYTES = 10_000


class KeyGuard:
    """Lets a request in only with the key; all paths are guarded but the health check and the page's files.

    The path is compared as a whole and as it was sent, so no other spelling of a path opens anything.

    Args:
        app: what is guarded.
        api_key: clients send it as "Authorization: Bearer KEY".
    """

    def __init__(self, app: ASGIApp, api_key: str) -> None:
        self._app = app
        self._expected = f"Bearer {api_key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or _is_open(scope) or self._has_key(scope):
            await self._app(scope, receive, send)
            return
        words = "the API key is missing or wrong; send it as a bearer token"
        refusal = error_response(RequestError(words, code="invalid_api_key", status=401))
        refusal.headers["WWW-Authenticate"] = "Bearer"
        await refusal(scope, receive, send)

    def _has_key(self, scope: Scope) -> bool:
        sent = [value for name, value in scope["headers"] if name == b"authorization"]
        # The word before the key may be written in any case.
        given = b"Bearer" + sent[0][6:] if len(sent) == 1 and sent[0][:6].lower() == b"bearer" else b""
        return hmac.compare_digest(given, self._expected)


def _is_open(scope: Scope) -> bool:
    return scope.get("method") in ("GET", "HEAD") and scope.get("raw_path") in _OPEN_PATHS


class SameSite:
    """Refuses what a browser sends for a page of another site: without a key, any page could use this server.

    Browsers say where a request comes from; other clients do not, and pass.

    Args:
        app: what is guarded.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_foreign = scope["type"] == "http" and (b"sec-fetch-site", b"cross-site") in scope["headers"]
        if is_foreign and scope["method"] not in ("GET", "HEAD"):
            words = "a page of another site may not ask this server; start it with --api-key to let it in"
            await error_response(RequestError(words, code="cross_site", status=403))(scope, receive, send)
            return
        await self._app(scope, receive, send)


async def read_body(request: Request, max_bytes: int, ending: Callable[[], Coroutine[Any, Any, None]]) -> bytes:
    """The whole body of a request.

    Args:
        ending: waits until the server takes no more requests.

    Raises:
        RequestError: it is larger than max_bytes, nothing more of it comes, or the server is shutting down; nothing
            of it is kept.
    """
    words = f"the body is larger than {max_bytes:,} bytes; send less, or raise --max-body-bytes"
    refusal = RequestError(words, code="body_too_large", status=413)
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > max_bytes:
        raise refusal
    parts: list[bytes] = []
    num_bytes = 0
    stream = aiter(request.stream())
    end = asyncio.ensure_future(ending())
    try:
        while (part := await _next_part(stream, end)) is not None:
            num_bytes += len(part)
            if num_bytes > max_bytes:
                raise refusal
            parts.append(part)
    finally:
        end.cancel()
    return b"".join(parts)


async def _next_part(stream: AsyncIterator[bytes], end: "asyncio.Future[None]") -> bytes | None:
    """The next part of a body, None after the last."""
    part = asyncio.ensure_future(anext(stream, None))
    try:
        await asyncio.wait((part, end), timeout=BODY_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        if part.done():
            return part.result()
        if end.done():
            raise RequestError("the server is shutting down", code="engine_unavailable", status=503)
        raise RequestError(f"nothing more of the body has come for {BODY_TIMEOUT_S} s", code="body_timeout", status=408)
    finally:
        part.cancel()


class Threads:
    """Runs long work beside the event loop, a few pieces at a time.

    The threads are daemons: whatever they still do, the process can end.

    Args:
        num_threads: pieces of work at once; the others wait, and are forgotten when their waiters are cancelled.
    """

    def __init__(self, num_threads: int = 2) -> None:
        self._turns = asyncio.Semaphore(num_threads)

    async def prepare(self, work: Callable[[], T], num_bytes: int) -> T:
        """The result of some work: at once where it is little, else beside the event loop, so that nobody waits.

        Args:
            work: may not touch what belongs to the event loop.
            num_bytes: of JSON that it reads or writes.
        """
        return work() if num_bytes <= _MAX_INLINE_BYTES else await self.run(work)

    async def run(self, work: Callable[[], T]) -> T:
        """The result of some work, which may not touch what belongs to the event loop."""
        await self._turns.acquire()
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def settle(result: T | None, error: BaseException | None) -> None:
            self._turns.release()
            if done.cancelled():
                return
            if error is None:
                done.set_result(cast(T, result))
            elif isinstance(error, Exception) and not isinstance(error, StopIteration):
                done.set_exception(error)
            else:  # such as a panic of a library, which a future cannot hold, or should not
                done.set_exception(RuntimeError(f"{type(error).__name__}: {error}"))

        def run() -> None:
            result, failure = None, None
            try:
                result = work()
            except BaseException as error:
                failure = error
            with contextlib.suppress(RuntimeError):  # the event loop has ended
                loop.call_soon_threadsafe(settle, result, failure)

        try:
            threading.Thread(target=run, name="server work", daemon=True).start()
        except RuntimeError:  # the machine has no more threads
            self._turns.release()
            raise
        return await done
