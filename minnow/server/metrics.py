"""Prometheus names and values; one table"""

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from minnow.core.step import EngineStats
from minnow.engine.client import EngineClient

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
ENGINE = "0"  # the label of the only engine

_FIRST_TOKEN_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
)  # fmt: skip
_TOKEN_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_REQUEST_S = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_STEP_TOKENS = (1, *(2**k for k in range(3, 15)))
_TOKENS = tuple(digit * 10**k for k in range(8) for digit in (1, 2, 5))
_FEW = (1, 2, 5, 10, 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class Now:
    """What gauges, and counters of the engine, are read from."""

    stats: EngineStats
    num_open: int
    num_tasks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One row of the table.

    Attributes:
        name: as it is written; a counter's gets "_total" when it is exported.
        label: of its own, beside model_name and engine.
        values: of that label; all of them exist from the start.
        buckets: upper bounds of a histogram.
        is_within_context: bounds above the context length are left out.
        read: where the value is kept elsewhere; None where it is told to Metrics.
    """

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    meaning: str
    label: str = ""
    values: tuple[str, ...] = ("",)
    buckets: tuple[float, ...] = ()
    is_within_context: bool = False
    read: Callable[[Now], float] | None = None

    @property
    def exported_name(self) -> str:
        """As a query names it."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


def _gauge(name: str, meaning: str, read: Callable[[Now], float]) -> Metric:
    return Metric(name=name, kind="gauge", meaning=meaning, read=read)


def _counter(name: str, meaning: str, read: Callable[[Now], float] | None = None) -> Metric:
    return Metric(name=name, kind="counter", meaning=meaning, read=read)


def _labelled(name: str, meaning: str, label: str, *values: str) -> Metric:
    return Metric(name=name, kind="counter", meaning=meaning, label=label, values=values)


def _seconds(name: str, meaning: str, buckets: tuple[float, ...] = _REQUEST_S) -> Metric:
    return Metric(name=name, kind="histogram", meaning=meaning, buckets=buckets)


def _tokens(name: str, meaning: str) -> Metric:
    return Metric(name=name, kind="histogram", meaning=meaning, buckets=_TOKENS, is_within_context=True)


def _used_share(now: Now) -> float:
    stats = now.stats
    return (stats.num_blocks - stats.num_free_blocks) / stats.num_blocks if stats.num_blocks else 0.0


# Names, labels and buckets are vLLM's, so that its dashboards work; `minnow:` ones are our own. A request is one
# answer to one prompt: a call with n answers makes n of them.
TABLE = (
    _gauge("vllm:num_requests_running", "requests that have a place in the batch", lambda now: now.stats.num_running),
    _gauge("vllm:num_requests_waiting", "requests that wait for a place", lambda now: now.stats.num_waiting),
    Metric(
        name="vllm:num_requests_waiting_by_reason",
        kind="gauge",
        meaning="requests that wait, by what they wait for",
        label="reason",
        values=("capacity",),
        read=lambda now: now.stats.num_waiting,
    ),
    _gauge("vllm:kv_cache_usage_perc", "share of the cache's blocks that requests hold, 0 to 1", _used_share),
    _counter(
        "vllm:prefix_cache_queries",
        "prompt tokens looked up in the prefix cache",
        lambda now: now.stats.prefix_queries_tokens,
    ),
    _counter(
        "vllm:prefix_cache_hits",
        "prompt tokens that the prefix cache had",
        lambda now: now.stats.prefix_hits_tokens,
    ),
    _counter(
        "vllm:num_preemptions",
        "how often a request gave its blocks up for another",
        lambda now: now.stats.num_preemptions,
    ),
    _counter("vllm:prompt_tokens", "prompt tokens that the engine took up; a prompt with n answers counts once"),
    _labelled(
        "vllm:prompt_tokens_by_source",
        "those prompt tokens, by where they came from",
        "source",
        "local_compute",
        "local_cache_hit",
    ),
    _counter("vllm:prompt_tokens_cached", "those of them that the prefix cache had"),
    _labelled("vllm:prompt_tokens_cached_by_source", "the same, by where they were kept", "source", "device"),
    _counter("vllm:generation_tokens", "tokens of answers, as they are handed on"),
    _labelled(
        "vllm:request_success",
        "requests that ended, by why; one that a stop string ended counts as stop",
        "finished_reason",
        "stop",
        "length",
        "abort",
        "error",
    ),
    _counter("vllm:admission_rejections", "calls that the engine refused because its cache can never hold them"),
    _counter(
        "vllm:corrupted_requests",
        "requests that failed alone, for example for logits that are not finite",
        lambda now: now.stats.num_errors,
    ),
    _tokens("vllm:request_prompt_tokens", "prompt tokens of a request"),
    _tokens("vllm:request_generation_tokens", "tokens drawn for a request"),
    _tokens("vllm:request_max_num_generation_tokens", "tokens of the longest answer to a prompt"),
    _tokens("vllm:request_params_max_tokens", "how many tokens a request may draw"),
    _tokens("vllm:request_prefill_kv_computed_tokens", "prompt tokens of a request that the cache did not have"),
    Metric(name="vllm:request_params_n", kind="histogram", meaning="how many answers a prompt is to get", buckets=_FEW),
    Metric(
        name="vllm:request_num_preemptions",
        kind="histogram",
        meaning="how often a request gave its blocks up",
        buckets=(0, *_FEW),
    ),
    Metric(
        name="vllm:iteration_tokens_total",
        kind="histogram",
        meaning="tokens that a step computed",
        buckets=_STEP_TOKENS,
    ),
    _seconds("vllm:time_to_first_token_seconds", "from a call's arrival to its first token", _FIRST_TOKEN_S),
    _seconds("vllm:inter_token_latency_seconds", "from a token of a request to its next", _TOKEN_S),
    _seconds(
        "vllm:request_time_per_output_token_seconds",
        "mean time from one token of a request to the next",
        _TOKEN_S,
    ),
    _seconds("vllm:e2e_request_latency_seconds", "from a call's arrival to the end of its request"),
    _seconds("vllm:request_queue_time_seconds", "from a request's arrival at the engine to its first step"),
    _seconds("vllm:request_prefill_time_seconds", "from a request's first step to its first token"),
    _seconds("vllm:request_decode_time_seconds", "from a request's first token to its last"),
    _seconds("vllm:request_inference_time_seconds", "from a request's first step to its last token"),
    _gauge("minnow:open_requests", "requests that the engine has not ended", lambda now: now.num_open),
    _gauge("minnow:server_tasks", "asynchronous tasks alive in the server", lambda now: now.num_tasks),
    _labelled(
        "minnow:http_errors",
        "answers that are errors, by HTTP status; 499 stands for a client that left",
        "status",
        *("400", "401", "404", "405", "413", "499", "500", "503"),
    ),
)


class Histogram:
    """How often a value fell into each bucket.

    Args:
        buckets: upper bounds, ascending, each within its bucket.
    """

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, buckets: tuple[float, ...]) -> None:
        self._bounds = buckets
        self._counts = [0] * (len(buckets) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def buckets(self, largest: float) -> tuple[list[tuple[str, int]], float]:
        """Cumulative counts by bound, without finite bounds above `largest`, and the sum of all values."""
        pairs = zip(self._bounds, accumulate(self._counts), strict=False)
        finite = [(f"{float(bound)}", count) for bound, count in pairs if bound <= largest]
        return [*finite, ("+Inf", sum(self._counts))], self._sum


class Metrics:
    """The values behind the table, for one server; all of them exist from the start.

    It belongs to the event loop, and to a registry of its own, so several servers may share a process. The values
    are plain numbers: the client library's own would take a lock for every token.

    Args:
        client: asked for the engine's numbers when somebody reads the metrics.
        model_name: the label.
    """

    def __init__(self, client: EngineClient, model_name: str) -> None:
        self._client = client
        self._model_name = model_name
        told = [row for row in TABLE if row.read is None]
        self._counts = {row.name: dict.fromkeys(row.values, 0) for row in told if row.kind == "counter"}
        self._histograms = {row.name: Histogram(row.buckets) for row in told if row.kind == "histogram"}
        self._most: dict[str, float] = {}  # of each counter that is read
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def histogram(self, name: str) -> Histogram:
        """A histogram of the table, by its name without "vllm:"."""
        return self._histograms[f"vllm:{name}"]

    def count(self, name: str, number: int = 1, value: str = "") -> None:
        """Add to a counter of the table.

        Args:
            name: whole.
            value: of its label.
        """
        values = self._counts[name]
        values[value] = values.get(value, 0) + number

    def observe_step(self, num_tokens: int) -> None:
        """Note what a step of the engine computed."""
        self._histograms["vllm:iteration_tokens_total"].observe(num_tokens)

    def render(self) -> bytes:
        """All values, as Prometheus reads them; on the event loop."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Family]:
        """The values as the client library takes them."""
        now = Now(stats=self._client.stats(), num_open=self._client.num_open, num_tasks=len(asyncio.all_tasks()))
        largest = self._client.max_model_len if self._client.was_ready else float("inf")
        for row in TABLE:
            names, labels = ["model_name", "engine"], [self._model_name, ENGINE]
            if row.kind == "histogram":
                buckets, total = self._histograms[row.name].buckets(largest if row.is_within_context else float("inf"))
                histogram = HistogramMetricFamily(row.name, row.meaning, labels=names)
                histogram.add_metric(labels, buckets, total)
                yield histogram
                continue
            make = GaugeMetricFamily if row.kind == "gauge" else CounterMetricFamily
            family = make(row.name, row.meaning, labels=[*names, row.label] if row.label else names)
            for value, number in self._values(row, now).items():
                family.add_metric([*labels, value] if row.label else labels, number)
            yield family

    def _values(self, row: Metric, now: Now) -> dict[str, float]:
        """Numbers by the label's value."""
        if row.read is None:
            return dict(self._counts[row.name])
        number = row.read(now)
        if row.kind == "counter":
            number = self._most[row.name] = max(number, self._most.get(row.name, 0))
        return dict.fromkeys(row.values, number)
