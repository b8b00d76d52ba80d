"""routes that answer a query with what a function makes of it; whoever builds the application says which"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from minnow.core.errors import MinnowError, RequestError
from minnow.server.limits import Threads

Compute = Callable[[Mapping[str, str]], Any]  # of a query's values, to what JSON can hold; its errors are the asker's

MAX_QUERY_BYTES = 2000
_MAX_OPEN = 8  # each is answered in a fraction of a second


def routes(compute_by_path: Mapping[str, Compute]) -> Sequence[BaseRoute]:
    """A GET route for each path.

    One answer is computed at a time, on a thread of its own: the requests of the model do not wait for them.
    """
    threads, num_open = Threads(num_threads=1), 0

    def route(path: str, compute: Compute) -> Route:
        async def answer(request: Request) -> Response:
            nonlocal num_open
            # A key lets pages of other sites in; their browsers ask for leave before they send one.
            if request.headers.get("sec-fetch-site") == "cross-site" and "authorization" not in request.headers:
                raise RequestError("a page of another site may not ask this server", code="cross_site", status=403)
            query = _read(request)
            if num_open >= _MAX_OPEN:
                raise RequestError("too many such questions at once; ask again", code="busy", status=429)
            num_open += 1
            try:
                body = await threads.run(lambda: msgspec.json.encode(compute(query)))
            except MinnowError as error:
                raise RequestError(str(error)) from None
            finally:
                num_open -= 1
            return Response(body, media_type="application/json", headers={"Cache-Control": "no-store"})

        return Route(path, answer, methods=["GET"])

    return [route(path, compute) for path, compute in compute_by_path.items()]


def _read(request: Request) -> dict[str, str]:
    num_bytes = len(request.scope.get("query_string", b""))
    if num_bytes > MAX_QUERY_BYTES:
        raise RequestError(f"the query has {num_bytes:,} bytes; {MAX_QUERY_BYTES:,} are the most")
    found: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if found.setdefault(name, value) != value:
            raise RequestError(f"{name[:64]} is given twice, with two values; leave one out")
    return found
