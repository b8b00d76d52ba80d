import json
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from minnow.bench import record, serve, summary
from minnow.config import flags
from minnow.core.errors import ConfigError, TransferError
from tests import tiny

# the benchmark of the model's public recipe, word for word
RECIPE = (
    "--backend vllm --model MiniMaxAI/MiniMax-M3.1-Flash --endpoint /v1/completions --dataset-name random "
    "--random-input 8192 --random-output 1024 --max-concurrency 32 --num-prompts 320"
)


_METRICS = """# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{{engine="0",model_name="m"}} {0}.0
vllm:spec_decode_num_draft_tokens_total{{engine="0",model_name="m"}} {0}.0
vllm:spec_decode_num_accepted_tokens_total{{engine="0",model_name="m"}} {0}.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",model_name="m",position="1"}} {1}.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",model_name="m",position="0"}} 8.5
"""


class FakeServer:
    """An OpenAI server that answers every prompt with three pieces of text; `fails` answers with an error instead."""

    def __init__(self, *, fails: bool = False, has_usage: bool = True) -> None:
        self.fails, self.has_usage = fails, has_usage
        self.bodies: list[dict[str, object]] = []
        self.paths: list[str] = []
        self.num_metrics = 0

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/metrics":
            self.num_metrics += 1
            return httpx.Response(200, text=_METRICS.format(self.num_metrics * 10, self.num_metrics * 4))
        self.paths.append(request.url.path)
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "served"}]})
        self.bodies.append(json.loads(request.content))
        if self.fails:
            return httpx.Response(400, text="too long")
        is_chat = request.url.path.endswith("/chat/completions")
        events: list[dict[str, object]] = [
            {"choices": [{"delta": {"content": word}} if is_chat else {"text": word}]} for word in ("a", "b", "c")
        ]
        if self.has_usage:
            events.append({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}})
        lines = [f"data: {json.dumps(event)}\n\n" for event in events]
        return httpx.Response(200, text="".join([*lines, "data: [DONE]\n\n"]))


def _run(server: FakeServer, *words: object) -> tuple[int, list[str]]:
    parser = flags.new_parser("minnow bench serve", serve.HELP)
    serve.add_arguments(parser)
    said: list[str] = []
    args = flags.parse(parser, [str(word) for word in words])
    return serve.run(args, said.append, httpx.MockTransport(server)), said


def _number(said: list[str], label: str) -> float:
    return float(next(line for line in said if line.startswith(label)).split(":")[1])


def test_the_words_of_the_recipe_are_understood() -> None:
    server = FakeServer()
    status, said = _run(server, *RECIPE.split())
    assert (status, len(server.bodies)) == (0, 320)
    assert _number(said, "Successful requests") == 320
    assert _number(said, "Maximum request concurrency") == 32
    assert (_number(said, "Total input tokens"), _number(said, "Total generated tokens")) == (2240, 960)
    body = server.bodies[0]
    assert (body["model"], body["max_tokens"]) == ("MiniMaxAI/MiniMax-M3.1-Flash", 1024)
    assert len(str(body["prompt"]).split()) == 8192
    assert "ignore_eos" not in body
    assert any("a prompt is words" in line for line in said)  # the tokenizer is not here


def test_a_chat_server_is_asked_for_its_model() -> None:
    server = FakeServer()
    words = ("--backend", "openai-chat", "--num-prompts", 2, "--ignore-eos", "--extra-body", '{"top_k": 3}')
    status, _ = _run(server, *words)
    assert status == 0 and server.paths == ["/v1/models"] + ["/v1/chat/completions"] * 2
    assert {key: server.bodies[0][key] for key in ("model", "ignore_eos", "top_k", "temperature")} == {
        "model": "served", "ignore_eos": True, "top_k": 3, "temperature": 0.0,
    }  # fmt: skip


def test_what_warms_up_is_not_counted_and_differs(tmp_path: Path) -> None:
    server = FakeServer()
    _, said = _run(server, "--num-prompts", 3, "--num-warmups", 2, "--max-concurrency", 1)
    assert _number(said, "Successful requests") == 3
    assert len({str(body["prompt"]) for body in server.bodies}) == 5


def test_a_tokenizer_makes_prompts_of_the_right_length(tmp_path: Path) -> None:
    tiny.write_tiny_tokenizer(tmp_path)
    server = FakeServer(has_usage=False)
    _, said = _run(server, "--tokenizer", tmp_path, "--num-prompts", 2, "--random-input-len", 33)
    assert _number(said, "Total input tokens") == 66
    assert _number(said, "Total generated tokens") == 6
    assert any("counted with --tokenizer" in line for line in said)


def test_a_rate_is_shown_with_how_late_requests_went() -> None:
    _, said = _run(FakeServer(), "--num-prompts", 3, "--request-rate", 1000)
    assert _number(said, "Request rate configured (RPS)") == 1000
    assert _number(said, "Latest start (ms)") >= 0


def test_results_are_kept_without_secrets(tmp_path: Path) -> None:
    words = ("--num-prompts", 2, "--header", "Authorization=Bearer secret", "--goodput", "ttft:1000", "tpot:1000")
    status, _ = _run(FakeServer(), *words, "--save-result", "--result-dir", tmp_path, "--result-filename", "r.jsonl")
    kept = record.read(tmp_path / "r.jsonl")
    assert status == 0 and kept[0]["what"] == "serve"
    assert kept[0]["settings"]["num_prompts"] == 2 and kept[0]["results"]["completed"] == 2
    assert kept[0]["results"]["request_goodput"] > 0
    assert "secret" not in (tmp_path / "r.jsonl").read_text()


def test_it_fails_only_when_every_request_failed() -> None:
    server = FakeServer(fails=True)
    status, said = _run(server, "--num-prompts", 2)
    assert (status, said[-1]) == (1, "2 failed, the first with status 400: too long")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--percentile-metrics ttft,speed", "--percentile-metrics: there is no 'speed'; there are ttft, tpot, itl"),
        ("--metric-percentiles 50,101", "--metric-percentiles is '50,101'; write numbers from 0 to 100"),
        ("--metric-percentiles p50", "--metric-percentiles is 'p50'"),
        ("--goodput ttft", "--goodput 'ttft' is not METRIC:MS"),
        ("--goodput speed:3", "--goodput: there is no 'speed'"),
        ("--request-rate 0", "--request-rate is 0.0; it must be above 0"),
        ("--num-prompts 0", "--num-prompts is 0; it must be at least 1"),
        ("--max-concurrency -1", "--max-concurrency is -1; it must be at least 1"),
        ("--num-warmups -1", "--num-warmups is -1; it must be at least 0"),
        ("--random-input-len 0", "--random-input-len is 0; it must be at least 1"),
        ("--backend openai --endpoint /v1/chat/completions", "--backend openai does not go with --endpoint /v1/chat"),
        ("--tokenizer nowhere", "--tokenizer nowhere: there is no tokenizer.json in it"),
        ("--header Authorization", "--header 'Authorization' is not KEY=VALUE"),
        ("--num-promts 3", "unknown flag --num-promts; did you mean --num-prompts"),
    ],
)
def test_a_wrong_word_is_one_sentence(words: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        _run(FakeServer(), *words.split())


def test_a_server_that_is_not_there_is_one_sentence() -> None:
    parser = flags.new_parser("minnow bench serve", serve.HELP)
    serve.add_arguments(parser)

    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("connection refused")

    for answer, why in ((refuse, "connection refused"), (lambda _: httpx.Response(503, text="loading"), "status 503")):
        with pytest.raises(TransferError, match=rf"http://127.0.0.1:8000/v1/models names no model \({why}\)"):
            serve.run(flags.parse(parser, []), print, httpx.MockTransport(answer))


def test_it_needs_no_torch() -> None:
    code = "import sys, minnow.bench.serve; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_what_became_of_drafts_is_that_of_the_run_alone() -> None:
    _, said = _run(FakeServer(), "--num-prompts", 2, "--num-warmups", 1)
    assert _number(said, "Drafts:") == 10 and _number(said, "Accepted tokens:") == 10
    assert _number(said, "Acceptance length:") == 2 and _number(said, "Acceptance rate (%):") == 100
    assert [_number(said, f"  Position {i}:") for i in (0, 1)] == [0, 40]


def test_a_server_without_drafts_or_numbers_says_nothing_of_them() -> None:
    texts = ["", 'vllm:spec_decode_num_drafts_total{engine="0"} 0.0\n', "404"]
    assert all(summary.drafting(text, text) == {} for text in texts)
