"""vLLM's side of a comparison: python side_vllm_cpu.py MODEL THREADS SETTINGS

Settings of the process: eager (0, 1). The engine runs in this process (VLLM_ENABLE_V1_MULTIPROCESSING=0).
"""

import json
import sys
import time
from typing import Any

import protocol

_ANSWERS = protocol.take_stdout()

import vllm  # noqa: E402
from vllm import LLM, SamplingParams  # noqa: E402


class Side:
    """The engine in this process, without a door; prompts that it saw before are found again, as in ours."""

    def __init__(self, directory: str, settings: dict[str, Any]) -> None:
        self._engine = LLM(
            model=directory,
            dtype="bfloat16",
            max_model_len=8192,
            max_num_seqs=32,
            enforce_eager=bool(settings["eager"]),
            enable_prefix_caching=True,
            disable_log_stats=True,
        ).llm_engine
        self._num_asked = 0

    def prefill(self, question: dict[str, Any]) -> float:
        """From a prompt to its first token."""
        started = time.perf_counter()
        self._begin(question["tokens"], question["seed"], 1)
        self._finish(1)
        return time.perf_counter() - started

    def decode(self, question: dict[str, Any]) -> float:
        """Tokens after the first."""
        self._begin(question["context"], question["seed"], question["tokens"] + 1)
        while not self._engine.step():
            pass
        started = time.perf_counter()
        self._finish(question["tokens"] + 1)
        return time.perf_counter() - started

    def _begin(self, context: int, seed: int, num_tokens: int) -> None:
        self._num_asked += 1
        sampling = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True, detokenize=False)
        ids = {"prompt_token_ids": protocol.prompt(context, seed)}
        self._engine.add_request(str(self._num_asked), ids, sampling)

    def _finish(self, num_tokens: int) -> None:
        outputs = []
        while self._engine.has_unfinished_requests():
            outputs = self._engine.step()
        if [len(output.outputs[0].token_ids) for output in outputs] != [num_tokens]:
            raise RuntimeError("the tokens that were asked for did not come")


if __name__ == "__main__":
    _side = Side(sys.argv[1], json.loads(sys.argv[3]))
    protocol.serve(_ANSWERS, f"vllm {vllm.__version__}", {"prefill": _side.prefill, "decode": _side.decode})
