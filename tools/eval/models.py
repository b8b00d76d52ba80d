"""the model that is measured, what it is compared with, and engines of both"""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minnow.config import drafter as drafter_config
from minnow.config import model as model_config
from minnow.config.drafter import DrafterConfig
from minnow.config.model import ModelConfig
from minnow.core.request import SamplingParams
from minnow.core.step import TokenLogprobs
from minnow.kernels import native
from minnow.llm import LLM

CACHE = "1GiB"  # of each engine: room for what is measured here, several of them side by side


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """What is compared.

    Attributes:
        model: the directory that is measured.
        base: the same model before anything was learned; attended to densely, with a BF16 cache.
        is_quick: everything smaller, so that all takes ten minutes.
    """

    model: Path
    base: Path
    is_quick: bool

    @property
    def config(self) -> ModelConfig:
        """Of the model."""
        return model_config.read(self.model)

    @property
    def is_sparse(self) -> bool:
        """Whether it has index heads."""
        return any(self.config.sparse.is_sparse)

    @property
    def drafter(self) -> DrafterConfig | None:
        """Of the drafter that comes with the model, if one does."""
        place = drafter_config.find(self.model)
        return None if place is None else drafter_config.read(place, self.config)

    def dense_base(self) -> LLM:
        """What everything is compared with."""
        return open_llm(self.base, dense=True, kv_cache_dtype="bfloat16", speculation=False)

    def plain(self, **settings: Any) -> LLM:
        """The model without drafts."""
        return open_llm(self.model, speculation=False, **settings)

    def drafting(self, num_drafts: int, rejection: str = "") -> LLM:
        """The model with drafts: likeliest ones, or drawn and verified by a rule."""
        how = {"draft_sample_method": "probabilistic", "rejection_sample_method": rejection} if rejection else {}
        return open_llm(
            self.model, speculative_config={"method": "dspark", "num_speculative_tokens": num_drafts, **how}
        )


@contextlib.contextmanager
def pinned() -> Iterator[None]:
    """This thread beside the team of its engines, as the server's is; afterwards, and for processes, all CPUs again."""
    before = os.sched_getaffinity(0)
    native.pin_caller()
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def open_llm(directory: Path, **settings: Any) -> LLM:
    """An engine in this process, with a small cache and settings by name."""
    return LLM(str(directory), **{"kv_cache_memory_bytes": CACHE, **settings})


def score(llm: LLM, ids: Sequence[int]) -> tuple[TokenLogprobs, ...]:
    """Log-probability and rank of every token but the first, by one prefill through the engine's own cache."""
    sampling = SamplingParams(temperature=0.0, max_tokens=0, prompt_logprobs=0)
    (output,) = llm.generate([list(ids)], sampling)
    found = output.prompt_logprobs or ()
    if output.outputs[0].error or len(found) != len(ids):
        raise RuntimeError(f"a text of {len(ids)} tokens was not scored: {output.outputs[0].error}")
    return tuple(one for one in found if one is not None)


def caches(kind: str) -> Mapping[str, Any]:
    """Settings of an engine whose keys, values and index keys have a format."""
    return {"kv_cache_dtype": kind, "attention_config": {"indexer_kv_dtype": kind}}
