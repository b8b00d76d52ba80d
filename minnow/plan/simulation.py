"""what a simulated load comes to: latencies, interactivity, throughput, cost, and what the caches did"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from minnow.plan import cluster as clusters
from minnow.plan import speed
from minnow.plan.cluster import Cluster
from minnow.plan.hardware import Figure, Sheet
from minnow.plan.lockstep import Lockstep
from minnow.plan.rank import Job
from minnow.plan.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """Of so many values; all 0 where there are none."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Tokens for a dollar on one basis of cost.

    Attributes:
        basis: whose cost of a device it is.
        dollars_h: of a device an hour, with its status and source.
        total_tokens, output_tokens: for a dollar; the first with those of prompts, cached or not.
    """

    basis: str
    dollars_h: Figure
    total_tokens: float
    output_tokens: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOutcome:
    """What the engines of a pool did, the warm-up included.

    Attributes:
        num_steps: of all engines.
        busy: share of the time that they stepped.
        step_s: of a step on average.
        hit_rate: share of prompts' tokens that were not computed when the prompt first ran; None without prompts, or
            where they come computed.
        host_hit_rate: of these tokens, those that came from host memory.
        used, peak_used: share of the blocks of the fullest rank in use: on average while it stepped, and at most.
        num_evictions: cached blocks that were overwritten.
    """

    num_steps: int
    busy: float
    step_s: float
    num_preemptions: int
    hit_rate: float | None
    host_hit_rate: float
    used: float
    peak_used: float
    num_evictions: int
    computed_tokens: int
    num_drafts: int
    num_accepted_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a load comes to. Requests of a warm-up are in no number but `num_warmups` and those of the pools.

    Attributes:
        duration_s: from the first counted request to the last end; tokens a second are over it.
        skipped_s: idle time that was left out.
        ttft_s: from sending a request to its first token.
        tpot_s: a token after the first one, of requests with two and more.
        e2e_s: from sending a request to its last token.
        e2e_interactivity: 1 / P90 of the time of a whole answer over its tokens: tokens a second.
        tpot_interactivity: 1 / P50 of the time of a token after the first: tokens a second.
        input_tokens: of prompts, cached ones too; cached_tokens: of these, found when the prompt first ran.
        total_tokens_s_device, output_tokens_s_device: tokens a second on a device; the first with those of prompts.
        prices: one for each basis that the sheet has a price for.
    """

    num_requests: int
    num_warmups: int
    num_refused: int
    first_refusal: str
    num_devices: int
    duration_s: float
    skipped_s: float
    ttft_s: Percentiles
    tpot_s: Percentiles
    e2e_s: Percentiles
    e2e_interactivity: float
    tpot_interactivity: float
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    total_tokens_s_device: float
    output_tokens_s_device: float
    prices: tuple[Price, ...]
    decode: PoolOutcome
    prefill: PoolOutcome | None = None


class Recorder:
    """Takes note of requests as they end: a few numbers of each."""

    def __init__(self) -> None:
        self.ttft_s, self.tpot_s, self.e2e_s, self.token_s = array("d"), array("d"), array("d"), array("d")
        self.num_warmups = self.input_tokens = self.cached_tokens = self.output_tokens = 0
        self.first_due_s = self.last_end_s = 0.0

    def add(self, job: Job, now_s: float, is_warmup: bool) -> None:
        """A request has ended."""
        if is_warmup:
            self.num_warmups += 1
            return
        count, whole_s = job.num_output_tokens, now_s - job.due_s
        if not self.e2e_s or job.due_s < self.first_due_s:
            self.first_due_s = job.due_s
        self.last_end_s = max(self.last_end_s, now_s)
        self.ttft_s.append(job.first_s - job.due_s)
        self.e2e_s.append(whole_s)
        self.token_s.append(whole_s / count)
        if count > 1:
            self.tpot_s.append((now_s - job.first_s) / (count - 1))
        self.input_tokens += job.num_input_tokens
        self.cached_tokens += job.num_cached_tokens
        self.output_tokens += count


def simulate(cluster: Cluster, workload: Workload, device: Sheet, seed: int = 0) -> Outcome:
    """Play a workload on a cluster.

    Args:
        device: that all of it runs on.
        seed: of the draws of acceptance; the workload has its own.
    """
    recorder = Recorder()
    simulator = clusters.build(cluster, seed, recorder.add)
    end_s = simulator.run(workload)
    duration_s = max(recorder.last_end_s - recorder.first_due_s, 0.0)
    rate = 1 / (duration_s * cluster.num_devices) if duration_s else 0.0
    total = (recorder.input_tokens + recorder.output_tokens) * rate
    token_s, tpot_s = _percentiles(recorder.token_s), _percentiles(recorder.tpot_s)
    return Outcome(
        num_requests=len(recorder.e2e_s), num_warmups=recorder.num_warmups, num_refused=simulator.num_refused,
        first_refusal=simulator.first_refusal, num_devices=cluster.num_devices, duration_s=duration_s,
        skipped_s=simulator.skipped_s, ttft_s=_percentiles(recorder.ttft_s), tpot_s=tpot_s,
        e2e_s=_percentiles(recorder.e2e_s), e2e_interactivity=1 / token_s.p90 if token_s.p90 else 0.0,
        tpot_interactivity=1 / tpot_s.p50 if tpot_s.p50 else 0.0, input_tokens=recorder.input_tokens,
        cached_tokens=recorder.cached_tokens, output_tokens=recorder.output_tokens, total_tokens_s_device=total,
        output_tokens_s_device=recorder.output_tokens * rate,
        prices=tuple(_prices(device, total, recorder.output_tokens * rate)),
        decode=_pool(simulator.engines, end_s, is_handed=bool(simulator.prefill)),
        prefill=_pool(simulator.prefill, end_s) if simulator.prefill else None,
    )  # fmt: skip


def _percentiles(values: "array[float]") -> Percentiles:
    """As numpy interpolates them, and so as vLLM's bench does."""
    if not values:
        return Percentiles(count=0, mean=0.0, p50=0.0, p90=0.0, p99=0.0)
    seen = np.frombuffer(values)
    p50, p90, p99 = (float(value) for value in np.percentile(seen, (50, 90, 99)))
    return Percentiles(count=len(values), mean=float(seen.mean()), p50=p50, p90=p90, p99=p99)


def _prices(device: Sheet, total_tokens_s: float, output_tokens_s: float) -> list[Price]:
    found = []
    for basis in speed.PRICE_BASES:
        figure = device.figures.get(f"price_{basis}")
        if figure is not None:
            per_dollar = 3600 / figure.value
            found.append(
                Price(
                    basis=basis,
                    dollars_h=figure,
                    total_tokens=total_tokens_s * per_dollar,
                    output_tokens=output_tokens_s * per_dollar,
                )
            )
    return found


def _pool(engines: Sequence[Lockstep], end_s: float, *, is_handed: bool = False) -> PoolOutcome:
    ranks = [rank for engine in engines for rank in engine.ranks]
    stats = [rank.stats() for rank in ranks]
    busy_s, num_steps = sum(engine.busy_s for engine in engines), sum(engine.num_steps for engine in engines)
    # What was computed elsewhere is no prefix that somebody left.
    queried = 0 if is_handed else sum(each.prefix_queries_tokens for each in stats)
    tiers = [(rank.tier.num_loaded_blocks * rank.tier.block_size) for rank in ranks if rank.tier is not None]
    return PoolOutcome(
        num_steps=num_steps,
        busy=busy_s / (end_s * len(engines)) if end_s else 0.0,
        step_s=busy_s / num_steps if num_steps else 0.0,
        num_preemptions=sum(each.num_preemptions for each in stats),
        hit_rate=sum(each.prefix_hits_tokens for each in stats) / queried if queried else None,
        host_hit_rate=sum(tiers) / queried if queried else 0.0,
        used=sum(engine.used_s for engine in engines) / busy_s if busy_s else 0.0,
        peak_used=max(engine.peak_used for engine in engines),
        num_evictions=sum(rank.blocks.num_evictions for rank in ranks),
        computed_tokens=sum(each.computed_tokens for each in stats),
        num_drafts=sum(each.num_drafts for each in stats),
        num_accepted_tokens=sum(each.num_accepted_tokens for each in stats),
    )
