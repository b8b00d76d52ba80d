"""GET /health: whether the engine answers"""

from collections.abc import Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from minnow.server.door import Door
from minnow.server.stream import json_response


class Health(msgspec.Struct, kw_only=True):
    """How the engine is.

    Attributes:
        status: "ok", or why requests would not be served.
        silent_s: seconds since it last ended a step; 0 when it has nothing to do.
        num_open: requests that have not ended.
    """

    status: str
    silent_s: float
    num_open: int


def routes(door: Door) -> Sequence[BaseRoute]:
    """The routes of this file."""

    async def health(request: Request) -> Response:
        trouble = door.client.trouble
        body = Health(status=trouble or "ok", silent_s=round(door.client.silent_s, 3), num_open=door.client.num_open)
        return json_response(body, 200 if trouble is None else 503)

    return [Route("/health", health, methods=["GET"])]
