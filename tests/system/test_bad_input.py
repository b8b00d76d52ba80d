"""the error table: what is wrong with a command line, a checkpoint or a request is said in one sentence"""

import contextlib
import http.client
import json
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.system.serving import MAIN, Server, serving, until_idle, write_model

pytestmark = pytest.mark.system

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
NAME = "tiny"
CONTEXT_TOKENS = 256
USER = {"role": "user", "content": "hi"}
WEIGHTS = "model.safetensors"

# -- the command line -------------------------------------------------------------------------------------------------


def cut(directory: Path, name: str, num_bytes: int) -> None:
    path = directory / name
    path.write_bytes(path.read_bytes()[:num_bytes])


def flip(directory: Path, name: str, place: int) -> None:
    path = directory / name
    raw = bytearray(path.read_bytes())
    raw[place] ^= 0xFF
    path.write_bytes(raw)


# What is done to a good checkpoint, the exit code, and the words that the sentence holds.
BROKEN_CHECKPOINTS: dict[str, tuple[Callable[[Path], object], int, str]] = {
    "no config": (lambda d: (d / "config.json").unlink(), 2, "holds no config.json"),
    "config is no JSON": (lambda d: (d / "config.json").write_text("{"), 2, "config.json is no JSON"),
    "weights cut": (lambda d: cut(d, WEIGHTS, -100), 1, "truncated or damaged, download it again"),
    "a bit of the header flipped": (lambda d: flip(d, WEIGHTS, 20), 1, "broken header"),
    "no tokenizer": (lambda d: (d / "tokenizer.json").unlink(), 1, "tokenizer.json does not exist"),
    "tokenizer broken": (lambda d: cut(d, "tokenizer.json", 500), 1, "is no tokenizer"),
    "template broken": (lambda d: (d / "chat_template.jinja").write_text("{% for %}"), 1, "template is no Jinja"),
}
# Flags beside a good model (None: the model is not named either), and the words; the exit code is 2.
WRONG_FLAGS: list[tuple[list[str] | None, str]] = [
    (None, "needs a model"),
    (["--blok-size", "3"], "unknown flag --blok-size; did you mean --block-size?"),
    (["another"], "one argument too many"),
    (["--port", "99999"], "port is 99999; it must be 0 to 65535"),
    (["--port", "http"], "it takes a whole number"),
    (["--host", "no such host"], "no address of this machine"),
    (["--max-model-len", "-1"], "max_model_len is -1"),
    (["--max-model-len", "1000000"], "made for 4096 tokens"),
    (["--block-size", "48"], "needs 16, set that or leave it out"),
    (["--kv-cache-dtype", "int3"], "it takes one of auto, float32"),
    (["--gpu-memory-utilization", "7"], "it must be 0.01 to 1"),
    (["--num-gpu-blocks-override", "1"], "--num-gpu-blocks-override"),
    (["--num-threads", "-2"], "num_threads is -2"),
    (["--tensor-parallel-size", "3"], "--tensor-parallel-size is 3"),
    (["--max-body-bytes", "lots"], "no number of bytes"),
    (["--api-key", ""], "the API key is empty"),
    (["--chat-template", "nowhere.jinja"], "nowhere.jinja does not exist"),
    (["--config", "nowhere.toml"], "nowhere.toml cannot be read"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "good", layers=2)


def command_lines(model: Path) -> dict[str, tuple[list[str], int, str]]:
    """Name -> words, exit code and what is said."""
    parent = model.parent
    lines: dict[str, tuple[list[str], int, str]] = {}
    for name, (damage, status, said) in BROKEN_CHECKPOINTS.items():
        directory = parent / name.replace(" ", "-")
        shutil.copytree(model, directory)
        damage(directory)
        lines[name] = (["serve", str(directory)], status, said)
    for flags, said in WRONG_FLAGS:
        words = ["serve"] if flags is None else ["serve", str(model), *flags]
        lines[" ".join(flags or ["no model"])] = (words, 2, said)
    gguf = parent / "cut.gguf"
    gguf.write_bytes(b"GGUF" + (3).to_bytes(4, "little") + bytes([9, 0, 0, 0, 0, 0, 0, 0] * 2) + b"\x05\x00")
    whole = write_model(parent / "shards", layers=2, max_shard_bytes=100_000)
    sorted(whole.glob("*.safetensors"))[1].unlink()
    return lines | {
        "no such directory": (["serve", str(parent / "nowhere")], 2, "nowhere does not exist"),
        "no such name": (["serve", "smollm9-1t"], 2, "smollm9-1t does not exist"),
        "the model is a file": (["serve", str(gguf)], 2, "minnow convert makes a model directory of a GGUF file"),
        "GGUF cut": (["convert", str(gguf), str(parent / "made")], 1, "cut.gguf is truncated"),
        "a shard is gone": (["serve", str(whole)], 1, "which is not in"),
        "no such command": (["sserve", str(model)], 2, "did you mean serve?"),
    }


def run_line(words: list[str]) -> "subprocess.CompletedProcess[str]":
    port = ["--port", "0"] if words[0] == "serve" and "--port" not in words else []
    return subprocess.run(
        [sys.executable, "-c", MAIN, *words, *port], capture_output=True, text=True, timeout=120, check=False
    )


def test_what_cannot_be_served_is_said_in_one_sentence(model: Path) -> None:
    """All of them at once: most of the time of each is spent in starting Python."""
    lines = command_lines(model)
    wrong: list[str] = []
    with ThreadPoolExecutor(3) as pool:
        results = pool.map(run_line, [words for words, _, _ in lines.values()])
        for (name, (_, status, said)), result in zip(lines.items(), results, strict=True):
            sentences = [
                line
                for line in result.stderr.splitlines()
                if not re.match(r"\d\d:\d\d:\d\d (debug|info|warning|error) [\w.]+: ", line)
            ]
            is_right = (
                (result.returncode, result.stdout, len(sentences)) == (status, "", 1)
                and sentences[0].startswith("minnow: ")
                and said in sentences[0]
                and "ready" not in result.stderr
            )
            if not is_right:
                wrong.append(f"{name}: exit code {result.returncode}, wanted {status} and {said!r}:\n{result.stderr}")
    assert not wrong, "\n".join(wrong)


# -- requests ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Bad:
    """A request that is refused, and how."""

    name: str
    path: str
    content: bytes
    method: str = "POST"
    status: int = 400
    param: str | None = None
    code: str | None = None
    words: str = ""


def _of(path: str, fields: dict[str, Any], param: str | None, **how: Any) -> Bad:
    """A good body but for some fields."""
    body = ({"messages": [USER]} if path == CHAT else {"prompt": "hi"}) | {"model": NAME} | fields
    return Bad(name=f"{path[4:8]} {json.dumps(fields)[:50]}", path=path, content=json.dumps(body).encode(),
               param=param, **how)  # fmt: skip


# D07, of both endpoints
FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"logit_bias": {"999999": 5}}, "logit_bias"),
    ({"logit_bias": {"AI": -100}}, "logit_bias"),
    ({"logit_bias": {"-1": 1}}, "logit_bias"),
    ({"logit_bias": {"1": 1e9}}, "logit_bias"),
    ({"logit_bias": {"1": float("nan")}}, "logit_bias.1"),
    ({"stop_token_ids": [999999]}, "stop_token_ids"),
    ({"stop_token_ids": [-1]}, "stop_token_ids"),
    ({"allowed_token_ids": [320]}, "allowed_token_ids"),
    ({"temperature": -1}, "temperature"),
    ({"temperature": float("nan")}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.5}, "top_p"),
    ({"top_k": -7}, "top_k"),
    ({"min_p": 2}, "min_p"),
    ({"n": 0}, "n"),
    ({"n": 10000}, "n"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": "5"}, "max_tokens"),
    ({"seed": 2**70}, "seed"),
    ({"stop": ""}, "stop"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
]
CHAT_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [{"role": "boss", "content": "hi"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"top_logprobs": 100, "logprobs": True}, "top_logprobs"),
    ({"max_completion_tokens": -3}, "max_completion_tokens"),
]
TEXT_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"prompt": [999999]}, "prompt"),
    ({"prompt": [320]}, "prompt"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": [[1, 2], [2**40]]}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"logprobs": 100}, "logprobs"),
    ({"logprobs": "all"}, "logprobs"),
    ({"max_tokens": 0}, "max_tokens"),
]


# D14: prompt tokens, max_tokens, both numbers of the sentence
TOO_LONG: list[tuple[int, int | None, int]] = [
    (CONTEXT_TOKENS + 1, None, CONTEXT_TOKENS + 2),
    (CONTEXT_TOKENS, None, CONTEXT_TOKENS + 1),
    (CONTEXT_TOKENS, 1, CONTEXT_TOKENS + 1),
    (CONTEXT_TOKENS - 1, 2, CONTEXT_TOKENS + 1),
    (100, CONTEXT_TOKENS - 99, CONTEXT_TOKENS + 1),
    (100, 10**12, 10**12 + 100),
]


def _table() -> list[Bad]:
    bad = [_of(path, fields, param) for path in (CHAT, TEXT) for fields, param in FIELDS]
    bad += [_of(CHAT, fields, param) for fields, param in CHAT_FIELDS]
    bad += [_of(TEXT, fields, param) for fields, param in TEXT_FIELDS]
    long = {"code": "context_length_exceeded"}
    for num_tokens, max_tokens, num_wanted in TOO_LONG:
        fields = {"prompt": [1] * num_tokens} | ({} if max_tokens is None else {"max_tokens": max_tokens})
        bad.append(_of(TEXT, fields, "prompt", words=f" {num_wanted}:", **long))
    talk = [{"role": "user", "content": "long " * 100}]
    bad.append(_of(CHAT, {"messages": talk}, "messages", words=f" {CONTEXT_TOKENS} ", **long))
    tools = [{"type": "function", "function": {"name": "f"}}]
    bad.append(_of(CHAT, {"tools": tools}, "tools", code="unsupported"))
    for path in (CHAT, TEXT):
        bad.append(_of(path, {"model": "gpt"}, "model", status=404, code="model_not_found"))
        for name, content, words in (
            ("nothing", b"", "JSON"),
            ("half of JSON", b'{"model": "tiny", "mess', "JSON"),
            ("a list", b"[]", "object"),
            ("invalid UTF-8", b'{"prompt": "\xff\xfe", "messages": []}', "UTF-8"),
            ("JSON in UTF-16", '{"prompt": "hi"}'.encode("utf-16"), "UTF-8"),
            ("half of a surrogate pair", b'{"prompt": "\\ud800", "messages": []}', "JSON"),
            ("deep nesting", b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested"),
        ):
            bad.append(Bad(name=f"{path[4:8]} {name}", path=path, content=content, words=words))
        bad.append(Bad(name=f"{path[4:8]} 10 MB", path=path, content=b" " * 10_000_000, status=413,
                       code="body_too_large"))  # fmt: skip
        bad.append(Bad(name=f"GET {path}", path=path, content=b"", method="GET", status=405))
    for path, body, param in (
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"messages": [{"role": "boss", "content": "hi"}]}, "messages[0].role"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "hi"}, "tokens"),
        ("/detokenize", {"tokens": [999999]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
    ):
        bad.append(Bad(name=f"{path} {body}", path=path, content=json.dumps(body).encode(), param=param))
    bad.append(Bad(name="unknown path", path="/v2/nothing", content=b"{}", status=404, words="/v2/nothing"))
    bad.append(Bad(name="unknown model card", path="/v1/models/gpt", content=b"", method="GET", status=404,
                   param="model", code="model_not_found"))  # fmt: skip
    return bad


TABLE = _table()


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[Server]:
    flags = ["--dtype", "float32", "--kv-cache-dtype", "float32", "--num-threads", "1"]
    flags += ["--max-model-len", str(CONTEXT_TOKENS), "--num-gpu-blocks-override", "60"]
    with serving(model, *flags, "--served-model-name", NAME) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.address, timeout=60) as client:
        yield client


def check(client: httpx.Client, bad: Bad) -> None:
    """It is refused as it should be, and the server goes on."""
    answer = client.request(bad.method, bad.path, content=bad.content)
    assert answer.status_code == bad.status, answer.text
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", bad.param, bad.code), error
    assert bad.words in error["message"] and 0 < len(error["message"]) < 300
    assert "\n" not in error["message"] and "Traceback" not in error["message"]
    assert client.get("/health").status_code == 200


@pytest.mark.parametrize("bad", TABLE, ids=[bad.name for bad in TABLE])
def test_a_bad_request_is_refused(client: httpx.Client, bad: Bad) -> None:
    check(client, bad)


# D07
def test_bad_requests_change_nothing_for_a_good_one(server: Server, client: httpx.Client) -> None:
    body = {"prompt": "Once upon", "max_tokens": 200, "seed": 11, "temperature": 1.0, "ignore_eos": True}

    def good() -> dict[str, Any]:
        answer = httpx.post(f"{server.address}{TEXT}", json=body, timeout=120)
        assert answer.status_code == 200, answer.text
        return dict(answer.json()["choices"][0])

    alone = good()
    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(good)
        for bad in TABLE:
            check(client, bad)
        assert beside.result() == alone
    until_idle(server.address)
    assert "Traceback" not in server.log.read_text()


# D14
def test_what_just_fits_is_served(client: httpx.Client) -> None:
    for num_tokens, max_tokens, num_generated in (
        (CONTEXT_TOKENS - 1, None, 1),
        (CONTEXT_TOKENS - 1, 1, 1),
        (CONTEXT_TOKENS - 20, None, 20),
        (CONTEXT_TOKENS - 20, 20, 20),
    ):
        body = {"prompt": [7] * num_tokens, "max_tokens": max_tokens, "ignore_eos": True}
        for stream in (False, True):
            fields = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
            answer = client.post(TEXT, json=body | fields)
            assert answer.status_code == 200, answer.text
            chunks = [json.loads(line[6:]) for line in answer.text.split("\n\n")[:-2]] if stream else [answer.json()]
            usage = chunks[-1]["usage"]
            assert (usage["prompt_tokens"], usage["completion_tokens"]) == (num_tokens, num_generated)
            assert [c["finish_reason"] for chunk in chunks for c in chunk["choices"]][-1] == "length"


# D14
def test_health_answers_while_a_prompt_of_5_megabytes_is_refused(server: Server) -> None:
    content = json.dumps({"prompt": "some words " * 450_000})
    waits_s: list[float] = []
    with ThreadPoolExecutor(1) as pool, httpx.Client(timeout=60) as client:
        begin_s = time.monotonic()
        refused = pool.submit(httpx.post, server.address + TEXT, content=content, timeout=60)
        while not refused.done():
            asked_s = time.monotonic()
            assert client.get(f"{server.address}/health").status_code == 200
            waits_s.append(time.monotonic() - asked_s)
        took_s = time.monotonic() - begin_s
    assert refused.result().json()["error"]["code"] == "context_length_exceeded"
    # a share of the same run, not a time: blocked, one answer would wait for nearly all of it
    assert max(waits_s) < 0.5 * took_s, (waits_s, took_s)


def test_a_body_that_never_says_its_length_is_cut_off(server: Server, client: httpx.Client) -> None:
    connection = http.client.HTTPConnection(server.address.removeprefix("http://"), timeout=60)
    pieces = iter([b" " * 1_000_000] * 10)
    headers = {"Transfer-Encoding": "chunked"}
    with contextlib.closing(connection):
        connection.request("POST", TEXT, body=pieces, encode_chunked=True, headers=headers)
        answer = connection.getresponse()
        assert (answer.status, json.loads(answer.read())["error"]["code"]) == (413, "body_too_large")
    assert client.get("/health").status_code == 200


@pytest.mark.parametrize(
    "raw",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
        b"hello\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: many\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 300_000 + b"\r\n\r\n",
    ],
)
def test_what_is_no_http_ends_its_connection_only(server: Server, client: httpx.Client, raw: bytes) -> None:
    host, port = server.address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection, contextlib.suppress(OSError):
        connection.sendall(raw)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(65536):
            pass
    assert client.get("/health").status_code == 200


def test_threads_of_bad_requests_end(server: Server, client: httpx.Client) -> None:
    """Bodies that are large enough to be looked at on a thread of their own, many at once."""
    content = json.dumps({"prompt": "x" * 50_000}).encode()

    def one() -> None:
        answer = httpx.post(f"{server.address}{TEXT}", content=content, timeout=60)
        assert answer.json()["error"]["code"] == "context_length_exceeded"

    threads = [threading.Thread(target=one) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    until_idle(server.address)
    assert client.get("/health").json()["num_open"] == 0
