"""transformers' side of a comparison: python side_transformers.py MODEL THREADS SETTINGS

Settings of a question: dtype (bfloat16, float32).
"""

import sys
import time
from typing import Any

import protocol

_ANSWERS = protocol.take_stdout()

import torch  # noqa: E402
import transformers  # noqa: E402


class Side:
    """A model in each dtype that was asked for, and the cache of the last prompt."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._models: dict[str, Any] = {}
        self._held: tuple[int, int, str] | None = None
        self._cache: Any = None

    def prefill(self, question: dict[str, Any]) -> float:
        """From a prompt to the logits of its last token."""
        model = self._model(question)
        ids = torch.tensor([protocol.prompt(question["tokens"], question["seed"])])
        started = time.perf_counter()
        model(ids, use_cache=True, logits_to_keep=1)
        return time.perf_counter() - started

    def decode(self, question: dict[str, Any]) -> float:
        """Greedy tokens behind a prompt, whose cache is kept for the next repetition."""
        model = self._model(question)
        asked = (question["context"], question["seed"], question["settings"]["dtype"])
        if self._held != asked:
            ids = torch.tensor([protocol.prompt(*asked[:2])])
            self._cache = transformers.DynamicCache(config=model.config)
            model(ids, cache=self._cache, logits_to_keep=1)
            self._held = asked
        next_id = torch.tensor([[1000]])
        started = time.perf_counter()
        for _ in range(question["tokens"]):
            logits = model(next_id, cache=self._cache).logits
            next_id = logits[:, -1:].argmax(-1)
        taken = time.perf_counter() - started
        self._cache.crop(-question["tokens"])
        return taken

    def _model(self, question: dict[str, Any]) -> Any:
        dtype = question["settings"]["dtype"]
        if dtype not in self._models:
            self._models.clear()
            self._held = None
            self._models[dtype] = transformers.AutoModelForCausalLM.from_pretrained(
                self._directory, dtype=getattr(torch, dtype), attn_implementation="sdpa", local_files_only=True
            ).eval()
        return self._models[dtype]


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[2]))
    torch.set_grad_enabled(False)
    _side = Side(sys.argv[1])
    protocol.serve(
        _ANSWERS,
        f"transformers {transformers.__version__}, torch {torch.__version__}",
        {"prefill": _side.prefill, "decode": _side.decode},
    )
