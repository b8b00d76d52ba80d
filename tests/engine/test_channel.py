"""the channel: order, blocking, stopping, ends that leave"""

import queue
import threading
from multiprocessing import Pipe

from minnow.core.errors import RequestError
from minnow.core.request import Request
from minnow.core.step import Abort, TokenOutput
from minnow.engine.channel import Closed, FromEngine, Outputs, Refusal, client_end, engine_end, in_process


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


def test_what_cannot_be_read_ends_the_client_s_side_instead_of_making_it_deaf() -> None:
    ours, theirs = Pipe()
    got: queue.SimpleQueue[FromEngine] = queue.SimpleQueue()
    client_end(ours, got.put, lambda: "it left")
    theirs.send_bytes(b"\xff nonsense")
    closed = got.get(timeout=5)
    assert isinstance(closed, Closed) and "could not be read" in (closed.error or "")
    theirs.close()


def test_a_side_that_leaves_is_noticed_by_the_other() -> None:
    ours, theirs = Pipe()
    got: queue.SimpleQueue[FromEngine] = queue.SimpleQueue()
    client_end(ours, got.put, lambda: "it left")
    theirs.close()
    assert got.get(timeout=5) == Closed(error="it left")
    ours, theirs = Pipe()
    was_left = threading.Event()
    end = engine_end(theirs, was_left.set)
    ours.close()
    assert was_left.wait(5)
    was_left.clear()
    end.send(Outputs())  # nobody hears it
    assert was_left.wait(5)


def test_large_messages_in_both_directions_do_not_block_each_other() -> None:
    ours, theirs = Pipe()
    got: queue.SimpleQueue[FromEngine] = queue.SimpleQueue()
    client = client_end(ours, got.put, lambda: "it left")
    engine = engine_end(theirs, lambda: None)
    request = Request(request_id="r" * 1_000_000, token_ids=tuple(range(200_000)))
    outputs = Outputs(outputs=(TokenOutput(request_id="r", token_ids=tuple(range(500_000))),))
    for _ in range(3):
        client.send(request)
    for _ in range(3):
        engine.send(outputs)
    seen: list[object] = []
    while len(seen) < 3:
        seen += engine.receive(is_blocking=True) or ()
    assert seen == [request] * 3
    assert [got.get(timeout=5) for _ in range(3)] == [outputs] * 3
    engine.send(Closed())
    assert got.get(timeout=5) == Closed()
    theirs.close()
