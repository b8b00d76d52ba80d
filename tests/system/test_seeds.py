"""D09: a seeded request says the same whatever runs beside it, and however its steps are cut"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.system.serving import Server, metrics, serving, until_idle, write_model

pytestmark = pytest.mark.system

SEED = 42
BODY: dict[str, Any] = {
    "prompt": "The quick brown fox jumps over the lazy dog. " * 2,
    "max_tokens": 40,
    "temperature": 0.8,
    "ignore_eos": True,
}
SEEDED = BODY | {"seed": SEED}
# In float32, so that sums of another order (another batch) change no choice of a token.
FLAGS = ("--dtype", "float32", "--kv-cache-dtype", "float32", "--num-threads", "1")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"), layers=2)


@pytest.fixture(scope="module")
def roomy(model: Path) -> Iterator[Server]:
    with serving(model, *FLAGS, "--num-gpu-blocks-override", "200") as server:
        yield server


@pytest.fixture(scope="module")
def cramped(model: Path) -> Iterator[Server]:
    """Holds one such request and a half; its prompts come in chunks of 24 tokens at most."""
    with serving(model, *FLAGS, "--num-gpu-blocks-override", "13", "--max-num-batched-tokens", "24") as server:
        yield server


@pytest.fixture(scope="module")
def alone(roomy: Server) -> str:
    (text,) = texts(roomy, SEEDED)
    return text


def texts(server: Server, body: dict[str, Any]) -> list[str]:
    answer = httpx.post(f"{server.address}/v1/completions", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    return [choice["text"] for choice in answer.json()["choices"]]


def at_once(server: Server, *bodies: dict[str, Any]) -> list[str]:
    """The first text of each; all run at the same time."""
    with ThreadPoolExecutor(len(bodies)) as pool:
        return [found[0] for found in pool.map(lambda body: texts(server, body), bodies)]


def test_the_same_again_and_another_for_another_seed(roomy: Server, alone: str) -> None:
    assert texts(roomy, SEEDED) == [alone]
    assert texts(roomy, BODY | {"seed": SEED + 1}) != [alone]


def test_beside_unseeded_ones(roomy: Server, alone: str) -> None:
    first, seeded, other, greedy = at_once(roomy, BODY, SEEDED, BODY, BODY | {"temperature": 0})
    assert seeded == alone
    assert len({alone, first, other, greedy}) == 4


def test_beside_other_seeds_and_itself(roomy: Server, alone: str) -> None:
    found = at_once(roomy, SEEDED, BODY | {"seed": 7}, SEEDED, BODY | {"seed": 43}, SEEDED)
    assert found[0] == found[2] == found[4] == alone
    assert len(set(found)) == 3


def test_without_the_prefix_cache(roomy: Server, alone: str) -> None:
    assert texts(roomy, SEEDED | {"cache_salt": "its own"}) == [alone]


def test_with_chunked_prefill(cramped: Server, alone: str) -> None:
    assert texts(cramped, SEEDED) == [alone]
    assert texts(cramped, SEEDED | {"cache_salt": "its own"}) == [alone]


def test_after_preemption(cramped: Server, alone: str) -> None:
    before = metrics(cramped.address)["vllm:num_preemptions_total"]
    bodies = [SEEDED | {"cache_salt": str(i)} for i in range(4)]  # share nothing, so need more than there is
    assert at_once(cramped, *bodies) == [alone] * 4
    assert metrics(cramped.address)["vllm:num_preemptions_total"] > before
    until_idle(cramped.address)


def test_three_choices_differ_and_come_again(roomy: Server, cramped: Server, alone: str) -> None:
    choices = texts(roomy, SEEDED | {"n": 3})
    assert len(set(choices)) == 3 and choices[0] == alone
    assert texts(roomy, SEEDED | {"n": 3}) == choices
    assert texts(cramped, SEEDED | {"n": 3}) == choices
    assert [texts(roomy, BODY | {"seed": SEED + k})[0] for k in range(3)] == choices
