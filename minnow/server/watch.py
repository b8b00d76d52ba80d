"""what the requests of a call do, told to the metrics"""

import asyncio
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from minnow.core.errors import RequestError
from minnow.core.request import Request
from minnow.core.step import FinishReason, TokenOutput
from minnow.server.metrics import Metrics
from minnow.server.stream import ClientGone

# What may end a call; anything else is our mistake.
_NO_MISTAKES = (asyncio.CancelledError, GeneratorExit, ClientGone, RequestError)


class CountErrors:
    """Counts answers that are errors.

    Args:
        app: what answers.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_begun = False

        async def watched(message: Message) -> None:
            nonlocal is_begun
            if message["type"] == "http.response.start":
                is_begun = True
                if message["status"] >= 400:
                    self._metrics.counter("minnow:http_errors", str(message["status"])).inc()
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception:
            if scope["type"] == "http" and not is_begun:
                self._metrics.counter("minnow:http_errors", "500").inc()  # the answer is made further out
            raise


class CallWatch:
    """Watches the requests of one call, from their submission to their end; to be used with `with`.

    Times are those of the engine's outputs when they arrive, however late they are handed on to the client; what
    counts as a token of the answer is known only then. A request whose end has not been handed on when the watch is
    left ended as the engine says, and was aborted if it says nothing; it failed where our own mistake ends the call.
    What the engine refused was no request.

    Args:
        metrics: told.
        requests: of the call; those of one prompt follow each other.
        num_choices: how many one prompt has.
        arrival_s: of the call; Unix time.
        clock: seconds, monotonic.
        wall_clock: Unix time.
    """

    def __init__(
        self,
        metrics: Metrics,
        requests: Sequence[Request],
        num_choices: int,
        arrival_s: float,
        *,
        clock: Callable[[], float] = time.perf_counter,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._metrics = metrics
        submitted_at = clock()
        arrived_at = submitted_at - max(wall_clock() - arrival_s, 0.0)
        prompts = [_Prompt(num_choices) for _ in range(len(requests) // num_choices)]
        self._watches = {
            request.request_id: _RequestWatch(
                metrics,
                request,
                prompts[i // num_choices],
                arrived_at,
                submitted_at,
                clock,
                has_prompt=not i % num_choices,
            )
            for i, request in enumerate(requests)
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        watches = self._watches.values()
        has_failed = any(watch.engine_reason == "error" for watch in watches)
        is_refused = isinstance(error, RequestError) and not has_failed
        if isinstance(error, RequestError) and is_refused and error.code == "cache_capacity_exceeded":
            self._metrics.counter("vllm:admission_rejections").inc()
        is_broken = error is not None and not isinstance(error, _NO_MISTAKES)
        for watch in watches:
            if watch.has_begun or not is_refused:
                watch.leave("error" if is_broken else watch.engine_reason or "abort")

    def arrive(self, output: TokenOutput) -> None:
        """Note an output of the engine, as soon as it is there."""
        self._watches[output.request_id].arrive(output)

    def take(self, request_id: str, num_tokens: int, finish_reason: str | None) -> None:
        """Note what is handed on.

        Args:
            num_tokens: of the request's answer so far.
            finish_reason: where the answer ends.
        """
        self._watches[request_id].take(num_tokens, finish_reason)


class _Prompt:
    """What the answers to one prompt have in common."""

    __slots__ = ("max_num_tokens", "num_choices", "num_ended")

    def __init__(self, num_choices: int) -> None:
        self.num_choices = num_choices
        self.num_ended = 0
        self.max_num_tokens = 0


class _RequestWatch:
    """Watches one request.

    Attributes:
        has_begun: the engine has answered.
        engine_reason: why it ended, for the engine; None before.
    """

    __slots__ = (
        "_arrived_at", "_clock", "_first_at", "_generated", "_has_ended", "_has_prompt", "_heard_at", "_last_at",
        "_latency", "_metrics", "_num_drawn_tokens", "_num_preemptions", "_num_tokens", "_prompt", "_queued_s",
        "_request", "_submitted_at", "engine_reason", "has_begun",
    )  # fmt: skip

    def __init__(
        self,
        metrics: Metrics,
        request: Request,
        prompt: _Prompt,
        arrived_at: float,
        submitted_at: float,
        clock: Callable[[], float],
        *,
        has_prompt: bool,
    ) -> None:
        self._metrics = metrics
        self._latency = metrics.histogram("vllm:inter_token_latency_seconds")
        self._generated = metrics.counter("vllm:generation_tokens")
        self._request = request
        self._prompt = prompt
        self._has_prompt = has_prompt  # the tokens of the prompt count with it
        self._arrived_at = arrived_at
        self._submitted_at = submitted_at
        self._clock = clock
        self._first_at = self._last_at = 0.0  # of tokens
        self._heard_at = 0.0  # of the last output
        self._num_drawn_tokens = self._num_tokens = self._num_preemptions = 0
        self._queued_s = 0.0
        self._has_ended = False
        self.has_begun = False
        self.engine_reason: FinishReason | None = None

    def arrive(self, output: TokenOutput) -> None:
        """Note an output."""
        now = self._heard_at = self._clock()
        self.engine_reason = output.finish_reason
        self._num_preemptions = max(self._num_preemptions, output.num_preemptions)
        if not self.has_begun:
            self._begin(output)
        if not output.token_ids:
            return
        if self._num_drawn_tokens:
            self._latency.observe(now - self._last_at)
        else:
            self._first_at = now
            self._metrics.histogram("vllm:time_to_first_token_seconds").observe(now - self._arrived_at)
        self._num_drawn_tokens += len(output.token_ids)
        self._last_at = now

    def take(self, num_tokens: int, finish_reason: str | None) -> None:
        """Note what is handed on."""
        self._generated.inc(num_tokens - self._num_tokens)
        self._num_tokens = num_tokens
        if finish_reason is not None:
            self._end(finish_reason, self._heard_at)

    def leave(self, finish_reason: str) -> None:
        """Note its end, unless that has been handed on; all that was drawn counts."""
        if not self._has_ended:
            self.take(self._num_drawn_tokens, None)
            self._end(finish_reason, self._heard_at if self.engine_reason is not None else self._clock())

    def _begin(self, output: TokenOutput) -> None:
        self.has_begun = True
        if output.finish_reason == "error":
            return  # nothing is known of its prompt
        metrics, num_prompt = self._metrics, len(self._request.token_ids)
        num_computed = num_prompt - output.num_cached_tokens
        self._queued_s = output.queued_s
        metrics.histogram("vllm:request_queue_time_seconds").observe(output.queued_s)
        metrics.histogram("vllm:request_prefill_kv_computed_tokens").observe(num_computed)
        if self._has_prompt:
            metrics.counter("vllm:prompt_tokens").inc(num_prompt)
            metrics.counter("vllm:prompt_tokens_by_source", "local_compute").inc(num_computed)
            metrics.counter("vllm:prompt_tokens_by_source", "local_cache_hit").inc(output.num_cached_tokens)
            metrics.counter("vllm:prompt_tokens_cached").inc(output.num_cached_tokens)
            metrics.counter("vllm:prompt_tokens_cached_by_source", "device").inc(output.num_cached_tokens)

    def _end(self, finish_reason: str, ended_at: float) -> None:
        self._has_ended = True
        metrics, prompt = self._metrics, self._prompt
        metrics.counter("vllm:request_success", finish_reason).inc()
        metrics.histogram("vllm:e2e_request_latency_seconds").observe(ended_at - self._arrived_at)
        metrics.histogram("vllm:request_prompt_tokens").observe(len(self._request.token_ids))
        metrics.histogram("vllm:request_generation_tokens").observe(self._num_tokens)
        metrics.histogram("vllm:request_num_preemptions").observe(self._num_preemptions)
        if self._request.sampling.max_tokens is not None:
            metrics.histogram("vllm:request_params_max_tokens").observe(self._request.sampling.max_tokens)
        prompt.num_ended += 1
        prompt.max_num_tokens = max(prompt.max_num_tokens, self._num_tokens)
        if prompt.num_ended == prompt.num_choices:
            metrics.histogram("vllm:request_params_n").observe(prompt.num_choices)
            metrics.histogram("vllm:request_max_num_generation_tokens").observe(prompt.max_num_tokens)
        if self._num_drawn_tokens:
            self._observe_times()

    def _observe_times(self) -> None:
        started_at = self._submitted_at + self._queued_s
        metrics, decode_s = self._metrics, self._last_at - self._first_at
        metrics.histogram("vllm:request_prefill_time_seconds").observe(max(self._first_at - started_at, 0.0))
        metrics.histogram("vllm:request_inference_time_seconds").observe(max(self._last_at - started_at, 0.0))
        metrics.histogram("vllm:request_decode_time_seconds").observe(decode_s)
        if self._num_drawn_tokens > 1:
            mean_s = decode_s / (self._num_drawn_tokens - 1)
            metrics.histogram("vllm:request_time_per_output_token_seconds").observe(mean_s)
