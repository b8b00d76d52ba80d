"""engines over tiny checkpoints, and running prompts through them"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from minnow.config.engine import EngineConfig
from minnow.config.load import from_values
from minnow.core.request import Request, SamplingParams
from minnow.core.step import TokenOutput
from minnow.engine.build import build
from minnow.engine.engine import Engine

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)


def make(directory: Path, *, record: Path | None = None, **settings: Any) -> Engine:
    """An engine with settings by name, as on the command line."""
    values: Mapping[str, Any] = {
        "num_gpu_blocks_override": 400,
        "max_num_seqs": 40,
        "num_threads": 1,
        "block_size": 16,
        **settings,
    }
    config: EngineConfig = from_values(values).config
    return build(config, directory, record=record)


def finish(engine: Engine) -> dict[str, list[TokenOutput]]:
    """Step until idle; all outputs by request."""
    outputs: dict[str, list[TokenOutput]] = {}
    while not engine.is_idle:
        for output in engine.step():
            outputs.setdefault(output.request_id, []).append(output)
        engine.check()
    return outputs


def tokens(outputs: Sequence[TokenOutput]) -> list[int]:
    """The tokens of a request, in order."""
    return [token for output in outputs for token in output.token_ids]


def run(
    engine: Engine, prompts: Sequence[Sequence[int]], sampling: SamplingParams | Sequence[SamplingParams]
) -> list[list[int]]:
    """Tokens of prompts that run side by side."""
    each = [sampling] * len(prompts) if isinstance(sampling, SamplingParams) else sampling
    for i, (prompt, params) in enumerate(zip(prompts, each, strict=True)):
        engine.add(Request(request_id=f"r{i}", token_ids=tuple(prompt), sampling=params))
    outputs = finish(engine)
    return [tokens(outputs[f"r{i}"]) for i in range(len(prompts))]


def seeded(seed: int, **changes: Any) -> SamplingParams:
    """Sampling with a seed of its own."""
    return dataclasses.replace(
        SamplingParams(temperature=0.9, top_p=0.95, max_tokens=12, ignore_eos=True), seed=seed, **changes
    )
