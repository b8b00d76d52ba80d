"""the official client, sync and async, against a real server process"""

import asyncio
import contextlib
import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

import openai
import pytest

from tests.system.serving import Server, metrics, serving, until_idle, write_model

pytestmark = pytest.mark.system

NAME = "tiny"
LETTERS = list(range(97, 123))  # the byte tokenizer's ids are the bytes
END_ID = 258
CHAT: dict[str, Any] = {"model": NAME, "messages": [{"role": "user", "content": "Say something."}]}
TEXT: dict[str, Any] = {"model": NAME, "prompt": "Once upon a time"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """In float32, so that sums of another order (another batch) change no choice of a token."""
    directory = write_model(tmp_path_factory.mktemp("model"), layers=2)
    flags = ["--dtype", "float32", "--kv-cache-dtype", "float32", "--num-threads", "1"]
    with serving(directory, *flags, "--num-gpu-blocks-override", "60", "--served-model-name", NAME) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One whose answers last until they are stopped: 20,000 tokens of the references' steps."""
    directory = write_model(tmp_path_factory.mktemp("slow"), layers=2, max_position_embeddings=20_000)
    with serving(directory, "--kernel-backends", "*=reference", "--served-model-name", NAME) as server:
        yield server


def new_async_client(server: Server) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0, timeout=60)


def summary(answer: Any) -> dict[str, Any]:
    """What an answer says, in a form that a streamed one can be put in, too."""
    return {
        "choices": {
            choice.index: {
                "text": choice.message.content if hasattr(choice, "message") else choice.text,
                "logprobs": joined_logprobs([choice.logprobs]),
                "finish_reason": choice.finish_reason,
                "stop_reason": choice.stop_reason,
            }
            for choice in answer.choices
        },
        "usage": answer.usage.model_dump(),
    }


def joined(chunks: Sequence[Any]) -> dict[str, Any]:
    """The summary of a stream with usage, whose shape is checked."""
    *normal, last = chunks
    assert last.choices == []
    assert all(chunk.usage is None and len(chunk.choices) == 1 for chunk in normal)
    assert len({(chunk.id, chunk.created, chunk.model, chunk.object) for chunk in chunks}) == 1
    choices: dict[int, Any] = {}
    for index in sorted({chunk.choices[0].index for chunk in normal}):
        own = [chunk.choices[0] for chunk in normal if chunk.choices[0].index == index]
        is_chat = hasattr(own[0], "delta")
        if is_chat:
            assert [choice.delta.role for choice in own] == ["assistant"] + [None] * (len(own) - 1)
        assert all(choice.finish_reason is None for choice in own[:-1])
        choices[index] = {
            "text": "".join((choice.delta.content if is_chat else choice.text) or "" for choice in own),
            "logprobs": joined_logprobs([choice.logprobs for choice in own]),
            "finish_reason": own[-1].finish_reason,
            "stop_reason": own[-1].stop_reason,
        }
    return {"choices": choices, "usage": last.usage.model_dump()}


def joined_logprobs(parts: Sequence[Any]) -> dict[str, list[Any]] | None:
    """Lists of several log-probability objects, one after the other."""
    lists: dict[str, list[Any]] = {}
    for part in parts:
        for name, values in (part.model_dump() if part is not None else {}).items():
            if values is not None:
                lists.setdefault(name, []).extend(values)
    return lists or None


def assert_same(found: Any, wanted: Any, where: str = "") -> None:
    """Equal, but for the last digits of log-probabilities: another batch sums in another order."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        assert found.keys() == wanted.keys(), where
        for name, value in wanted.items():
            assert_same(found[name], value, f"{where}.{name}")
    elif isinstance(wanted, list) and isinstance(found, list):
        assert len(found) == len(wanted), where
        for i, value in enumerate(wanted):
            assert_same(found[i], value, f"{where}[{i}]")
    elif isinstance(wanted, float):
        assert found == pytest.approx(wanted, abs=1e-4), where
    else:
        assert found == wanted, where


def ask(client: openai.OpenAI, body: dict[str, Any], **fields: Any) -> Any:
    create: Any = client.chat.completions.create if "messages" in body else client.completions.create
    return create(**{**body, **fields})


def streamed(client: openai.OpenAI, body: dict[str, Any], **fields: Any) -> list[Any]:
    return list(ask(client, body, **fields, stream=True, stream_options={"include_usage": True}))


def salted(fields: dict[str, Any], salt: str) -> dict[str, Any]:
    """The same request, in a part of the prefix cache that is its own."""
    return fields | {"extra_body": {**fields.get("extra_body", {}), "cache_salt": salt}}


BOTH: list[dict[str, Any]] = [
    {"temperature": 0, "max_tokens": 12},
    {"temperature": 1.5, "seed": 3, "top_p": 0.9, "max_tokens": 12},
    {"temperature": 1.5, "seed": 4, "n": 3, "max_tokens": 9},
    {"temperature": 0, "max_tokens": 9, "logit_bias": {str(END_ID): 100}},
    {"temperature": 0, "max_tokens": 9, "presence_penalty": 1.5, "frequency_penalty": 1.0},
    {"temperature": 1, "seed": 5, "max_tokens": 60, "stop": "ab", "extra_body": {"allowed_token_ids": [97, 98]}},
    {
        "temperature": 1, "seed": 6, "n": 2, "max_tokens": 60, "stop": ["bbb", "aba"],
        "extra_body": {"allowed_token_ids": [97, 98], "include_stop_str_in_output": True},
    },
    {"temperature": 1, "seed": 7, "max_tokens": 60, "extra_body": {"stop_token_ids": [97, 100, 110]}},
    {"temperature": 1, "seed": 8, "max_tokens": 9, "extra_body": {"top_k": 4, "min_p": 0.02, "ignore_eos": True}},
    {
        "temperature": 0, "max_tokens": 9, "logit_bias": {str(END_ID): 100},
        "extra_body": {"min_tokens": 4, "repetition_penalty": 1.2, "skip_special_tokens": False},
    },
]  # fmt: skip
CHAT_ONLY: list[dict[str, Any]] = [
    {"temperature": 0, "max_completion_tokens": 5},
    {"temperature": 0, "max_tokens": 9, "logprobs": True},
    {"temperature": 1, "seed": 9, "n": 2, "max_tokens": 9, "logprobs": True, "top_logprobs": 4},
    {"temperature": 0, "max_tokens": 5, "reasoning_effort": "low", "extra_body": {"add_generation_prompt": False}},
]
TEXT_ONLY: list[dict[str, Any]] = [
    {"temperature": 0, "max_tokens": 9, "logprobs": 0},
    {"temperature": 1, "seed": 9, "n": 2, "max_tokens": 9, "logprobs": 4},
    {"temperature": 0, "max_tokens": 5, "echo": True},
    {"temperature": 0, "max_tokens": 5, "n": 2, "echo": True, "logprobs": 2},
    {"temperature": 0, "max_tokens": 0, "echo": True, "logprobs": 2},
    {"temperature": 0, "max_tokens": 5, "prompt": [72, 105, 33]},
    {"temperature": 0, "max_tokens": 5, "prompt": ["one", "two", "three"], "n": 2},
    {"temperature": 0, "max_tokens": 5, "prompt": [[72, 105], [33, 34, 35]], "echo": True},
]


# D04, D05
@pytest.mark.parametrize(
    ("body", "fields"),
    [(body, fields) for body in (CHAT, TEXT) for fields in BOTH]
    + [(CHAT, fields) for fields in CHAT_ONLY]
    + [(TEXT, fields) for fields in TEXT_ONLY],
)
def test_streamed_is_whole(
    client: openai.OpenAI, request: pytest.FixtureRequest, body: dict[str, Any], fields: dict[str, Any]
) -> None:
    whole = summary(ask(client, body, **salted(fields, f"{request.node.name} whole")))
    pieces = joined(streamed(client, body, **salted(fields, f"{request.node.name} streamed")))
    assert_same(pieces, whole)
    prompt = fields.get("prompt", "")
    num_prompts = len(prompt) if isinstance(prompt, list) and not isinstance(prompt[0], int) else 1
    assert sorted(whole["choices"]) == list(range(num_prompts * fields.get("n", 1)))
    usage = whole["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    limit: int = fields.get("max_completion_tokens") or fields["max_tokens"]
    assert usage["completion_tokens"] <= limit * len(whole["choices"])
    for choice in whole["choices"].values():
        if choice["finish_reason"] == "length":
            assert usage["completion_tokens"] >= limit
        else:
            assert choice["finish_reason"] == "stop"


# D05
@pytest.mark.parametrize("body", [CHAT, TEXT])
def test_finish_reasons(client: openai.OpenAI, body: dict[str, Any]) -> None:
    def reasons(**fields: Any) -> set[tuple[Any, Any]]:
        whole = summary(ask(client, body, **fields))
        assert joined(streamed(client, body, **fields))["choices"] == whole["choices"]
        return {(choice["finish_reason"], choice["stop_reason"]) for choice in whole["choices"].values()}

    letters = {"extra_body": {"allowed_token_ids": [97, 98]}, "seed": 1, "temperature": 1}
    assert reasons(max_tokens=3, **letters) == {("length", None)}
    assert reasons(max_tokens=200, stop=["ab", "zz"], n=3, **letters) == {("stop", "ab")}
    assert reasons(max_tokens=9, logit_bias={str(END_ID): 100}, temperature=0) == {("stop", None)}
    assert reasons(max_tokens=9, extra_body={"stop_token_ids": [97], "allowed_token_ids": [97]}) == {("stop", 97)}


# D04
@pytest.mark.parametrize("body", [CHAT, TEXT])
def test_usage_whole_streamed_and_continuous(client: openai.OpenAI, body: dict[str, Any]) -> None:
    fields = {"n": 3, "seed": 1, "temperature": 1, "max_tokens": 7, "extra_body": {"allowed_token_ids": LETTERS}}
    ask(client, body, **fields)  # from here on the prompt is in the cache
    usage = ask(client, body, **fields).usage
    assert usage.completion_tokens == 3 * 7
    assert usage.prompt_tokens_details.cached_tokens == (usage.prompt_tokens - 1) // 16 * 16
    assert streamed(client, body, **fields)[-1].usage == usage
    continuous = {"include_usage": True, "continuous_usage_stats": True}
    *normal, last = ask(client, body, **fields, stream=True, stream_options=continuous)
    counts = [chunk.usage.completion_tokens for chunk in normal]
    assert counts == sorted(counts) and counts[0] >= 1 and counts[-1] == 3 * 7
    assert {chunk.usage.prompt_tokens for chunk in normal} == {usage.prompt_tokens}
    assert last.usage == usage
    no_usage: list[dict[str, Any]] = [{}, {"stream_options": {"include_usage": False}}]
    for options in no_usage:
        for chunk in ask(client, body, **fields, stream=True, **options):
            assert "usage" not in chunk.model_fields_set and chunk.choices


def test_models(client: openai.OpenAI) -> None:
    (model,) = client.models.list()
    assert (model.id, model.object) == (NAME, "model")
    assert client.models.retrieve(NAME) == model
    with pytest.raises(openai.NotFoundError) as missing:
        client.models.retrieve("gpt")
    assert missing.value.code == "model_not_found"


def test_several_prompts_answer_in_their_order(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"temperature": 0, "max_tokens": 6}
    prompts = ["one", "two", "three"]
    alone = [ask(client, TEXT, **fields, prompt=prompt).choices[0].text for prompt in prompts]
    together = ask(client, TEXT, **fields, prompt=prompts, n=2)
    assert [choice.text for choice in together.choices] == [text for text in alone for _ in range(2)]
    assert together.usage.prompt_tokens == sum(map(len, prompts))
    ids = ask(client, TEXT, **fields, prompt=[list(prompt.encode()) for prompt in prompts])
    assert [choice.text for choice in ids.choices] == alone
    echoed = ask(client, TEXT, **fields, prompt=prompts, echo=True)
    assert [choice.text for choice in echoed.choices] == [a + b for a, b in zip(prompts, alone, strict=True)]


# D08
def test_prompt_log_probabilities_are_those_of_generation(client: openai.OpenAI) -> None:
    prompt = list(b"Once upon a time")
    fields: dict[str, Any] = {"temperature": 0, "extra_body": {"allowed_token_ids": LETTERS}}
    made = ask(client, TEXT, prompt=prompt, max_tokens=6, logprobs=3, **fields).choices[0]
    again = ask(client, TEXT, prompt=prompt + list(made.text.encode()), max_tokens=0, echo=True, logprobs=3)
    logprobs = again.choices[0].logprobs
    assert again.choices[0].text == "Once upon a time" + made.text
    assert again.usage.completion_tokens == 0
    assert logprobs.token_logprobs[0] is None
    assert len(logprobs.token_logprobs) == len(logprobs.tokens) == len(logprobs.top_logprobs) == len(prompt) + 6
    assert all(math.isfinite(value) for value in logprobs.token_logprobs[1:])
    assert logprobs.token_logprobs[-6:] == pytest.approx(made.logprobs.token_logprobs, abs=1e-3)
    for token, top in list(zip(logprobs.tokens, logprobs.top_logprobs, strict=True))[1:]:
        assert token in top
        assert sum(math.exp(value) for value in top.values()) <= 1 + 1e-3


# D08
def test_a_token_that_may_not_be_drawn_has_a_finite_log_probability(client: openai.OpenAI) -> None:
    answer = ask(client, CHAT, max_tokens=3, logprobs=True, top_logprobs=5, extra_body={"allowed_token_ids": [97]})
    content = answer.choices[0].logprobs.content
    assert [token.token for token in content] == ["a"] * 3
    assert all(math.isfinite(top.logprob) for token in content for top in [token, *token.top_logprobs])
    echoed = ask(client, TEXT, max_tokens=2, echo=True, logprobs=1, extra_body={"top_k": 1})
    assert echoed.choices[0].logprobs.token_logprobs[0] is None
    assert all(math.isfinite(value) for value in echoed.choices[0].logprobs.token_logprobs[1:])


# D16
def test_an_answer_can_be_sent_back(client: openai.OpenAI) -> None:
    answer = ask(client, CHAT, max_tokens=5, extra_body={"allowed_token_ids": LETTERS}).choices[0].message
    history = [*CHAT["messages"], answer.model_dump(), {"role": "user", "content": "And then?"}]
    assert ask(client, CHAT, messages=history, max_tokens=2).usage.completion_tokens >= 1


@pytest.mark.parametrize(
    ("body", "fields", "kind", "param", "code"),
    [
        (CHAT, {"temperature": -1}, openai.BadRequestError, "temperature", None),
        (CHAT, {"messages": []}, openai.BadRequestError, "messages", None),
        (CHAT, {"top_logprobs": 100, "logprobs": True}, openai.BadRequestError, "top_logprobs", None),
        (CHAT, {"model": "gpt"}, openai.NotFoundError, "model", "model_not_found"),
        (CHAT, {"response_format": {"type": "json_object"}}, openai.BadRequestError, "response_format", "unsupported"),
        (TEXT, {"max_tokens": -5}, openai.BadRequestError, "max_tokens", None),
        (TEXT, {"prompt": [999_999]}, openai.BadRequestError, "prompt", None),
        (TEXT, {"prompt": "x" * 5000}, openai.BadRequestError, "prompt", "context_length_exceeded"),
        (TEXT, {"extra_body": {"min_p": 7}}, openai.BadRequestError, "min_p", None),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_errors_are_the_clients_own(
    client: openai.OpenAI,
    body: dict[str, Any],
    fields: dict[str, Any],
    kind: type[openai.APIStatusError],
    param: str,
    code: str | None,
    stream: bool,
) -> None:
    with pytest.raises(kind) as refused:
        ask(client, body, **fields, stream=stream)
    error = refused.value
    assert (type(error), error.param, error.code, error.type) == (kind, param, code, "invalid_request_error")
    assert param in error.message


def test_raw_answers(client: openai.OpenAI) -> None:
    raw = client.completions.with_raw_response.create(**TEXT, temperature=0, max_tokens=4)
    assert (raw.http_response.status_code, raw.headers["content-type"]) == (200, "application/json")
    assert json.loads(raw.http_response.text)["choices"][0]["text"] == raw.parse().choices[0].text
    with client.chat.completions.with_streaming_response.create(**CHAT, max_tokens=4, stream=True) as streaming:
        assert streaming.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert [line for line in streaming.iter_lines() if line][-1] == "data: [DONE]"


def endless(body: dict[str, Any]) -> dict[str, Any]:
    """A request that goes on until the context is full."""
    return body | {"temperature": 0, "extra_body": {"ignore_eos": True}}


@contextlib.contextmanager
def leaving(server: Server) -> Iterator[openai.OpenAI]:
    """A client whose request is left: soon nothing of it is there, and far less than its answer was made."""
    before = metrics(server.address)
    with openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client
        until_idle(server.address)
    made = metrics(server.address)["vllm:generation_tokens_total"] - before["vllm:generation_tokens_total"]
    assert made < 10_000, "it went on to the end of the context"


# D10
@pytest.mark.parametrize("body", [CHAT, TEXT])
def test_a_stream_closed_early_frees_its_blocks(slow: Server, body: dict[str, Any]) -> None:
    with leaving(slow) as client, ask(client, endless(body), n=2, stream=True) as stream:
        for _ in range(3):
            next(stream)


# D10
def test_a_call_that_timed_out_frees_its_blocks(slow: Server) -> None:
    with leaving(slow) as client, pytest.raises(openai.APITimeoutError):
        ask(client.with_options(timeout=0.2), endless(CHAT))


# D16
def test_32_streams_at_once_say_what_each_says_alone(server: Server) -> None:
    """More than the cache holds at once, so some wait."""
    bodies = [
        {**(CHAT if i % 2 else TEXT), "temperature": 0, "max_tokens": 6 + i, "extra_body": {"ignore_eos": True}}
        for i in range(32)
    ]
    for i, body in enumerate(bodies):
        words = "some words " * (i % 5) + str(i)
        body |= {"messages": [{"role": "user", "content": words}]} if "messages" in body else {"prompt": words}

    async def one(client: openai.AsyncOpenAI, body: dict[str, Any]) -> tuple[str, str, int]:
        create: Any = client.chat.completions.create if "messages" in body else client.completions.create
        stream = await create(**body, stream=True, stream_options={"include_usage": True})
        chunks = [chunk async for chunk in stream]
        assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
        own = joined(chunks)
        return own["choices"][0]["text"], chunks[0].id, own["usage"]["completion_tokens"]

    async def scenario() -> None:
        async with new_async_client(server) as client:
            assert [model.id async for model in client.models.list()] == [NAME]
            together = await asyncio.gather(*(one(client, body) for body in bodies))
            assert [num_tokens for _, _, num_tokens in together] == [body["max_tokens"] for body in bodies]
            assert len({call_id for _, call_id, _ in together}) == 32
            for body, (text, _, _) in zip(bodies, together, strict=True):
                create: Any = client.chat.completions.create if "messages" in body else client.completions.create
                assert next(iter(summary(await create(**body))["choices"].values()))["text"] == text
            with pytest.raises(openai.BadRequestError):
                await client.chat.completions.create(**CHAT, n=0)

    asyncio.run(scenario())
    until_idle(server.address)


def test_an_async_stream_closed_early_frees_its_blocks(server: Server) -> None:
    async def scenario() -> None:
        async with new_async_client(server) as client:
            create: Any = client.chat.completions.create
            stream = await create(**endless(CHAT), stream=True)
            async with stream:
                await anext(stream)
            waiting = asyncio.create_task(create(**endless(CHAT)))
            await asyncio.sleep(0.1)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)

    asyncio.run(scenario())
    until_idle(server.address)
