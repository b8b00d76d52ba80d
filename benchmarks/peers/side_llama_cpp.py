"""llama.cpp's side of a comparison, through its library: python side_llama_cpp.py GGUF THREADS SETTINGS

Settings of a question: kv (f16, q8_0, q4_0), flash (0, 1), repack (0, 1). As in llama-bench nothing is sampled: the
next token is any token, and its cost is that of llama_decode alone. LLAMA_CPP_LIB_PATH names the built library.
"""

import ctypes
import sys
import time
from typing import Any

import protocol

_ANSWERS = protocol.take_stdout()

import llama_cpp.llama_cpp as llama  # noqa: E402

_MODEL = sys.argv[1].encode()
_TYPES = {"f16": llama.GGML_TYPE_F16, "q8_0": llama.GGML_TYPE_Q8_0, "q4_0": llama.GGML_TYPE_Q4_0}


class Side:
    """A model and a context, made anew where the settings differ from those of the question before."""

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        self._model: Any = None
        self._context: Any = None
        self._repack: Any = None
        self._settings: dict[str, Any] = {}
        self._held: tuple[int, int] | None = None  # length and seed of the prompt in the cache

    def prefill(self, question: dict[str, Any]) -> float:
        """From an empty cache to the logits of a prompt's last token."""
        self._set(question["settings"])
        ids = protocol.prompt(question["tokens"], question["seed"])
        self._clear()
        started = time.perf_counter()
        self._feed(ids)
        return time.perf_counter() - started

    def decode(self, question: dict[str, Any]) -> float:
        """One token after the other behind a prompt, which stays in the cache for the next repetition."""
        self._set(question["settings"])
        asked = (question["context"], question["seed"])
        if self._held == asked:
            llama.llama_memory_seq_rm(llama.llama_get_memory(self._context), 0, asked[0], -1)
        else:
            self._clear()
            self._feed(protocol.prompt(*asked))
            self._held = asked
        ids = protocol.prompt(question["tokens"], 1)
        started = time.perf_counter()
        for token_id in ids:
            self._feed([token_id])
        return time.perf_counter() - started

    def _feed(self, ids: list[int]) -> None:
        for first in range(0, len(ids), 2048):
            part = ids[first : first + 2048]
            array = (llama.llama_token * len(part))(*part)  # the batch only points to it
            if llama.llama_decode(self._context, llama.llama_batch_get_one(array, len(part))):
                raise RuntimeError("llama_decode failed")
        llama.llama_synchronize(self._context)

    def _clear(self) -> None:
        llama.llama_memory_clear(llama.llama_get_memory(self._context), True)
        self._held = None

    def _set(self, settings: dict[str, Any]) -> None:
        if settings == self._settings:
            return
        if self._context is not None:
            llama.llama_free(self._context)
            self._context = self._held = None
        if settings["repack"] != self._repack:
            if self._model is not None:
                llama.llama_model_free(self._model)
            of_model = llama.llama_model_default_params()
            of_model.use_extra_bufts = bool(settings["repack"])
            self._model, self._repack = llama.llama_model_load_from_file(_MODEL, of_model), settings["repack"]
        wanted = llama.llama_context_default_params()
        wanted.n_ctx, wanted.n_batch, wanted.n_ubatch = 8192, 2048, settings.get("ubatch", 512)
        wanted.n_threads = wanted.n_threads_batch = self._num_threads
        wanted.type_k = wanted.type_v = _TYPES[settings["kv"]]
        wanted.flash_attn_type = settings["flash"]
        self._context = llama.llama_init_from_model(self._model, wanted)
        if not self._context:
            self._settings = {}
            raise RuntimeError(f"llama.cpp makes no context with {settings}")
        self._settings = settings
        self._feed([1, 2, 3])  # what is made at the first use is made now


@llama.llama_log_callback
def _quiet(level: int, text: bytes, user_data: ctypes.c_void_p) -> None:
    if level >= 4:
        sys.stderr.write(text.decode(errors="replace"))


if __name__ == "__main__":
    llama.llama_log_set(_quiet, ctypes.c_void_p(0))
    llama.llama_backend_init()
    _side = Side(int(sys.argv[2]))
    protocol.serve(_ANSWERS, "llama.cpp of llama-cpp-python 0.3.36", {"prefill": _side.prefill, "decode": _side.decode})
