"""text as clients get it: stop strings, characters over several tokens, choices, seeds, parallel streams"""

import asyncio
from typing import Any

import httpx
import pytest

from tests.server.ask import BYTES, END_ID, MODEL_NAME, ask, chat, chat_text, completion, events, scripted, spell
from tests.server.scripted import ScriptedEngine, byte_tokenizer

ALPHABET = "ABC DEF GHI JKL"


async def both_ways(client: httpx.AsyncClient, **fields: Any) -> tuple[str, dict[str, Any], list[str]]:
    """A chat whole and streamed: the text, the whole choice, and the streamed pieces; they must agree."""
    whole = (await client.post("/v1/chat/completions", json=chat(**fields))).json()
    chunks = events((await client.post("/v1/chat/completions", json=chat(stream=True, **fields))).text)
    choice = whole["choices"][0]
    last = chunks[-1]["choices"][0]
    assert chat_text(chunks) == choice["message"]["content"]
    assert (last["finish_reason"], last["stop_reason"]) == (choice["finish_reason"], choice["stop_reason"])
    pieces = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
    return choice["message"]["content"], choice, pieces


# D01
@pytest.mark.parametrize("tokens_a_step", [1, 2, 3, 7, 50])
@pytest.mark.parametrize(
    ("fields", "text", "reason"),
    [
        ({"stop": ["DEF GHI"]}, "ABC ", "DEF GHI"),
        ({"stop": "DEF GHI", "include_stop_str_in_output": True}, "ABC DEF GHI", "DEF GHI"),
        ({"stop": ["DEF GHI", "DEF", "JKL", "zzz"]}, "ABC ", "DEF"),
        ({"stop": ["GHI JKL", "F G"]}, "ABC DE", "F G"),
        ({"stop": ["DEF GHJ"]}, ALPHABET, None),
        ({"stop": ["JKLM", "L J"]}, ALPHABET, None),
        ({"stop": ["ABC"]}, "", "ABC"),
        ({"stop": "A", "min_tokens": 1}, "", "A"),
        ({"stop": "A", "min_tokens": 3}, ALPHABET, None),
        ({"stop": ["DEF GHI"], "max_tokens": 8}, "ABC DEF ", None),
    ],
)
def test_stop_strings(tokens_a_step: int, fields: dict[str, Any], text: str, reason: str | None) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        got, choice, _ = await both_ways(client, **fields)
        assert got == text
        assert choice["stop_reason"] == reason
        assert choice["finish_reason"] == ("length" if fields.get("max_tokens") and reason is None else "stop")

    ask(scripted(ALPHABET, tokens_a_step=tokens_a_step), scenario)


# D01
def test_only_a_true_prefix_of_a_stop_string_is_held_back() -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        _, _, pieces = await both_ways(client, stop=["DEX"])
        assert pieces == ["A", "B", "C", " ", "DEF", *" GHI JKL", ""]

    ask(scripted(ALPHABET), scenario)


def test_a_stop_string_aborts_the_request_and_counts_the_tokens_up_to_it() -> None:
    engine = scripted(ALPHABET * 100_000, max_model_len=10**6)

    async def scenario(client: httpx.AsyncClient) -> None:
        answer = (await client.post("/v1/chat/completions", json=chat(stop="DEF"))).json()
        assert answer["usage"]["completion_tokens"] == 7
        while not engine.aborted_at:
            await asyncio.sleep(0.001)

    ask(engine, scenario)


def test_the_client_s_stop_token_is_named_and_not_shown_unless_asked_for() -> None:
    (letter,) = spell("G")[:-1]

    async def scenario(client: httpx.AsyncClient) -> None:
        text, choice, _ = await both_ways(client, stop_token_ids=[letter])
        assert (text, choice["finish_reason"], choice["stop_reason"]) == ("ABC DEF ", "stop", letter)
        text, _, _ = await both_ways(client, stop_token_ids=[letter], include_stop_str_in_output=True)
        assert text == "ABC DEF G"
        text, choice, _ = await both_ways(client)
        assert (text, choice["finish_reason"], choice["stop_reason"]) == (ALPHABET, "stop", None)

    ask(scripted(ALPHABET), scenario)


# D03
@pytest.mark.parametrize("max_tokens", range(1, 15))
def test_characters_over_several_tokens_are_never_shown_in_part(max_tokens: int) -> None:
    text = "a\u00e9\u4e16\U0001f600z\u00fc"  # 1, 2, 3, 4, 1 and 2 bytes, a token each
    ends = [1, 3, 6, 10, 11, 13]

    async def scenario(client: httpx.AsyncClient) -> None:
        got, _, pieces = await both_ways(client, max_tokens=max_tokens)
        num_whole = sum(end <= max_tokens for end in ends)
        assert got.rstrip("\ufffd") == text[:num_whole]
        assert all("\ufffd" not in piece for piece in pieces[:-1])
        is_cut = max_tokens < len(text.encode()) and max_tokens not in ends
        assert ("\ufffd" in pieces[-1]) == is_cut

    ask(scripted(text), scenario)


# D03
def test_log_probabilities_carry_the_raw_bytes_of_each_token() -> None:
    text = "\u4e16!"

    async def scenario(client: httpx.AsyncClient) -> None:
        body = chat(logprobs=True, max_tokens=4, ignore_eos=True)
        content = (await client.post("/v1/chat/completions", json=body)).json()["choices"][0]["logprobs"]["content"]
        assert bytes(byte for entry in content for byte in entry["bytes"]) == text.encode()
        assert [entry["token"] for entry in content] == [r"bytes:\xe4", r"bytes:\xb8", r"bytes:\x96", "!"]

    ask(scripted(text), scenario)


def test_words_of_several_characters_stream_as_they_are() -> None:
    tokenizer = byte_tokenizer(["Hello", " world", "\U0001f600 x"])
    words = [256, 257, 258]

    async def scenario(client: httpx.AsyncClient) -> None:
        text, _, pieces = await both_ways(client, max_tokens=3)
        assert text == "Hello world\U0001f600 x"
        assert pieces == ["Hello", " world", "\U0001f600 x"]

    ask(ScriptedEngine(lambda request: words), scenario, tokenizer)


def test_rows_of_the_model_without_a_word_are_silent() -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        text, _, _ = await both_ways(client, max_tokens=3, logprobs=True)
        assert text == "ab"

    ask(ScriptedEngine(lambda request: [spell("a")[0], 299, spell("b")[0]]), scenario)


def test_a_prompt_may_hold_ids_without_a_word() -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        body = completion(prompt=[*spell("a")[:-1], 299], echo=True, max_tokens=1)
        answer = await client.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["text"] == "ab"

    ask(scripted("b"), scenario)


def test_n_choices_have_seeds_of_their_own_that_repeat() -> None:
    engine = ScriptedEngine(lambda request: spell(str((request.sampling.seed or 0) % 97)), end_token_id=END_ID or 0)

    async def scenario(client: httpx.AsyncClient) -> None:
        answers = [
            (await client.post("/v1/chat/completions", json=chat(n=3, seed=seed))).json()
            for seed in (42, 42, 2**63 - 1)
        ]
        texts = [[choice["message"]["content"] for choice in answer["choices"]] for answer in answers]
        assert texts[0] == texts[1] == ["42", "43", "44"]
        assert len(set(texts[2])) == 3
        assert [choice["index"] for choice in answers[0]["choices"]] == [0, 1, 2]
        await client.post("/v1/chat/completions", json=chat(n=2))
        assert [request.sampling.seed for request in engine.added[-2:]] == [None, None]

    ask(engine, scenario)


def test_one_choice_may_end_by_a_stop_string_while_others_go_on() -> None:
    engine = ScriptedEngine(
        lambda request: spell("ab|cd" if request.request_id.endswith("-1") else "abcdef"), end_token_id=END_ID or 0
    )

    async def scenario(client: httpx.AsyncClient) -> None:
        answer = (await client.post("/v1/chat/completions", json=chat(n=3, stop="|"))).json()
        assert [choice["message"]["content"] for choice in answer["choices"]] == ["abcdef", "ab", "abcdef"]
        assert [choice["stop_reason"] for choice in answer["choices"]] == [None, "|", None]

    ask(engine, scenario)


def test_what_the_client_asks_for_reaches_the_engine() -> None:
    engine = scripted("ok")

    async def scenario(client: httpx.AsyncClient) -> None:
        fields = {
            "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "presence_penalty": 0.3, "seed": 7,
            "frequency_penalty": -0.2, "repetition_penalty": 1.1, "min_tokens": 1, "stop_token_ids": [3],
            "logit_bias": {"5": -100, "7": 1.5}, "allowed_token_ids": [1, 2], "max_tokens": 9, "ignore_eos": False,
        }  # fmt: skip
        body = completion(prompt=[1, 2, 3], priority=-2, cache_salt="mine", logprobs=2, **fields)
        assert (await client.post("/v1/completions", json=body)).status_code == 200
        (request,) = engine.added
        assert request.token_ids == (1, 2, 3)
        assert (request.priority, request.cache_salt) == (-2, "mine")
        sampling = request.sampling
        for name in fields.keys() - {"stop_token_ids", "logit_bias", "allowed_token_ids"}:
            assert getattr(sampling, name) == fields[name], name
        assert sampling.logit_bias == ((5, -100.0), (7, 1.5))
        assert (sampling.stop_token_ids, sampling.allowed_token_ids, sampling.logprobs) == ((3,), (1, 2), 2)

    ask(engine, scenario)


# D16
def test_parallel_streams_do_not_mix() -> None:
    words = [f"{i}\u00e9\U0001f600{'xyz'[: i % 4]}" * (1 + i % 3) for i in range(16)]
    engine = ScriptedEngine(
        lambda request: spell(words[int(request.cache_salt or 0)]), end_token_id=END_ID or 0, max_model_len=128
    )

    async def scenario(client: httpx.AsyncClient) -> None:
        async def one(i: int) -> None:
            body = chat(cache_salt=str(i), stop=["\U0001f600\U0001f600"])
            streamed, whole = await asyncio.gather(
                client.post("/v1/chat/completions", json=body | {"stream": True}),
                client.post("/v1/chat/completions", json=body),
            )
            chunks = events(streamed.text)
            assert chat_text(chunks) == words[i] == whole.json()["choices"][0]["message"]["content"]
            roles = [chunk["choices"][0]["delta"].get("role") for chunk in chunks]
            assert roles == ["assistant"] + [None] * (len(chunks) - 1)
            assert len({chunk["id"] for chunk in chunks}) == 1
            assert len({chunk["created"] for chunk in chunks}) == 1
            assert {chunk["model"] for chunk in chunks} == {MODEL_NAME}
            assert all("usage" not in chunk for chunk in chunks)

        await asyncio.gather(*(one(i) for i in range(16)))

    ask(engine, scenario)


# D16
def test_an_answer_can_be_sent_back_as_history() -> None:
    engine = scripted("fine", max_model_len=200)

    async def scenario(client: httpx.AsyncClient) -> None:
        answer = (await client.post("/v1/chat/completions", json=chat())).json()["choices"][0]["message"]
        call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
        history = [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]},
            answer | {"reasoning": "hm", "refusal": None, "logprobs": None, "annotations": []},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "4"},
            {"role": "assistant", "content": ""},
        ]
        got = await client.post("/v1/chat/completions", json=chat(messages=history, tools=[]))
        assert got.status_code == 200, got.text
        assert BYTES.decode(engine.added[-1].token_ids) == (
            "system:be brief\nuser:one two\nassistant:fine\nassistant:\ntool:4\nassistant:\nassistant:"
        )

    ask(engine, scenario)
