"""build the ASGI application"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from minnow.config.server import ServerConfig
from minnow.core import folder, units
from minnow.core.errors import ConfigError, RequestError
from minnow.engine.client import EngineClient
from minnow.server.door import Door
from minnow.server.limits import KeyGuard, SameSite, Threads
from minnow.server.metrics import Metrics
from minnow.server.routes import page
from minnow.server.schema.models import ModelList
from minnow.server.stream import ClientGone, error_response, json_response
from minnow.server.watch import CountErrors
from minnow.text.template import ChatTemplate
from minnow.text.tokenizer import Tokenizer

_ROUTES = "minnow.server.routes"


def build(
    client: EngineClient,
    *,
    tokenizer: Tokenizer,
    template: ChatTemplate,
    model_name: str,
    config: ServerConfig | None = None,
    sampling_defaults: Mapping[str, Any] | None = None,
    routes: Sequence[BaseRoute] = (),
) -> Starlette:
    """The application.

    Args:
        client: asks the engine; whoever serves the application starts it, and closes it.
        tokenizer: the model's.
        template: the model's, or the operator's.
        model_name: what the API calls the model, unless the configuration names it otherwise.
        config: limits and keys.
        sampling_defaults: the model's own values for what a request leaves out.
        routes: more routes, such as the planner's.

    Raises:
        ConfigError: a limit that is no number of bytes.
    """
    config = config or ServerConfig()
    max_body_bytes = units.parse_bytes(config.max_body_bytes)
    if max_body_bytes < 1:
        raise ConfigError(f"--max-body-bytes is {config.max_body_bytes}; it must be 1 or more")
    name = config.served_model_name or model_name
    metrics = Metrics(client, name)
    client.on_step = metrics.observe_step
    door = Door(
        client=client,
        tokenizer=tokenizer,
        template=template,
        config=config,
        model_name=name,
        sampling_defaults=dict(sampling_defaults or {}),
        created=int(time.time()),
        max_body_bytes=max_body_bytes,
        metrics=metrics,
        threads=Threads(),
    )

    found = [route for module in folder.members(_ROUTES).values() for route in module.routes(door)]
    return _assemble([*found, *routes], [Middleware(CountErrors, metrics), _guard(config)])


def build_alone(config: ServerConfig, routes: Sequence[BaseRoute]) -> Starlette:
    """The page and some routes, without an engine: no model is served.

    Args:
        config: its key guards the routes.
        routes: what the page asks, such as the planner's.
    """

    async def no_models(request: Request) -> Response:
        return json_response(ModelList(data=[]))

    models = Route("/v1/models", no_models, methods=["GET"])
    return _assemble([*page.routes(), models, *routes], [_guard(config)])


def _guard(config: ServerConfig) -> Middleware:
    return Middleware(KeyGuard, config.api_key) if config.api_key else Middleware(SameSite)


def _assemble(routes: Sequence[BaseRoute], middleware: Sequence[Middleware]) -> Starlette:
    app = Starlette(
        routes=routes,
        middleware=middleware,
        exception_handlers={
            RequestError: _refused,
            ClientGone: _gone,
            ClientDisconnect: _gone,  # while it still sent its request
            HTTPException: _not_here,
            Exception: _broken,
        },
    )
    app.router.redirect_slashes = False  # a path has one spelling
    return app


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return error_response(error)


async def _gone(request: Request, error: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it; the number is the usual one in logs


async def _not_here(request: Request, error: Exception) -> Response:
    """A path or method that no route has."""
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.scope['path']} is not served here"
    response = error_response(RequestError(message, status=error.status_code))
    response.headers.update(error.headers or {})
    return response


async def _broken(request: Request, error: Exception) -> Response:
    """Our own mistake; the server's log has the traceback."""
    return error_response(RequestError("internal error; the log of the server says more", status=500))
