"""the planner's page: a query becomes a plan as plain JSON, each number with its status"""

from collections.abc import Callable, Mapping
from typing import Any

from minnow.core.errors import CapacityError
from minnow.plan import capacity, document, page_command, page_query, page_table, speed, status
from minnow.plan.capacity import Capacity
from minnow.plan.page_query import Query
from minnow.plan.page_speed import Times


def paths(served: Mapping[str, str]) -> dict[str, Callable[[Mapping[str, str]], dict[str, Any]]]:
    """What the page asks, by the path that it asks on, as functions of a query.

    Args:
        served: models that are served here, by their names in the API -> what they are loaded by.
    """
    return {"/plan": lambda query: answer(query, served), "/plan/choices": lambda query: choices(served)}


def choices(served: Mapping[str, str]) -> dict[str, Any]:
    """What can be asked for, and what the words beside numbers mean."""
    return {"inputs": document.plain(page_query.inputs(served)), "meanings": status.MEANING}


def answer(query: Mapping[str, str], served: Mapping[str, str]) -> dict[str, Any]:
    """The plan that a query asks for. Every number is text, with the status of what it rests on.

    Raises:
        ConfigError: what is asked for cannot be; names it and the way out.
        CapacityError: not one sequence fits.
    """
    asked = page_query.read(query, served)
    found = capacity.measure(asked.settle(asked.strategy))
    prefill = _prefill(asked)
    of = found.deployment
    speed.check_acceptance(of, asked.acceptance_length)
    times, lacking = None, speed.needs_rates(of)
    if not lacking:
        try:
            times = Times(asked, found, prefill)
        except CapacityError as error:
            lacking = str(error)
    nodes = f" on {of.num_nodes} machines" if of.num_nodes > 1 else ""
    return {
        "title": f"{of.name} on {of.num_ranks} x {of.device.title}{nodes}, {of.strategy}",
        "counts": page_table.counts(found),
        "bars": page_table.bars(found),
        "load": None if times is None else times.load(),
        "frontier": None if times is None else times.frontier(),
        "no_times": lacking and f"No times: {lacking}",
        "times": [] if times is None else list(times.tables()),
        "tables": [
            *([] if prefill is None else page_table.apart(prefill, found)),
            page_table.token(found),
            page_table.assumptions(found),
        ],
        "commands": page_command.of(asked, found),
    }


def _prefill(asked: Query) -> Capacity | None:
    if not asked.prefill:
        return None
    try:
        return capacity.measure(asked.settle(asked.prefill))
    except CapacityError as error:
        raise CapacityError(f"the prefill engine: {error}") from None
