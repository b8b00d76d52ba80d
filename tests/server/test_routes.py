"""answers of the generating endpoints: shapes, usage, log-probabilities, echo"""

from typing import Any

import httpx
import pytest

from tests.server.ask import END_ID, MODEL_NAME, ask, chat, completion, events, scripted, spell
from tests.server.scripted import ScriptedEngine

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def test_a_whole_chat_answer() -> None:
    engine = scripted("Hello")
    engine.num_cached_tokens = 4

    async def scenario(client: httpx.AsyncClient) -> None:
        answer = (await client.post(CHAT, json=chat())).json()
        assert answer.pop("id").startswith("chatcmpl-")
        assert isinstance(answer.pop("created"), int)
        assert answer == {
            "object": "chat.completion",
            "model": MODEL_NAME,
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": "Hello"},
                    "logprobs": None,
                    "finish_reason": "stop",
                    "stop_reason": None,
                }
            ],
            "usage": {
                "prompt_tokens": 18,
                "completion_tokens": 6,
                "total_tokens": 24,
                "prompt_tokens_details": {"cached_tokens": 4},
            },
        }

    ask(engine, scenario)


def test_a_whole_completion_answer() -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        answer = (await client.post(COMPLETIONS, json=completion(max_tokens=3))).json()
        assert answer.pop("id").startswith("cmpl-")
        assert isinstance(answer.pop("created"), int)
        assert answer == {
            "object": "text_completion",
            "model": MODEL_NAME,
            "choices": [{"index": 0, "text": "Hel", "logprobs": None, "finish_reason": "length", "stop_reason": None}],
            "usage": {
                "prompt_tokens": 2,
                "completion_tokens": 3,
                "total_tokens": 5,
                "prompt_tokens_details": {"cached_tokens": 0},
            },
        }

    ask(scripted("Hello"), scenario)


# D05
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(("max_tokens", "reason"), [(2, "length"), (3, "stop"), (None, "stop")])
def test_finish_reasons_agree_whole_and_streamed(path: str, max_tokens: int | None, reason: str) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        body = (chat if path == CHAT else completion)(max_tokens=max_tokens)
        whole = (await client.post(path, json=body)).json()
        chunks = events((await client.post(path, json=body | {"stream": True})).text)
        reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
        assert whole["choices"][0]["finish_reason"] == reason
        assert reasons == [None] * (len(chunks) - 1) + [reason]

    ask(scripted("ab"), scenario)


# D04
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("num_choices", [1, 3])
@pytest.mark.parametrize("stop", [None, "cd"])
def test_streamed_usage(path: str, num_choices: int, stop: str | None) -> None:
    engine = scripted("abcdef")
    engine.num_cached_tokens = 1

    async def scenario(client: httpx.AsyncClient) -> None:
        body = (chat if path == CHAT else completion)(n=num_choices, max_tokens=5, stop=stop)
        usage = (await client.post(path, json=body)).json()["usage"]
        assert usage["completion_tokens"] == num_choices * (4 if stop else 5)
        assert usage["prompt_tokens_details"] == {"cached_tokens": 1}

        async def stream(**options: Any) -> list[dict[str, Any]]:
            return events((await client.post(path, json=body | {"stream": True, **options})).text)

        for options in ({}, {"stream_options": None}, {"stream_options": {"include_usage": False}}):
            assert all("usage" not in chunk for chunk in await stream(**options))
        *normal, last = await stream(stream_options={"include_usage": True})
        assert all(chunk["usage"] is None for chunk in normal)
        assert (last["choices"], last["usage"]) == ([], usage)
        *normal, last = await stream(stream_options={"include_usage": True, "continuous_usage_stats": True})
        counts = [chunk["usage"]["completion_tokens"] for chunk in normal]
        assert counts == sorted(counts)
        assert counts[-1] <= usage["completion_tokens"]
        assert {chunk["usage"]["prompt_tokens"] for chunk in normal} == {usage["prompt_tokens"]}
        assert last["usage"] == usage

    ask(engine, scenario)


def test_each_streamed_choice_begins_with_its_role_and_ends_once() -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        chunks = events((await client.post(CHAT, json=chat(n=3, stream=True))).text)
        for index in range(3):
            own = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
            assert own[0]["delta"] == {"role": "assistant", "content": "a"}
            assert own[1]["delta"] == {"content": "b"}
            assert own[2]["delta"] == {}
            assert [c["finish_reason"] for c in own] == [None, None, "stop"]

    ask(scripted("ab"), scenario)


def test_an_empty_answer_is_an_answer() -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        answer = (await client.post(CHAT, json=chat())).json()
        assert answer["choices"][0]["message"]["content"] == ""
        (chunk,) = events((await client.post(CHAT, json=chat(stream=True))).text)
        assert chunk["choices"][0]["delta"] == {"role": "assistant", "content": ""}

    ask(scripted(""), scenario)


def test_log_probabilities_of_a_chat() -> None:
    a, b = spell("ab")[:2]
    engine = scripted("ab")
    engine.top_logprobs = ((a, -0.5), (b, float("-inf")), (END_ID or 0, -2.0))

    async def scenario(client: httpx.AsyncClient) -> None:
        body = chat(logprobs=True, top_logprobs=2)
        content = (await client.post(CHAT, json=body)).json()["choices"][0]["logprobs"]["content"]
        assert len(content) == 3  # the end token, too
        assert content[0] == {
            "token": "a",
            "logprob": -0.5,
            "bytes": [97],
            "top_logprobs": [
                {"token": "a", "logprob": -0.5, "bytes": [97]},
                {"token": "b", "logprob": -9999.0, "bytes": [98]},
            ],
        }
        chunks = events((await client.post(CHAT, json=body | {"stream": True})).text)
        assert [e for chunk in chunks for e in chunk["choices"][0]["logprobs"]["content"]] == content
        (only, *_) = (await client.post(CHAT, json=chat(logprobs=True))).json()["choices"]
        assert only["logprobs"]["content"][0]["top_logprobs"] == []

    ask(engine, scenario)


def test_log_probabilities_of_a_completion() -> None:
    b = spell("b")[0]
    engine = scripted("a\u00e9b")
    engine.top_logprobs = ((b, float("-inf")),)

    async def scenario(client: httpx.AsyncClient) -> None:
        body = completion(logprobs=1, max_tokens=4)
        logprobs = (await client.post(COMPLETIONS, json=body)).json()["choices"][0]["logprobs"]
        assert logprobs == {
            "text_offset": [0, 1, 1, 2],
            "token_logprobs": [-0.5] * 4,
            "tokens": ["a", r"bytes:\xc3", r"bytes:\xa9", "b"],
            "top_logprobs": [
                {"b": -9999.0, "a": -0.5},
                {"b": -9999.0, r"bytes:\xc3": -0.5},
                {"b": -9999.0, r"bytes:\xa9": -0.5},
                {"b": -0.5},
            ],
        }
        chunks = events((await client.post(COMPLETIONS, json=body | {"stream": True})).text)
        for name, values in logprobs.items():
            assert [v for chunk in chunks for v in chunk["choices"][0]["logprobs"][name]] == values
        zero = (await client.post(COMPLETIONS, json=completion(logprobs=0, max_tokens=1))).json()
        assert zero["choices"][0]["logprobs"]["top_logprobs"] == [{"a": -0.5}]

    ask(engine, scenario)


def test_log_probabilities_of_text_that_is_held_back_are_not_lost() -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        body = chat(logprobs=True, stop="abcx", stream=True)
        chunks = events((await client.post(CHAT, json=body)).text)
        tokens = [e["token"] for chunk in chunks for e in chunk["choices"][0]["logprobs"]["content"]]
        assert tokens == ["a", "b", "c", "d", "<|end|>"]

    ask(scripted("abcd"), scenario)


@pytest.mark.parametrize("prompt", ["hi \u00e9", spell("hi \u00e9")[:-1]])
def test_echo_begins_with_the_prompt(prompt: str | list[int]) -> None:
    engine = scripted("Hello")

    async def scenario(client: httpx.AsyncClient) -> None:
        body = completion(prompt=prompt, echo=True, max_tokens=2, n=2)
        answer = (await client.post(COMPLETIONS, json=body)).json()
        assert [choice["text"] for choice in answer["choices"]] == ["hi \u00e9He"] * 2
        chunks = events((await client.post(COMPLETIONS, json=body | {"stream": True})).text)
        assert "".join(c["text"] for chunk in chunks for c in chunk["choices"] if c["index"] == 1) == "hi \u00e9He"
        num_added = len(engine.added)
        answer = (await client.post(COMPLETIONS, json=body | {"max_tokens": 0})).json()
        assert [choice["text"] for choice in answer["choices"]] == ["hi \u00e9"] * 2
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["completion_tokens"] == 0
        assert len(engine.added) == num_added  # the engine has nothing to do

    ask(engine, scenario)


def test_several_prompts_are_answered_in_order() -> None:
    engine = ScriptedEngine(lambda request: [request.token_ids[0]] * 9)

    async def scenario(client: httpx.AsyncClient) -> None:
        for prompt in (["x", "yy"], [spell("x")[:-1], spell("yy")[:-1]]):
            body = completion(prompt=prompt, n=2, max_tokens=3, echo=True, seed=5)
            answer = (await client.post(COMPLETIONS, json=body)).json()
            assert [c["text"] for c in answer["choices"]] == ["xxxx", "xxxx", "yyyyy", "yyyyy"]
            assert [c["index"] for c in answer["choices"]] == [0, 1, 2, 3]
            assert answer["usage"]["prompt_tokens"] == 3
            assert answer["usage"]["completion_tokens"] == 12
            assert [request.sampling.seed for request in engine.added[-4:]] == [5, 6, 5, 6]

    ask(engine, scenario)


def test_the_model_may_be_left_out() -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        body = {"messages": [{"role": "user", "content": "hi"}]}
        assert (await client.post(CHAT, json=body)).status_code == 200

    ask(scripted("ok"), scenario)
