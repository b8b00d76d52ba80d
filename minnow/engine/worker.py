"""the engine's process: makes the engine, says how far it is, serves the channel"""

import os
import signal
import sys
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec

from minnow.core.errors import MinnowError
from minnow.core.log import Logger
from minnow.engine import channel, loop
from minnow.engine.channel import Closed, EngineEnd, Loading
from minnow.engine.host import IGNORED_SIGNALS, Start


def main(number: int) -> None:
    """Serve a channel until its other end asks to stop or is gone.

    Args:
        number: file descriptor of the channel's socket.
    """
    for each in IGNORED_SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, IGNORED_SIGNALS)
    connection = Connection(number)
    try:
        start = msgspec.msgpack.decode(connection.recv_bytes(), type=Start)
        # Nobody is left to answer to, so not even the current step is finished.
        end = channel.engine_end(connection, when_gone=lambda: os._exit(1))
        with loop.pulse(end):
            _serve(start, end)
    except EOFError:
        os._exit(1)


def _serve(start: Start, end: EngineEnd) -> None:
    log = Logger("engine")
    begin_s = time.monotonic()
    begin_s_by_stage: dict[str, float] = {}

    def report(stage: str, share: float) -> None:
        begin_s_by_stage.setdefault(stage, time.monotonic())
        end.send(Loading(stage=stage, share=share))

    try:
        report("libraries", 0.0)
        from minnow.engine import build  # only now: it loads torch, which takes seconds
        from minnow.kernels import native

        engine = build.build(start.config, Path(start.directory), report=report)
        ends_s = [*begin_s_by_stage.values(), time.monotonic()][1:]
        spent = {
            f"{stage}_s": end_s - at_s for (stage, at_s), end_s in zip(begin_s_by_stage.items(), ends_s, strict=True)
        }
        log.info("started", seconds=time.monotonic() - begin_s, **spent)
    except MinnowError as error:
        end.send(Closed(error=str(error), kind=type(error).__name__))
    except Exception as error:
        log.error("engine failed to start", traceback=traceback.format_exc())
        end.send(Closed(error=f"the engine failed to start: {type(error).__name__}: {error}", kind="MinnowError"))
    else:
        native.pin_caller()  # this thread runs every step
        loop.run(engine, end, log=log)
        engine.close()


if __name__ == "__main__":
    main(int(sys.argv[1]))
