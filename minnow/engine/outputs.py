"""OutputStream: what the engine says of some requests, for whoever asked"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from minnow.core.errors import RequestError
from minnow.core.step import TokenOutput


class OutputStream:
    """The outputs of some requests, in the order in which the engine sends them.

    An asynchronous iterator that ends when every request has ended; each request's last output has a
    finish_reason. Leaving it early (`async with`, or `close`) aborts what still runs.

    Args:
        request_ids: of the requests.
        abort: stops one of them, and hears no more of it.
        observe: told of each output when it arrives, however late it is read.
    """

    def __init__(
        self,
        request_ids: Sequence[str],
        abort: Callable[[str], None],
        observe: Callable[[TokenOutput], None] | None = None,
    ) -> None:
        self._abort = abort
        self._observe = observe
        self._open = dict.fromkeys(request_ids)
        self._ready: deque[TokenOutput | RequestError] = deque()
        self._wake = asyncio.Event()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TokenOutput:
        """The next output.

        Raises:
            RequestError: the engine refused one of the requests; the others are aborted.
        """
        while not self._ready:
            if not self._open:
                raise StopAsyncIteration
            self._wake.clear()
            await self._wake.wait()
        item = self._ready.popleft()
        if isinstance(item, RequestError):
            self.close()
            raise item
        return item

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def abort(self, request_id: str) -> None:
        """Stop one of the requests; none of its later outputs appear."""
        if request_id in self._open:
            del self._open[request_id]
            self._abort(request_id)
        self._ready = deque(o for o in self._ready if isinstance(o, RequestError) or o.request_id != request_id)
        self._wake.set()

    def close(self) -> None:
        """Stop all of the requests that still run."""
        for request_id in tuple(self._open):
            self.abort(request_id)

    def push(self, request_id: str, item: TokenOutput | RequestError) -> None:
        """Take what the engine said about a request; for the client that made this stream."""
        if isinstance(item, RequestError) or item.finish_reason is not None:
            self._open.pop(request_id, None)
        self._ready.append(item)
        self._wake.set()
        if self._observe is not None and not isinstance(item, RequestError):
            self._observe(item)
