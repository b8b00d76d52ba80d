"""the application: models, health, keys, sizes, and what it does not load"""

import asyncio
import subprocess
import sys
import threading

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import Message

from minnow.config.server import ServerConfig
from minnow.core.errors import ConfigError, RequestError
from minnow.engine.client import EngineClient
from minnow.engine.host import EngineThread
from minnow.server import app, limits
from tests.server.ask import BYTES, MODEL_NAME, ask, chat, completion, http, scripted
from tests.server.scripted import chat_template


def test_the_model_is_listed() -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        answer = (await client.get("/v1/models")).json()
        (card,) = answer["data"]
        assert answer["object"] == "list"
        assert (card["id"], card["object"], card["max_model_len"]) == (MODEL_NAME, "model", 64)
        assert (await client.get(f"/v1/models/{MODEL_NAME}")).json() == card
        missing = await client.get("/v1/models/other")
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")

    ask(scripted("ok"), scenario)


def test_the_model_can_be_served_under_another_name() -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        assert (await client.get("/v1/models")).json()["data"][0]["id"] == "org/other"
        assert (await client.get("/v1/models/org/other")).status_code == 200
        assert (await client.post("/v1/completions", json=completion(model="org/other"))).json()["model"] == "org/other"
        assert (await client.post("/v1/completions", json=completion())).status_code == 404

    ask(scripted("ok"), scenario, served_model_name="org/other")


def test_everything_but_the_health_check_needs_the_key() -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        paths = [
            "/v1/models", "/v1/models/x", "/v1/chat/completions", "/v1/completions", "/nothing", "/V1/models",
            "//v1/models", "/v1/models/", "/v1%2fmodels", "/health/", "//health", "/Health", "/health/../v1/models",
        ]  # fmt: skip
        for path in paths:
            for method in ("GET", "POST", "OPTIONS", "HEAD"):
                answer = await client.request(method, httpx.URL("http://door").copy_with(raw_path=path.encode()))
                assert answer.status_code == 401, (method, path)
        assert (await client.get("/health")).status_code == 200
        wrong = ["secret", "Bearer", "Bearer ", "Bearer other", "Bearer secret2", "Basic secret", "Bearersecret", ""]
        for value in wrong:
            answer = await client.get("/v1/models", headers={"Authorization": value})
            assert answer.status_code == 401, value
            assert answer.json()["error"]["code"] == "invalid_api_key"
            assert "secret" not in answer.text
        twice = [("Authorization", "Bearer secret"), ("Authorization", "Bearer other")]
        assert (await client.get("/v1/models", headers=twice)).status_code == 401
        for value in ("Bearer secret", "bearer secret"):
            assert (await client.get("/v1/models", headers={"Authorization": value})).status_code == 200
        body = await client.post("/v1/chat/completions", json=chat(), headers={"Authorization": "Bearer secret"})
        assert body.status_code == 200

    ask(scripted("ok"), scenario, api_key="secret")


def test_a_body_over_the_limit_is_refused_declared_or_not() -> None:
    async def in_pieces(num_pieces: int):  # type: ignore[no-untyped-def]
        for _ in range(num_pieces):
            yield b" " * 100

    async def scenario(client: httpx.AsyncClient) -> None:
        for content in (b" " * 1001, in_pieces(11)):
            answer = await client.post("/v1/completions", content=content)
            assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")
            assert "1,000 bytes" in answer.json()["error"]["message"]
        assert (await client.post("/v1/completions", content=in_pieces(10))).status_code == 400

    ask(scripted("ok"), scenario, max_body_bytes="1000")


def test_a_limit_that_is_no_number_is_said_at_once() -> None:
    client = EngineClient(EngineThread(scripted("ok")))
    with pytest.raises(ConfigError, match="lots"):
        app.build(
            client,
            tokenizer=BYTES,
            template=chat_template(),
            model_name="m",
            config=ServerConfig(max_body_bytes="lots"),
        )


def test_too_many_prompts_are_refused_before_any_is_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[str] = []
    monkeypatch.setattr(BYTES, "encode", lambda text, **how: encoded.append(text))

    async def scenario(client: httpx.AsyncClient) -> None:
        for fields in ({"prompt": ["a"] * 1025}, {"prompt": ["a"] * 9, "n": 128}, {"n": 129}):
            answer = await client.post("/v1/completions", json=completion(**fields))
            assert (answer.status_code, encoded) == (400, [])
            assert "answers; send fewer" in answer.json()["error"]["message"] or fields == {"n": 129}

    ask(scripted("ok"), scenario)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", chat(messages=[{"role": "user", "content": ""}] * 1000)),
        ("/v1/completions", completion(prompt=["word " * 100] * 100)),
    ],
)
def test_the_loop_goes_on_while_a_large_body_is_understood(
    monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, object]
) -> None:
    is_answered = threading.Event()
    threads: list[threading.Thread] = []
    plain = BYTES.encode

    def encode(text: str, **how: bool) -> list[int]:
        threads.append(threading.current_thread())
        assert is_answered.wait(timeout=10), "the event loop waited for the encoding"
        return plain(text, **how)

    monkeypatch.setattr(BYTES, "encode", encode)

    async def scenario(client: httpx.AsyncClient) -> None:
        large = asyncio.create_task(client.post(path, json=body))
        while not threads:
            await asyncio.sleep(0.001)
        assert (await client.get("/health")).status_code == 200
        is_answered.set()
        assert (await large).json()["error"]["code"] == "context_length_exceeded"
        assert len(set(threads)) == 1

    ask(scripted("ok"), scenario)


def test_more_routes_can_be_given() -> None:
    async def more(request: Request) -> PlainTextResponse:
        if request.query_params:
            raise RuntimeError("our own mistake")
        return PlainTextResponse("more")

    async def main() -> None:
        client = EngineClient(EngineThread(scripted("ok")))
        door = app.build(
            client, tokenizer=BYTES, template=chat_template(), model_name="m", routes=[Route("/more", more)]
        )
        async with http(door) as asker:
            assert (await asker.get("/more")).text == "more"
            broken = await asker.get("/more?x=1")
            assert broken.status_code == 500
            assert broken.json()["error"]["type"] == "server_error"
            assert "mistake" not in broken.text
            starting = await asker.get("/health")
            assert (starting.status_code, starting.json()["status"]) == (503, "it has not started")

    asyncio.run(main())


def test_the_server_loads_no_torch() -> None:
    words = "import sys, minnow.server.app, minnow.server.listen; from minnow.core import folder; "
    words += "folder.members('minnow.server.routes'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", words], check=False).returncode == 0


def test_a_page_of_another_site_may_not_ask_a_server_without_a_key() -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        for site, status in (("cross-site", 403), ("same-origin", 200), ("same-site", 200), ("none", 200)):
            answer = await client.post("/v1/chat/completions", json=chat(), headers={"Sec-Fetch-Site": site})
            assert answer.status_code == status, site
        assert (
            await client.get("/", headers={"Sec-Fetch-Site": "cross-site"})
        ).status_code == 200  # a link to the page

    ask(scripted("ok"), scenario)


def test_with_a_key_the_key_decides() -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        headers = {"Sec-Fetch-Site": "cross-site", "Authorization": "Bearer secret"}
        assert (await client.post("/v1/chat/completions", json=chat(), headers=headers)).status_code == 200

    ask(scripted("ok"), scenario, api_key="secret")


def test_a_body_that_stops_coming_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BODY_TIMEOUT_S", 0.05)

    parts = [{"type": "http.request", "body": b'{"model"', "more_body": True}]

    async def receive() -> Message:
        if not parts:
            await asyncio.sleep(30)
        return parts.pop()

    async def read(seconds: float) -> bytes:
        request = Request({"type": "http", "headers": []}, receive)
        return await limits.read_body(request, 1000, lambda: asyncio.sleep(seconds))

    with pytest.raises(RequestError, match="nothing more of the body") as caught:
        asyncio.run(read(30))
    assert caught.value.status == 408
    with pytest.raises(RequestError, match="shutting down") as caught:
        asyncio.run(read(0.01))
    assert caught.value.status == 503


def test_long_work_waits_for_its_turn_and_is_forgotten_when_nobody_waits() -> None:
    async def main() -> None:
        threads = limits.Threads(num_threads=1)
        may_end = threading.Event()
        done: list[str] = []

        def hold() -> str:
            may_end.wait(10)
            return "held"

        first = asyncio.create_task(threads.run(hold))
        second = asyncio.create_task(threads.run(lambda: done.append("second")))
        third = asyncio.create_task(threads.run(lambda: done.append("third")))
        await asyncio.sleep(0.01)
        second.cancel()
        may_end.set()
        assert await first == "held"
        await third
        assert done == ["third"]

    asyncio.run(asyncio.wait_for(main(), timeout=10))


def test_work_that_fails_gives_its_turn_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def panic() -> None:
        raise BaseException("a library gave up")

    async def main() -> None:
        threads = limits.Threads(num_threads=1)
        with pytest.raises(ZeroDivisionError):
            await threads.run(lambda: 1 / 0)
        with pytest.raises(RuntimeError, match="a library gave up"):
            await threads.run(panic)
        with pytest.raises(RuntimeError, match="StopIteration"):
            await threads.run(lambda: next(iter(())))
        with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="can't start"):
            patch.setattr(threading.Thread, "start", lambda self: refuse())
            await threads.run(lambda: 1)
        assert await threads.run(lambda: 2) == 2

    def refuse() -> None:
        raise RuntimeError("can't start new thread")

    asyncio.run(asyncio.wait_for(main(), timeout=10))
