"""POST /v1/completions"""

import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial
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
from minnow.server.logprob import to_completion, to_prompt
from minnow.server.schema.completions import CompletionChoice, CompletionRequest, CompletionResponse
from minnow.server.schema.errors import decode
from minnow.server.stream import json_response, start_stream, until_gone


def routes(door: Door) -> Sequence[BaseRoute]:
    """The routes of this file."""

    async def completions(request: Request) -> Any:
        arrival_s = time.time()
        body = await read_body(request, door.max_body_bytes, door.client.drained)

        def understand() -> tuple[Call, Generation]:
            wire = decode(body, CompletionRequest)
            check_model(wire.model, door)
            prompts = prompt.from_texts(wire, door.tokenizer, door.client.vocab_size)
            call = make_call(wire, prompts, door, call_id=f"cmpl-{uuid.uuid4().hex}", arrival_s=arrival_s)
            return call, Generation(call, door.client, door.tokenizer, door.metrics)

        call, generation = await until_gone(request.receive, door.threads.prepare(understand, len(body)))
        if call.streams:
            return await start_stream(request, _chunks(generation, call, door))
        return await until_gone(request.receive, _respond(generation, call, door))

    return [Route("/v1/completions", completions, methods=["POST"])]


async def _respond(generation: Generation, call: Call, door: Door) -> Response:
    """The whole answer."""
    choices = await generation.whole()

    def build() -> Response:
        return json_response(
            CompletionResponse(
                id=call.call_id,
                created=int(call.arrival_s),
                model=door.model_name,
                choices=[_choice(call, parts, door) for parts in choices],
                usage=generation.usage,
            )
        )

    return await door.threads.prepare(build, sum(generation.num_bytes(parts) for parts in choices))


async def _chunks(generation: Generation, call: Call, door: Door) -> AsyncGenerator[msgspec.Struct]:
    """The answer in pieces."""
    with_usage = bool(call.options.include_usage)
    is_continuous = with_usage and bool(call.options.continuous_usage_stats)

    def chunk(choices: list[CompletionChoice], *, has_totals: bool) -> CompletionResponse:
        usage = (generation.usage if has_totals else None) if with_usage else UNSET
        return CompletionResponse(
            id=call.call_id, created=int(call.arrival_s), model=door.model_name, choices=choices, usage=usage
        )

    async with aclosing(generation.deltas()) as deltas:
        async for delta in deltas:
            choice = await door.threads.prepare(partial(_choice, call, [delta], door), generation.num_bytes([delta]))
            yield chunk([choice], has_totals=is_continuous)
    if with_usage:
        yield chunk([], has_totals=True)


def _choice(call: Call, deltas: Sequence[Delta], door: Door) -> CompletionChoice:
    """Some deltas of one choice, as one."""
    prompt_tokens = [token for delta in deltas for token in delta.prompt]
    tokens = [token for delta in deltas for token in delta.tokens]
    num_top, num_prompt_top = call.sampling[0].logprobs, call.prompt_logprobs
    if call.has_echo:
        tokens = prompt_tokens + tokens
    return CompletionChoice(
        index=deltas[-1].index,
        text="".join(delta.text for delta in deltas),
        logprobs=None if num_top is None else to_completion(tokens, num_top, door.tokenizer),
        finish_reason=deltas[-1].finish_reason,
        stop_reason=deltas[-1].stop_reason,
        prompt_logprobs=UNSET if num_prompt_top is None else to_prompt(prompt_tokens, num_prompt_top, door.tokenizer),
    )
