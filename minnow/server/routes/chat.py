"""POST /v1/chat/completions"""

import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from minnow.server import prompt
from minnow.server.call import Call, check_model, make_call
from minnow.server.door import Door
from minnow.server.generate import Delta, Generation
from minnow.server.limits import read_body
from minnow.server.logprob import to_chat, to_prompt
from minnow.server.schema.chat import (
    AnswerMessage,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatLogprobs,
    ChatRequest,
    ChatResponse,
    DeltaMessage,
)
from minnow.server.schema.errors import decode
from minnow.server.stream import json_response, start_stream, until_gone


def routes(door: Door) -> Sequence[BaseRoute]:
    """The routes of this file."""

    async def chat(request: Request) -> Any:
        arrival_s = time.time()
        body = await read_body(request, door.max_body_bytes, door.client.drained)

        def understand() -> tuple[Call, Generation]:
            wire = decode(body, ChatRequest)
            check_model(wire.model, door)
            prompts = [prompt.from_messages(wire, door.tokenizer, door.template)]
            call = make_call(wire, prompts, door, call_id=f"chatcmpl-{uuid.uuid4().hex}", arrival_s=arrival_s)
            return call, Generation(call, door.client, door.tokenizer, door.metrics)

        call, generation = await until_gone(request.receive, door.threads.prepare(understand, len(body)))
        if call.streams:
            return await start_stream(request, _chunks(generation, call, door))
        return await until_gone(request.receive, _respond(generation, call, door))

    return [Route("/v1/chat/completions", chat, methods=["POST"])]


async def _respond(generation: Generation, call: Call, door: Door) -> Response:
    """The whole answer."""
    choices = await generation.whole()
    return await door.threads.prepare(
        lambda: json_response(_response(generation, call, choices, door)),
        sum(generation.num_bytes(parts) for parts in choices),
    )


def _response(generation: Generation, call: Call, choices: list[list[Delta]], door: Door) -> ChatResponse:
    prompt_tokens = [token for delta in choices[0] for token in delta.prompt]
    num_top = call.prompt_logprobs
    return ChatResponse(
        id=call.call_id,
        created=int(call.arrival_s),
        model=door.model_name,
        choices=[
            ChatChoice(
                index=index,
                message=AnswerMessage(content="".join(delta.text for delta in parts)),
                logprobs=_logprobs(call, parts, door),
                finish_reason=parts[-1].finish_reason,
                stop_reason=parts[-1].stop_reason,
            )
            for index, parts in enumerate(choices)
        ],
        usage=generation.usage,
        prompt_logprobs=UNSET if num_top is None else to_prompt(prompt_tokens, num_top, door.tokenizer),
    )


async def _chunks(generation: Generation, call: Call, door: Door) -> AsyncGenerator[msgspec.Struct]:
    """The answer in pieces."""
    with_usage = bool(call.options.include_usage)
    is_continuous = with_usage and bool(call.options.continuous_usage_stats)
    begun: set[int] = set()

    def chunk(choices: list[ChatChunkChoice], *, has_totals: bool) -> ChatChunk:
        usage = (generation.usage if has_totals else None) if with_usage else UNSET
        return ChatChunk(
            id=call.call_id, created=int(call.arrival_s), model=door.model_name, choices=choices, usage=usage
        )

    async with aclosing(generation.deltas()) as deltas:
        async for delta in deltas:
            is_first = delta.index not in begun
            begun.add(delta.index)
            message = DeltaMessage(
                role="assistant" if is_first else UNSET, content=delta.text if delta.text or is_first else UNSET
            )
            choice = ChatChunkChoice(
                index=delta.index,
                delta=message,
                logprobs=_logprobs(call, [delta], door),
                finish_reason=delta.finish_reason,
                stop_reason=delta.stop_reason,
            )
            yield chunk([choice], has_totals=is_continuous)
    if with_usage:
        yield chunk([], has_totals=True)


def _logprobs(call: Call, deltas: Sequence[Delta], door: Door) -> ChatLogprobs | None:
    """Log-probabilities of the tokens of some deltas, when they were asked for."""
    if call.sampling[0].logprobs is None:
        return None
    return to_chat([token for delta in deltas for token in delta.tokens], door.tokenizer)
