"""what requests came to: latencies, throughput and goodput, in the words of `vllm bench serve`"""

import re
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

from minnow.bench.load import Outcome
from minnow.bench.timing import percentile
from minnow.text.tokenizer import Tokenizer

TITLES = {
    "ttft": "Time to First Token",
    "tpot": "Time per Output Token (excl. 1st token)",
    "itl": "Inter-token Latency",
    "e2el": "End-to-end Latency",
}
_ROWS = {
    "Benchmark duration (s):": "duration",
    "Total input tokens:": "total_input_tokens",
    "Total generated tokens:": "total_output_tokens",
    "Request throughput (req/s):": "request_throughput",
    "Request goodput (req/s):": "request_goodput",
    "Output token throughput (tok/s):": "output_throughput",
    "Peak output token throughput (tok/s):": "max_output_tokens_per_s",
    "Peak concurrent requests:": "max_concurrent_requests",
    "Total token throughput (tok/s):": "total_token_throughput",
}
_DRAFT_ROWS = {
    "Acceptance rate (%):": "spec_decode_acceptance_rate",
    "Acceptance length:": "spec_decode_acceptance_length",
    "Drafts:": "spec_decode_num_drafts",
    "Draft tokens:": "spec_decode_draft_tokens",
    "Accepted tokens:": "spec_decode_accepted_tokens",
}
_COUNTER = re.compile(r"^vllm:spec_decode_(num_\w+?)_total\{(?:[^}]*position=\"(\d+)\")?[^}]*\} ([\d.e+]+)$", re.M)
_WIDTH = 50


def summarize(
    outcomes: Sequence[Outcome],
    *,
    percentiles: Sequence[float] = (50, 90, 99),
    goodput_ms: Mapping[str, float] | None = None,
    tokenizer: Tokenizer | None = None,
) -> dict[str, Any]:
    """Everything that is known of a run, by the names that vLLM's result files have.

    Args:
        goodput_ms: metric -> the most it may be for a request to count as good.
        tokenizer: counts tokens where the server sends no usage; without it chunks are counted, and "notes" says so.
    """
    good = [outcome for outcome in outcomes if not outcome.error]
    started = min((o.due_s for o in outcomes), default=0.0)
    duration = max((o.ended_s for o in outcomes), default=0.0) - started
    outputs = [_count(o.num_output_tokens, o.text, tokenizer, len(o.text_s)) for o in good]
    inputs = [_count(o.num_input_tokens, o.prompt, tokenizer, 0) for o in good]
    values = [_latencies(o, num) for o, num in zip(good, outputs, strict=True)]
    result: dict[str, Any] = {
        "completed": len(good),
        "failed": len(outcomes) - len(good),
        "first_error": next((o.error for o in outcomes if o.error), ""),
        "duration": duration,
        "total_input_tokens": sum(inputs),
        "total_output_tokens": sum(outputs),
        "max_output_tokens_per_s": _peak_tokens(good, outputs, started, duration),
        "max_concurrent_requests": _peak_requests(outcomes),
        "max_lag_ms": 1e3 * max((o.sent_s - o.due_s for o in outcomes), default=0.0),
        "notes": [_note(tokenizer)] if any(o.num_output_tokens is None for o in good) else [],
    }
    for name, total in (("request", len(good)), ("output", sum(outputs)), ("total_token", sum(inputs) + sum(outputs))):
        result[f"{name}_throughput"] = total / duration if duration else 0.0
    if goodput_ms:
        met = sum(all(max(v[m], default=0.0) <= most for m, most in goodput_ms.items()) for v in values)
        result["request_goodput"] = met / duration if duration else 0.0
    for metric in TITLES:
        pooled = [value for each in values for value in each[metric]]
        if pooled:
            result |= {f"mean_{metric}_ms": statistics.fmean(pooled), f"median_{metric}_ms": statistics.median(pooled)}
            result |= {f"std_{metric}_ms": statistics.pstdev(pooled), f"num_{metric}": len(pooled)}
            result |= {f"p{p:g}_{metric}_ms": percentile(pooled, p) for p in percentiles}
    return result


def table(result: Mapping[str, Any], metrics: Sequence[str], settings: Mapping[str, object]) -> Iterator[str]:
    """The lines that people compare.

    Args:
        metrics: names of TITLES, those to show.
        settings: label -> value, shown below the counts.
    """
    yield f"{' Serving Benchmark Result ':=^{_WIDTH}}"
    yield _row("Successful requests:", result["completed"])
    yield _row("Failed requests:", result["failed"])
    for label, value in settings.items():
        yield _row(label, value)
    for label, name in _ROWS.items():
        if name in result:
            yield _row(label, result[name])
    if _DRAFT_ROWS["Drafts:"] in result:
        yield f"{'Speculative Decoding':-^{_WIDTH}}"
        yield from (_row(label, result[name]) for label, name in _DRAFT_ROWS.items())
        yield "Per-position acceptance (%):"
        rates = result["spec_decode_per_position_acceptance_rates"]
        yield from (_row(f"  Position {i}:", 100 * rate) for i, rate in enumerate(rates))
    for metric in metrics:
        if f"num_{metric}" not in result:
            continue
        yield f"{TITLES[metric]:-^{_WIDTH}}"
        for key, value in result.items():
            statistic, _, rest = key.partition("_")
            if rest == f"{metric}_ms" and statistic not in ("std", "p50"):  # that one is the median
                name = statistic.capitalize() if statistic in ("mean", "median") else statistic.upper()
                yield _row(f"{name} {metric.upper()} (ms):", value)
        yield _row(f"Samples of {metric.upper()}:", result[f"num_{metric}"])
    yield "=" * _WIDTH
    yield from (f"note: {note}" for note in result["notes"])
    if result["first_error"]:
        yield f"{result['failed']} failed, the first with {result['first_error']}"


def drafting(before: str, after: str) -> dict[str, Any]:
    """What became of drafts meanwhile, by the names of vLLM's result files; nothing where there were none.

    Args:
        before, after: what the server's /metrics said.
    """
    counts: dict[tuple[str, str], float] = defaultdict(float)
    for text, sign in ((before, -1), (after, 1)):
        for name, position, value in _COUNTER.findall(text):
            counts[name, position] += sign * float(value)
    rounds, drafts, kept = (counts[f"num_{what}", ""] for what in ("drafts", "draft_tokens", "accepted_tokens"))
    if not rounds:
        return {}
    by_position = sorted((int(at), count) for (name, at), count in counts.items() if name.endswith("_per_pos"))
    return {
        "spec_decode_acceptance_rate": 100 * kept / drafts,
        "spec_decode_acceptance_length": 1 + kept / rounds,
        "spec_decode_num_drafts": int(rounds),
        "spec_decode_draft_tokens": int(drafts),
        "spec_decode_accepted_tokens": int(kept),
        "spec_decode_per_position_acceptance_rates": [count / rounds for _, count in by_position],
    }


def _row(label: str, value: object) -> str:
    return f"{label:<40} {value:<10.2f}".rstrip() if isinstance(value, float) else f"{label:<40} {value}"


def _latencies(outcome: Outcome, num_tokens: int) -> dict[str, list[float]]:
    """Of one request, in ms. A gap between pieces of text may hold several tokens, so tpot divides by tokens."""
    first, whole = outcome.text_s[0] - outcome.sent_s, outcome.ended_s - outcome.sent_s
    return {
        "ttft": [1e3 * first],
        "tpot": [1e3 * (whole - first) / (num_tokens - 1)] if num_tokens > 1 else [],
        "itl": [1e3 * (b - a) for a, b in pairwise(outcome.text_s)],
        "e2el": [1e3 * whole],
    }


def _count(by_server: int | None, text: str, tokenizer: Tokenizer | None, num_chunks: int) -> int:
    if by_server is not None:
        return by_server
    return num_chunks if tokenizer is None else len(tokenizer.encode(text))


def _note(tokenizer: Tokenizer | None) -> str:
    how = "are chunks: give --tokenizer DIR to count them" if tokenizer is None else "were counted with --tokenizer"
    return f"the server sent no usage with some answers; their tokens {how}"


def _peak_tokens(good: Sequence[Outcome], outputs: Sequence[int], started: float, duration: float) -> float:
    """Tokens a second in the best part of a run, a request's spread evenly over its pieces.

    Parts are equal, and a second long or as little more as it takes: so the peak is never below the mean.
    """
    if not duration:
        return 0.0
    part_s = duration / max(1, int(duration))
    tokens: dict[int, float] = defaultdict(float)
    for outcome, num in zip(good, outputs, strict=True):
        for time_s in outcome.text_s:  # the last one's may be where the run ends
            tokens[int(min(time_s - started, duration - part_s / 2) / part_s)] += num / len(outcome.text_s)
    return max(tokens.values(), default=0.0) / part_s


def _peak_requests(outcomes: Sequence[Outcome]) -> int:
    changes = sorted([(o.sent_s, 1) for o in outcomes] + [(o.ended_s, -1) for o in outcomes])
    return max(accumulate(change for _, change in changes), default=0)
