"""the life of a server and its engine's process: start, failure, freeze, drain, end"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.system.serving import MAIN, Server, serving, write_model

pytestmark = pytest.mark.system

# On the references, so that an answer of thousands of tokens lasts on any machine.
FLAGS = ("--num-threads", "1", "--num-gpu-blocks-override", "2500", "--served-model-name", "tiny")
FLAGS += ("--kernel-backends", "*=reference")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tiny"), max_position_embeddings=20_000)


def worker_of(process: "subprocess.Popen[str]") -> int:
    """The engine's process of a server."""
    (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return int(child)


def until(is_true: Callable[[], bool], timeout_s: float = 20) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < deadline_s, "it did not happen"
        time.sleep(0.02)


def is_gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has reaped has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def body(num_tokens: int, *, stream: bool = True) -> dict[str, Any]:
    return {"prompt": [1, 2, 3], "max_tokens": num_tokens, "ignore_eos": True, "temperature": 0, "stream": stream}


class Asking:
    """A completion that is read in a thread.

    Attributes:
        lines: of the stream so far, or the whole answer at its end.
        status: once it has begun.
    """

    def __init__(self, server: Server, num_tokens: int, *, stream: bool = True) -> None:
        self.lines: list[str] = []
        self.status = 0
        self._address = server.address
        self._body = body(num_tokens, stream=stream)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        if stream:
            until(lambda: len(self.lines) > 2)

    def _read(self) -> None:
        with (
            contextlib.suppress(httpx.TransportError),
            httpx.stream("POST", f"{self._address}/v1/completions", json=self._body, timeout=60) as answer,
        ):
            self.status = answer.status_code
            self.lines += (line for line in answer.iter_lines() if line)

    def end(self) -> list[str]:
        """All lines, once it has ended."""
        self._thread.join(timeout=30)
        assert not self._thread.is_alive()
        return self.lines


def health(server: Server) -> httpx.Response:
    return httpx.get(f"{server.address}/health", timeout=20)


def stop_reason(lines: list[str]) -> str:
    """The error event that a stream ends with."""
    assert lines[-1] == "data: [DONE]" and '"error"' in lines[-2], lines[-3:]
    return lines[-2]


# G05, G01
def test_a_server_answers_while_it_loads_and_says_how_far_it_is(model: Path) -> None:
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-c", MAIN, "serve", str(model), "--port", str(port), *FLAGS]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    seen: list[tuple[int, str]] = []
    try:
        address = f"http://127.0.0.1:{port}"
        while not seen or seen[-1][0] != 200:
            with contextlib.suppress(httpx.TransportError):
                answer = httpx.get(f"{address}/health")
                seen.append((answer.status_code, answer.json()["status"]))
                if answer.status_code == 503 and "loading" in seen[-1][1] and len(seen) < 20:
                    refused = httpx.post(f"{address}/v1/completions", json=body(1))
                    assert refused.status_code in (200, 503)
                    if refused.status_code == 503:
                        assert refused.headers["retry-after"]
                        assert refused.json()["error"]["code"] == "engine_unavailable"
                        assert httpx.get(f"{address}/v1/models").status_code in (200, 503)
            assert process.poll() is None
        assert (200, "ok") in seen
        assert any(code == 503 and words.startswith("it is loading: libraries") for code, words in seen)
    finally:
        process.kill()
        process.communicate()


# G01
def test_a_killed_engine_ends_what_is_open_and_the_server_with_an_error(model: Path) -> None:
    with serving(model, *FLAGS) as server:
        stream, whole = Asking(server, 15_000), Asking(server, 15_000, stream=False)
        until(lambda: health(server).json()["num_open"] == 2)
        os.kill(worker_of(server.process), signal.SIGKILL)
        assert "its process was ended by SIGKILL" in stop_reason(stream.end())
        assert whole.end() and whole.status == 500
        assert "SIGKILL" in whole.lines[0]
        answer = health(server)
        assert (answer.status_code, answer.json()["status"]) == (503, "its process was ended by SIGKILL")
        refused = httpx.post(f"{server.address}/v1/completions", json=body(1))
        assert refused.status_code == 503 and "SIGKILL" in refused.json()["error"]["message"]
        server.process.send_signal(signal.SIGTERM)  # somebody cleans up; it has failed all the same
        assert server.process.wait(20) == 1
        log = server.log.read_text()
        assert log.splitlines()[-1] == "minnow: the engine failed: its process was ended by SIGKILL"
        assert "Traceback" not in log


# G01
def test_a_frozen_engine_fails_the_health_check_and_comes_back(model: Path) -> None:
    with serving(model, *FLAGS) as server:
        stream = Asking(server, 15_000)
        worker = worker_of(server.process)
        os.kill(worker, signal.SIGSTOP)
        begin_s = time.monotonic()
        until(lambda: health(server).status_code == 503)
        assert time.monotonic() - begin_s < 30  # 10 s on a machine that does nothing else
        assert "no sign of life" in health(server).json()["status"]
        assert "the engine hangs" in stop_reason(stream.end())
        os.kill(worker, signal.SIGCONT)
        until(lambda: health(server).status_code == 200)
        answer = httpx.post(f"{server.address}/v1/completions", json=body(3, stream=False), timeout=30)
        assert answer.json()["usage"]["completion_tokens"] == 3
        until(lambda: health(server).json()["num_running"] == 0)


# G02
def test_a_signal_lets_streams_finish_and_nothing_new_in(model: Path) -> None:
    with serving(model, *FLAGS, "--shutdown-timeout", "60") as server:
        worker = worker_of(server.process)
        streams = [Asking(server, 1000) for _ in range(3)]
        server.process.send_signal(signal.SIGTERM)
        until(lambda: health(server).status_code == 503)
        assert health(server).json()["status"] == "the server is shutting down"
        assert health(server).headers["retry-after"]
        refused = httpx.post(f"{server.address}/v1/completions", json=body(1))
        assert refused.status_code == 503 and refused.headers["retry-after"]
        for stream in streams:
            lines = stream.end()
            assert lines[-1] == "data: [DONE]" and '"finish_reason":"length"' in lines[-2]
        assert server.process.wait(20) == 0
        until(lambda: is_gone(worker))
        assert "Traceback" not in server.log.read_text()


# G02
@pytest.mark.parametrize("drain_s", [0, 1])
def test_streams_longer_than_the_drain_end_with_an_error(model: Path, drain_s: int) -> None:
    with serving(model, *FLAGS, "--shutdown-timeout", str(drain_s)) as server:
        worker = worker_of(server.process)
        stream, whole = Asking(server, 15_000), Asking(server, 15_000, stream=False)
        until(lambda: health(server).json()["num_open"] == 2)
        server.process.send_signal(signal.SIGINT)
        assert "the server was stopped" in stop_reason(stream.end())
        assert whole.end() and whole.status == 500
        assert server.process.wait(20) == 0
        until(lambda: is_gone(worker))
        assert "Traceback" not in server.log.read_text()


# G02
def test_a_second_signal_ends_everything_at_once(model: Path) -> None:
    with serving(model, *FLAGS, "--shutdown-timeout", "600") as server:
        worker = worker_of(server.process)
        stream = Asking(server, 15_000)
        server.process.send_signal(signal.SIGTERM)
        until(lambda: health(server).status_code == 503)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(20) == 0
        stream.end()
        until(lambda: is_gone(worker))
        assert "Traceback" not in server.log.read_text()


# G02
@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_signal_while_loading_leaves_nothing_behind(model: Path, is_terminal: bool) -> None:
    """A terminal's control-C reaches the engine's process, too."""
    command = [sys.executable, "-c", MAIN, "serve", str(model), "--port", "0", *FLAGS]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, text=True, start_new_session=True) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        until(lambda: bool(children.read_text().split()))
        worker = worker_of(process)
        if is_terminal:
            os.killpg(process.pid, signal.SIGINT)
        else:
            process.send_signal(signal.SIGTERM)
        out, errors = process.communicate(timeout=20)
        assert (process.returncode, out) == (0, ""), errors
        until(lambda: is_gone(worker))
        assert "Traceback" not in errors


def test_the_engine_s_process_ends_with_the_server_however_that_ends(model: Path) -> None:
    with serving(model, *FLAGS) as server:
        worker = worker_of(server.process)
        Asking(server, 15_000)
        server.process.kill()
        until(lambda: is_gone(worker))


def test_the_server_s_own_process_holds_no_torch(model: Path) -> None:
    with serving(model, *FLAGS) as server:
        assert "libtorch" not in Path(f"/proc/{server.process.pid}/maps").read_text()
        assert "libtorch" in Path(f"/proc/{worker_of(server.process)}/maps").read_text()
