import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from itertools import pairwise

import httpx
import pytest

from minnow.bench import load
from minnow.bench.dataset import Sample
from minnow.bench.load import Outcome, Server

SAMPLE = Sample(prompt="one two", max_tokens=5)


def chunk(text: str | None = None, **fields: object) -> bytes:
    choices = [] if text is None else [{"index": 0, "text": text}]
    return b"data: " + json.dumps({"choices": choices, **fields}, ensure_ascii=False).encode() + b"\n\n"


USAGE = chunk(usage={"prompt_tokens": 2, "completion_tokens": 5})
DONE = b"data: [DONE]\n\n"
Answer = Callable[[httpx.Request], httpx.Response]


class Body(httpx.AsyncByteStream):
    """A body that comes in pieces; `before` is awaited before each."""

    def __init__(self, pieces: list[bytes], before: Callable[[], object] | None = None) -> None:
        self._pieces, self._before = pieces, before

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            await asyncio.sleep(0)
            if self._before is not None:
                self._before()
            yield piece


def send(answer: Answer, samples: int = 1, *, is_chat: bool = False, **options: object) -> list[Outcome]:
    server = Server(url="http://test/v1/x", is_chat=is_chat, body={"model": "m"}, transport=httpx.MockTransport(answer))
    due = [0.0] * samples
    return asyncio.run(load.run(server, [SAMPLE] * samples, due, **options))  # type: ignore[arg-type]


def test_all_are_due_at_once_without_a_rate() -> None:
    assert load.arrivals(3, float("inf"), 1.0, random.Random(0)) == [0.0, 0.0, 0.0]
    assert load.arrivals(0, 5.0, 1.0, random.Random(0)) == []


@pytest.mark.parametrize("burstiness", [0.3, 1.0, 100.0])
def test_arrivals_keep_the_rate_and_their_burstiness(burstiness: float) -> None:
    due = load.arrivals(4000, 20.0, burstiness, random.Random(3))
    assert due == sorted(due) and due[0] == 0.0
    assert due[-1] == pytest.approx(200.0, rel=0.02)
    gaps = [b - a for a, b in pairwise(due)]
    mean = sum(gaps) / len(gaps)
    variation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5 / mean
    assert variation == pytest.approx(burstiness**-0.5, rel=0.15)


def test_a_request_is_what_the_api_asks_for() -> None:
    seen: list[dict[str, object]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(json.loads(request.content))
        return httpx.Response(200, stream=Body([chunk("a"), DONE]))

    send(answer)
    send(answer, is_chat=True)
    shared = {"model": "m", "max_tokens": 5, "stream": True, "stream_options": {"include_usage": True}}
    assert seen[0] == {"prompt": "one two", **shared}
    assert seen[1] == {"messages": [{"role": "user", "content": "one two"}], **shared}


def test_every_piece_of_text_has_its_time() -> None:
    now = [0.0]

    def later() -> None:
        now[0] += 1.0

    pieces = [b": ping\n\n", chunk(""), chunk("Hel"), chunk("lo"), USAGE, DONE]
    outcome = send(lambda _: httpx.Response(200, stream=Body(pieces, later)), clock=lambda: now[0])[0]
    assert outcome == Outcome(
        prompt="one two", due_s=0.0, sent_s=0.0, ended_s=5.0, text_s=(3.0, 4.0), text="Hello",
        num_input_tokens=2, num_output_tokens=5,
    )  # fmt: skip


@pytest.mark.parametrize("cut", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_events_are_read_however_the_bytes_are_cut(cut: int, line_end: bytes) -> None:
    # U+2028 and U+0085 end lines for some readers, but not in events
    body = (chunk("caf\u00e9\u2028\u0085") + b"event: x\nid: 3\n" + chunk("!") + USAGE + DONE).replace(b"\n", line_end)
    pieces = [body[i : i + cut] for i in range(0, len(body), cut)]
    outcome = send(lambda _: httpx.Response(200, stream=Body(pieces)))[0]
    assert (outcome.text, outcome.error, outcome.num_output_tokens) == ("caf\u00e9\u2028\u0085!", "", 5)


def test_chat_and_reasoning_are_text() -> None:
    deltas: list[dict[str, object]] = [
        {"role": "assistant", "content": ""}, {"reasoning_content": "hm "}, {"reasoning": "so "}, {"content": "yes"},
    ]  # fmt: skip
    pieces = [b"data: " + json.dumps({"choices": [{"delta": delta}]}).encode() + b"\n\n" for delta in deltas]
    outcome = send(lambda _: httpx.Response(200, stream=Body([*pieces, DONE])), is_chat=True)[0]
    assert (outcome.text, len(outcome.text_s), outcome.num_output_tokens) == ("hm so yes", 3, None)


def test_no_more_are_on_their_way_than_allowed() -> None:
    running, most = [0], [0]

    class Counting(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            running[0] += 1
            most[0] = max(most[0], running[0])
            await asyncio.sleep(0.001)
            running[0] -= 1
            return httpx.Response(200, stream=Body([chunk("a"), DONE]))

    for allowed, seen in ((3, 3), (None, 8)):
        most[0] = 0
        server = Server(url="http://test/v1/x", is_chat=False, body={}, transport=Counting())
        outcomes = asyncio.run(load.run(server, [SAMPLE] * 8, [0.0] * 8, max_concurrency=allowed))
        assert most[0] == seen and not any(outcome.error for outcome in outcomes)


def _refuse(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("nobody there")


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (lambda _: httpx.Response(503, text="busy"), "status 503: busy"),
        (_refuse, "ConnectError: nobody there"),
        (lambda _: httpx.Response(200, stream=Body([chunk("a"), b"data: {nonsense\n\n"])), "JSONDecodeError"),
        (lambda _: httpx.Response(200, stream=Body([chunk(error={"message": "out of room"})])), "out of room"),
        (lambda _: httpx.Response(200, stream=Body([USAGE, DONE])), "without any text"),
        (lambda _: httpx.Response(200, stream=Body([b"data: 3\n\n"])), "AttributeError"),
    ],
)  # fmt: skip
def test_what_fails_is_told_and_stops_nothing(answer: Answer, error: str) -> None:
    outcomes = send(answer, samples=2)
    assert len(outcomes) == 2
    assert all(error in outcome.error for outcome in outcomes)
    assert all(outcome.ended_s >= outcome.sent_s for outcome in outcomes)
