"""Minnow's side of a comparison: python side_minnow.py MODEL THREADS SETTINGS"""

import json
import sys
import time
from typing import Any

import protocol

_ANSWERS = protocol.take_stdout()

import minnow  # noqa: E402
from minnow.bench.limits import Limits  # noqa: E402
from minnow.core.request import Request, SamplingParams  # noqa: E402
from minnow.kernels import native  # noqa: E402
from minnow.llm import LLM  # noqa: E402


class Side:
    """The engine in this process, without a door."""

    def __init__(self, model: str, num_threads: int, settings: dict[str, Any]) -> None:
        self._engine = LLM(model, num_threads=num_threads, max_model_len=8192, **settings).engine
        native.pin_caller()  # as the server's engine does
        self._num_asked = 0
        self._num_due = 0  # tokens that the request still has to get

    def prefill(self, question: dict[str, Any]) -> float:
        """From a prompt to its first token."""
        return self.request({**question, "context": question["tokens"], "tokens": 1})

    def decode(self, question: dict[str, Any]) -> float:
        """Tokens after the first; the prompt is the same each time, so its blocks are found again."""
        self._begin(question["context"], question["seed"], question["tokens"] + 1)
        while self._num_due > question["tokens"]:
            self._step()
        started = time.perf_counter()
        self._finish()
        return time.perf_counter() - started

    def request(self, question: dict[str, Any]) -> float:
        """A whole request: prompt and tokens."""
        started = time.perf_counter()
        self._begin(question["context"], question["seed"], question["tokens"])
        self._finish()
        return time.perf_counter() - started

    def read(self, question: dict[str, Any]) -> float:
        """Bytes read over and over by the threads that compute: the limit of a decode step."""
        limits = Limits(num_threads=native.num_threads(), instruction_set="", operations_s={})
        return float(question["bytes"] / limits.bytes_s(question["bytes"]))

    def _begin(self, context: int, seed: int, num_tokens: int) -> None:
        self._num_asked += 1
        self._num_due = num_tokens
        sampling = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
        token_ids = tuple(protocol.prompt(context, seed))
        self._engine.add(Request(request_id=str(self._num_asked), token_ids=token_ids, sampling=sampling))

    def _step(self) -> None:
        for output in self._engine.step():
            if output.error is not None:
                raise RuntimeError(output.error)
            self._num_due -= len(output.token_ids)

    def _finish(self) -> None:
        while not self._engine.is_idle:
            self._step()
        if self._num_due:
            raise RuntimeError(f"{self._num_due} tokens did not come")


if __name__ == "__main__":
    _side = Side(sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]))
    protocol.serve(
        _ANSWERS,
        f"minnow {minnow.__version__}",
        {"prefill": _side.prefill, "decode": _side.decode, "request": _side.request, "read": _side.read},
    )
