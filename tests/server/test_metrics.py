"""case G07: numbers that can be trusted"""

import asyncio
import itertools
from typing import Any

import httpx
import pytest

from minnow.core.errors import RequestError
from minnow.core.request import Request
from minnow.core.step import EngineStats
from minnow.engine.client import EngineClient
from minnow.engine.host import EngineThread
from minnow.server.metrics import TABLE, Metrics
from tests.server.ask import MODEL_NAME, Connection, ask, chat, completion, http, running, scripted, spell
from tests.server.scrape import CHAT, COMPLETIONS, Samples, gained, parse, scrape, until
from tests.server.scripted import ScriptedEngine


def test_everything_exists_from_the_start_with_the_value_0() -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        samples = await scrape(client)
        assert samples.pop("minnow:server_tasks") >= 1
        assert set(samples.values()) == {0}
        for row in TABLE:
            ends = ("_bucket[+Inf]", "_sum", "_count") if row.kind == "histogram" else ("",)
            values = [] if row.read_each else [f"[{value}]" for value in row.values if value] or [""]
            for end, value in itertools.product(ends, values):
                assert row.exported_name + end + value in samples or row.name == "minnow:server_tasks"

    ask(scripted("ok"), scenario)


def test_the_text_names_each_kind() -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        lines = (await client.get("/metrics")).text.splitlines()
        types = [line for line in lines if line.startswith("# TYPE")]
        assert sorted(types) == sorted(f"# TYPE {row.exported_name} {row.kind}" for row in TABLE)

    ask(scripted("ok"), scenario)


@pytest.mark.parametrize("max_model_len", [50, 64, 99])
def test_buckets_end_at_the_context(max_model_len: int) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        names = [name for name in await scrape(client) if name.startswith("vllm:request_prompt_tokens_bucket")]
        bounds = [name.partition("[")[2] for name in names]
        assert bounds == ["1.0]", "2.0]", "5.0]", "10.0]", "20.0]", "50.0]", "+Inf]"]
        await client.post(CHAT, json=chat(max_tokens=1))
        samples = await scrape(client)
        assert [samples[name] for name in names] == [0, 0, 0, 0, 1, 1, 1]

    ask(scripted("ok", max_model_len=max_model_len), scenario)


async def until_halted(engine: ScriptedEngine) -> None:
    """Take the permits of a gated engine, and wait until it waits for one."""
    while engine.gate.acquire(blocking=False):
        pass
    await asyncio.sleep(0.02)  # the last step may have begun
    async with asyncio.timeout(10):
        while not engine.is_at_gate:
            await asyncio.sleep(0.001)


def expect_known_load(change: Samples, usages: list[dict[str, Any]], engine: ScriptedEngine, num_drawn: int) -> None:
    """The metrics say what the answers said; num_drawn tokens went to clients that left."""
    assert change["vllm:request_success_total[abort]"] == 3
    assert change["vllm:request_success_total[error]"] == 1
    assert change["vllm:request_success_total[stop]"] == 1
    assert change["vllm:request_success_total[length]"] == 4
    assert change["minnow:http_errors_total[400]"] == 1
    assert change["minnow:http_errors_total[500]"] == 1
    num_generated = sum(usage["completion_tokens"] for usage in usages)
    assert change["vllm:generation_tokens_total"] == num_generated + num_drawn
    num_prompt = sum(usage["prompt_tokens"] for usage in usages)
    assert change["vllm:prompt_tokens_total"] == num_prompt + 3 * 18
    num_cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages) + 3 * 9
    assert num_cached == (num_prompt + 3 * 18) / 2
    assert change["vllm:prompt_tokens_cached_total"] == num_cached
    assert change["vllm:prompt_tokens_cached_by_source_total[device]"] == num_cached
    assert change["vllm:prompt_tokens_by_source_total[local_cache_hit]"] == num_cached
    assert change["vllm:prompt_tokens_by_source_total[local_compute]"] == num_prompt + 3 * 18 - num_cached
    assert change["vllm:request_prefill_kv_computed_tokens_sum"] == num_prompt + 3 * 18 - num_cached
    assert change["vllm:request_generation_tokens_sum"] == num_generated + num_drawn
    assert change["vllm:request_params_max_tokens_count"] == 9
    limits = [request.sampling.max_tokens or 0 for request in engine.added]
    assert change["vllm:request_params_max_tokens_sum"] == sum(limits) > 9
    assert change["vllm:e2e_request_latency_seconds_count"] == 9
    assert change["vllm:time_to_first_token_seconds_count"] == 8
    # The engine may draw some more tokens before it hears that a stop string ended a request.
    num_more = change["vllm:inter_token_latency_seconds_count"] - (num_generated - 5 + num_drawn - 3)
    assert 0 <= num_more < 60
    assert change["vllm:request_queue_time_seconds_sum"] == 8 * 0.25
    assert change["vllm:request_num_preemptions_sum"] == 8 * 2
    assert change["vllm:iteration_tokens_total_sum"] == engine.num_steps
    assert "minnow:server_tasks" not in change
    assert "minnow:open_requests" not in change


def test_a_known_load() -> None:
    """Ten requests: three aborted, one refused, one failed, five answered, half of their tokens cached."""
    engine = scripted("abcdefgh" * 8, is_gated=True, max_model_len=60)
    engine.num_cached_tokens = 9
    engine.queued_s = 0.25
    engine.num_preemptions = 2
    script = engine._script

    def failing(request: Request) -> Any:
        if bytes(spell("fail")[:-1]) in bytes(i % 256 for i in request.token_ids):
            engine.failing_ids.add(request.request_id)
        return script(request)

    engine._script = failing

    async def main() -> None:
        async with running(engine) as door, http(door) as client:
            before = await scrape(client)
            left = [Connection(door, CHAT, chat(stream=True)) for _ in range(3)]
            await until(client, "minnow:open_requests", 3)
            async with asyncio.timeout(10):
                while (during := await scrape(client))["vllm:time_to_first_token_seconds_count"] < 3:
                    engine.gate.release()
                    await asyncio.sleep(0.01)
            await until_halted(engine)
            num_drawn = engine.num_drawn_tokens
            await until(client, "vllm:inter_token_latency_seconds_count", num_drawn - 3)
            assert during["minnow:open_requests"] == 3
            for connection in left:
                while (await asyncio.wait_for(connection.sent.get(), 10))["type"] != "http.response.body":
                    pass
                await connection.leave()
            async with asyncio.timeout(10):
                while len(engine.aborted_at) < 3:
                    engine.gate.release()
                    await asyncio.sleep(0.001)
            for _ in range(500):
                engine.gate.release()
            usages = [
                (await client.post(path, json=body)).json()["usage"]
                for path, body in (
                    (CHAT, chat(max_tokens=4)),
                    (CHAT, chat(stop="cd")),
                    (CHAT, chat()),
                    (COMPLETIONS, completion(prompt="ninechars" * 2, max_tokens=7)),
                    (CHAT, chat(stop="ef", max_tokens=3)),
                )
            ]
            assert (await client.post(CHAT, json=chat(max_tokens=1000))).status_code == 400
            failed = await client.post(COMPLETIONS, json=completion(prompt="fail please, now"))
            assert failed.status_code == 500
            expect_known_load(gained(before, await scrape(client)), usages, engine, num_drawn)

    asyncio.run(main())


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("streams", [True, False])
def test_several_prompts_and_choices(path: str, streams: bool) -> None:
    engine = scripted("abcdef")
    engine.num_cached_tokens = 1

    async def scenario(client: httpx.AsyncClient) -> None:
        before = await scrape(client)
        body = chat(n=3, stop="e") if path == CHAT else completion(prompt=["hi", "you"], n=3, stop="e")
        usage = (await client.post(path, json=body)).json()["usage"]
        if streams:
            before = await scrape(client)
            await client.post(path, json=body | {"stream": True})
        change = gained(before, await scrape(client))
        num_prompts = 1 if path == CHAT else 2
        assert change["vllm:prompt_tokens_total"] == usage["prompt_tokens"]
        assert change["vllm:prompt_tokens_cached_total"] == usage["prompt_tokens_details"]["cached_tokens"]
        assert change["vllm:generation_tokens_total"] == usage["completion_tokens"]
        assert change["vllm:request_success_total[stop]"] == 3 * num_prompts
        assert change["vllm:request_prompt_tokens_sum"] == 3 * usage["prompt_tokens"]
        assert change["vllm:request_params_n_count"] == num_prompts
        assert change["vllm:request_params_n_sum"] == 3 * num_prompts
        assert change["vllm:request_max_num_generation_tokens_sum"] == 5 * num_prompts
        assert "vllm:request_success_total[abort]" not in change

    ask(engine, scenario)


def test_refusals_of_the_engine() -> None:
    engine = scripted("ok")

    async def scenario(client: httpx.AsyncClient) -> None:
        before = await scrape(client)
        engine.refusal = RequestError("too large", code="cache_capacity_exceeded")
        await client.post(CHAT, json=chat(n=2))
        engine.refusal = RequestError("odd", code="other")
        await client.post(CHAT, json=chat())
        change = gained(before, await scrape(client))
        change.pop("minnow:server_tasks", None)
        assert change == {"vllm:admission_rejections_total": 1, "minnow:http_errors_total[400]": 2}

    ask(engine, scenario)


def test_errors_by_status() -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        client.headers["Authorization"] = "Bearer key"
        before = await scrape(client)
        await client.get("/nothing")
        await client.get(CHAT)
        await client.get("/metrics", headers={"Authorization": "Bearer other"})
        await client.post(CHAT, content=b"x" * 2000)
        await client.post(CHAT, content=b"{")
        change = gained(before, await scrape(client))
        change.pop("minnow:server_tasks", None)
        assert change == {f"minnow:http_errors_total[{status}]": 1 for status in (404, 405, 401, 413, 400)}

    ask(scripted("ok"), scenario, api_key="key", max_body_bytes="1000")


def test_a_client_that_leaves_before_its_whole_answer() -> None:
    engine = scripted("ok", is_gated=True)

    async def main() -> None:
        async with running(engine) as door, http(door) as client:
            connection = Connection(door, CHAT, chat(n=2))
            await until(client, "minnow:open_requests", 2)
            await connection.leave()
            samples = await scrape(client)
            assert samples["minnow:http_errors_total[499]"] == 1
            assert samples["vllm:request_success_total[abort]"] == 2
            assert samples["vllm:prompt_tokens_total"] == 0

    asyncio.run(main())


def test_our_own_mistakes_are_errors_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        with monkeypatch.context() as broken:
            broken.setattr(Metrics, "render", None)
            assert (await client.get("/metrics")).status_code == 500
        assert (await scrape(client))["minnow:http_errors_total[500]"] == 1

    ask(scripted("ok"), scenario)


def test_an_engine_that_dies_ends_every_request_once() -> None:
    engine = scripted("abc")

    async def scenario(client: httpx.AsyncClient) -> None:
        before = await scrape(client)
        engine.step_error = RuntimeError("broken")
        assert (await client.post(CHAT, json=chat(n=2))).status_code == 500
        assert (await client.post(CHAT, json=chat())).status_code == 503
        change = gained(before, await scrape(client))
        assert change["vllm:request_success_total[error]"] == 2
        assert "vllm:request_success_total[abort]" not in change
        assert change["minnow:http_errors_total[503]"] == 1

    ask(engine, scenario)


def test_servers_of_one_process_count_apart() -> None:
    async def main() -> None:
        async with (
            running(scripted("ok")) as one,
            running(scripted("ok")) as other,
            http(one) as client,
            http(other) as idle,
        ):
            await client.post(CHAT, json=chat())
            assert (await scrape(client))["vllm:request_success_total[stop]"] == 1
            assert (await scrape(idle))["vllm:request_success_total[stop]"] == 0

    asyncio.run(main())


def test_gauges_and_counters_of_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    client = EngineClient(EngineThread(scripted("ok")))
    metrics = Metrics(client, MODEL_NAME)

    async def read_with(stats: EngineStats) -> Samples:
        monkeypatch.setattr(client, "stats", lambda: stats)
        return parse(metrics.render().decode())

    async def main() -> None:
        stats = EngineStats(
            num_running=3, num_waiting=2, num_blocks=8, num_free_blocks=6, prefix_queries_tokens=100,
            prefix_hits_tokens=60, num_preemptions=4, num_errors=1,
        )  # fmt: skip
        samples = await read_with(stats)
        right = {
            "num_requests_running": 3, "num_requests_waiting": 2, "num_requests_waiting_by_reason[capacity]": 2,
            "kv_cache_usage_perc": 0.25, "prefix_cache_queries_total": 100, "prefix_cache_hits_total": 60,
            "num_preemptions_total": 4, "corrupted_requests_total": 1,
        }  # fmt: skip
        assert {name: samples[f"vllm:{name}"] for name in right} == right
        for num_hits, most in ((40, 60), (70, 70), (0, 70)):  # counters never go down, gauges do
            samples = await read_with(EngineStats(prefix_hits_tokens=num_hits))
            assert samples["vllm:prefix_cache_hits_total"] == most
        assert samples["vllm:num_requests_running"] == 0

    asyncio.run(main())


def test_names_are_once_in_the_table() -> None:
    names = [row.exported_name for row in TABLE]
    assert len(names) == len(set(names))
