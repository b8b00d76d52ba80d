"""log-probabilities of prompts: behind echo, as evaluation harnesses read them, and in vLLM's own field"""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from minnow.core.request import SamplingParams
from minnow.core.step import TokenLogprobs, TokenOutput
from minnow.server.call import Call
from minnow.server.echo import Echo
from minnow.server.generate import Generation
from minnow.server.prompt import Prompt
from minnow.server.schema.completions import StreamOptions
from tests.server.ask import BYTES, END_ID, ask, chat, completion, events, scripted, spell
from tests.server.scrape import make_metrics
from tests.server.scripted import ScriptedEngine, byte_tokenizer

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
A, B, C = spell("abc")[:3]
LISTS = ("text_offset", "token_logprobs", "tokens", "top_logprobs")


def joined(chunks: list[dict[str, Any]], index: int = 0) -> dict[str, Any]:
    """Text and log-probabilities of a streamed choice."""
    parts = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    lists = {name: [value for part in parts for value in part["logprobs"][name]] for name in LISTS}
    return {"text": "".join(part["text"] for part in parts), "logprobs": lists}


def engine_of(text: str, **settings: Any) -> ScriptedEngine:
    """Answers with a text; `a` is the likeliest everywhere, and the script's own probabilities hold for the rest."""
    engine = scripted(text, **settings)
    engine.top_logprobs = ((A, -0.1), (C, float("-inf")))
    return engine


@pytest.mark.parametrize("prompt", ["ab\u00e9", spell("ab\u00e9")[:-1]], ids=["text", "ids"])
def test_echo_puts_the_prompt_s_log_probabilities_first(prompt: str | list[int]) -> None:
    expected: dict[str, list[Any]] = {
        "text_offset": [0, 1, 2, 2, 3, 4],
        "token_logprobs": [None, -1 / 8, -2 / 8, -3 / 8, -0.5, -0.5],
        "tokens": ["a", "b", r"bytes:\xc3", r"bytes:\xa9", "x", "y"],
        "top_logprobs": [
            None,
            {"a": -0.1, "b": -1 / 8},
            {"a": -0.1, r"bytes:\xc3": -2 / 8},
            {"a": -0.1, r"bytes:\xa9": -3 / 8},
            {"a": -0.1, "x": -0.5},
            {"a": -0.1, "y": -0.5},
        ],
    }

    async def scenario(client: httpx.AsyncClient) -> None:
        body = completion(prompt=prompt, echo=True, logprobs=1, max_tokens=2)
        (choice,) = (await client.post(COMPLETIONS, json=body)).json()["choices"]
        assert (choice["text"], choice["logprobs"], choice["finish_reason"]) == ("ab\u00e9xy", expected, "length")
        assert "prompt_logprobs" not in choice
        chunks = events((await client.post(COMPLETIONS, json=body | {"stream": True})).text)
        assert joined(chunks) == {"text": "ab\u00e9xy", "logprobs": expected}
        assert chunks[0]["choices"][0]["logprobs"]["tokens"][:4] == expected["tokens"][:4]
        zero = (await client.post(COMPLETIONS, json=body | {"max_tokens": 0})).json()
        (choice,) = zero["choices"]
        assert (choice["text"], choice["finish_reason"]) == ("ab\u00e9", "length")
        assert choice["logprobs"] == {name: values[:4] for name, values in expected.items()}
        assert zero["usage"]["completion_tokens"] == 0 and zero["usage"]["prompt_tokens"] == 4
        chunks = events((await client.post(COMPLETIONS, json=body | {"max_tokens": 0, "stream": True})).text)
        assert joined(chunks) == {"text": "ab\u00e9", "logprobs": choice["logprobs"]}

    ask(engine_of("xyz"), scenario)


def test_one_token_has_no_log_probability() -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        body = completion(prompt="a", echo=True, logprobs=0, max_tokens=0)
        (choice,) = (await client.post(COMPLETIONS, json=body)).json()["choices"]
        lists = {"text_offset": [0], "token_logprobs": [None], "tokens": ["a"], "top_logprobs": [None]}
        assert (choice["text"], choice["logprobs"]) == ("a", lists)

    ask(engine_of("x"), scenario)


def test_every_choice_of_every_prompt_has_its_prompt_s() -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        body = completion(prompt=["ab", "cba"], echo=True, logprobs=2, max_tokens=1, n=2)
        choices = (await client.post(COMPLETIONS, json=body)).json()["choices"]
        assert [choice["text"] for choice in choices] == ["abx", "abx", "cbax", "cbax"]
        for first in (0, 2):
            assert choices[first]["logprobs"] == choices[first + 1]["logprobs"]
        assert choices[2]["logprobs"]["token_logprobs"] == [None, -1 / 8, -0.1, -0.5]
        assert choices[2]["logprobs"]["top_logprobs"][1] == {"a": -0.1, "c": -9999.0, "b": -1 / 8}
        chunks = events((await client.post(COMPLETIONS, json=body | {"stream": True})).text)
        for choice in choices:
            streamed = joined(chunks, choice["index"])
            assert streamed == {"text": choice["text"], "logprobs": choice["logprobs"]}

    ask(engine_of("xyz"), scenario)


def test_choices_agree_where_the_engine_s_numbers_differ_a_little() -> None:
    echo = Echo(Prompt(token_ids=(A, B)), BYTES, has_text=True, has_logprobs=True)
    first = echo.take((TokenLogprobs(logprob=-1.0, rank=1),))
    assert first == echo.take((TokenLogprobs(logprob=-1.0000001, rank=1),))
    assert [token.logprobs and token.logprobs.logprob for token in first] == [None, -1.0]


def test_stop_strings_look_at_what_is_drawn_only() -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        body = completion(prompt="a|b", echo=True, logprobs=1, stop="|")
        (choice,) = (await client.post(COMPLETIONS, json=body)).json()["choices"]
        assert (choice["text"], choice["stop_reason"]) == ("a|bx", "|")
        assert choice["logprobs"]["tokens"] == ["a", "|", "b", "x", "|"]
        assert choice["logprobs"]["text_offset"] == [0, 1, 2, 3, 4]

    ask(engine_of("x|y"), scenario)


def test_offsets_where_tokens_and_text_differ() -> None:
    """A token put before the text, a control token in it, words of several characters, ids without a word."""
    tokenizer = byte_tokenizer(["Hello", "\u4e16\u754c"])
    end, hello, world = tokenizer.id_of("<|end|>"), 256, 257
    assert end is not None

    def offsets(ids: Sequence[int], text: str | None) -> list[int]:
        echo = Echo(Prompt(token_ids=tuple(ids), text=text), tokenizer, has_text=True, has_logprobs=True)
        return [token.offset for token in echo.take((TokenLogprobs(logprob=0.0, rank=1),) * (len(ids) - 1))]

    assert offsets([hello, world, A], "Hello\u4e16\u754ca") == [0, 5, 7]
    assert offsets([end, hello, A], "Helloa") == [0, 0, 5]
    assert offsets([end, hello, A], None) == [0, 7, 12]
    assert offsets([A, end, B], "a<|end|>b") == [0, 1, 8]
    assert offsets([A, 299, B], None) == [0, 1, 1]
    assert offsets([A, C, B], "zz") == [0, 0, 1]  # another text altogether: still within it


@pytest.mark.parametrize("num_drawn", [0, 1])
def test_an_evaluation_harness_reads_sums_and_greediness(num_drawn: int) -> None:
    """As lm-evaluation-harness reads completions: ids of context and continuation, the length of the context."""
    requests = [("ab", "cb"), ("b", "aaa"), ("abc", "ab")]
    engine = ScriptedEngine(lambda request: spell("x"), end_token_id=END_ID or 0)
    engine.top_logprobs = ((A, -0.0625),)

    async def scenario(client: httpx.AsyncClient) -> None:
        body = completion(
            prompt=[spell(context + rest)[:-1] for context, rest in requests],
            temperature=0, max_tokens=num_drawn, logprobs=1, seed=1234, echo=True,
        )  # fmt: skip
        answer = (await client.post(COMPLETIONS, json=body)).json()
        seen = []
        for choice, (context, _) in zip(answer["choices"], requests, strict=True):
            logprobs = choice["logprobs"]
            part = slice(len(context), -1 if num_drawn else None)
            tokens, values = logprobs["tokens"][part], logprobs["token_logprobs"][part]
            tops = logprobs["top_logprobs"][part]
            by_name = all(token == max(top, key=top.get) for token, top in zip(tokens, tops, strict=True))
            by_value = all(value == max(top.values()) for value, top in zip(values, tops, strict=True))
            seen.append((sum(values), by_name, by_value))
        assert seen == [
            (-2 / 8 - 3 / 8, False, False),
            (-3 / 16, True, True),
            (-1 / 16 - 4 / 8, False, False),
        ]

    ask(engine, scenario)


# D08
@pytest.mark.parametrize(
    "fields",
    [
        {"top_k": 1, "logprobs": 1},
        {"max_tokens": 0, "logprobs": 5},
        {"allowed_token_ids": [A], "logprobs": 5},
        {"logit_bias": {str(B): -100}, "logprobs": 5},
    ],
)
def test_values_are_finite(fields: dict[str, Any]) -> None:
    engine = scripted("xy")
    engine.top_logprobs = ((A, -1.0), (B, float("-inf")), (C, -1e30), (spell("x")[0], -1.5))

    async def scenario(client: httpx.AsyncClient) -> None:
        answer = await client.post(COMPLETIONS, json=completion(echo=True, prompt="abc", **fields))
        assert answer.status_code == 200, answer.text
        logprobs = answer.json()["choices"][0]["logprobs"]
        assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
        for token, value, top in zip(*(logprobs[name][1:] for name in LISTS[2:0:-1] + LISTS[3:]), strict=True):
            assert math.isfinite(value) and all(map(math.isfinite, top.values()))
            assert top[token] == value

    ask(engine, scenario)


def test_vllm_s_own_field() -> None:
    def entry(logprob: float, rank: int, word: str) -> dict[str, Any]:
        return {"logprob": logprob, "rank": rank, "decoded_token": word}

    async def scenario(client: httpx.AsyncClient) -> None:
        body = completion(prompt="ab", prompt_logprobs=1, max_tokens=1)
        (choice,) = (await client.post(COMPLETIONS, json=body)).json()["choices"]
        assert (choice["text"], choice["logprobs"]) == ("x", None)
        assert choice["prompt_logprobs"] == [None, {str(B): entry(-1 / 8, 2, "b"), str(A): entry(-0.1, 1, "a")}]
        body |= {"echo": True, "logprobs": 2, "prompt_logprobs": 0}
        (choice,) = (await client.post(COMPLETIONS, json=body)).json()["choices"]
        assert choice["prompt_logprobs"] == [None, {str(B): entry(-1 / 8, 2, "b")}]
        assert choice["logprobs"]["top_logprobs"][1] == {"a": -0.1, "c": -9999.0, "b": -1 / 8}
        body |= {"logprobs": 0, "prompt_logprobs": 2}
        (choice,) = (await client.post(COMPLETIONS, json=body)).json()["choices"]
        assert len(choice["prompt_logprobs"][1]) == 3
        assert choice["logprobs"]["top_logprobs"][1] == {"b": -1 / 8}
        answer = (await client.post(CHAT, json=chat(prompt_logprobs=0, max_tokens=1))).json()
        values = answer["prompt_logprobs"]
        assert values[0] is None and len(values) == answer["usage"]["prompt_tokens"]
        assert values[1] == {str(spell("s")[0]): entry(-1 / 8, 2, "s")}
        assert answer["choices"][0]["logprobs"] is None
        assert "prompt_logprobs" not in (await client.post(CHAT, json=chat(max_tokens=1))).json()

    ask(engine_of("x"), scenario)


def test_an_ordinary_request_asks_the_engine_for_nothing() -> None:
    engine = engine_of("x")

    async def scenario(client: httpx.AsyncClient) -> None:
        for fields in ({"echo": True}, {"logprobs": 2}, {}):
            await client.post(COMPLETIONS, json=completion(**fields))
        await client.post(CHAT, json=chat(logprobs=True))
        assert [request.sampling.prompt_logprobs for request in engine.added] == [None] * 4

    ask(engine, scenario)


def test_a_choice_that_waits_for_the_scores_ends_at_its_stop_string() -> None:
    """The second choice is ahead of the first, which scores the prompt for both."""
    score = TokenLogprobs(logprob=-1.0, rank=1)
    sampling = SamplingParams(prompt_logprobs=0, logprobs=0, max_tokens=10)

    def output(index: int, text: str, **fields: Any) -> TokenOutput:
        ids = tuple(BYTES.encode(text))
        return TokenOutput(request_id=f"c-{index}", token_ids=ids, logprobs=(score,) * len(ids), **fields)

    class Stream(contextlib.AbstractAsyncContextManager["Stream", None]):
        def __init__(self) -> None:
            self.aborted: list[str] = []

        async def __aexit__(self, *args: object) -> None: ...

        def abort(self, request_id: str) -> None:
            self.aborted.append(request_id)

        async def __aiter__(self) -> AsyncIterator[TokenOutput]:
            for letter in "aSbc":
                yield output(1, letter)
            yield output(1, "d", finish_reason="length")
            yield output(0, "x", prompt_logprobs=(score,))
            yield output(0, "y", finish_reason="length")

    stream = Stream()
    client: Any = SimpleNamespace(submit=lambda requests, observe: stream)
    call = Call(
        call_id="c", arrival_s=0.0, prompts=(Prompt(token_ids=tuple(BYTES.encode("hi")), text="hi"),),
        sampling=(sampling,), num_choices=2, stops=("S",), includes_stop=False, skips_special=True, has_echo=True,
        prompt_logprobs=None, priority=0, cache_salt=None, streams=False, options=StreamOptions(),
    )  # fmt: skip
    generation = Generation(call, client, BYTES, make_metrics())
    first, second = asyncio.run(generation.whole())
    assert ["".join(part.text for part in parts) for parts in (first, second)] == ["hixy", "hia"]
    assert (first[-1].finish_reason, second[-1].finish_reason) == ("length", "stop")
    assert second[-1].stop_reason == "S"
    assert len(first[0].prompt) == len(second[0].prompt) == 2
    assert generation.usage.completion_tokens == 2 + 2
    assert stream.aborted == ["c-1"]
