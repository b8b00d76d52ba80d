"""GET /: the page and its files"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from minnow.server.door import Door
from minnow.server.limits import PAGE_PATHS

_FOLDER = Path(__file__).parents[1] / "web"

_MEDIA_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_HEADERS = {
    # Nothing comes from elsewhere, nothing runs that is not in these files, and no other page shows this one.
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # browsers ask each time, so a newer server's page shows at once
}


def routes(door: Door | None = None) -> Sequence[BaseRoute]:
    """The routes of this file; the files are the same with an engine and without."""
    return [_file(path) for path in PAGE_PATHS]


def _file(path: str) -> Route:
    """The route of one file, which is read now."""
    file = _FOLDER / (path.removeprefix("/") or "index.html")
    content = file.read_bytes()
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {**_HEADERS, "ETag": tag}

    async def send(request: Request) -> Response:
        known = request.headers.get("if-none-match", "")
        if tag in known or known == "*":
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=_MEDIA_TYPES[file.suffix], headers=headers)

    return Route(path, send, methods=["GET"])
