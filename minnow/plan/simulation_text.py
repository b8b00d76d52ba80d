"""what simulated loads come to, for people"""

from collections.abc import Iterator, Sequence

from minnow.core.units import show_bytes, show_seconds
from minnow.plan import agentx
from minnow.plan.cluster import Cluster, Pool
from minnow.plan.frontier import Point
from minnow.plan.plot import Chart, Series
from minnow.plan.report import table
from minnow.plan.simulation import Outcome, Percentiles, PoolOutcome

X_TITLE = "tokens/s for a user: 1 / P90 of (time of an answer / its tokens)"
Y_TITLE = "tokens/s of a device, prompts included"


def assumptions(cluster: Cluster, words: str, times: str) -> Iterator[str]:
    """What is simulated.

    Args:
        words: of the workload.
        times: where the times of steps are from.
    """
    law = cluster.law
    rows = [("workload", words), ("times of steps", times)]
    if cluster.prefill is not None:
        rows += [("prefill", _engines(cluster.prefill)), ("decode", _engines(cluster.pool))]
    else:
        rows += [("engines", _engines(cluster.pool))]
    if cluster.handover is not None:
        rate = f"{show_bytes(cluster.handover.bytes_s)}/s"
        rows.append(("handover", f"{show_bytes(cluster.handover.block_bytes)} a block at {rate} from each rank"))
    if law is not None:
        rates = sorted(set(law.rates))
        each = f"{rates[0]:.3f} each" if len(rates) == 1 else ", ".join(f"{rate:g}" for rate in law.rates)
        rows.append(("acceptance", f"{law.length:.2f} tokens a round of {len(law.rates)} drafts (rates: {each})"))
    host = (cluster.prefill or cluster.pool).shape
    if host.host_blocks:
        rows.append(("host memory", f"{host.host_blocks:,} blocks a rank, {show_bytes(host.host_bytes_s)}/s"))
    rows.append(("routing", cluster.routing))
    yield "Assumptions"
    yield from table(("", "note"), rows)


def _engines(pool: Pool) -> str:
    shape = pool.shape
    together = f" of {pool.num_ranks} ranks in lockstep" if pool.num_ranks > 1 else ""
    tokens = (shape.num_blocks - 1) * shape.block_size / 1e6
    return (
        f"{pool.num_engines} engine{'s' * (pool.num_engines > 1)}{together}, {pool.num_devices} devices; "
        f"{shape.scheduler.max_num_seqs} sequences and {shape.scheduler.max_num_batched_tokens:,} tokens a step, "
        f"{tokens:.2f} M tokens of cache a rank"
    )


def outcome(of: Outcome, title: str, *, is_replay: bool) -> Iterator[str]:
    """One load."""
    yield title
    rows = [
        ("requests", f"{of.num_requests:,}", f"{of.num_warmups:,} more to warm up" if of.num_warmups else ""),
        ("simulated", f"{of.duration_s:,.1f} s", f"{of.skipped_s:,.1f} s idle left out" if of.skipped_s else ""),
        ("prompts", f"{of.input_tokens:,}", f"tokens; {_share(of.cached_tokens, of.input_tokens)} were not computed"),
        ("answers", f"{of.output_tokens:,}", "tokens"),
        ("all tokens", f"{of.total_tokens_s_device:,.0f}", f"a second and device, of {of.num_devices}"),
        ("answers' tokens", f"{of.output_tokens_s_device:,.1f}", "a second and device"),
        ("interactivity", f"{of.e2e_interactivity:,.1f}", "tokens/s: 1 / P90 of (time of an answer / its tokens)"),
        ("  by TPOT", f"{of.tpot_interactivity:,.1f}", "tokens/s: 1 / P50 of the time of a token after the first"),
    ]
    yield from table(("", "value", "note"), rows)
    yield ""
    times = [_times(name, of_what) for name, of_what in (("TTFT", of.ttft_s), ("TPOT", of.tpot_s), ("E2E", of.e2e_s))]
    yield from table(("", "mean", "p50", "p90", "p99", "requests"), times)
    yield ""
    for name, pool in (("Prefill", of.prefill), ("Decode" if of.prefill is not None else "Engines", of.decode)):
        if pool is not None:
            yield from _pool(name, pool)
    yield from _prices(of)
    if of.num_refused:
        yield f"  {of.num_refused:,} requests could never run and were left out; the first: {of.first_refusal}"
    if is_replay and of.duration_s < agentx.LEAST_S:
        yield f"  a replay should last {agentx.LEAST_S:g} s; give more --num-prompts"


def _times(name: str, of: Percentiles) -> tuple[str, ...]:
    return name, *(show_seconds(value) for value in (of.mean, of.p50, of.p90, of.p99)), f"{of.count:,}"


def _pool(name: str, of: PoolOutcome) -> Iterator[str]:
    hits = "none asked for" if of.hit_rate is None else f"{of.hit_rate:.1%}"
    host = f", {of.host_hit_rate:.1%} from host memory" if of.host_hit_rate else ""
    rows = [
        ("steps", f"{of.num_steps:,}", f"{show_seconds(of.step_s)} each on average; busy {of.busy:.0%} of the time"),
        ("preemptions", f"{of.num_preemptions:,}", ""),
        ("prefix hits", hits, f"of prompts' tokens{host}"),
        ("cache in use", f"{of.used:.1%}", f"of the fullest rank while it steps; {of.peak_used:.1%} at most"),
        ("evictions", f"{of.num_evictions:,}", "cached blocks that were overwritten"),
    ]
    if of.num_drafts:
        length = 1 + of.num_accepted_tokens / of.num_drafts
        rows.append(("rounds", f"{of.num_drafts:,}", f"of drafts; {length:.2f} tokens each"))
    yield name
    yield from table(("", "value", "note"), rows)


def _prices(of: Outcome) -> Iterator[str]:
    if not of.prices:
        yield "  no price of this device is known, so tokens have none"
        return
    yield "Tokens for a dollar"
    rows = [
        (price.basis, f"{price.total_tokens / 1e6:,.2f} M", f"{price.output_tokens / 1e6:,.3f} M",
         f"{price.dollars_h.written} a device, {price.dollars_h.status}")
        for price in of.prices
    ]  # fmt: skip
    yield from table(("", "all", "answers", "note"), rows)


def sweep(points: Sequence[Point]) -> Iterator[str]:
    """Several loads, and which of them are on the frontier."""
    yield "Frontier: interactivity against all tokens of a device; * is beaten by no other"
    head = (
        "",
        "load",
        "tokens/s/user",
        "by TPOT",
        "TTFT p50",
        "all tok/s/device",
        "answers'",
        "preempted",
        "$ basis",
        "M tok/$",
    )
    rows = []
    for point in points:
        of = point.outcome
        price = of.prices[0] if of.prices else None
        rows.append(
            (
                ("* " if point.is_best else "  ") + point.topology,
                point.load,
                f"{of.e2e_interactivity:,.1f}",
                f"{of.tpot_interactivity:,.1f}",
                show_seconds(of.ttft_s.p50),
                f"{of.total_tokens_s_device:,.0f}",
                f"{of.output_tokens_s_device:,.1f}",
                f"{of.decode.num_preemptions + (of.prefill.num_preemptions if of.prefill else 0):,}",
                price.basis if price else "none",
                f"{price.total_tokens / 1e6:,.1f}" if price else "-",
            )
        )
    yield from table(head, rows)
    for point in points:
        if point.outcome.num_refused:
            yield f"  {point.topology}, {point.load}: {point.outcome.num_refused:,} requests could never run"


def chart(points: Sequence[Point], title: str) -> Chart:
    """The same as a plot."""
    names = list(dict.fromkeys(point.topology for point in points))
    series = []
    for name in names:
        own = [point for point in points if point.topology == name]
        series.append(
            Series(
                name=name,
                points=tuple((*point.place, point.load) for point in own),
                best=tuple(point.is_best for point in own),
            )
        )
    return Chart(title=title, x_title=X_TITLE, y_title=Y_TITLE, series=tuple(series))


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "none"
