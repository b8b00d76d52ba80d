"""what the requests of a call do, told to the metrics"""

import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from minnow.core.errors import RequestError
from minnow.core.request import Request
from minnow.core.step import TokenOutput
from minnow.server.metrics import Metrics


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
                    self._metrics.count("minnow:http_errors", value=str(message["status"]))
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception:
            if scope["type"] == "http" and not is_begun:
                self._metrics.count("minnow:http_errors", value="500")  # the answer is made further out
            raise


class CallWatch:
    """Watches the requests of one call, from their submission to their end; to be used with `with`.

    Whatever has not ended when it is left was aborted, unless the engine refused the call.

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
            request.request_id: RequestWatch(
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
        refusal = error if isinstance(error, RequestError) and not any(watch.has_failed for watch in watches) else None
        if refusal is not None and refusal.code == "cache_capacity_exceeded":
            self._metrics.count("vllm:admission_rejections")
        for watch in watches:
            if watch.has_begun or refusal is None:
                watch.end("abort")

    def of(self, request_id: str) -> "RequestWatch":
        """The watch of one of the requests."""
        return self._watches[request_id]


class _Prompt:
    """What the answers to one prompt have in common."""

    __slots__ = ("max_num_tokens", "num_choices", "num_ended")

    def __init__(self, num_choices: int) -> None:
        self.num_choices = num_choices
        self.num_ended = 0
        self.max_num_tokens = 0


class RequestWatch:
    """Watches one request.

    Attributes:
        has_begun: the engine has answered.
        has_failed: with an error.
    """

    __slots__ = (
        "_arrived_at", "_clock", "_first_at", "_has_ended", "_has_prompt", "_last_at", "_latency", "_metrics",
        "_num_preemptions", "_num_tokens", "_prompt", "_queued_s", "_request", "_submitted_at",
        "has_begun", "has_failed",
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
        self._latency = metrics.histogram("inter_token_latency_seconds")
        self._request = request
        self._prompt = prompt
        self._has_prompt = has_prompt  # the tokens of the prompt count with it
        self._arrived_at = arrived_at
        self._submitted_at = submitted_at
        self._clock = clock
        self._first_at = self._last_at = 0.0
        self._num_tokens = self._num_preemptions = 0
        self._queued_s = 0.0
        self._has_ended = False
        self.has_begun = self.has_failed = False

    def take(self, output: TokenOutput, num_tokens: int, finish_reason: str | None) -> None:
        """Note an output.

        Args:
            num_tokens: drawn so far that count.
            finish_reason: of the request, where it ends with this output, for the client at least.
        """
        if not self.has_begun:
            self._begin(output)
        if num_tokens > self._num_tokens:
            now = self._clock()
            if self._num_tokens:
                self._latency.observe(now - self._last_at)
            else:
                self._first_at = now
                self._metrics.histogram("time_to_first_token_seconds").observe(now - self._arrived_at)
            self._metrics.count("vllm:generation_tokens", num_tokens - self._num_tokens)
            self._num_tokens, self._last_at = num_tokens, now
        if finish_reason is not None:
            self._num_preemptions = output.num_preemptions
            self.end(finish_reason)

    def fail(self) -> None:
        """Note that the engine failed it."""
        self.has_begun = self.has_failed = True
        self.end("error")

    def end(self, finish_reason: str) -> None:
        """Note its end; only the first one counts."""
        if self._has_ended:
            return
        self._has_ended = True
        metrics, prompt = self._metrics, self._prompt
        metrics.count("vllm:request_success", value=finish_reason)
        metrics.histogram("e2e_request_latency_seconds").observe(self._clock() - self._arrived_at)
        metrics.histogram("request_prompt_tokens").observe(len(self._request.token_ids))
        metrics.histogram("request_generation_tokens").observe(self._num_tokens)
        metrics.histogram("request_num_preemptions").observe(self._num_preemptions)
        if self._request.sampling.max_tokens is not None:
            metrics.histogram("request_params_max_tokens").observe(self._request.sampling.max_tokens)
        prompt.num_ended += 1
        prompt.max_num_tokens = max(prompt.max_num_tokens, self._num_tokens)
        if prompt.num_ended == prompt.num_choices:
            metrics.histogram("request_params_n").observe(prompt.num_choices)
            metrics.histogram("request_max_num_generation_tokens").observe(prompt.max_num_tokens)
        if self._num_tokens:
            self._observe_times()

    def _begin(self, output: TokenOutput) -> None:
        self.has_begun = True
        metrics, num_prompt = self._metrics, len(self._request.token_ids)
        num_computed = num_prompt - output.num_cached_tokens
        self._queued_s = output.queued_s
        metrics.histogram("request_queue_time_seconds").observe(output.queued_s)
        metrics.histogram("request_prefill_kv_computed_tokens").observe(num_computed)
        if self._has_prompt:
            metrics.count("vllm:prompt_tokens", num_prompt)
            metrics.count("vllm:prompt_tokens_by_source", num_computed, "local_compute")
            metrics.count("vllm:prompt_tokens_by_source", output.num_cached_tokens, "local_cache_hit")
            metrics.count("vllm:prompt_tokens_cached", output.num_cached_tokens)
            metrics.count("vllm:prompt_tokens_cached_by_source", output.num_cached_tokens, "device")

    def _observe_times(self) -> None:
        started_at = self._submitted_at + self._queued_s
        metrics, decode_s = self._metrics, self._last_at - self._first_at
        metrics.histogram("request_prefill_time_seconds").observe(max(self._first_at - started_at, 0.0))
        metrics.histogram("request_inference_time_seconds").observe(max(self._last_at - started_at, 0.0))
        metrics.histogram("request_decode_time_seconds").observe(decode_s)
        if self._num_tokens > 1:
            metrics.histogram("request_time_per_output_token_seconds").observe(decode_s / (self._num_tokens - 1))
