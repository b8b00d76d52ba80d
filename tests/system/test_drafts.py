"""a server that drafts says what one says that does not, and counts what it kept; cases B04, B05, B08, B09"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import tiny
from tests.engine import drafting
from tests.system.serving import Server, metrics, serving, until_idle

pytestmark = pytest.mark.system

FLAGS = ("--dtype", "float32", "--kv-cache-dtype", "float32", "--num-threads", "1", "--num-gpu-blocks-override", "60")
DRAFTS = {
    "method": "dspark",
    "num_speculative_tokens": 5,
    "attention_backend": "FLASHINFER_TS",
    "draft_sample_method": "probabilistic",
    "rejection_sample_method": "block",
}
PROMPT = "The quick brown fox jumps over the lazy dog. " * 6


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Drafts that are nearly always right, so that whatever ends an answer comes in the middle of some."""
    place = tmp_path_factory.mktemp("model")
    drafting.write_bigram(place, noise=0.02)
    tiny.write_tiny_tokenizer(place)
    return place


@pytest.fixture(scope="module")
def plain(model: Path) -> Iterator[Server]:
    with serving(model, *FLAGS) as server:
        yield server


@pytest.fixture(scope="module")
def drafting_server(model: Path) -> Iterator[Server]:
    with serving(model, *FLAGS, "--speculative-config", json.dumps(DRAFTS)) as server:
        yield server


def ask(server: Server, **changes: Any) -> dict[str, Any]:
    body = {"prompt": PROMPT, "max_tokens": 48, "temperature": 0, "ignore_eos": True} | changes
    answer = httpx.post(f"{server.address}/v1/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    found.pop("id"), found.pop("created")
    return found


def test_it_says_what_it_does(drafting_server: Server) -> None:
    words = drafting_server.log.read_text()
    assert "drafts" in words and "tokens=5" in words and "verification=block" in words
    assert words.count("attention_backend") == 1


@pytest.mark.parametrize("length", [2, 3, 5, 9])
def test_a_stop_string_ends_an_answer_inside_a_block(plain: Server, drafting_server: Server, length: int) -> None:
    """Case B05: nothing of the drafts behind it is shown or counted, wherever in a block it falls."""
    text = ask(plain)["choices"][0]["text"]
    for place in range(3, 24, 3):
        stop = text[place : place + length]
        one, two = (ask(server, stop=[stop]) for server in (plain, drafting_server))
        assert two["choices"] == one["choices"] and stop not in two["choices"][0]["text"]
        assert two["choices"][0]["finish_reason"] == "stop"
        assert two["usage"]["completion_tokens"] == one["usage"]["completion_tokens"] < 48


def test_options_and_their_counts(plain: Server, drafting_server: Server) -> None:
    """Cases B04, B08."""
    for changes in (
        {"max_tokens": 1},
        {"max_tokens": 7, "logprobs": 2},
        {"ignore_eos": False, "max_tokens": 200},
        {"frequency_penalty": 1.5, "presence_penalty": 0.5},
        {"repetition_penalty": 1.3, "logit_bias": {"65": 4}},
        {"stop_token_ids": list(range(0, 320, 3)), "ignore_eos": False, "min_tokens": 9},
        {"n": 3, "echo": True},
    ):
        one, two = ask(plain, **changes), ask(drafting_server, **changes)
        for found in (one, two):
            for choice in found["choices"]:
                if choice["logprobs"]:  # last digits may differ between one row and several
                    scores = choice.pop("logprobs")["token_logprobs"]
                    choice["scores"] = [None if score is None else round(score, 3) for score in scores]
        assert one["choices"] == two["choices"], changes
        assert one["usage"]["completion_tokens"] == two["usage"]["completion_tokens"]


def test_a_prefix_is_found_again(drafting_server: Server) -> None:
    """Case B09."""
    prompt = "A prompt that nobody has sent before. " * 14  # four blocks of 128
    first, second = ask(drafting_server, prompt=prompt), ask(drafting_server, prompt=prompt)
    assert first["choices"] == second["choices"]
    details = [found["usage"]["prompt_tokens_details"]["cached_tokens"] for found in (first, second)]
    assert details == [0, (len(prompt) - 1) // 128 * 128]


def test_what_was_kept_is_counted(drafting_server: Server) -> None:
    until_idle(drafting_server.address)
    before = metrics(drafting_server.address)
    ask(drafting_server)
    until_idle(drafting_server.address)
    after = metrics(drafting_server.address)

    def gained(name: str) -> float:
        return after[f"vllm:spec_decode_{name}_total"] - before[f"vllm:spec_decode_{name}_total"]

    rounds, drafts, kept = gained("num_drafts"), gained("num_draft_tokens"), gained("num_accepted_tokens")
    assert kept == gained("num_accepted_tokens_per_pos") and 47 <= kept + rounds + 1 <= 48
    assert 0.9 * drafts < kept <= drafts <= 5 * rounds
    text = httpx.get(f"{drafting_server.address}/metrics").text
    assert 'num_accepted_tokens_per_pos_total{engine="0",model_name=' in text and 'position="4"' in text
