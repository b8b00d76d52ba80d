"""receive -> step -> send: the loop around an engine, behind a channel"""

import contextlib
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Protocol

from minnow.config.model import ModelConfig
from minnow.core.errors import RequestError
from minnow.core.log import Logger
from minnow.core.request import Request
from minnow.core.step import Abort, Control, ControlReply, EngineStats, TokenOutput
from minnow.engine.channel import Alive, Closed, EngineEnd, Outputs, Ready, Refusal, ToEngine

STATS_INTERVAL_S = 0.1
PULSE_S = 1.0


class StepEngine(Protocol):
    """What the loop needs of an engine."""

    @property
    def model(self) -> ModelConfig:
        """The network that runs."""
        ...

    @property
    def max_model_len(self) -> int:
        """Longest prompt plus output, in tokens."""
        ...

    @property
    def is_idle(self) -> bool:
        """Nothing waits and nothing runs."""
        ...

    def add(self, request: Request) -> None:
        """Take a request.

        Raises:
            RequestError: it cannot be served; the engine is as before.
        """
        ...

    def abort(self, request_id: str) -> TokenOutput | None:
        """Drop a request and free its blocks; None when it is not known (any more)."""
        ...

    def step(self) -> list[TokenOutput]:
        """Run one step."""
        ...

    def control(self, message: Control) -> ControlReply:
        """Apply a named operation between steps; an unknown one is an error in the reply."""
        ...

    def stats(self) -> EngineStats:
        """Gauges and counters now."""
        ...


def run(
    engine: StepEngine,
    end: EngineEnd,
    *,
    log: Logger,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Serve the channel until its other end asks to stop, or a step fails.

    Messages are read between steps; the outputs of a step are sent before the next one starts. The first message is
    `Ready`, the last always `Closed`.

    Args:
        engine: stepped on the calling thread, and touched by no other.
        end: where messages come from and go to.
        log: told about a failed step, with its traceback.
        clock: seconds; paces the statistics.
    """
    sent_stats, sent_at_s = EngineStats(), clock()
    num_tokens = 0
    try:
        end.send(Ready(vocab_size=engine.model.vocab_size, max_model_len=engine.max_model_len))
        while (messages := end.receive(is_blocking=engine.is_idle)) is not None:
            for message in messages:
                _apply(message, engine, end)
            outputs = None if engine.is_idle else tuple(engine.step())
            stats = engine.stats()
            if outputs is not None:
                end.send(Outputs(outputs=outputs, num_tokens=stats.computed_tokens - num_tokens))
                num_tokens = stats.computed_tokens
            # An idle engine always reports before it waits: nothing would correct the gauges later, and it says so
            # that it owes no answer.
            if engine.is_idle or clock() - sent_at_s >= STATS_INTERVAL_S:
                if engine.is_idle or stats != sent_stats:
                    end.send(stats)
                sent_stats, sent_at_s = stats, clock()
    except Exception as error:
        log.error("engine failed", traceback=traceback.format_exc())
        end.send(Closed(error=f"{type(error).__name__}: {error}"))
    else:
        end.send(Closed())


@contextlib.contextmanager
def pulse(end: EngineEnd, interval_s: float = PULSE_S) -> Iterator[None]:
    """Say `Alive` from a thread of its own meanwhile, also while the engine is made and while a step runs."""
    is_over = threading.Event()

    def beat() -> None:
        while not is_over.wait(interval_s):
            end.send(Alive())

    thread = threading.Thread(target=beat, name="pulse", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _apply(message: ToEngine, engine: StepEngine, end: EngineEnd) -> None:
    """Carry out one message."""
    match message:
        case Request():
            try:
                engine.add(message)
            except RequestError as error:
                end.send(Refusal.of(message.request_id, error))
        case Abort():
            output = engine.abort(message.request_id)
            if output is not None:
                end.send(Outputs(outputs=(output,)))
        case Control():
            end.send(engine.control(message))
