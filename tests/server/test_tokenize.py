"""/tokenize, /detokenize and /version: as the generating endpoints would have it"""

import asyncio
import json
import threading
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.responses import Response

import minnow
from minnow.server.stream import json_response
from minnow.text.template import ChatTemplate
from minnow.text.tokenizer import Tokenizer
from tests.server.ask import BYTES, END_ID, MODEL_NAME, ask, chat, scripted
from tests.server.scripted import END

CHAT, TOKENIZE, DETOKENIZE = "/v1/chat/completions", "/tokenize", "/detokenize"
TALK = [{"role": "system", "content": f"Be kind.{END}"}, {"role": "user", "content": f"hi \u00e9 {END}"}]


def test_the_version_is_that_of_the_package() -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        assert (await client.get("/version")).json() == {"version": minnow.__version__}

    ask(scripted("ok"), scenario)


def test_a_prompt() -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        answer = (await client.post(TOKENIZE, json={"model": MODEL_NAME, "prompt": f"a \u00e9{END}"})).json()
        ids = BYTES.encode(f"a \u00e9{END}")
        assert answer == {"count": 5, "max_model_len": 64, "tokens": ids, "token_strs": None}
        assert ids[-1] == END_ID
        answer = (await client.post(TOKENIZE, json={"prompt": f"a \u00e9{END}", "return_token_strs": True})).json()
        assert answer["token_strs"] == ["a", "\u0120", "\u00c3", "\u00a9", END]
        empty = (await client.post(TOKENIZE, json={"prompt": ""})).json()
        assert (empty["count"], empty["tokens"]) == (0, [])

    ask(scripted("ok"), scenario)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"add_generation_prompt": False},
        {"add_generation_prompt": False, "continue_final_message": True},
        {"chat_template_kwargs": {"x": 1}, "reasoning_effort": "low"},
        {"add_special_tokens": True},
    ],
)
def test_a_conversation_has_the_tokens_that_a_chat_runs(fields: dict[str, Any]) -> None:
    engine = scripted("ok", max_model_len=200)
    messages = [*TALK, {"role": "assistant", "content": "well"}] if "continue_final_message" in fields else TALK

    async def scenario(client: httpx.AsyncClient) -> None:
        assert (await client.post(CHAT, json=chat(messages=messages, **fields))).status_code == 200
        answer = (await client.post(TOKENIZE, json={"messages": messages, **fields})).json()
        assert answer["tokens"] == list(engine.added[0].token_ids)
        assert answer["count"] == len(answer["tokens"])
        assert answer["tokens"].count(END_ID) == 1  # the system's; what the user typed is text
        text = (await client.post(DETOKENIZE, json={"tokens": answer["tokens"]})).json()["prompt"]
        end = "assistant:" if not fields or "x" in str(fields) or "special" in str(fields) else ""
        shown = "".join(f"{m['role']}:{m['content']}\n" for m in messages) + end
        assert text == (shown.removesuffix("\n") if "continue_final_message" in fields else shown)

    ask(engine, scenario)


TELLING = (
    "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}{{ c.type }}:{{ c.id }}:{{ c.function.name }}"
    "{{ c.function.arguments | tojson }}{% endfor %};{% endfor %}{{ reasoning_effort }} {{ x }}"
)


def test_variables_and_tool_calls_reach_the_template_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.server.ask.chat_template", lambda: ChatTemplate({"default": TELLING}, {}))
    engine = scripted("ok", max_model_len=200)
    call = {"id": END, "function": {"name": f"f{END}", "arguments": json.dumps({END: {"role": END, "type": [END]}})}}
    messages = [
        {"role": "user", "content": "hi", "tool_calls": [call]},
        {"role": "assistant", "content": END, "tool_calls": [call]},
    ]
    shown = f'function:{END}:f{END}{{"{END}": {{"role": "{END}", "type": ["{END}"]}}}};'
    told = f"hi{shown}{END}{shown}"
    bodies: list[tuple[dict[str, Any], str]] = [
        ({}, " "),
        ({"reasoning_effort": f"low{END}"}, f"low{END} "),
        ({"chat_template_kwargs": {"x": f"y{END}"}}, f" y{END}"),
        ({"chat_template_kwargs": {"x": 1, "reasoning_effort": "max"}, "reasoning_effort": "low"}, "max 1"),
    ]

    async def scenario(client: httpx.AsyncClient) -> None:
        for fields, end in bodies:
            body = {"messages": messages, **fields}
            assert (await client.post(CHAT, json=chat(**body))).status_code == 200
            tokens = (await client.post(TOKENIZE, json=body)).json()["tokens"]
            assert tokens == list(engine.added[-1].token_ids)
            assert BYTES.decode(tokens, skip_special_tokens=False) == told + end
            assert END_ID not in tokens

    ask(engine, scenario)


@given(
    st.text(st.characters(exclude_categories=["Cs"]))
    | st.lists(st.sampled_from(["a", END, " ", "\u4e16"])).map("".join)
)
@settings(deadline=None, max_examples=20)
def test_there_and_back(text: str) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        tokens = (await client.post(TOKENIZE, json={"prompt": text})).json()["tokens"]
        assert (await client.post(DETOKENIZE, json={"tokens": tokens})).json() == {"prompt": text}

    ask(scripted("ok"), scenario)


def test_ids_that_the_model_has_and_the_tokenizer_lacks_are_no_text() -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        answer = await client.post(DETOKENIZE, json={"tokens": [299, *BYTES.encode("a"), 280]})
        assert answer.json() == {"prompt": "a"}

    ask(scripted("ok"), scenario)


def calling(depth: int) -> dict[str, Any]:
    """A tool call whose arguments are lists in lists."""
    return {"function": {"name": "f", "arguments": "[" * depth + "]" * depth}}


BAD: list[tuple[str, Any, int, str | None]] = [
    (TOKENIZE, {}, 400, "prompt"),
    (TOKENIZE, {"prompt": "a", "messages": TALK}, 400, "prompt"),
    (TOKENIZE, {"prompt": ["a"]}, 400, "prompt"),
    (TOKENIZE, {"prompt": "a", "model": "other"}, 404, "model"),
    (TOKENIZE, {"messages": []}, 400, "messages"),
    (TOKENIZE, {"messages": [{"role": "boss", "content": "a"}]}, 400, "messages[0].role"),
    (TOKENIZE, {"messages": TALK, "continue_final_message": True}, 400, "continue_final_message"),
    (TOKENIZE, {"messages": TALK, "tools": [{"type": "function"}]}, 400, "tools"),
    (TOKENIZE, {"messages": [{**TALK[1], "tool_calls": [calling(700)]}]}, 400, "messages"),
    (
        TOKENIZE,
        {"messages": [{**TALK[1], "tool_calls": [calling(1) | {"type": END}]}]},
        400,
        "messages[0].tool_calls[0].type",
    ),
    (TOKENIZE, b"{", 400, None),
    (TOKENIZE, b'{"prompt": "\xff"}', 400, None),
    (TOKENIZE, b"[]", 400, None),
    (TOKENIZE, {"prompt": "a" * 2000}, 413, None),
    (DETOKENIZE, {}, 400, "tokens"),
    (DETOKENIZE, {"tokens": [300]}, 400, "tokens"),
    (DETOKENIZE, {"tokens": [-1]}, 400, "tokens"),
    (DETOKENIZE, {"tokens": [2**70]}, 400, "tokens[0]"),
    (DETOKENIZE, {"tokens": "a"}, 400, "tokens"),
    (DETOKENIZE, {"tokens": [1], "model": "other"}, 404, "model"),
]


@pytest.mark.parametrize(("path", "body", "status", "param"), BAD)
def test_what_is_refused_is_named(path: str, body: Any, status: int, param: str | None) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()

    async def scenario(client: httpx.AsyncClient) -> None:
        answer = await client.post(path, content=content)
        assert answer.status_code == status, answer.text
        error = answer.json()["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        assert error["param"] == param
        assert error["message"]
        assert (await client.get("/health")).status_code == 200

    ask(scripted("ok"), scenario, max_body_bytes="1800")


def test_a_long_text_is_encoded_while_others_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    is_encoding, may_end = threading.Event(), threading.Event()
    encode = Tokenizer.encode

    def slow(self: Tokenizer, text: str, **settings: Any) -> list[int]:
        if len(text) > 10_000:
            is_encoding.set()
            assert may_end.wait(10)
        return encode(self, text, **settings)

    monkeypatch.setattr(Tokenizer, "encode", slow)

    async def scenario(client: httpx.AsyncClient) -> None:
        long = asyncio.create_task(client.post(TOKENIZE, json={"prompt": "a" * 20_000}))
        await asyncio.to_thread(is_encoding.wait, 10)
        assert (await client.post(TOKENIZE, json={"prompt": "b"})).json()["count"] == 1
        assert not long.done()
        may_end.set()
        assert (await long).json()["count"] == 20_000

    ask(scripted("ok"), scenario)


def test_long_answers_are_written_where_the_work_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    writers: list[threading.Thread] = []

    def write(value: msgspec.Struct) -> Response:
        writers.append(threading.current_thread())
        return json_response(value)

    monkeypatch.setattr("minnow.server.routes.tokenize.json_response", write)

    async def scenario(client: httpx.AsyncClient) -> None:
        assert (await client.post(TOKENIZE, json={"prompt": "a" * 20_000})).status_code == 200
        assert (await client.post(DETOKENIZE, json={"tokens": [64] * 20_000})).status_code == 200
        assert len(writers) == 2
        assert threading.current_thread() not in writers

    ask(scripted("ok"), scenario)


# A11
def test_a_generated_control_token_shows_nothing() -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        body = chat(ignore_eos=True, max_tokens=5)
        choice = (await client.post(CHAT, json=body)).json()["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("abcd", "length")
        choice = (await client.post(CHAT, json=body | {"skip_special_tokens": False})).json()["choices"][0]
        assert choice["message"]["content"] == f"ab{END}cd"

    ask(scripted(f"ab{END}cd"), scenario)


def test_a_chat_goes_on_with_its_last_message() -> None:
    engine = scripted(" upon")
    messages = [{"role": "user", "content": "tell"}, {"role": "assistant", "content": "Once"}]

    async def scenario(client: httpx.AsyncClient) -> None:
        body = chat(messages=messages, continue_final_message=True)
        error = (await client.post(CHAT, json=body)).json()["error"]
        assert error["param"] == "continue_final_message"
        answer = (await client.post(CHAT, json=body | {"add_generation_prompt": False})).json()
        assert answer["choices"][0]["message"]["content"] == " upon"
        assert BYTES.decode(engine.added[0].token_ids) == "user:tell\nassistant:Once"

    ask(engine, scenario)
