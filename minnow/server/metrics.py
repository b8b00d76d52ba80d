"""Prometheus names and values; one table"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from minnow.core.step import EngineStats
from minnow.engine.client import EngineClient

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
ENGINE = "0"  # the label of the only engine
_OWN_LABELS = ("model_name", "engine")

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
        read_each: the same for values "0", "1", ... of its label, as many as there are.
    """

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    meaning: str
    label: str = ""
    values: tuple[str, ...] = ("",)
    buckets: tuple[float, ...] = ()
    is_within_context: bool = False
    read: Callable[[Now], float] | None = None
    read_each: Callable[[Now], Sequence[float]] | None = None

    @property
    def exported_name(self) -> str:
        """As a query names it."""
        return f"{self.name}_total" if self.kind == "counter" else self.name

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of all its labels."""
        return (*_OWN_LABELS, self.label) if self.label else _OWN_LABELS


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
    _counter(
        "vllm:generation_tokens",
        "tokens of answers as they are handed on, and all that was drawn for clients that left",
    ),
    _counter(
        "vllm:spec_decode_num_drafts",
        "times that drafts of a request were verified",
        lambda now: now.stats.num_drafts,
    ),
    _counter(
        "vllm:spec_decode_num_draft_tokens",
        "drafts that were verified",
        lambda now: now.stats.num_draft_tokens,
    ),
    _counter(
        "vllm:spec_decode_num_accepted_tokens",
        "drafts that were kept; 1 + kept / num_drafts is the mean acceptance length",
        lambda now: now.stats.num_accepted_tokens,
    ),
    Metric(
        name="vllm:spec_decode_num_accepted_tokens_per_pos",
        kind="counter",
        meaning="drafts that were kept, by their place; over num_drafts, how often that many and more are",
        label="position",
        values=(),
        read_each=lambda now: now.stats.accepted_per_position,
    ),
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


class Metrics:
    """The values behind the table, for one server; all of them exist from the start.

    It belongs to the event loop, and to a registry of its own, so several servers may share a process.

    Args:
        client: asked for the engine's numbers when somebody reads the metrics.
        model_name: the label.
    """

    def __init__(self, client: EngineClient, model_name: str) -> None:
        self._client = client
        self._model_name = model_name
        self._registry = registry = CollectorRegistry()
        gauges = [row for row in TABLE if row.kind == "gauge"]
        counters = [row for row in TABLE if row.kind == "counter"]
        histograms = [row for row in TABLE if row.kind == "histogram"]
        self._gauges = {row.name: Gauge(row.name, row.meaning, row.labels, registry=registry) for row in gauges}
        self._counters = {row.name: Counter(row.name, row.meaning, row.labels, registry=registry) for row in counters}
        self._histograms = {
            row.name: Histogram(row.name, row.meaning, row.labels, registry=registry, buckets=row.buckets)
            for row in histograms
        }
        self._most: dict[tuple[str, str], float] = {}
        self._long = {row.name for row in histograms if row.is_within_context}
        for row in histograms:
            self.histogram(row.name)
        for row in counters:
            for value in row.values:
                self.counter(row.name, value)

    def histogram(self, name: str) -> Histogram:
        """A histogram of the table; keep what is needed for every token."""
        return self._histograms[name].labels(*self._labels())

    def counter(self, name: str, value: str = "") -> Counter:
        """A counter of the table; keep what is needed for every token.

        Args:
            value: of the label of its own, if it has one.
        """
        return self._counters[name].labels(*self._labels(value))

    def observe_step(self, num_tokens: int) -> None:
        """Note what a step of the engine computed."""
        self.histogram("vllm:iteration_tokens_total").observe(num_tokens)

    def render(self) -> bytes:
        """All values, as Prometheus reads them; on the event loop."""
        now = Now(stats=self._client.stats(), num_open=self._client.num_open, num_tasks=len(asyncio.all_tasks()))
        for row in TABLE:
            for place, number in enumerate(row.read_each(now) if row.read_each is not None else ()):
                self._raise_to(row.name, str(place), number)
            if row.read is None:
                continue
            number = row.read(now)
            if row.kind == "gauge":
                for value in row.values:
                    self._gauges[row.name].labels(*self._labels(value)).set(number)
            else:
                self._raise_to(row.name, "", number)
        return generate_latest(self)

    def _raise_to(self, name: str, value: str, number: float) -> None:
        """Let a counter follow the engine's; of an engine that has lost its counts, it stays where it was."""
        before = self._most.get((name, value), 0.0)
        self.counter(name, value).inc(max(number - before, 0))
        self._most[name, value] = max(number, before)

    def collect(self) -> Iterator[Family]:
        """What the registry has, without times of creation and without buckets that no request can reach."""
        largest = self._client.max_model_len if self._client.was_ready else inf
        for family in self._registry.collect():
            bound = largest if family.name in self._long else inf
            family.samples = [
                sample
                for sample in family.samples
                if not sample.name.endswith("_created") and not bound < float(sample.labels.get("le", 0)) < inf
            ]
            yield family

    def _labels(self, value: str = "") -> tuple[str, ...]:
        """Values of all labels of a child."""
        return (self._model_name, ENGINE, value) if value else (self._model_name, ENGINE)
