"""GET /v1/models: what is served"""

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from minnow.server.call import unknown_model
from minnow.server.door import Door
from minnow.server.schema.models import ModelCard, ModelList
from minnow.server.stream import json_response


def routes(door: Door) -> Sequence[BaseRoute]:
    """The routes of this file."""

    def card() -> ModelCard:
        return ModelCard(
            id=door.model_name, created=door.created, root=door.model_name, max_model_len=door.client.max_model_len
        )

    async def all_models(request: Request) -> Response:
        return json_response(ModelList(data=[card()]))

    async def one_model(request: Request) -> Response:
        name = request.path_params["name"]
        if name != door.model_name:
            raise unknown_model(name, door.model_name)
        return json_response(card())

    return [
        Route("/v1/models", all_models, methods=["GET"]),
        Route("/v1/models/{name:path}", one_model, methods=["GET"]),
    ]
