"""GET /version: what serves"""

from collections.abc import Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

import minnow
from minnow.server.door import Door
from minnow.server.stream import json_response


class Version(msgspec.Struct, kw_only=True):
    """The version of this program."""

    version: str


def routes(door: Door) -> Sequence[BaseRoute]:
    """The routes of this file."""

    async def version(request: Request) -> Response:
        return json_response(Version(version=minnow.__version__))

    return [Route("/version", version, methods=["GET"])]
