"""the planner's page: a query becomes a plan as plain JSON, numbers with what they rest on"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from minnow.core.errors import CapacityError, MinnowError
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
    """The plan that a query asks for. Numbers are text; those of tables have statuses.

    Raises:
        ConfigError: what is asked for cannot be; names it and the way out.
        CapacityError: not one sequence fits.
    """
    try:
        return _answer(page_query.read(query, served))
    except MinnowError as error:
        text = page_query.worded(str(error))
        for name, where in served.items():  # where it lies is none of the asker's business
            text = text if name == where else text.replace(str(Path(where).expanduser()), name).replace(where, name)
        raise type(error)(text) from None


def _answer(asked: Query) -> dict[str, Any]:
    found = capacity.measure(asked.settle(asked.strategy, asked.num_nodes))
    prefill = _prefill(asked)
    of = found.deployment
    speed.check_acceptance(of, asked.acceptance_length)
    times, lacking = None, speed.needs_rates(of)
    if not lacking:
        try:
            times = Times(asked, found, prefill)
        except CapacityError as error:
            lacking = page_query.worded(str(error))
    nodes = f" on {of.num_nodes} machines" if of.num_nodes > 1 else ""
    return {
        "title": f"{asked.name} on {of.num_ranks} x {of.device.title}{nodes}, {of.strategy}",
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
