"""which rank a request goes to: in turn, to the least loaded, or where most of its prompt is cached"""

from collections.abc import Callable, Sequence
from typing import Literal, get_args

from minnow.core.errors import ConfigError
from minnow.plan.rank import Job, Rank

Routing = Literal["cache-aware", "least-loaded", "round-robin"]

# Chooses a rank, and says how many tokens of the prompt are known to be there.
Router = Callable[[Job, Sequence[Rank]], tuple[Rank, int]]


def make(name: str) -> Router:
    """The router of that name.

    Raises:
        ConfigError: there is none.
    """
    if name not in get_args(Routing):
        raise ConfigError(f"--routing is {name!r}; it must be {', '.join(get_args(Routing))}")
    return {"cache-aware": _cache_aware, "least-loaded": _least_loaded}.get(name) or _in_turn()


def _cache_aware(job: Job, ranks: Sequence[Rank]) -> tuple[Rank, int]:
    """Most tokens of the prompt in the cache, less the load: tokens still to be computed, and those in use.

    So weighs the router of NVIDIA Dynamo: what would have to be computed, and what the cache would hold.
    """
    if len(ranks) == 1:
        return ranks[0], 0
    best: tuple[tuple[int, int], Rank, int] | None = None
    for rank in ranks:
        num_cached_tokens = rank.num_cached_tokens(job)
        load = rank.num_awaited_tokens + rank.num_held_tokens
        worth = (num_cached_tokens - load, -rank.num_requests)
        if best is None or worth > best[0]:
            best = worth, rank, num_cached_tokens
    assert best is not None
    return best[1:]


def _least_loaded(job: Job, ranks: Sequence[Rank]) -> tuple[Rank, int]:
    """Fewest requests, then fewest tokens still to be computed; what is cached plays no part."""
    return min(ranks, key=lambda rank: (rank.num_requests, rank.num_awaited_tokens)), 0


def _in_turn() -> Router:
    count = -1

    def route(job: Job, ranks: Sequence[Rank]) -> tuple[Rank, int]:
        nonlocal count
        count += 1
        return ranks[count % len(ranks)], 0

    return route
