"""EngineClient against a scripted engine: streams, aborts, failures, health"""

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace

import pytest

from minnow.core.errors import MinnowError, RequestError
from minnow.core.request import Request, SamplingParams
from minnow.core.step import TokenOutput
from minnow.engine.client import EngineClient
from minnow.engine.host import EngineThread, Host
from tests.engine.hosts import EngineBehindSocket
from tests.server.scripted import ScriptedEngine

new_host: Callable[[ScriptedEngine], Host] = EngineThread


@pytest.fixture(params=[EngineThread, EngineBehindSocket], autouse=True)
def _both_channels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "new_host", request.param)


def make(name: str, num_tokens: int = 3) -> Request:
    return Request(request_id=name, token_ids=(1,), sampling=SamplingParams(max_tokens=num_tokens))


def count(request: Request) -> list[int]:
    return list(range(100))


def play(engine: ScriptedEngine, scenario: Callable[[EngineClient], Coroutine[None, None, None]]) -> None:
    async def main() -> None:
        client = EngineClient(new_host(engine))
        await client.start()
        await client.ready()
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


async def all_in(engine: ScriptedEngine, num_requests: int) -> None:
    """Let a gated engine make steps until it has read so many requests; it waits at its gate then."""
    while len(engine.added) < num_requests:
        engine.gate.release()
        await asyncio.sleep(0.01)
    while engine.gate.acquire(blocking=False):
        pass


@contextlib.asynccontextmanager
async def pacing(engine: ScriptedEngine) -> AsyncIterator[None]:
    """Let a gated engine make steps, slowly enough for messages to arrive in between."""

    async def pace() -> None:
        while True:
            await asyncio.sleep(0.02)
            engine.gate.release()

    task = asyncio.create_task(pace())
    try:
        yield
    finally:
        task.cancel()


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


def test_outputs_are_observed_when_they_arrive_whoever_reads_them() -> None:
    async def scenario(client: EngineClient) -> None:
        seen: list[TokenOutput] = []
        stream = client.submit([make("a")], seen.append)
        await until(lambda: client.num_open == 0)
        assert [output.token_ids for output in seen] == [(0,), (1,), (2,)]
        assert [output async for output in stream] == seen

    play(ScriptedEngine(count), scenario)


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
        stays = client.submit([make("stays", 50)])
        async with client.submit([make("goes", 50), make("goes too", 50)]) as stream:
            await all_in(engine, 3)
            engine.gate.release()
            await anext(stream)
            steps_before = engine.num_steps
        async with pacing(engine):
            await until(lambda: len(engine.aborted_at) == 2)
            # The step that ran at that moment ends, and no other begins once the message is there.
            assert max(engine.aborted_at.values()) <= steps_before + 3
            assert [o.token_ids async for o in stays] == [(i,) for i in range(50)]
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
        async with pacing(engine):
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
        await all_in(engine, 2)
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
        with pytest.raises(MinnowError, match="takes no requests"):
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
        client = EngineClient(new_host(engine), step_timeout_s=60, frozen_after_s=1e9, clock=lambda: now_s)
        assert client.trouble == "it has not started"
        await client.start()
        assert "starting" in (client.trouble or "")
        await client.ready()
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
        client = EngineClient(new_host(engine))
        await client.start()
        await client.ready()
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


# G01
def test_a_step_without_end_ends_every_request_and_its_end_heals_the_engine() -> None:
    engine = ScriptedEngine(count, is_gated=True)

    async def main() -> None:
        client = EngineClient(new_host(engine), step_timeout_s=0.3)
        await client.start()
        await client.ready()
        streams = [client.submit([make("a", 100_000)]), client.submit([make("b", 100_000)])]
        for stream in streams:
            (output,) = [output async for output in stream]
            assert output.finish_reason == "error"
            assert "the engine hangs: a step has run for" in (output.error or "")
        assert client.num_open == 0
        for _ in range(20):  # nothing is open any more, and it still hangs
            assert "a step has run for" in (client.trouble or "")
            with pytest.raises(RequestError, match="a step has run for"):
                client.submit([make("refused")])
            await asyncio.sleep(0.05)
        async with pacing(engine):
            await until(lambda: engine.is_idle)
            assert set(engine.aborted_at) == {"a", "b"}
            await until(lambda: client.trouble is None)
            assert [o.token_ids async for o in client.submit([make("c", 2)])] == [(0,), (1,)]
        await client.close()

    asyncio.run(asyncio.wait_for(main(), timeout=20))


# G01
def test_a_hang_is_trouble_also_when_the_clients_have_left() -> None:
    engine = ScriptedEngine(count, is_gated=True)

    async def main() -> None:
        client = EngineClient(new_host(engine), step_timeout_s=0.3)
        await client.start()
        await client.ready()
        async with client.submit([make("a", 50)]):
            await until(lambda: engine.is_at_gate)
        await until(lambda: client.trouble is not None)
        assert "a step has run for" in (client.trouble or "")
        async with pacing(engine):
            await until(lambda: client.trouble is None)
        await client.close()

    asyncio.run(asyncio.wait_for(main(), timeout=20))


def test_an_idle_engine_owes_nothing() -> None:
    engine = ScriptedEngine(count)
    engine.refusal = RequestError("no room")

    async def main() -> None:
        client = EngineClient(new_host(engine), step_timeout_s=0.2)
        await client.start()
        await client.ready()
        with pytest.raises(RequestError, match="no room"):
            await anext(client.submit([make("a")]))
        await client.control("known")
        client.abort("nobody")
        await until(lambda: client.silent_s == 0.0)
        await asyncio.sleep(0.5)
        assert client.trouble is None
        await client.close()

    asyncio.run(asyncio.wait_for(main(), timeout=20))


def test_a_message_that_cannot_be_sent_is_its_sender_s_error() -> None:
    engine = ScriptedEngine(count)

    async def scenario(client: EngineClient) -> None:
        if new_host is EngineBehindSocket:
            with pytest.raises((OverflowError, UnicodeEncodeError)):
                client.submit([replace(make("a"), cache_salt="\ud800")])
        assert [o.token_ids async for o in client.submit([make("b", 1)])] == [(0,)]

    play(engine, scenario)


# G01
def test_an_engine_that_gives_no_sign_of_life_is_trouble_even_when_idle() -> None:
    engine = ScriptedEngine(count)
    now_s = 0.0

    async def main() -> None:
        nonlocal now_s
        client = EngineClient(new_host(engine), clock=lambda: now_s)
        await client.start()
        await client.ready()
        now_s += 9
        assert "no sign of life for 9 s" in (client.trouble or "")
        with pytest.raises(RequestError, match="no sign of life") as caught:
            client.submit([make("a")])
        assert (caught.value.status, caught.value.code) == (503, "engine_unavailable")
        await until(lambda: client.trouble is None)  # the next sign heals it
        assert [o.token_ids async for o in client.submit([make("a", 1)])] == [(0,)]
        await client.close()

    asyncio.run(asyncio.wait_for(main(), timeout=20))


# G02
def test_a_draining_client_finishes_what_is_open_and_takes_nothing_new() -> None:
    engine = ScriptedEngine(count, is_gated=True)

    async def scenario(client: EngineClient) -> None:
        stream = client.submit([make("a", 3)])
        client.drain()
        assert client.trouble == "the server is shutting down"
        with pytest.raises(RequestError, match="shutting down") as caught:
            client.submit([make("b")])
        assert caught.value.status == 503
        async with pacing(engine):
            assert [output.finish_reason async for output in stream][-1] == "length"

    play(engine, scenario)


def test_tokens_of_each_step_are_told() -> None:
    engine = ScriptedEngine(count)
    seen: list[int] = []

    async def scenario(client: EngineClient) -> None:
        client.on_step = seen.append
        async for _ in client.submit([make("a", 4)]):
            pass
        assert seen == [1, 1, 1, 1]

    play(engine, scenario)
