"""GET /metrics: the numbers of server and engine, for Prometheus"""

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from minnow.server.door import Door
from minnow.server.metrics import CONTENT_TYPE


def routes(door: Door) -> Sequence[BaseRoute]:
    """The routes of this file."""

    async def metrics(request: Request) -> Response:
        return Response(door.metrics.render(), headers={"content-type": CONTENT_TYPE})

    return [Route("/metrics", metrics, methods=["GET"])]
