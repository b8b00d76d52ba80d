"""what the planner's page shows of memory: counts, bars and tables as plain JSON, numbers with what they rest on"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from minnow.config import model as model_config
from minnow.core.units import show_bytes, show_decimal, show_seconds
from minnow.plan import claims, hardware, report, roofline, transfer
from minnow.plan.capacity import Capacity, Holding
from minnow.plan.deployment import Deployment
from minnow.plan.status import weakest

FORWARD = "forward"  # follows from the model's configuration by the functions that the engine allocates by
_DRAFTER_CLAIM = "R2"  # says what a published drafter's part of a block rests on
KINDS = {"kv": "K and V", "index": "index keys", "draft": "drafter's keys"}


def cell(text: str, status: str = "", note: str = "") -> dict[str, str]:
    """A number with what it rests on."""
    return {"text": text, "status": status, "note": note}


def table(title: str, head: Sequence[Any], rows: Iterable[Sequence[Any]], notes: Iterable[str] = ()) -> dict[str, Any]:
    """A table; a head or a cell is a text or a `cell`, and a head's status is that of its column."""
    return {"title": title, "head": list(head), "rows": [list(row) for row in rows], "notes": list(notes)}


def both(num_bytes: float) -> str:
    """A size in decimal and in binary units."""
    return f"{show_decimal(num_bytes)} = {show_bytes(num_bytes)}"


def cache_status(found: Capacity) -> str:
    """What the room for the cache rests on, and how many sequences fit with it."""
    status_by_name = {name: status for name, _, status, _ in report.assumed(found)}
    return weakest(*(status_by_name[name] for name in ("memory of a device", "gpu_memory_utilization", "reserve")))


def draft_status(of: Deployment) -> str:
    """A published drafter's shape was read off published numbers; one that is here says its own."""
    if of.name not in model_config.known_names():
        return "config"
    return next(claim.status for claim in claims.CLAIMS if claim.id == _DRAFTER_CLAIM)


def counts(found: Capacity) -> list[dict[str, Any]]:
    """How many sequences fit, under each accounting that differs."""
    return [_count(found, holding) for holding in _holdings(found)]


def bars(found: Capacity) -> list[dict[str, Any]]:
    """What the memory of the fullest rank is spent on, under each accounting."""
    return [
        {
            "name": holding.accounting.name,
            "words": holding.accounting.words,
            "memory": cell(
                both(found.deployment.device.memory_bytes), found.deployment.device.figures["memory"].status
            ),
            "parts": list(_parts(found, holding)),
        }
        for holding in _holdings(found)
    ]


def assumptions(found: Capacity) -> dict[str, Any]:
    """What the plan takes for granted."""
    rows = [(name, cell(value, status), note) for name, value, status, note in report.assumed(found)]
    of = found.deployment
    if of.num_nodes > 1 and of.num_ranks > of.device.scale_up_devices:
        rate, words = roofline.link_of(of)
        rests = weakest(rate.status, "convention")
        rows.append(("link of machines", cell(f"{rate.written}, one way", rests), f"{words}, assumed"))
    return table("Assumptions", ("", "value", "rests on"), rows)


def token(found: Capacity) -> dict[str, Any]:
    """What a token takes in the cache of a rank."""
    layout, num_ranks = found.allocated.layout, found.deployment.config.parallel.tensor_parallel_size
    rows = []
    for group in layout.groups:
        heads = f"{group.num_heads} head{'s' * (group.num_heads > 1)}"
        copies = ", whole on every rank" if group.name == "index" and num_ranks > 1 else ""
        size = cell(f"{group.token_bytes * group.num_layers:,} B", _group_status(found, group.name))
        words = f"{group.num_layers} layers, {heads}, {group.format.name}{copies}"
        rows.append((KINDS[group.name], size, cell(words, "config")))
    words = f"{layout.token_bytes * num_ranks:,} B on the {num_ranks} ranks of a replica" if num_ranks > 1 else ""
    rests = _layout_status(found, found.allocated)
    rows.append(("sum", cell(f"{layout.token_bytes:,} B", rests), cell(words, rests if words else "")))
    return table("Cache of a token on a rank", ("", "bytes", "of"), rows)


def apart(prefill: Capacity, decode: Capacity) -> Iterator[dict[str, Any]]:
    """An engine that prefills, and what moves from it to one that decodes."""
    of, held, moved = prefill.deployment, prefill.allocated, transfer.between(prefill, decode)
    rests = cache_status(prefill)
    yield table(
        f"Prefill engine: {of.num_ranks} x {of.device.title}, {of.strategy}",
        ("", "value"),
        [
            (f"sequences of {of.context_tokens:,} tokens", cell(f"{held.num_sequences_engine:,}", rests)),
            ("binds", held.binds),
            ("one more a rank", cell(report.next_more(held), rests)),
        ],
    )
    reads = [
        ("each layer's pages apart", moved.reads_by_page),
        ("a block in one row, as Minnow's", moved.reads_by_block),
    ]
    size = _group_status(decode, "draft") if decode.allocated.layout.group("draft") else FORWARD
    rows = [
        ("blocks", cell(f"{moved.num_blocks:,}", FORWARD)),
        ("bytes", cell(both(moved.num_bytes), size)),
        *((f"reads, {words}", cell(f"{count:,}", size)) for words, count in reads),
        *(
            (f"on {link}, bytes over rate", cell(show_seconds(seconds), weakest(size, _rate_status(of, link))))
            for link, seconds in moved.seconds_by_link.items()
        ),
    ]
    differ = "the two lay their blocks out differently: rows cannot travel as they are"
    yield table(
        "One sequence from each prefill rank to decode", ("", "value"), rows, [] if moved.has_one_layout else [differ]
    )


def _holdings(found: Capacity) -> tuple[Holding, ...]:
    is_one = found.published.layout == found.allocated.layout
    return (found.allocated,) if is_one else (found.published, found.allocated)


def _count(found: Capacity, holding: Holding) -> dict[str, Any]:
    of, rests, memory = found.deployment, cache_status(found), holding.memory
    replicas = of.config.parallel.data_parallel_size
    rows = [
        ("on each replica", cell(f"{holding.num_sequences:,}", rests)),
        ("bytes a token", cell(f"{holding.layout.token_bytes:,}", _layout_status(found, holding))),
        ("tokens a rank", cell(f"{memory.num_tokens:,}", rests)),
        ("binds", holding.binds),
        ("left over", cell(f"{holding.slack:.2f} of a sequence", rests)),
        ("one more a rank takes", cell(report.next_more(holding), rests)),
    ]
    for name, text in (
        ("or utilization", report.next_utilization(holding)),
        ("or sequences of", report.next_shorter(holding)),
    ):
        rows += [(name, cell(text, rests))] if text != "-" else []
    if replicas == 1:
        rows = rows[1:]
    return {
        "name": holding.accounting.name, "words": holding.accounting.words,
        "count": cell(f"{holding.num_sequences_engine:,}", rests), "of": f"sequences of {of.context_tokens:,} tokens",
        "rows": rows,
    }  # fmt: skip


def _parts(found: Capacity, holding: Holding) -> Iterator[dict[str, Any]]:
    """What the memory of a rank goes to, from first to last; together all of it, but for what is too small to list."""
    of, memory = found.deployment, holding.memory
    all_bytes = of.device.memory_bytes
    status_by_name = {name: status for name, _, status, _ in report.assumed(found)}
    rests = cache_status(found)

    def part(kind: str, name: str, num_bytes: int, status: str, note: str = "") -> dict[str, Any]:
        sizes = {"decimal": show_decimal(num_bytes), "binary": show_bytes(num_bytes)}
        return {"kind": kind, "name": name, "share": num_bytes / all_bytes, "status": status, "note": note, **sizes}

    least_bytes = found.weights.num_bytes // 10_000  # norms are not worth a line
    for share in found.weights.shares:
        if share.num_bytes >= least_bytes:
            yield part("weights", share.kind, share.num_bytes, _weights_status(of), share.format)
    if of.copied_bytes:
        words = "for sequence-parallel prefill"
        yield part("weights", "output projections again", of.copied_bytes, _weights_status(of), words)
    if of.drafter_bytes:
        yield part("drafter", "drafter weights", of.drafter_bytes, draft_status(of), "within the reserve")
    rest = "activations, graphs, buffers" if of.drafter_bytes else "reserve: activations, graphs, buffers"
    yield part("reserve", rest, of.reserve.num_bytes - of.drafter_bytes, of.reserve.status, of.reserve.words)
    for group in holding.layout.groups:
        own = group.token_bytes * group.num_layers / holding.layout.token_bytes
        yield part(group.name, f"cache: {KINDS[group.name]}", int(memory.cache_bytes * own), rests, group.format.name)
    if left_bytes := max(memory.limit_bytes - memory.total_bytes, 0):
        yield part("spare", "left over", left_bytes, rests, "less than a block, or more than the cache may take")
    kept = all_bytes - memory.limit_bytes
    yield part("kept", "kept free", kept, status_by_name["gpu_memory_utilization"], "by gpu_memory_utilization")


def _weights_status(of: Deployment) -> str:
    return FORWARD if of.name in model_config.known_names() else "config"


def _group_status(found: Capacity, name: str) -> str:
    return draft_status(found.deployment) if name == "draft" else _weights_status(found.deployment)


def _layout_status(found: Capacity, holding: Holding) -> str:
    return weakest(*(_group_status(found, group.name) for group in holding.layout.groups))


def _rate_status(of: Deployment, link: str) -> str:
    status_by_title = {sheet.title: sheet.figures["rate"].status for sheet in hardware.read_all("link")}
    own = of.device.figures.get("scale_up")
    return status_by_title.get(link, own.status if own else "")
