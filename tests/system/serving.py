"""a real server process over a model, on a free port; its metrics, and when it is idle"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests import tiny
from tools.soak import samples

MAIN = "import sys; from minnow.cli.main import main; sys.exit(main())"
# Of a server that has nothing to do.
IDLE = {
    "vllm:num_requests_running": 0.0,
    "vllm:num_requests_waiting": 0.0,
    "vllm:kv_cache_usage_perc": 0.0,
    "minnow:open_requests": 0.0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server that has said that it answers.

    Attributes:
        line: what it said.
        log: its stderr so far.
    """

    address: str
    line: str
    process: "subprocess.Popen[str]"
    log: Path


@contextlib.contextmanager
def serving(model: Path | str, *flags: str) -> Iterator[Server]:
    """Start `minnow serve` with some flags; kill it and what it started at the end, if it still runs."""
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "log.txt"
        with log.open("w") as stderr:
            command = [sys.executable, "-c", MAIN, "serve", str(model), "--port", "0", *flags]
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=stderr, text=True, start_new_session=True
            )
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            found = re.search(r"http://127\.0\.0\.1:\d+", line)
            assert found is not None, (line, log.read_text())
            yield Server(address=found[0], line=line, process=process, log=log)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def write_model(directory: Path, family: str = "m3", **overrides: Any) -> Path:
    """A tiny random model with the byte tokenizer and a chat template.

    Args:
        overrides: as in `tiny.write_tiny`.
    """
    tiny.write_tiny(directory, family=family, **overrides)
    tiny.write_tiny_tokenizer(directory)
    return directory


def metrics(address: str) -> dict[str, float]:
    """Samples of /metrics by name, summed over their labels."""
    answer = httpx.get(f"{address}/metrics", timeout=30)
    assert answer.status_code == 200, answer.text
    return samples(answer.text)


def until(address: str, wanted: dict[str, float], timeout_s: float = 20.0) -> None:
    """Wait until some metrics have some values."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        found = metrics(address)
        if all(found.get(name) == value for name, value in wanted.items()):
            return
        assert time.monotonic() < deadline_s, {name: found.get(name) for name in wanted}
        time.sleep(0.02)


def until_idle(address: str, timeout_s: float = 20.0) -> None:
    """Wait until nothing runs or waits and every block is free."""
    until(address, IDLE, timeout_s)
