"""the in-process channel: order, blocking, stopping"""

import threading

from minnow.core.errors import RequestError
from minnow.core.step import Abort
from minnow.engine.channel import FromEngine, Outputs, Refusal, in_process


def test_messages_come_in_order_and_without_waiting() -> None:
    client, engine = in_process(lambda message: None)
    for name in "abc":
        client.send(Abort(request_id=name))
    assert engine.receive(is_blocking=True) == [Abort(request_id=name) for name in "abc"]
    assert engine.receive(is_blocking=False) == []


def test_a_blocking_receive_wakes_up_on_a_message() -> None:
    client, engine = in_process(lambda message: None)
    got: list[object] = []
    thread = threading.Thread(target=lambda: got.append(engine.receive(is_blocking=True)))
    thread.start()
    client.send(Abort(request_id="late"))
    thread.join(timeout=5)
    assert got == [[Abort(request_id="late")]]


def test_stop_ends_the_receiver_also_behind_messages() -> None:
    client, engine = in_process(lambda message: None)
    client.send(Abort(request_id="a"))
    client.stop()
    assert engine.receive(is_blocking=True) is None


def test_what_the_engine_sends_is_delivered_at_once() -> None:
    got: list[FromEngine] = []
    _, engine = in_process(got.append)
    engine.send(Outputs())
    assert got == [Outputs()]


def test_a_refusal_carries_the_whole_error() -> None:
    error = RequestError("too long", param="prompt", code="context_length_exceeded", status=413)
    again = Refusal.of("r", error).to_error()
    assert (str(again), again.param, again.code, again.status) == (str(error), error.param, error.code, error.status)
