"""keys, body sizes, long work: what one request may not do to the others"""

import asyncio
import hmac
from collections.abc import Callable
from typing import TypeVar

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from minnow.core.errors import RequestError
from minnow.server.stream import error_response

T = TypeVar("T")

# Files of the page, which hold nothing of the model's or of anybody's; the page asks for the key itself.
PAGE_PATHS = ("/", "/app.js", "/server.js", "/style.css", "/icon.svg")
_OPEN_PATHS = {path.encode() for path in ("/health", *PAGE_PATHS)}

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


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The whole body of a request.

    Raises:
        RequestError: it is larger than max_bytes; nothing of it is kept.
    """
    words = f"the body is larger than {max_bytes:,} bytes; send less, or raise --max-body-bytes"
    refusal = RequestError(words, code="body_too_large", status=413)
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > max_bytes:
        raise refusal
    parts: list[bytes] = []
    num_bytes = 0
    async for part in request.stream():
        num_bytes += len(part)
        if num_bytes > max_bytes:
            raise refusal
        parts.append(part)
    return b"".join(parts)


async def prepare(work: Callable[[], T], num_bytes: int) -> T:
    """Do the work that comes before the engine's: at once for a small body, else on a thread, so nobody waits for it.

    Args:
        work: all of it; it may not touch what belongs to the event loop.
        num_bytes: of the body.
    """
    return work() if num_bytes <= _MAX_INLINE_BYTES else await asyncio.to_thread(work)
