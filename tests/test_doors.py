"""the same engine in process (LLM), in a thread and in a process of its own: equal answers, equal errors"""

import asyncio
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from minnow.config.load import from_values
from minnow.core.errors import CheckpointError, ConfigError, MinnowError, RequestError
from minnow.core.request import Request, SamplingParams
from minnow.core.step import TokenOutput
from minnow.engine.build import build
from minnow.engine.client import EngineClient
from minnow.engine.host import EngineProcess, EngineThread, Host
from minnow.llm import LLM
from tests import tiny

SETTINGS = {
    "num_gpu_blocks_override": 60, "num_threads": 1, "block_size": 16, "max_num_seqs": 4, "max_num_batched_tokens": 48,
}  # fmt: skip
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
SEEDED = dataclasses.replace(GREEDY, temperature=0.9, top_p=0.95, seed=7)
LONG = tuple(i % 250 for i in range(100))
CALLS: list[tuple[Sequence[int], SamplingParams]] = [
    (LONG, GREEDY),
    (LONG, SEEDED),
    ((5, 6, 7), dataclasses.replace(SEEDED, seed=-(2**63), logprobs=3, temperature=1)),
    ((5, 6, 7), dataclasses.replace(GREEDY, stop_token_ids=tuple(range(0, 256, 3)))),
    (LONG, dataclasses.replace(GREEDY, prompt_logprobs=2, max_tokens=0)),
    ((9,), dataclasses.replace(SEEDED, logit_bias=((65, 50.0),), allowed_token_ids=(65, 66), presence_penalty=0.5)),
]
REFUSED: list[tuple[Sequence[int], SamplingParams]] = [
    ((1, 999_999), GREEDY),
    ((), GREEDY),
    ((1,), dataclasses.replace(GREEDY, temperature=-1.0)),
    ((1,), dataclasses.replace(GREEDY, logit_bias=((999_999, 1.0),))),
    ((1,) * 5_000, GREEDY),
]
DOORS = ("LLM", "thread", "process")

Answer = tuple[Any, ...]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny")
    tiny.write_tiny(directory)
    tiny.write_tiny_tokenizer(directory)
    return directory


def host_of(door: str, model: Path) -> Host:
    config = from_values({"model": str(model), **SETTINGS}).config
    return EngineThread(build(config, model)) if door == "thread" else EngineProcess(config, model)


def ask(door: str, model: Path, calls: Sequence[tuple[Sequence[int], SamplingParams]]) -> list[Answer]:
    """What becomes of each call; all run together, but for refused ones in `LLM`, which refuses a whole list."""
    if door == "LLM":
        with LLM(str(model), **SETTINGS) as llm:
            try:
                outputs = llm.generate([ids for ids, _ in calls], [sampling for _, sampling in calls])
            except RequestError as error:
                return [(str(error), error.param, error.code, error.status)]
            return [
                (
                    output.outputs[0].token_ids,
                    output.outputs[0].logprobs or (),
                    tuple(output.prompt_logprobs or ())[1:],
                    output.outputs[0].finish_reason,
                )
                for output in outputs
            ]

    async def main() -> list[Answer]:
        client = EngineClient(host_of(door, model))
        await client.start()
        await client.ready()
        try:
            requests = [
                Request(request_id=f"r{i}", token_ids=tuple(ids), sampling=sampling)
                for i, (ids, sampling) in enumerate(calls)
            ]
            outputs: dict[str, list[TokenOutput]] = {request.request_id: [] for request in requests}
            async for output in client.submit(requests):
                outputs[output.request_id].append(output)
        except RequestError as error:
            return [(str(error), error.param, error.code, error.status)]
        finally:
            await client.close()
        return [
            (
                tuple(token for part in parts for token in part.token_ids),
                tuple(each for part in parts for each in part.logprobs),
                tuple(each for part in parts for each in part.prompt_logprobs),
                parts[-1].finish_reason,
            )
            for parts in outputs.values()
        ]

    return asyncio.run(asyncio.wait_for(main(), timeout=60))


@pytest.mark.system
def test_every_door_gives_the_same_answers(model: Path) -> None:
    in_process, *others = [ask(door, model, CALLS) for door in DOORS]
    assert [answer[-1] for answer in in_process] == ["length", "length", "length", "stop", "length", "length"]
    assert len(in_process[4][2]) == len(LONG) - 1
    for other in others:
        assert other == in_process


@pytest.mark.system
@pytest.mark.parametrize("call", REFUSED, ids=["id", "empty", "temperature", "bias", "long"])
def test_every_door_refuses_in_the_same_words(model: Path, call: tuple[Sequence[int], SamplingParams]) -> None:
    in_process, *others = [ask(door, model, [call]) for door in DOORS]
    assert in_process[0][-1] == 400 and len(in_process[0]) == 4
    for other in others:
        assert other == in_process


@pytest.mark.system
@pytest.mark.parametrize("door", DOORS)
def test_every_door_says_why_an_engine_cannot_be_made(door: str, tmp_path: Path) -> None:
    tiny.write_tiny(tmp_path)
    tiny.write_tiny_tokenizer(tmp_path)
    shard = next(tmp_path.glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-100])

    def start(**settings: object) -> None:
        if door == "LLM":
            LLM(str(tmp_path), **settings)
            return

        async def main() -> None:
            config = from_values({"model": str(tmp_path), **settings}).config
            host = EngineThread(build(config, tmp_path)) if door == "thread" else EngineProcess(config, tmp_path)
            client = EngineClient(host)
            await client.start()
            try:
                await client.ready()
            finally:
                await client.close()

        asyncio.run(asyncio.wait_for(main(), timeout=60))

    def error_of(**settings: object) -> MinnowError:
        with pytest.raises(MinnowError) as caught:
            start(**settings)
        return caught.value

    broken = error_of(**SETTINGS)
    assert isinstance(broken, CheckpointError) and shard.name in str(broken)
    wrong = error_of(**{**SETTINGS, "block_size": 7})
    assert isinstance(wrong, ConfigError) and "7" in str(wrong)
