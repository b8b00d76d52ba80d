"""send requests to an OpenAI server as they fall due, and time every piece of the answers"""

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import httpx

from minnow.bench.dataset import Sample
from minnow.bench.timing import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Where requests go.

    Attributes:
        url: the whole address of the endpoint.
        is_chat: whether a prompt goes as a message.
        body: fields of every request, besides prompt and max_tokens.
        transport: what carries them; None is the network.
    """

    url: str
    is_chat: bool
    body: Mapping[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)
    transport: httpx.AsyncBaseTransport | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one request; times are of one clock, in seconds.

    Attributes:
        due_s, sent_s, ended_s: when it should have gone, when it went, when the last event came.
        text_s: when each event with text came.
        num_input_tokens, num_output_tokens: by the server's count; None where it gives none.
        error: what failed, or "".
    """

    prompt: str
    due_s: float
    sent_s: float
    ended_s: float
    text_s: tuple[float, ...] = ()
    text: str = ""
    num_input_tokens: int | None = None
    num_output_tokens: int | None = None
    error: str = ""


def arrivals(count: int, rate: float, burstiness: float, rng: Random) -> list[float]:
    """Seconds after the start at which requests fall due.

    Args:
        rate: requests a second; infinite sends all at once.
        burstiness: shape of the gamma distribution of the gaps: 1 is a Poisson process, less comes in bursts.
    """
    if math.isinf(rate):
        return [0.0] * count
    gaps = [rng.gammavariate(burstiness, 1 / (rate * burstiness)) for _ in range(count)]
    scale = count / rate / sum(gaps) if sum(gaps) else 1.0  # else few requests would miss the rate asked for
    return [sum(gaps[:i]) * scale for i in range(count)]


async def run(
    server: Server,
    samples: Sequence[Sample],
    due: Sequence[float],
    *,
    max_concurrency: int | None = None,
    clock: Clock = time.perf_counter,
) -> list[Outcome]:
    """Send every sample when it is due (see `arrivals`), with no more at once than allowed, and wait for all."""
    gate = asyncio.Semaphore(max_concurrency or max(1, len(samples)))
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(timeout=None, limits=limits, transport=server.transport, trust_env=False) as client:
        started = clock()

        async def one(sample: Sample, due_s: float) -> Outcome:
            await asyncio.sleep(due_s - (clock() - started))
            async with gate:
                return await _send(client, server, sample, started + due_s, clock)

        return list(await asyncio.gather(*map(one, samples, due)))


async def _send(client: httpx.AsyncClient, server: Server, sample: Sample, due_s: float, clock: Clock) -> Outcome:
    prompt = {"messages": [{"role": "user", "content": sample.prompt}]} if server.is_chat else {"prompt": sample.prompt}
    options = {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": sample.max_tokens}
    body = {**prompt, **options, **server.body}
    sent = ended = clock()
    times: list[float] = []
    pieces: list[str] = []
    usage: dict[str, Any] = {}
    error = ""
    try:
        async with client.stream("POST", server.url, json=body, headers=dict(server.headers)) as response:
            if response.status_code != 200:
                error = f"status {response.status_code}: {(await response.aread()).decode(errors='replace')[:500]}"
            else:
                async for data in events(response.aiter_bytes()):
                    if data == b"[DONE]":
                        continue  # to the end of the body, so that the connection can serve again
                    ended = clock()
                    message = json.loads(data)
                    if message.get("error"):
                        error = f"in the stream: {json.dumps(message['error'])[:500]}"
                    usage = message.get("usage") or usage
                    piece = text_of(message)
                    if piece:
                        times.append(ended)
                        pieces.append(piece)
                error = error or ("" if times else "the stream ended without any text")
    except (httpx.HTTPError, ValueError, AttributeError, TypeError) as failure:
        error = f"{type(failure).__name__}: {failure}"
    ended = clock() if error else ended
    return Outcome(
        prompt=sample.prompt, due_s=due_s, sent_s=sent, ended_s=ended, text_s=tuple(times), text="".join(pieces),
        num_input_tokens=usage.get("prompt_tokens"), num_output_tokens=usage.get("completion_tokens"), error=error,
    )  # fmt: skip


async def events(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The data of each server-sent event, however the bytes are cut; lines end with LF or CRLF."""
    rest, data = b"", list[bytes]()
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in (line.removesuffix(b"\r") for line in lines):
            if line.startswith(b"data:"):
                data.append(line[5:].removeprefix(b" "))
            elif not line and data:
                yield b"\n".join(data)
                data = []
    if data:
        yield b"\n".join(data)


def text_of(message: Mapping[str, Any]) -> str:
    """The text that a chunk of an answer adds: completion, content, or reasoning."""
    text = ""
    for choice in message.get("choices") or ():
        delta = choice.get("delta") or {}
        for words in (choice.get("text"), *(delta.get(k) for k in ("content", "reasoning_content", "reasoning"))):
            text += words or ""
    return text
