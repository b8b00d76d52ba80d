"""clients that leave, and streams that break"""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from minnow.server.stream import EventStream
from tests.server.ask import Connection, ask, chat, chat_text, completion, events, http, running, scripted
from tests.server.scripted import ScriptedEngine

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


async def until_steps(engine: ScriptedEngine, num_steps: int) -> None:
    await until(lambda: engine.num_steps >= num_steps)


def play(engine: ScriptedEngine, scenario: Callable[[Starlette], Awaitable[None]]) -> None:
    async def main() -> None:
        async with running(engine) as door:
            await scenario(door)

    asyncio.run(main())


# D10
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("num_choices", [1, 4])
@pytest.mark.parametrize("num_steps", [0, 3])
def test_a_client_that_leaves_stops_the_work_within_a_step(
    path: str, stream: bool, num_choices: int, num_steps: int
) -> None:
    engine = scripted("x" * 900, max_model_len=1000, is_gated=True)
    body = (chat if path == CHAT else completion)(stream=stream, n=num_choices)

    async def scenario(door: Starlette) -> None:
        connection = Connection(door, path, body)
        await until(lambda: len(engine.added) == num_choices)
        for i in range(num_steps):
            engine.gate.release()
            await until_steps(engine, i + 1)
        await connection.leave()
        for _ in range(5):
            engine.gate.release()
        await until(lambda: len(engine.aborted_at) == num_choices)
        # The step that ran when the client left ends; no other begins with these requests.
        assert max(engine.aborted_at.values()) <= num_steps + 1
        assert engine.is_idle
        async with http(door) as client:
            assert (await client.get("/health")).json()["num_open"] == 0

    play(engine, scenario)


# D10
def test_a_client_that_leaves_during_its_upload_is_no_failure() -> None:
    class Broken(Connection):
        async def _receive(self) -> dict[str, Any]:
            if not self._has_sent:
                self._has_sent = True
                return {"type": "http.request", "body": b'{"mess', "more_body": True}
            return {"type": "http.disconnect"}

    async def scenario(door: Starlette) -> None:
        connection = Broken(door, CHAT, {})
        await asyncio.wait_for(connection.task, timeout=10)  # raises what the server's log would show

    play(scripted("ok"), scenario)


def test_a_client_that_leaves_does_not_disturb_another() -> None:
    engine = scripted("abcdef", is_gated=True)

    async def scenario(door: Starlette) -> None:
        async with http(door) as client:
            leaves = Connection(door, CHAT, chat(stream=True))
            stays = asyncio.create_task(client.post(CHAT, json=chat()))
            await until(lambda: len(engine.added) == 2)
            engine.gate.release()
            await leaves.sent.get()
            await leaves.leave()
            for _ in range(10):
                engine.gate.release()
            assert (await stays).json()["choices"][0]["message"]["content"] == "abcdef"
            assert len(engine.aborted_at) == 1

    play(engine, scenario)


def test_a_connection_that_breaks_while_writing_stops_the_work() -> None:
    engine = scripted("x" * 900, max_model_len=1000)

    class Broken(Connection):
        async def _send(self, message: Any) -> None:
            if message.get("body"):
                raise BrokenPipeError

    async def scenario(door: Starlette) -> None:
        connection = Broken(door, CHAT, chat(stream=True))
        await asyncio.wait_for(connection.task, timeout=10)
        await until(lambda: len(engine.aborted_at) == 1)

    play(engine, scenario)


def test_the_first_event_leaves_before_the_second_step() -> None:
    engine = scripted("abc", is_gated=True)

    async def scenario(door: Starlette) -> None:
        connection = Connection(door, CHAT, chat(stream=True))
        engine.gate.release()
        start, first = await connection.sent.get(), await connection.sent.get()
        assert start["status"] == 200
        assert dict(start["headers"])[b"content-type"] == b"text/event-stream; charset=utf-8"
        assert json.loads(first["body"].removeprefix(b"data: "))["choices"][0]["delta"]["content"] == "a"
        assert engine.num_steps == 1
        await connection.leave()

    play(engine, scenario)


def test_a_failed_request_is_an_error_whole_or_in_the_stream() -> None:
    engine = scripted("abcdef", is_gated=True)

    async def scenario(client: httpx.AsyncClient) -> None:
        streamed = asyncio.create_task(client.post(CHAT, json=chat(stream=True)))
        await until(lambda: len(engine.added) == 1)
        engine.gate.release()
        await until(lambda: engine.num_steps == 1)
        engine.failing_ids = {engine.added[0].request_id}
        engine.gate.release()
        *chunks, last = (await streamed).text.removesuffix("data: [DONE]\n\n").strip().split("\n\n")
        assert chat_text([json.loads(chunk.removeprefix("data: ")) for chunk in chunks]) == "a"
        error = json.loads(last.removeprefix("data: "))["error"]
        assert error == {
            "message": "logits are not finite", "type": "server_error", "param": None, "code": "engine_error",
        }  # fmt: skip
        whole = asyncio.create_task(client.post(CHAT, json=chat(n=2)))
        await until(lambda: len(engine.added) == 3)
        engine.failing_ids = {engine.added[2].request_id}
        engine.gate.release()
        answer = await whole
        assert (answer.status_code, answer.json()["error"]) == (500, error)
        engine.gate.release()
        await until(lambda: engine.aborted_at.keys() == {engine.added[1].request_id})  # the other choice

    ask(engine, scenario)


def test_a_dead_engine_ends_every_stream_and_fails_the_health_check() -> None:
    engine = scripted("abcdef", is_gated=True)

    async def scenario(client: httpx.AsyncClient) -> None:
        assert (await client.get("/health")).json()["status"] == "ok"
        streams = [asyncio.create_task(client.post(CHAT, json=chat(stream=True))) for _ in range(3)]
        await until(lambda: len(engine.added) == 3)
        engine.gate.release()
        await until(lambda: engine.num_steps == 1)
        engine.step_error = RuntimeError("a kernel broke")
        engine.gate.release()
        for stream in streams:
            assert "a kernel broke" in (await stream).text
        health = await client.get("/health")
        assert health.status_code == 503
        assert "a kernel broke" in health.json()["status"]
        refused = await client.post(CHAT, json=chat())
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_unavailable")

    ask(engine, scenario)


def test_a_client_that_leaves_amid_a_backlog_is_noticed() -> None:
    num_sent = 0
    gone = asyncio.Event()

    async def backlog() -> AsyncGenerator[bytes]:
        for _ in range(100_000):
            yield b"data: {}\n\n"

    async def receive() -> dict[str, Any]:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        nonlocal num_sent
        num_sent += 1
        if num_sent == 100:
            gone.set()

    asyncio.run(EventStream(b"data: {}\n\n", backlog())({"type": "http"}, receive, send))
    assert num_sent < 200


def test_an_event_is_one_line_for_every_reader_of_lines() -> None:
    text = "a\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\r\nb"

    async def scenario(client: httpx.AsyncClient) -> None:
        body = (await client.post(CHAT, json=chat(stream=True))).text
        assert body.splitlines() == body.split("\n")[:-1]
        assert chat_text(events(body)) == text

    ask(scripted(text), scenario)
