"""GET /health: whether the engine answers"""

from collections.abc import Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from minnow.server.door import Door
from minnow.server.stream import json_response, unavailable


class Health(msgspec.Struct, kw_only=True):
    """How the engine is.

    Attributes:
        status: "ok", or why requests would not be served: how far the start is, a shutdown, a failure.
        silent_s: seconds since it last ended a step; 0 when it has nothing to do.
        num_open: requests that have not ended.
        num_running: those of them that have their place in the cache.
    """

    status: str
    silent_s: float
    num_open: int
    num_running: int


def routes(door: Door) -> Sequence[BaseRoute]:
    """The routes of this file."""

    async def health(request: Request) -> Response:
        client = door.client
        trouble = client.trouble
        body = Health(
            status=trouble or "ok",
            silent_s=round(client.silent_s, 3),
            num_open=client.num_open,
            num_running=client.stats().num_running,
        )
        return json_response(body) if trouble is None else unavailable(json_response(body, 503))

    return [Route("/health", health, methods=["GET"])]
