"""what is refused: status, shape, the field at fault; and that nothing else suffers"""

import asyncio
import json
from typing import Any

import httpx
import pytest

from tests.server.ask import MODEL_NAME, ask, chat, completion, scripted

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
USER = {"role": "user", "content": "hi"}
CALLS = {"role": "assistant", "content": None}


async def refused(client: httpx.AsyncClient, path: str, body: Any, status: int = 400) -> dict[str, Any]:
    """The error of a body; its shape is checked."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = await client.post(path, content=content)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"]
    assert error["type"] == ("invalid_request_error" if status < 500 else "server_error")
    return dict(error)


SAMPLING: list[tuple[dict[str, Any], str]] = [
    ({"logit_bias": {"999999": 5}}, "logit_bias"),
    ({"logit_bias": {"AI": -100}}, "logit_bias"),
    ({"logit_bias": {"-1": 1}}, "logit_bias"),
    ({"logit_bias": {"1_0": 1}}, "logit_bias"),
    ({"logit_bias": {" 1": 1}}, "logit_bias"),
    ({"logit_bias": {"\u0661": 1}}, "logit_bias"),
    ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
    ({"logit_bias": {"1": 1e9}}, "logit_bias"),
    ({"logit_bias": {"1": float("nan")}}, "logit_bias.1"),
    ({"logit_bias": {"1": "much"}}, "logit_bias"),
    ({"logit_bias": [1]}, "logit_bias"),
    ({"stop_token_ids": [999999]}, "stop_token_ids"),
    ({"stop_token_ids": [-1]}, "stop_token_ids"),
    ({"stop_token_ids": ["x"]}, "stop_token_ids[0]"),
    ({"allowed_token_ids": []}, "allowed_token_ids"),
    ({"allowed_token_ids": [300]}, "allowed_token_ids"),
    ({"temperature": -1}, "temperature"),
    ({"temperature": float("nan")}, "temperature"),
    ({"temperature": float("inf")}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.5}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"top_k": 10**400}, "top_k"),
    ({"min_p": 2}, "min_p"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"n": 0}, "n"),
    ({"n": 10000}, "n"),
    ({"n": 1.5}, "n"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": "5"}, "max_tokens"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
    ({"min_tokens": 10**6}, "min_tokens"),
    ({"seed": 2**70}, "seed"),
    ({"stop": ""}, "stop"),
    ({"stop": [str(i) for i in range(99)]}, "stop"),
    ({"stop": 5}, "stop"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"cache_salt": ""}, "cache_salt"),
    ({"best_of": 3}, "best_of"),
    ({"best_of": 1, "n": 2}, "best_of"),
    ({"prompt_logprobs": 21}, "prompt_logprobs"),
    ({"prompt_logprobs": -1}, "prompt_logprobs"),
    ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    ({"use_beam_search": True}, "use_beam_search"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
]

CHAT_ONLY: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [{"role": "boss", "content": "hi"}]}, "messages[0].role"),
    ({"messages": [{"content": "hi"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [USER, {"role": "user", "content": None}]}, "messages[1].content"),
    ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]}]},
        "messages[0].content[1]",
    ),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    (
        {"messages": [USER, CALLS | {"tool_calls": [{"function": {"name": "f", "arguments": "["}}]}]},
        "messages[1].tool_calls",
    ),
    (
        {"messages": [USER, CALLS | {"tool_calls": [{"function": {"name": "f", "arguments": "[" * 20_000}}]}]},
        "messages[1].tool_calls",
    ),
    ({"echo": True}, "echo"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"top_logprobs": 100, "logprobs": True}, "top_logprobs"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": 5}, "logprobs"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
]

COMPLETIONS_ONLY = [
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [[]]}, "prompt"),
    ({"prompt": ["a", ""]}, "prompt"),
    ({"prompt": None}, "prompt"),
    ({"prompt": [1, "a"]}, "prompt"),
    ({"prompt": [1, [2]]}, "prompt"),
    ({"prompt": [300]}, "prompt"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": ["a"] * 100, "n": 100}, "prompt"),
    ({"logprobs": 100}, "logprobs"),
    ({"logprobs": -1}, "logprobs"),
    ({"logprobs": 21, "echo": True}, "logprobs"),
    ({"prompt": [[1] * 50] * 100, "n": 10, "echo": True, "logprobs": 20, "max_tokens": 0}, "logprobs"),
    ({"suffix": "end"}, "suffix"),
    ({"length_penalty": 2}, "length_penalty"),
    ({"thinking": {"type": "enabled"}}, "thinking"),
    ({"stop": "x" * 1001}, "stop"),
    ({"stop_token_ids": list(range(257)) * 8 + [300]}, "stop_token_ids"),
    ({"logit_bias": {"5": 1, "05": 2}}, "logit_bias"),
]


# D07, D15
@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [(path, *case) for path in (CHAT, COMPLETIONS) for case in SAMPLING]
    + [(CHAT, *case) for case in CHAT_ONLY]
    + [(COMPLETIONS, *case) for case in COMPLETIONS_ONLY],
)
def test_a_bad_field_is_named(path: str, fields: dict[str, Any], param: str) -> None:
    engine = scripted("ok")

    async def scenario(client: httpx.AsyncClient) -> None:
        error = await refused(client, path, (chat if path == CHAT else completion)(**fields))
        assert error["param"] == param
        assert error["message"].isascii() and len(error["message"]) < 1100
        assert engine.added == []

    ask(engine, scenario)


def test_a_text_part_without_text_is_not_called_a_strange_type() -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        body = chat(messages=[{"role": "user", "content": [{"type": "text"}]}])
        assert (await refused(client, CHAT, body))["message"] == "messages[0].content[0].text is missing"

    ask(scripted("ok"), scenario)


# D15
@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{"role": "system", "content": "only"}]},
        {"messages": [{"role": "developer", "content": "only"}]},
        {"messages": [USER, {"role": "assistant", "content": ""}]},
        {"messages": [USER, {"role": "assistant", "content": None}, USER]},
        {"messages": [USER, {"role": "assistant"}, USER]},
        {"messages": [{"role": "user", "content": ""}]},
        {"tools": [], "tool_choice": "auto", "response_format": {"type": "text"}, "n": None, "stop": None},
        {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]}]},
        {"echo": False},
        {"best_of": 1, "user": "someone", "metadata": {"a": "b"}, "unheard_of": [1]},
        {"messages": [USER | {"name": "ann"}], "add_generation_prompt": False},
        {"chat_template_kwargs": {"enable_thinking": False}, "reasoning_effort": "low"},
    ],
)
def test_what_asks_for_nothing_unusual_is_served(fields: dict[str, Any]) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        answer = await client.post(CHAT, json=chat(**fields))
        assert answer.status_code == 200, answer.text

    ask(scripted("ok"), scenario)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "JSON"),
        (b"{", "JSON"),
        (b"[]", "object"),
        (b'"text"', "object"),
        (b"{} x", "JSON"),
        (b'{"model": "\xff"}', "UTF-8"),
        (b'{"unknown": "\xc3("}', "UTF-8"),
        (b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested"),
        (b'{"prompt": "\\ud800", "messages": []}', ""),
        (b"{}", "missing"),
    ],
)
def test_a_body_that_is_no_request(path: str, body: bytes, words: str) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        assert words in (await refused(client, path, body))["message"]

    ask(scripted("ok"), scenario)


def test_an_unknown_model_is_not_found() -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        for path, body in ((CHAT, chat(model="gpt")), (COMPLETIONS, completion(model="gpt"))):
            error = await refused(client, path, body, 404)
            assert (error["code"], error["param"]) == ("model_not_found", "model")
            assert "'gpt'" in error["message"]
            assert MODEL_NAME in error["message"]

    ask(scripted("ok"), scenario)


# D14
def test_a_prompt_that_does_not_fit_the_context() -> None:
    engine = scripted("x" * 99, max_model_len=20)

    async def scenario(client: httpx.AsyncClient) -> None:
        for num_tokens, max_tokens in ((21, None), (20, None), (20, 1), (19, 2), (10, 11), (10, 10**9)):
            body = completion(prompt=[1] * num_tokens, max_tokens=max_tokens)
            error = await refused(client, COMPLETIONS, body)
            assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
            assert " 20 " in error["message"]
            assert f" {num_tokens + (max_tokens or 1)}:" in error["message"]
        assert engine.added == []
        error = await refused(client, CHAT, chat(messages=[{"role": "user", "content": "long" * 10}]))
        assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
        for num_tokens, max_tokens, num_generated in ((19, None, 1), (19, 1, 1), (5, None, 15), (5, 15, 15)):
            body = completion(prompt=[1] * num_tokens, max_tokens=max_tokens)
            answer = (await client.post(COMPLETIONS, json=body)).json()
            assert answer["usage"]["completion_tokens"] == num_generated
            assert answer["choices"][0]["finish_reason"] == "length"

    ask(engine, scenario)


# D07
def test_bad_requests_leave_a_running_one_alone() -> None:
    engine = scripted("abcdefgh", is_gated=True)

    async def scenario(client: httpx.AsyncClient) -> None:
        good = asyncio.create_task(client.post(CHAT, json=chat()))
        while not engine.added:
            await asyncio.sleep(0.001)
        for fields, _ in SAMPLING:
            await refused(client, CHAT, chat() | dict(fields))
            engine.gate.release()
        assert (await good).json()["choices"][0]["message"]["content"] == "abcdefgh"
        assert (await client.get("/health")).status_code == 200

    ask(engine, scenario)


def test_a_refusal_by_the_engine_has_a_status_also_when_it_would_stream() -> None:
    from minnow.core.errors import RequestError

    engine = scripted("ok")
    engine.refusal = RequestError("no room for this", param="prompt", code="too_big")

    async def scenario(client: httpx.AsyncClient) -> None:
        for stream in (False, True):
            error = await refused(client, CHAT, chat(stream=stream, n=2))
            assert (error["message"], error["param"], error["code"]) == ("no room for this", "prompt", "too_big")

    ask(engine, scenario)


def test_paths_and_methods_that_are_not_served() -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        answer = await client.get("/v2/nothing")
        assert answer.status_code == 404
        assert answer.json()["error"]["message"] == "GET /v2/nothing is not served here"
        for path in ("//v1/models", "/V1/models", "/v1/completions/"):
            answer = await client.get(httpx.URL("http://door").copy_with(raw_path=path.encode()))
            assert answer.status_code == 404
            assert answer.json()["error"]["message"] == f"GET {path} is not served here"
        answer = await client.get(CHAT)
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST")

    ask(scripted("ok"), scenario)
