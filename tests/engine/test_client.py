"""EngineClient against a scripted engine: streams, aborts, failures, health"""

import asyncio
import time
from collections.abc import Callable, Coroutine

import pytest

from minnow.core.errors import MinnowError, RequestError
from minnow.core.request import Request, SamplingParams
from minnow.engine.client import EngineClient
from tests.server.scripted import ScriptedEngine


def make(name: str, num_tokens: int = 3) -> Request:
    return Request(request_id=name, token_ids=(1,), sampling=SamplingParams(max_tokens=num_tokens))


def count(request: Request) -> list[int]:
    return list(range(100))


def play(engine: ScriptedEngine, scenario: Callable[[EngineClient], Coroutine[None, None, None]]) -> None:
    async def main() -> None:
        client = EngineClient(engine)
        await client.start()
        try:
            await asyncio.wait_for(scenario(client), timeout=10)
        finally:
            for _ in range(1000):
                engine.gate.release()
            await client.close()

    asyncio.run(main())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def test_outputs_of_a_request_come_in_order_until_it_ends() -> None:
    async def scenario(client: EngineClient) -> None:
        outputs = [output async for output in client.submit([make("a")])]
        assert [output.token_ids for output in outputs] == [(0,), (1,), (2,)]
        assert [output.finish_reason for output in outputs] == [None, None, "length"]
        assert client.num_open == 0

    play(ScriptedEngine(count), scenario)


def test_the_first_token_arrives_before_the_second_step_starts() -> None:
    engine = ScriptedEngine(count, is_gated=True)

    async def scenario(client: EngineClient) -> None:
        stream = client.submit([make("a")])
        engine.gate.release()
        assert (await anext(stream)).token_ids == (0,)
        assert engine.num_steps == 1
        stream.close()

    play(engine, scenario)


def test_several_requests_share_a_stream_and_each_ends() -> None:
    async def scenario(client: EngineClient) -> None:
        outputs = [o async for o in client.submit([make("a", 1), make("b", 4)])]
        ends = {o.request_id: o.finish_reason for o in outputs if o.finish_reason}
        assert ends == {"a": "length", "b": "length"}
        assert sum(len(o.token_ids) for o in outputs) == 5

    play(ScriptedEngine(count), scenario)


def test_leaving_a_stream_aborts_within_a_step_and_spares_the_others() -> None:
    engine = ScriptedEngine(count, is_gated=True)

    async def scenario(client: EngineClient) -> None:
        stays = client.submit([make("stays", 5)])
        async with client.submit([make("goes", 50), make("goes too", 50)]) as stream:
            engine.gate.release()
            await anext(stream)
            steps_before = engine.num_steps
        for _ in range(10):
            engine.gate.release()
        await until(lambda: len(engine.aborted_at) == 2)
        # The step that ran at that moment ends, and no other begins.
        assert set(engine.aborted_at.values()) <= {steps_before, steps_before + 1}
        assert [o.token_ids async for o in stays] == [(i,) for i in range(5)]
        assert client.num_open == 0

    play(engine, scenario)


def test_an_abort_from_outside_ends_the_stream_with_abort() -> None:
    engine = ScriptedEngine(count, is_gated=True)

    async def scenario(client: EngineClient) -> None:
        stream = client.submit([make("a", 50)])
        engine.gate.release()
        await anext(stream)
        client.abort("a")
        client.abort("nobody")
        engine.gate.release()
        reasons = [output.finish_reason async for output in stream]
        assert reasons[-1] == "abort"

    play(engine, scenario)


def test_aborting_one_request_of_a_stream_lets_the_others_go_on() -> None:
    async def scenario(client: EngineClient) -> None:
        stream = client.submit([make("a", 3), make("b", 3)])
        stream.abort("a")
        outputs = [output async for output in stream]
        assert {output.request_id for output in outputs} == {"b"}
        assert outputs[-1].finish_reason == "length"

    play(ScriptedEngine(count), scenario)


def test_a_refusal_by_the_engine_is_raised_before_any_output() -> None:
    engine = ScriptedEngine(count)
    engine.refusal = RequestError("no room", param="prompt", code="full", status=400)

    async def scenario(client: EngineClient) -> None:
        with pytest.raises(RequestError, match="no room") as caught:
            await anext(client.submit([make("a"), make("b")]))
        assert (caught.value.param, caught.value.code, caught.value.status) == ("prompt", "full", 400)
        engine.refusal = None
        assert [o.token_ids async for o in client.submit([make("c", 1)])] == [(0,)]

    play(engine, scenario)


def test_a_failed_step_ends_every_open_request_and_the_engine() -> None:
    engine = ScriptedEngine(count, is_gated=True)

    async def scenario(client: EngineClient) -> None:
        first, second = client.submit([make("a", 50)]), client.submit([make("b", 50)])
        engine.gate.release()
        await anext(first)
        await anext(second)
        engine.step_error = RuntimeError("a kernel broke")
        engine.gate.release()
        for stream in (first, second):
            output = [output async for output in stream][-1]
            assert output.finish_reason == "error"
            assert "a kernel broke" in (output.error or "")
        assert "a kernel broke" in (client.trouble or "")
        with pytest.raises(RequestError) as caught:
            client.submit([make("c")])
        assert caught.value.status == 503
        with pytest.raises(MinnowError, match="does not run"):
            await client.control("known")

    play(engine, scenario)


def test_a_control_is_applied_and_answered() -> None:
    engine = ScriptedEngine(count)

    async def scenario(client: EngineClient) -> None:
        await client.control("known", {"key": "value"})
        assert engine.controls[0].arguments == (("key", "value"),)
        with pytest.raises(MinnowError, match="unknown"):
            await client.control("other")

    play(engine, scenario)


def test_a_waiting_control_hears_of_the_engine_s_end() -> None:
    engine = ScriptedEngine(count, is_gated=True)
    engine.step_error = RuntimeError("broke")

    async def scenario(client: EngineClient) -> None:
        client.submit([make("a")])
        await until(lambda: len(engine.added) == 1)
        waiting = asyncio.create_task(client.control("known"))
        await asyncio.sleep(0)
        engine.gate.release()
        with pytest.raises(MinnowError, match="broke"):
            await waiting

    play(engine, scenario)


def test_statistics_are_true_once_the_engine_is_idle() -> None:
    engine = ScriptedEngine(count)

    async def scenario(client: EngineClient) -> None:
        async for _ in client.submit([make("a", 7)]):
            pass
        await until(lambda: client.stats().generation_tokens == 7)
        assert client.stats().num_running == 0

    play(engine, scenario)


def test_a_step_that_takes_too_long_is_trouble_and_idleness_is_not() -> None:
    engine = ScriptedEngine(count, is_gated=True)
    now_s = 100.0

    async def main() -> None:
        nonlocal now_s
        client = EngineClient(engine, stuck_after_s=60, clock=lambda: now_s)
        assert client.trouble == "it has not started"
        await client.start()
        now_s += 1000  # idle for long
        assert client.trouble is None
        stream = client.submit([make("a", 1)])
        now_s += 59
        assert client.trouble is None
        now_s += 2
        assert client.trouble == "a step has run for 61 s"
        engine.gate.release()
        await anext(stream)
        assert client.trouble is None
        await client.close()
        assert client.trouble == "it has been stopped"

    asyncio.run(main())


def test_closing_ends_what_is_open_and_the_thread() -> None:
    engine = ScriptedEngine(count, is_gated=True)

    async def main() -> None:
        client = EngineClient(engine)
        await client.start()
        stream = client.submit([make("a", 50)])
        await until(lambda: len(engine.added) == 1)
        closing = asyncio.create_task(client.close())
        await asyncio.sleep(0.01)
        engine.gate.release()
        await closing
        outputs = [output async for output in stream]
        assert outputs[-1].finish_reason == "error"
        assert "stopped" in (outputs[-1].error or "")

    asyncio.run(main())


def test_an_idle_engine_costs_no_processor_time() -> None:
    async def scenario(client: EngineClient) -> None:
        before_s = time.process_time()
        await asyncio.sleep(0.2)
        assert time.process_time() - before_s < 0.1

    play(ScriptedEngine(count), scenario)
