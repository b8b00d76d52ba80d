"""POST /tokenize and /detokenize: texts and conversations to token ids and back"""

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from minnow.core.errors import RequestError
from minnow.server import prompt
from minnow.server.call import check_model
from minnow.server.door import Door
from minnow.server.limits import read_body
from minnow.server.schema.chat import ChatRequest
from minnow.server.schema.errors import decode
from minnow.server.schema.tokenize import DetokenizeRequest, DetokenizeResponse, TokenizeRequest, TokenizeResponse
from minnow.server.stream import json_response


def routes(door: Door) -> Sequence[BaseRoute]:
    """The routes of this file."""

    async def tokenize(request: Request) -> Response:
        body = await read_body(request, door.max_body_bytes, door.client.drained)
        return await door.threads.prepare(lambda: json_response(_tokenize(body, door)), len(body))

    async def detokenize(request: Request) -> Response:
        body = await read_body(request, door.max_body_bytes, door.client.drained)
        return await door.threads.prepare(lambda: json_response(_detokenize(body, door)), len(body))

    return [Route("/tokenize", tokenize, methods=["POST"]), Route("/detokenize", detokenize, methods=["POST"])]


def _tokenize(body: bytes, door: Door) -> TokenizeResponse:
    wire = decode(body, TokenizeRequest)
    check_model(wire.model, door)
    if (wire.prompt is None) == (wire.messages is None):
        how = "neither prompt nor messages is" if wire.prompt is None else "prompt and messages are both"
        raise RequestError(f"{how} given; send one of them", param="prompt")
    if wire.prompt is not None:
        ids = door.tokenizer.encode(wire.prompt, add_special_tokens=wire.add_special_tokens is not False)
    else:
        ids = list(prompt.from_messages(_as_chat(wire), door.tokenizer, door.template).token_ids)
    return TokenizeResponse(
        count=len(ids),
        max_model_len=door.client.max_model_len,
        tokens=ids,
        token_strs=[door.tokenizer.token_of(i) for i in ids] if wire.return_token_strs else None,
    )


def _as_chat(wire: TokenizeRequest) -> ChatRequest:
    """The chat request that would run these tokens."""
    fields: dict[str, Any] = {
        name: getattr(wire, name) for name in wire.__struct_fields__ if name in ChatRequest.__struct_fields__
    }
    return ChatRequest(**fields)


def _detokenize(body: bytes, door: Door) -> DetokenizeResponse:
    wire = decode(body, DetokenizeRequest)
    check_model(wire.model, door)
    prompt.check_ids(wire.tokens, door.client.vocab_size, "tokens")
    return DetokenizeResponse(prompt=prompt.text_of(wire.tokens, door.tokenizer))
