"""tables for people: a plan, the published claims, the assumption sets, the forecast, the sheets"""

from collections.abc import Iterable, Iterator, Sequence

from minnow.core.units import show_bytes, show_decimal, show_seconds
from minnow.plan import claims as published_claims
from minnow.plan import prefill
from minnow.plan.capacity import Capacity, Holding, read_share
from minnow.plan.claims import Verdict
from minnow.plan.command import Check
from minnow.plan.deployment import CONTEXT_TOKENS, RESERVE_BYTES, UTILIZATION
from minnow.plan.forecast import Forecast
from minnow.plan.hardware import Sheet
from minnow.plan.published import DECODE_TOKENS, FLASH_SEQUENCES, M3_SEQUENCES, NUM_RANKS, Finding
from minnow.plan.transfer import HUGE_PAGE_BYTES, HUGE_PAGES_FILE, Offload, Transfer

_LEFT = ("note", "status", "words")  # columns of words


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, indent: str = "  ") -> Iterator[str]:
    """Lines of a table: the first column and columns of words to the left, figures to the right."""
    lines = [*([tuple(head)] if any(head) else []), *map(tuple, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    is_left = [i == 0 or name in _LEFT for i, name in enumerate(head)]
    for line in lines:
        cells = [f"{c:<{w}}" if left else f"{c:>{w}}" for c, w, left in zip(line, widths, is_left, strict=True)]
        yield (indent + "  ".join(cells)).rstrip()


def plan(capacity: Capacity) -> Iterator[str]:
    """A deployment: what was assumed, what the memory is spent on, what a token takes, how many sequences fit."""
    of = capacity.deployment
    nodes = f" on {of.num_nodes} nodes" if of.num_nodes > 1 else ""
    yield f"{of.name} on {of.num_ranks}x {of.device.title}{nodes}, {of.strategy}"
    for title, lines in (
        ("Assumptions", table(("", "value", "status", "note"), assumed(capacity))),
        ("Memory of the fullest rank", _memory(capacity)),
        ("Cache of a token on a rank", _cache(capacity)),
        (f"Sequences of {of.context_tokens:,} tokens", _sequences(capacity)),
    ):
        yield ""
        yield title
        yield from lines


def assumed(capacity: Capacity) -> list[tuple[str, str, str, str]]:
    """What a plan takes for granted: name, value, status, note."""
    of = capacity.deployment
    config, memory = of.config, of.device.figures["memory"]
    usual = config.cache.gpu_memory_utilization == UTILIZATION and of.device.kind == "gpu"
    rows = [
        ("memory of a device", _both(memory.value), memory.status, f"{memory.written}; {memory.source}"),
        (
            "gpu_memory_utilization",
            f"{config.cache.gpu_memory_utilization:g}",
            "convention" if usual else "setting",
            "",
        ),
        ("reserve", _both(of.reserve.num_bytes), of.reserve.status, of.reserve.words),
        ("watermark", f"{config.scheduler.watermark:g}", "setting", "of the blocks, kept free when admitting"),
        ("max_num_seqs", f"{config.scheduler.max_num_seqs:,}", "setting", "sequences in a step of a replica"),
        ("max_model_len", f"{config.max_model_len:,}", "setting", "tokens; one such sequence must fit"),
        ("cache formats", _formats(capacity), "setting", ""),
    ]
    if of.drafter is not None:
        words = f"{of.num_drafts} drafts a round; largest decode step {capacity.graph_tokens:,} tokens"
        rows.append(("drafter", f"{of.drafter.backbone.num_hidden_layers} layers", "config", words))
        manager = "on" if of.has_hybrid_manager else "off"
        words = "its pages are kept for its window only; Minnow has none" if of.has_hybrid_manager else (
            "its pages are charged for the whole context"
        )  # fmt: skip
        rows.append(("hybrid cache manager", manager, "setting", words))
    if of.experts_format:
        rows.append(("routed experts", of.experts_format, "setting", "converted when they are loaded"))
    return rows


def _formats(capacity: Capacity) -> str:
    return ", ".join(f"{group.name} {group.format.name}" for group in capacity.allocated.layout.groups)


def _memory(capacity: Capacity) -> Iterator[str]:
    of, memory, weights = capacity.deployment, capacity.allocated.memory, capacity.weights
    least_bytes = weights.num_bytes // 10_000  # norms are not worth a line
    shares = [share for share in weights.shares if share.num_bytes >= least_bytes]
    rows = [
        _spent("limit", memory.limit_bytes),
        _spent("weights", weights.num_bytes),
        *(_spent(f"  {share.kind}", share.num_bytes, share.format) for share in shares),
    ]
    if of.copied_bytes:
        rows.append(_spent("output projections again", of.copied_bytes, "for sequence-parallel prefill"))
    rows.append(_spent("reserve", of.reserve.num_bytes, of.reserve.status))
    if of.drafter_bytes:
        rows.append(_spent("  drafter weights", of.drafter_bytes, "computed"))
        rest_bytes = of.reserve.num_bytes - of.drafter_bytes
        rows.append(_spent("  activations, graphs, buffers", rest_bytes, "what is left of it"))
    blocks = f"{memory.num_blocks:,} blocks of {memory.row_bytes:,} bytes, one of them the null block"
    rows.append(_spent("cache", memory.cache_bytes, blocks))
    return table(("", "decimal", "binary", "note"), rows)


def _spent(name: str, num_bytes: int, note: str = "") -> tuple[str, str, str, str]:
    return name, show_decimal(num_bytes), show_bytes(num_bytes), note


def _cache(capacity: Capacity) -> Iterator[str]:
    words_by_name = {"kv": "K and V", "index": "index keys", "draft": "drafter"}
    num_ranks = capacity.deployment.config.parallel.tensor_parallel_size
    rows = []
    window_tokens = capacity.allocated.tokens_each - capacity.deployment.context_tokens
    for group in capacity.allocated.layout.groups:
        heads = f"{group.num_heads} head{'s' * (group.num_heads > 1)}"
        copies = ", whole on every rank" if group.name == "index" and num_ranks > 1 else ""
        note = f"{group.num_layers} layers, {heads}, {group.format.name}{copies}"
        rows.append((words_by_name[group.name], f"{group.token_bytes * group.num_layers:,}", note))
    token_bytes = capacity.allocated.layout.token_bytes
    note = f"{token_bytes * num_ranks:,} on the {num_ranks} ranks of a replica" if num_ranks > 1 else ""
    yield from table(("", "bytes", "note"), [*rows, ("sum", f"{token_bytes:,}", note)])
    if window_tokens:
        yield f"  The drafter's window takes as much as {window_tokens:,} tokens of each sequence."


def _sequences(capacity: Capacity) -> Iterator[str]:
    of = capacity.deployment
    replicas = of.config.parallel.data_parallel_size
    is_one = capacity.published.layout == capacity.allocated.layout
    shown = (capacity.allocated,) if is_one else (capacity.published, capacity.allocated)
    rows = [
        ("whose count", *(h.accounting.words for h in shown)),
        ("bytes a token", *(f"{h.layout.token_bytes:,}" for h in shown)),
        ("blocks a rank", *(f"{h.memory.num_blocks:,}" for h in shown)),
        ("tokens a rank", *(_millions(h.memory.num_tokens) for h in shown)),
        ("sequences a rank", *(str(h.num_sequences) for h in shown)),
        (f"sequences of {replicas} replica{'s' * (replicas > 1)}", *(str(h.num_sequences_engine) for h in shown)),
        ("binds", *(h.binds for h in shown)),
        ("left over", *(f"{h.slack:.2f} of a sequence" for h in shown)),
        ("one more a rank", *(next_more(h) for h in shown)),
        ("  or utilization", *(next_utilization(h) for h in shown)),
        ("  or sequences of", *(next_shorter(h) for h in shown)),
    ]
    yield from table(("", *(h.accounting.name for h in shown)), rows)
    chunk_tokens = of.config.scheduler.max_num_batched_tokens
    num_steps = prefill.num_recomputed_steps(of.context_tokens, chunk_tokens)
    share = read_share(capacity.allocated.layout, of.model, of.context_tokens)
    if share is not None:
        yield f"  A decode step reads {share:.1%} of one's K and V in a sparse layer: index scan and chosen blocks."
    yield f"  One that is preempted is computed again in {num_steps:,} steps of {chunk_tokens:,} tokens."


def next_more(holding: Holding) -> str:
    """What one more sequence a rank takes."""
    step = holding.next_step
    if step.max_num_seqs:
        return f"max_num_seqs {step.max_num_seqs}; the cache holds {holding.num_cached:,}"
    unit_bytes = 10 ** max(len(str(step.more_bytes)) - 4, 0)  # four figures are printed: not less than it takes
    return f"{show_decimal(-(-step.more_bytes // unit_bytes) * unit_bytes)} more"


def next_utilization(holding: Holding) -> str:
    """The utilization that would do instead; "-" where none does."""
    step = holding.next_step
    return "-" if step.utilization is None or step.max_num_seqs else f"{step.utilization:.3f}"


def next_shorter(holding: Holding) -> str:
    """Shorter sequences that would do instead."""
    return "-" if holding.next_step.max_num_seqs else f"{holding.next_step.context_tokens:,} tokens"


def move(moved: Transfer) -> Iterator[str]:
    """What a sequence moves from a prefill rank to a decode rank, and how long it takes by link."""
    size = show_decimal(moved.num_bytes)
    yield f"One sequence from prefill to decode: {moved.num_blocks:,} blocks, {size} from each rank"
    rows = [
        ("reads, each layer's pages apart", f"{moved.reads_by_page:,}", ""),
        ("reads, a block in one row", f"{moved.reads_by_block:,}", "Minnow's layout"),
    ]
    rows += [(f"on {link}", show_seconds(time_s), "bytes over rate") for link, time_s in moved.seconds_by_link.items()]
    yield from table(("", "", "note"), rows)
    if not moved.has_one_layout:
        yield "  the two lay their blocks out differently: rows cannot travel as they are"


def host(kept: Offload, role: str = "") -> Iterator[str]:
    """What host memory holds, and the pages to reserve."""
    yield f"Host memory{role and f' of {role}'}, {show_bytes(kept.bytes_a_rank)} a rank"
    rows = [
        ("blocks a rank", f"{kept.num_blocks:,}"),
        ("tokens a rank", _millions(kept.num_tokens)),
        ("all ranks", f"{show_bytes(kept.total_bytes)} = {show_decimal(kept.total_bytes)}"),
    ]
    nodes = f" on each of {kept.num_nodes} nodes" if kept.num_nodes > 1 else ""
    if kept.num_huge_pages:
        rows.append((f"huge pages of {show_bytes(HUGE_PAGE_BYTES)}{nodes}", f"{kept.num_huge_pages:,}"))
    yield from table(("", ""), rows)
    if kept.num_huge_pages:
        yield f"  before the start{nodes and ', on each node'}: echo {kept.num_huge_pages} > {HUGE_PAGES_FILE}"


def command(checked: Check) -> Iterator[str]:
    """What a command comes to beside its capacity: host memory, vLLM's words, what to mend and what to know."""
    if checked.host is not None:
        yield ""
        yield from host(checked.host)
    for title, rows in (
        ("Words of vLLM without effect here", checked.ignored.items()),
        ("Planned with, not launched yet", checked.not_yet.items()),
    ):
        if rows:
            yield ""
            yield title
            yield from table(("", "note"), rows)
    for title, sentences in (("To be mended", checked.problems), ("To be known", checked.notes)):
        if sentences:
            yield ""
            yield title
            yield from (f"  {sentence}" for sentence in sentences)


def claims(verdicts: Iterable[Verdict]) -> Iterator[str]:
    """Every published number of model and memory beside the computed one."""
    verdicts = tuple(verdicts)
    rows = [
        (
            v.claim.id,
            v.claim.words,
            f"{v.claim.stated:,.10g} {v.claim.unit}".rstrip(),
            f"{v.computed:,.7g}" if v.computed < 1e6 else f"{v.computed:,.0f}",
            f"{v.difference:+.2%}",
            "equal" if v.claim.places == 0 else f"{v.claim.tolerance:.1%}" if v.claim.places is None else (
                f"to {v.claim.places} place{'s' * (v.claim.places > 1)}"
            ),
            "ok" if v.is_ok else "OFF",
            v.claim.status,
        )
        for v in verdicts
    ]  # fmt: skip
    yield from table(("claim", "words", "stated", "computed", "off by", "tolerance", "", "status"), rows, indent="")
    yield ""
    yield from table(("claim", "note"), [(v.claim.id, v.claim.note) for v in verdicts if v.claim.note], indent="")
    yield ""
    for status, meaning in published_claims.MEANING_BY_STATUS.items():
        count = sum(v.claim.status == status for v in verdicts)
        yield f"{status:10}{count:3}  {meaning}"
    yield f"{sum(v.is_ok for v in verdicts)} of {len(verdicts)} ok"


def assumptions(findings: Iterable[Finding]) -> Iterator[str]:
    """The assumption sets that reproduce the published comparison, and those that do not."""
    yield (
        f"Published: {FLASH_SEQUENCES} sequences of {CONTEXT_TOKENS:,} tokens for M3.1-Flash and {M3_SEQUENCES} for M3 "
        f"in FP8 on {NUM_RANKS}x B300, DEP4."
    )
    yield "Neither utilization nor accounting is published. Reserves in GB that give both counts, and in brackets those"
    yield f"that also leave about {DECODE_TOKENS / 1e6:g}M tokens on a GB300 decode rank at 0.95, every byte charged:"
    yield ""
    utilizations = sorted({u for finding in findings for u in finding.reserves_bytes})
    rows = []
    for finding in findings:
        usable = finding.usable_bytes
        cells = [_range(finding, u) for u in utilizations]
        words = "inconsistent" if usable is None else f"{usable[0] / 1e9:.1f} to {usable[1] / 1e9:.1f}"
        rows.append((f"{finding.assumptions.name:3}{finding.assumptions.words}", words, *cells))
    yield from table(("set", "usable GB", *(f"at {u:.2f}" for u in utilizations)), rows)


def _range(finding: Finding, utilization: float) -> str:
    found, joint = finding.reserves_bytes.get(utilization), finding.joint_bytes.get(utilization)
    if found is None:
        return "-"
    words = f"{found[0] / 1e9:.1f}-{found[1] / 1e9:.1f}"
    return words + (f" [{joint[0] / 1e9:.1f}-{joint[1] / 1e9:.1f}]" if joint else "")


def forecasts(rows: Iterable[Forecast]) -> Iterator[str]:
    """M3.1-Flash on every device: predictions."""
    yield f"Predictions: no engine's log has been compared with them. The reserve of {show_decimal(RESERVE_BYTES)} was"
    yield "fitted on B300 and GB300 in DEP4; everywhere else it is an extrapolation. Weights are divided evenly, as"
    yield "published plans do; Minnow's own shards, beside them, copy routers, index keys and the vision tower."
    yield ""
    lines = [
        (
            f"{f.row.device} {f.row.strategy}" + (f" at {f.row.utilization:g}" if f.row.utilization != 0.9 else ""),
            f"{f.even_bytes / 1e9:.1f}",
            f"{f.sharded_bytes / 1e9:.1f}",
            f"{f.cache_bytes / 1e9:.1f}",
            f"{f.holding.layout.token_bytes:,}",
            f"{f.num_tokens / 1e6:.2f}",
            str(f.holding.num_sequences_engine),
        )
        for f in rows
    ]
    head = ("engine", "weights GB", "as sharded GB", "cache GB", "bytes a token", "M tokens", "x 256K")
    yield from table(head, lines)


def sheets(found: Iterable[Sheet]) -> Iterator[str]:
    """Every number of every sheet with its status and source."""
    for sheet in found:
        yield f"{sheet.name}: {sheet.title}, {sheet.kind}" + (
            f", {sheet.devices_per_node} a node" if sheet.kind == "gpu" else ""
        )
        yield from table(
            ("", "value", "status", "note"),
            [
                (name, f.written, f.status, f"{f.source}{'; ' if f.note else ''}{f.note}")
                for name, f in sheet.figures.items()
            ],
        )
        yield ""


def _both(num_bytes: float) -> str:
    return f"{show_decimal(num_bytes)} = {show_bytes(num_bytes)}"


def _millions(number: int) -> str:
    return f"{number / 1e6:.2f}M" if number >= 10**6 else f"{number:,}"
