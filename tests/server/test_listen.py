"""real sockets: the official client, clients that hang up, big bodies, signals"""

import asyncio
import contextlib
import http.client
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from starlette.applications import Starlette

from minnow.config.server import ServerConfig
from minnow.core.errors import ConfigError, MinnowError
from minnow.engine.client import EngineClient
from minnow.engine.host import EngineThread
from minnow.server import app, listen
from tests.server.ask import BYTES, MODEL_NAME, chat, scripted
from tests.server.scripted import ScriptedEngine, chat_template

TEXT = "Paris \u2014 \U0001f5fc, of course."


def make_app(client: EngineClient, **config: Any) -> Starlette:
    return app.build(
        client,
        tokenizer=BYTES,
        template=chat_template(),
        model_name=MODEL_NAME,
        config=ServerConfig(**config),
    )


@contextlib.contextmanager
def serving(engine: ScriptedEngine, **config: Any) -> Iterator[str]:
    """A server on a free port in a thread; gives its address."""
    listening = listen.bind("127.0.0.1", 0)
    listening.listen()
    address = listen.address_of(listening)
    ready = threading.Event()
    stop: list[Any] = []

    def run() -> None:
        async def main() -> None:
            client = EngineClient(EngineThread(engine))
            server = listen.Server(make_app(client, **config), client, drain_s=1)
            stop.append(server)
            with contextlib.suppress(MinnowError):  # the engine failed, as it was to
                await server.run(listening, ready.set)

        asyncio.run(main())

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert ready.wait(timeout=20)
        yield address
    finally:
        stop[0].stop()
        for _ in range(1000):
            engine.gate.release()
        thread.join(timeout=20)
        listening.close()
    assert not thread.is_alive()


@pytest.mark.system
def test_the_official_client_gets_what_it_expects() -> None:
    engine = scripted(TEXT, max_model_len=100)
    with serving(engine, api_key="secret") as address:
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="secret", max_retries=0)
        assert [model.id for model in client.models.list()] == [MODEL_NAME]
        messages: Any = [{"role": "user", "content": "Capital of France?"}]
        answer = client.chat.completions.create(model=MODEL_NAME, messages=messages, logprobs=True, top_logprobs=0)
        assert answer.choices[0].message.content == TEXT
        assert answer.choices[0].finish_reason == "stop"
        assert answer.usage is not None
        logprobs = answer.choices[0].logprobs
        assert logprobs is not None and logprobs.content is not None
        assert len(logprobs.content) == answer.usage.completion_tokens == len(TEXT.encode()) + 1
        options: Any = {"include_usage": True}
        stream = client.chat.completions.create(
            model=MODEL_NAME, messages=messages, n=2, stream=True, stream_options=options
        )
        *chunks, last = stream
        for index in range(2):
            own = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
            assert "".join(choice.delta.content or "" for choice in own) == TEXT
            assert own[0].delta.role == "assistant"
        assert last.usage is not None
        assert last.usage.completion_tokens == 2 * answer.usage.completion_tokens
        text = client.completions.create(model=MODEL_NAME, prompt=[1, 2, 3], max_tokens=5, logprobs=1)
        assert (text.choices[0].text, text.choices[0].finish_reason) == (TEXT[:5], "length")
        pieces = client.completions.create(model=MODEL_NAME, prompt="x", stream=True)
        assert "".join(piece.choices[0].text for piece in pieces) == TEXT
        with pytest.raises(openai.BadRequestError) as bad:
            client.chat.completions.create(model=MODEL_NAME, messages=messages, temperature=-1)
        assert bad.value.param == "temperature"
        with pytest.raises(openai.NotFoundError) as missing:
            client.chat.completions.create(model="other", messages=messages)
        assert missing.value.code == "model_not_found"
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=f"{address}/v1", api_key="wrong", max_retries=0).models.list()


@pytest.mark.system
def test_the_official_client_hears_of_a_failure_in_the_stream() -> None:
    engine = scripted(TEXT, is_gated=True)
    with serving(engine) as address:
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
        engine.gate.release()
        messages: Any = [{"role": "user", "content": "hi"}]
        stream = client.chat.completions.create(model=MODEL_NAME, messages=messages, stream=True)
        assert next(iter(stream)).choices[0].delta.content == "P"
        engine.step_error = RuntimeError("a kernel broke")
        engine.gate.release()
        with pytest.raises(openai.APIError, match="a kernel broke"):
            list(stream)
        assert httpx.get(f"{address}/health").status_code == 503


# D10
@pytest.mark.system
@pytest.mark.parametrize("stream", [True, False])
def test_a_hung_up_socket_stops_the_work(stream: bool) -> None:
    engine = scripted("x" * 900, max_model_len=1000, is_gated=True)
    with serving(engine) as address:
        host, port = address.removeprefix("http://").split(":")
        body = json.dumps(chat(stream=stream, n=2)).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(head + body)
            engine.gate.release()
            if stream:
                assert connection.recv(10) == b"HTTP/1.1 2"
        deadline_s = time.monotonic() + 5
        while len(engine.aborted_at) < 2:
            assert time.monotonic() < deadline_s
            engine.gate.release()
            time.sleep(0.005)


@pytest.mark.system
def test_a_body_of_ten_megabytes_is_refused_and_the_server_goes_on() -> None:
    with serving(scripted("ok")) as address:
        answer = httpx.post(f"{address}/v1/chat/completions", content=b" " * 10_000_000)
        assert answer.status_code == 413
        host = address.removeprefix("http://")
        connection = http.client.HTTPConnection(host, timeout=10)
        pieces = iter([b" " * 1_000_000] * 10)
        connection.request("POST", "/v1/completions", body=pieces, encode_chunked=True,
                           headers={"Transfer-Encoding": "chunked"})  # fmt: skip
        assert connection.getresponse().status == 413
        connection.close()
        assert httpx.post(f"{address}/v1/chat/completions", json=chat()).status_code == 200


# D14
@pytest.mark.system
def test_a_prompt_of_five_megabytes_does_not_block_the_others() -> None:
    with serving(scripted("ok")) as address:
        answers: list[httpx.Response] = []
        body = chat(messages=[{"role": "user", "content": "some words " * 450_000}])
        thread = threading.Thread(
            target=lambda: answers.append(httpx.post(f"{address}/v1/chat/completions", json=body, timeout=60))
        )
        waits_s = []
        start_s = time.monotonic()
        thread.start()
        while thread.is_alive():
            begin_s = time.monotonic()
            assert httpx.get(f"{address}/health", timeout=60).status_code == 200
            waits_s.append(time.monotonic() - begin_s)
        assert answers[0].json()["error"]["code"] == "context_length_exceeded"
        # a share of the same run, not a time: blocked, one answer would wait for nearly all of it
        assert max(waits_s) < 0.5 * (time.monotonic() - start_s), waits_s


def test_a_busy_port_is_said_in_one_sentence() -> None:
    with contextlib.closing(listen.bind("127.0.0.1", 0)) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"port {port} on 127\.0\.0\.1 cannot be taken \(Address already in"):
            listen.bind("127.0.0.1", port)


def test_a_host_that_is_not_here_is_said() -> None:
    with pytest.raises(ConfigError, match="no address of this machine"):
        listen.bind("no such host", 0)


def test_the_address_is_one_that_a_browser_takes() -> None:
    with contextlib.closing(listen.bind("0.0.0.0", 0)) as everywhere:
        port = everywhere.getsockname()[1]
        assert listen.address_of(everywhere) == f"http://127.0.0.1:{port}"


@pytest.mark.system
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_server_and_nothing_else(number: signal.Signals) -> None:
    engine = scripted("abc")
    said: list[str] = []

    def when_ready() -> None:
        said.append("ready")
        os.kill(os.getpid(), number)

    listening = listen.bind("127.0.0.1", 0)
    before = signal.getsignal(number)
    client = EngineClient(EngineThread(engine))
    listen.serve(make_app(client), listening, client, when_ready=when_ready, drain_s=1)
    assert said == ["ready"]
    assert signal.getsignal(number) is before
    assert all(thread.name != "engine" for thread in threading.enumerate())


@pytest.mark.system
def test_a_stream_that_outlasts_the_drain_ends_with_an_error_event(capfd: pytest.CaptureFixture[str]) -> None:
    """G02: the last event says why, the end mark follows, and the log holds no traceback."""

    engine = ScriptedEngine(lambda request: [BYTES.encode("a")[0]] * 50_000, max_model_len=60_000, is_gated=True)
    listening = listen.bind("127.0.0.1", 0)
    address = listen.address_of(listening)
    client = EngineClient(EngineThread(engine))
    events: list[str] = []

    def read() -> None:
        with httpx.stream("POST", f"{address}/v1/chat/completions", json=chat(stream=True), timeout=30) as answer:
            for line in answer.iter_lines():
                if line:
                    events.append(line)
                if len(events) == 3:
                    os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=read)

    def pace() -> None:
        while thread.is_alive():
            engine.gate.release()
            time.sleep(0.01)

    def when_ready() -> None:
        thread.start()
        threading.Thread(target=pace).start()

    listen.serve(make_app(client), listening, client, when_ready=when_ready, drain_s=1)
    thread.join(timeout=20)
    assert events[-1] == "data: [DONE]"
    assert "the server was stopped" in events[-2]
    assert "Traceback" not in capfd.readouterr().err


# G02
@pytest.mark.system
@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_that_is_read_slowly_is_drained_whole(capfd: pytest.CaptureFixture[str], stream: bool) -> None:
    """The engine is done long before the client has read; the drain waits for the client."""
    engine = ScriptedEngine(lambda request: [BYTES.encode("a")[0]] * 20_000, max_model_len=30_000, tokens_a_step=50)
    engine.top_logprobs = tuple((i, -1.0) for i in range(20))
    listening = listen.bind("127.0.0.1", 0)
    host, port = listen.address_of(listening).removeprefix("http://").split(":")
    client = EngineClient(EngineThread(engine))
    received = bytearray()

    def read_late() -> None:
        fields = {"logprobs": True, "top_logprobs": 20, "max_tokens": 20_000}
        body = json.dumps(chat(stream=stream, **fields)).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect((host, int(port)))
            connection.sendall(head + body)
            received.extend(connection.recv(1))
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(1.5)
            while part := connection.recv(1 << 16):
                received.extend(part)

    thread = threading.Thread(target=read_late)
    listen.serve(make_app(client), listening, client, when_ready=thread.start, drain_s=30)
    thread.join(timeout=20)
    assert received.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n" if stream else b"}")
    assert received.count(b'"top_logprobs"') == 20_000
    assert "Traceback" not in capfd.readouterr().err


# G02
@pytest.mark.system
def test_a_body_that_is_half_sent_does_not_hold_the_drain(capfd: pytest.CaptureFixture[str]) -> None:
    listening = listen.bind("127.0.0.1", 0)
    host, port = listen.address_of(listening).removeprefix("http://").split(":")
    client = EngineClient(EngineThread(scripted("abc")))
    received = bytearray()

    def send_half() -> None:
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGTERM)
            while part := connection.recv(1 << 16):
                received.extend(part)

    thread = threading.Thread(target=send_half)
    begin_s = time.monotonic()
    listen.serve(make_app(client), listening, client, when_ready=thread.start, drain_s=60)
    thread.join(timeout=20)
    assert received.startswith(b"HTTP/1.1 503 ") and b"shutting down" in received
    assert time.monotonic() - begin_s < 30
    assert "Traceback" not in capfd.readouterr().err


# G01
@pytest.mark.system
def test_a_failed_engine_ends_the_server_with_its_reason() -> None:
    engine = scripted("abc", is_gated=True)
    engine.step_error = RuntimeError("a kernel broke")
    listening = listen.bind("127.0.0.1", 0)
    address = listen.address_of(listening)
    client = EngineClient(EngineThread(engine))
    answers: list[httpx.Response] = []

    def ask() -> None:
        answers.append(httpx.post(f"{address}/v1/chat/completions", json=chat(), timeout=20))
        answers.append(httpx.get(f"{address}/health", timeout=20))

    def when_ready() -> None:
        threading.Thread(target=ask).start()
        engine.gate.release()

    with pytest.raises(MinnowError, match="the engine failed: RuntimeError: a kernel broke"):
        listen.serve(make_app(client), listening, client, when_ready=when_ready, drain_s=1)
    assert [answer.status_code for answer in answers] == [500, 503]
