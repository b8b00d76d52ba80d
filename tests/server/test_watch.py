"""when requests begin and end, and what that tells the metrics"""

import asyncio
import time

import httpx
import pytest

from minnow.core.errors import RequestError
from minnow.core.step import TokenOutput
from minnow.server.stream import ClientGone
from minnow.server.watch import CallWatch
from minnow.text.continuation import Continuation
from tests.server.ask import Connection, ask, chat, http, running, scripted
from tests.server.scrape import CHAT, gained, make, make_metrics, read, scrape, until, until_done


def test_times_of_a_request() -> None:
    """Arrived 2 s before its submission, waited 3 s, tokens at 4 s, 6 s and 10 s, read at last."""
    metrics = make_metrics()
    ticks = iter([100.0, 104.0, 106.0, 110.0])
    with CallWatch(metrics, [make("r")], 1, 1000.0, clock=lambda: next(ticks), wall_clock=lambda: 1002.0) as watch:
        watch.arrive(TokenOutput(request_id="r", token_ids=(5,), queued_s=3.0))
        watch.arrive(TokenOutput(request_id="r", token_ids=(5, 6)))
        watch.arrive(TokenOutput(request_id="r", token_ids=(5,), num_preemptions=1, finish_reason="length"))
        for num_tokens, finish_reason in ((1, None), (3, None), (4, "length")):
            watch.take("r", num_tokens, finish_reason)
    sums = {
        "time_to_first_token_seconds": 6,
        "inter_token_latency_seconds": 6,
        "request_time_per_output_token_seconds": 2,
        "e2e_request_latency_seconds": 12,
        "request_queue_time_seconds": 3,
        "request_prefill_time_seconds": 1,
        "request_decode_time_seconds": 6,
        "request_inference_time_seconds": 7,
        "request_num_preemptions": 1,
    }
    samples = read(metrics)
    assert {name: samples[f"vllm:{name}_sum"] for name in sums} == sums
    assert samples["vllm:inter_token_latency_seconds_count"] == 2


def test_a_request_that_never_answers_has_no_times() -> None:
    metrics = make_metrics()
    with CallWatch(metrics, [make("r")], 1, 0.0):
        pass
    samples = read(metrics)
    names = ("time_to_first_token_seconds", "request_prefill_time_seconds", "e2e_request_latency_seconds")
    assert [samples[f"vllm:{name}_count"] for name in names] == [0, 0, 1]


@pytest.mark.parametrize("stop", ["c", None])
def test_times_are_those_of_the_engine_not_of_the_reader(stop: str | None) -> None:
    engine = scripted("abcdefghij", tokens_a_step=2 if stop else 1)

    async def main() -> None:
        async with running(engine) as door, http(door) as client:
            before = await scrape(client)
            started_at = time.perf_counter()
            connection = Connection(door, CHAT, chat(stream=True, stop=stop), num_unread=1)
            await until_done(engine, client)
            took_s = time.perf_counter() - started_at
            await asyncio.sleep(0.3)
            while (await asyncio.wait_for(connection.sent.get(), 10)).get("more_body", True):
                pass
            change = gained(before, await scrape(client))
            assert change["vllm:generation_tokens_total"] == (3 if stop else 11)
            assert change["vllm:request_generation_tokens_sum"] == (3 if stop else 11)
            assert change["vllm:request_success_total[stop]"] == 1
            assert change["vllm:inter_token_latency_seconds_count"] == (5 if stop else 10)
            for name in ("inter_token_latency", "request_decode_time", "e2e_request_latency", "request_inference_time"):
                assert change[f"vllm:{name}_seconds_sum"] < took_s + 0.1

    asyncio.run(main())


def test_a_client_that_leaves_after_the_engine_is_done() -> None:
    engine = scripted("abcdefghij")

    async def main() -> None:
        async with running(engine) as door, http(door) as client:
            before = await scrape(client)
            connection = Connection(door, CHAT, chat(stream=True, max_tokens=5), num_unread=1)
            await until_done(engine, client)
            await connection.leave()
            change = gained(before, await scrape(client))
            assert change["vllm:request_success_total[length]"] == 1
            assert "vllm:request_success_total[abort]" not in change
            assert change["vllm:generation_tokens_total"] == change["vllm:request_generation_tokens_sum"] == 5

    asyncio.run(main())


def test_what_was_drawn_for_a_client_that_leaves_counts() -> None:
    engine = scripted("abcdefghij", is_gated=True)
    engine.num_preemptions = 3

    async def main() -> None:
        async with running(engine) as door, http(door) as client:
            before = await scrape(client)
            connection = Connection(door, CHAT, chat(stream=True), num_unread=1)
            engine.gate.release(4)
            await until(client, "vllm:inter_token_latency_seconds_count", 3)
            await connection.leave()
            change = gained(before, await scrape(client))
            assert change["vllm:request_success_total[abort]"] == 1
            assert change["vllm:generation_tokens_total"] == change["vllm:request_generation_tokens_sum"] == 4
            assert change["vllm:request_num_preemptions_sum"] == 3

    asyncio.run(main())


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (asyncio.CancelledError(), "abort"),
        (GeneratorExit(), "abort"),
        (ClientGone(), "abort"),
        (KeyError("mistake"), "error"),
        (AssertionError(), "error"),
    ],
)
def test_who_ended_a_request(error: BaseException, reason: str) -> None:
    metrics = make_metrics()
    requests = [make(name) for name in ("waits", "runs", "done", "read")]
    with pytest.raises(type(error)), CallWatch(metrics, requests, 1, 1000.0) as watch:
        watch.arrive(TokenOutput(request_id="runs", token_ids=(5,)))
        for name in ("done", "read"):
            watch.arrive(TokenOutput(request_id=name, token_ids=(5,), finish_reason="length"))
        watch.take("read", 1, "length")
        raise error
    samples = read(metrics)
    ends = {name: samples[f"vllm:request_success_total[{name}]"] for name in ("length", "abort", "error")}
    assert ends == (
        {"length": 2, "abort": 2, "error": 0} if reason == "abort" else {"length": 1, "abort": 0, "error": 3}
    )


def test_a_mistake_of_ours_amid_an_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        before = await scrape(client)
        with monkeypatch.context() as broken:
            broken.setattr(Continuation, "take", None)
            assert (await client.post(CHAT, json=chat(n=2))).status_code == 500
        change = gained(before, await scrape(client))
        assert change["vllm:request_success_total[error]"] == 2
        assert "vllm:request_success_total[abort]" not in change

    ask(scripted("ok"), scenario)


def test_what_had_begun_before_a_refusal_was_aborted() -> None:
    metrics = make_metrics()
    refusal = RequestError("too large", code="cache_capacity_exceeded")
    with pytest.raises(RequestError), CallWatch(metrics, [make("begun"), make("refused")], 1, 1000.0) as watch:
        watch.arrive(TokenOutput(request_id="begun", token_ids=(5, 6)))
        raise refusal
    samples = read(metrics)
    assert samples["vllm:admission_rejections_total"] == 1
    assert samples["vllm:request_success_total[abort]"] == samples["vllm:e2e_request_latency_seconds_count"] == 1
    assert samples["vllm:generation_tokens_total"] == 2


def test_whatever_is_open_when_one_fails_was_aborted() -> None:
    """The second of three fails 1 s after the call; the third had no answer yet; the call is left after 3 s."""
    metrics = make_metrics()
    ticks = iter([100.0, 100.5, 101.0, 103.0, 103.0])
    watch = CallWatch(
        metrics, [make(n) for n in "abc"], 1, 1000.0, clock=lambda: next(ticks), wall_clock=lambda: 1000.0
    )
    with pytest.raises(RequestError), watch:
        watch.arrive(TokenOutput(request_id="b", token_ids=(5,), num_preemptions=2))
        watch.arrive(TokenOutput(request_id="b", finish_reason="error", error="the engine failed"))
        raise RequestError("the engine failed", code="engine_error", status=500)
    samples = read(metrics)
    assert samples["vllm:request_success_total[error]"] == 1
    assert samples["vllm:request_success_total[abort]"] == 2
    assert samples["vllm:e2e_request_latency_seconds_sum"] == 1 + 3 + 3
    assert samples["vllm:request_num_preemptions_sum"] == 2


def test_the_longest_answer_need_not_be_the_last() -> None:
    metrics = make_metrics()
    with CallWatch(metrics, [make(name) for name in "abc"], 3, 1000.0) as watch:
        for name, num_tokens in (("a", 2), ("b", 5), ("c", 1)):
            watch.arrive(TokenOutput(request_id=name, token_ids=(5,) * num_tokens, finish_reason="stop"))
            watch.take(name, num_tokens, "stop")
    samples = read(metrics)
    assert samples["vllm:request_max_num_generation_tokens_sum"] == 5
    assert samples["vllm:request_max_num_generation_tokens_count"] == 1
