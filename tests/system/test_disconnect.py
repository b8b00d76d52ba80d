"""D10: a client that leaves, at any moment and in any way, stops its own work and no other"""

import contextlib
import json
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.system.serving import Server, metrics, serving, until, until_idle, write_model

pytestmark = pytest.mark.system

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
MAX_SEQS = 4
RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
GENERATED = "vllm:generation_tokens_total"
NEIGHBOUR: dict[str, Any] = {
    "prompt": "A neighbour",
    "temperature": 1.0,
    "seed": 5,
    "max_tokens": 150,
    "ignore_eos": True,
}
# Until the context is full, far longer than any test waits.
ENDLESS: dict[str, Any] = {"prompt": "On and on", "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With room for a prompt of 20,000 tokens, of which a step takes 64."""
    directory = write_model(tmp_path_factory.mktemp("model"), layers=2, max_position_embeddings=32_768)
    flags = ["--dtype", "float32", "--kv-cache-dtype", "float32", "--num-threads", "1"]
    flags += ["--num-gpu-blocks-override", "1500", "--max-num-seqs", str(MAX_SEQS), "--max-num-batched-tokens", "64"]
    with serving(directory, *flags) as server:
        yield server


@pytest.fixture(scope="module")
def alone(server: Server) -> str:
    return neighbour(server)


def neighbour(server: Server) -> str:
    answer = httpx.post(f"{server.address}{TEXT}", json=NEIGHBOUR, timeout=120)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


def connect(server: Server) -> socket.socket:
    host, port = server.address.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=60)


def post(server: Server, body: dict[str, Any], path: str = TEXT) -> socket.socket:
    """A connection that has sent a request."""
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n\r\n".encode()
    connection = connect(server)
    connection.sendall(head + content)
    return connection


def close(connection: socket.socket) -> None:
    connection.close()


def reset(connection: socket.socket) -> None:
    """Close so that the other side's next write fails."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def half_close(connection: socket.socket) -> None:
    """Say that no more will be sent, and stay."""
    connection.shutdown(socket.SHUT_WR)


LEAVE: list[Callable[[socket.socket], None]] = [close, reset, half_close]


def wait_for_tokens(server: Server, before: float, num_tokens: int) -> None:
    deadline_s = time.monotonic() + 20
    while metrics(server.address)[GENERATED] < before + num_tokens:
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


@contextlib.contextmanager
def a_neighbour(server: Server, alone: str) -> Iterator[None]:
    """Something else runs meanwhile, and does not change; at the end nothing is left."""
    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(neighbour, server)
        yield
        assert beside.result() == alone
    until_idle(server.address)


@pytest.mark.parametrize("leave", LEAVE)
@pytest.mark.parametrize("stream", [True, False])
def test_in_the_queue(server: Server, stream: bool, leave: Callable[[socket.socket], None]) -> None:
    with post(server, ENDLESS | {"n": MAX_SEQS, "stream": True}) as others:
        until(server.address, {RUNNING: MAX_SEQS, WAITING: 0})
        with post(server, ENDLESS | {"stream": stream}) as connection:
            until(server.address, {RUNNING: MAX_SEQS, WAITING: 1})
            leave(connection)
            until(server.address, {RUNNING: MAX_SEQS, WAITING: 0, "minnow:open_requests": MAX_SEQS})
        reset(others)
    until_idle(server.address)


@pytest.mark.parametrize("stream", [True, False])
def test_during_a_long_prefill(server: Server, alone: str, stream: bool) -> None:
    before = metrics(server.address)[GENERATED]
    with post(server, ENDLESS | {"prompt": [i % 250 for i in range(20_000)], "stream": stream}) as connection:
        until(server.address, {RUNNING: 1})
        with a_neighbour(server, alone):
            time.sleep(0.1)
            close(connection)
    assert metrics(server.address)[GENERATED] == before + NEIGHBOUR["max_tokens"]


@pytest.mark.parametrize("leave", LEAVE)
@pytest.mark.parametrize("num_choices", [1, MAX_SEQS])
@pytest.mark.parametrize("stream", [True, False])
def test_while_it_generates(
    server: Server, alone: str, stream: bool, num_choices: int, leave: Callable[[socket.socket], None]
) -> None:
    before = metrics(server.address)[GENERATED]
    aborted = aborts(server)
    with post(server, ENDLESS | {"n": num_choices, "stream": stream}) as connection:
        if stream:
            assert connection.recv(12) == b"HTTP/1.1 200"
        wait_for_tokens(server, before, 3)
        with a_neighbour(server, alone):
            leave(connection)
            until(server.address, {WAITING: 0})
    assert metrics(server.address)[GENERATED] < before + 20_000
    assert aborts(server) == aborted + num_choices


def aborts(server: Server) -> float:
    """Requests that their clients left."""
    lines = httpx.get(f"{server.address}/metrics", timeout=30).text.splitlines()
    found = [line for line in lines if line.startswith("vllm:request_success_total{") and '"abort"' in line]
    return sum(float(line.rsplit(" ", 1)[1]) for line in found)


@pytest.mark.parametrize("part", [b"POST /v1/comp", b"{head}", b'{head}{"prompt": "hal'])
@pytest.mark.parametrize("leave", LEAVE)
def test_while_it_sends(server: Server, part: bytes, leave: Callable[[socket.socket], None]) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n"
    with connect(server) as connection:
        connection.sendall(part.replace(b"{head}", head))
        time.sleep(0.02)
        leave(connection)
        assert httpx.get(f"{server.address}/health", timeout=30).status_code == 200


def test_nothing_is_left(server: Server, alone: str) -> None:
    """Of many clients that leave, not one task or open file."""

    def left_over() -> tuple[float, int]:
        until_idle(server.address)
        return metrics(server.address)["minnow:server_tasks"], len(os.listdir(f"/proc/{server.process.pid}/fd"))

    before = left_over()
    for i in range(30):
        with post(server, ENDLESS | {"stream": bool(i % 2)}, (CHAT, TEXT)[i % 2]) as connection:
            time.sleep(0.002 * (i % 7))
            LEAVE[i % 3](connection)
    deadline_s = time.monotonic() + 20
    while left_over() != before:
        assert time.monotonic() < deadline_s, (before, left_over())
        time.sleep(0.05)
    assert neighbour(server) == alone
    assert "Traceback" not in server.log.read_text()
