"""what the planner's page shows of time: steps, a load, the frontier, costs; numbers with what they rest on"""

from collections.abc import Callable, Iterator
from typing import Any

from minnow.core.errors import MinnowError
from minnow.core.units import show_decimal, show_seconds
from minnow.plan import calibration, roofline, speed
from minnow.plan.calibration import Calibration
from minnow.plan.capacity import Capacity
from minnow.plan.curve import Curve, Point, Traffic, mark
from minnow.plan.deployment import Deployment
from minnow.plan.page_query import STRATEGIES, Query, worded
from minnow.plan.page_table import FORWARD, cache_status, cell, draft_status, table
from minnow.plan.speed import Speed
from minnow.plan.status import weakest


class Times:
    """Steps and loads of a plan, as the page shows them.

    Args:
        query: what was asked for.
        found: the engine that decodes.
        prefill: of an engine beside it that computes prompts; None where there is none.

    Raises:
        ConfigError: the device's sheet lacks a rate, or requests are longer than the engine takes.
        CapacityError: not one request is admitted.
    """

    def __init__(self, query: Query, found: Capacity, prefill: Capacity | None) -> None:
        self._query, self._found = query, found
        self._curves: dict[tuple[str, str], Curve] = {}
        self._prefill = None if prefill is None else prefill.deployment
        self._timed = speed.measure(found, query.calibrated, query.acceptance_length)
        self._traffic = Traffic(input_tokens=found.deployment.context_tokens)
        if query.output_tokens:
            self._traffic = Traffic(
                input_tokens=query.input_tokens, output_tokens=query.output_tokens, cached_tokens=query.cached_tokens
            )
        self._curve(found.deployment, query.calibrated)
        of = found.deployment
        self._room = cache_status(found)  # of how many sequences fit, and of what depends on that
        self._bytes = weakest(FORWARD, draft_status(of) if of.num_drafts else "")
        self._bound = weakest(self._bytes, *_rate_statuses(of, self._timed))
        # No plan is one of the steps that a calibration was fitted on: here it is used elsewhere.
        self._reached = weakest(self._bound, "" if query.calibrated == calibration.BOUND else "extrapolated")
        self._full = weakest(self._reached, self._room)

    def tables(self) -> Iterator[dict[str, Any]]:
        """Steps, parts of the full one, costs."""
        yield self._steps()
        yield self._parts()
        yield self._costs()

    def frontier(self) -> dict[str, Any]:
        """Points of the engine and of others of as many devices; the best of all are marked."""
        of = self._found.deployment
        kinds = [word for word in STRATEGIES if word != self._query.strategy.rstrip("0123456789")]
        words = [self._query.strategy, *(f"{kind}{of.num_ranks}" for kind in kinds)]
        by_strategy: dict[str, tuple[Point, ...]] = {}
        missing, rests = [], self._full
        for word in words if of.num_ranks > 1 else words[:1]:
            try:
                other = of if word == self._query.strategy else self._query.settle(word)
                by_strategy.setdefault(other.strategy, self._curve(other, self._query.calibrated).points())
                rests = weakest(rests, other.reserve.status)
            except MinnowError as error:
                missing.append(f"{word.upper()}: {worded(str(error))}")
        marked = mark(point for points in by_strategy.values() for point in points)
        shown = [self._point(point, is_own=point.strategy == of.strategy) for point in marked]
        best = sorted((point for point in marked if point.is_best), key=lambda point: -point.answers_s)
        head = (
            "strategy", cell("side by side", rests), cell("tokens/s each", rests), cell("tokens/s a device", rests),
            cell("step", rests),
        )  # fmt: skip
        rows = [
            (p.strategy, f"{p.num_sequences:,}", f"{p.answers_s:,.1f}", f"{p.device_answers_s:,.0f}",
             show_seconds(p.step_s))
            for p in best
        ]  # fmt: skip
        return {
            "x": "tokens/s of each sequence", "y": "tokens/s of answers a device", "status": rests, "points": shown,
            "table": table("The best of these points", head, rows), "notes": [*self._words(), *missing],
        }  # fmt: skip

    def load(self) -> dict[str, Any]:
        """What the engine does under the load that is asked for, at the bound and as calibrated."""
        of, query = self._found.deployment, self._query
        notes, replicas = self._words(), of.config.parallel.data_parallel_size
        curve = self._curve(of, query.calibrated)
        most = curve.most * replicas
        total = min(query.num_sequences or most, most)
        count = -(-total // replicas)
        if total % replicas:
            notes.append("Replicas have unequal numbers; a step takes as long as that of the fullest.")
        if query.num_sequences > most:
            notes.append(f"{query.num_sequences - most:,} of the sequences wait; {most:,} fit")
        if query.requests_s:
            least, ends = curve.least_for(query.requests_s), curve.at(curve.most).requests_s
            if least is None:
                engines = -(-query.requests_s // ends)
                notes.append(f"one engine ends {ends:.3g} requests/s at most; {engines:,.0f} of them are needed")
            else:
                count, total = least.num_sequences // replicas, least.num_sequences
        bound, reached = self._curve(of, calibration.BOUND).at(count, total), curve.at(count, total)
        rows = [(name, *(show(point) for point in (bound, reached))) for name, show in _FIGURES]
        if self._traffic.output_tokens:
            rows.append(("requests/s", f"{bound.requests_s:,.3g}", f"{reached.requests_s:,.3g}"))
            prompts = (self._curve(of, calibration.BOUND).prompt_s, curve.prompt_s)
            rows.append(("a prompt alone, to its first token", *(show_seconds(seconds) for seconds in prompts)))
        if self._prefill is not None and self._traffic.output_tokens:
            counts = ((p.num_devices - of.num_ranks) / self._prefill.num_ranks for p in (bound, reached))
            rows.append(("prefill engines kept busy", *(f"{number:,.2f}" for number in counts)))
        prices = speed.prices(of)
        for basis, price in prices.items():
            dollars = (price * p.num_devices / 3600 / p.all_answers_s * 1e6 for p in (bound, reached))
            rows.append((f"$ a million tokens, {basis}", *(f"{each:,.3f} $" for each in dollars)))
        paid = [of.device.figures[f"price_{basis}"].status for basis in prices]
        head = (
            "", cell("bound", weakest(self._bound, self._room, *paid)),
            cell("calibrated", weakest(self._full, *paid)),
        )  # fmt: skip
        return table(f"Load: {reached.num_sequences:,} sequences side by side", head, rows, notes)

    # -- the tables ---------------------------------------------------------------------------------------------------

    def _steps(self) -> dict[str, Any]:
        head = (
            "a rank's step", cell("tokens", FORWARD), cell("bytes", self._bytes), cell("bound", self._bound),
            cell("calibrated", self._reached), cell("tokens/s each", self._reached),
            cell("tokens/s in all", self._reached),
        )  # fmt: skip
        of, rows, own = self._timed, [], ["", *(one["status"] for one in head if isinstance(one, dict))]
        for step in of.steps:
            texts = (
                step.words, f"{step.work.num_tokens:,}", show_decimal(step.reached.num_bytes),
                show_seconds(step.bound.seconds), show_seconds(step.reached.seconds),
                f"{step.answers_s:,.1f}" if step.answers_s else "-",
                f"{step.num_answers / step.reached.seconds:,.0f}" if step.answers_s else "-",
            )  # fmt: skip
            # How many decode in all but the first follows from how many fit: so does all that stands in such a row.
            is_room = step.answers_s and step is not of.steps[0]
            rows.append([cell(text, weakest(word, self._room)) if is_room else text
                         for text, word in zip(texts, own, strict=True)])  # fmt: skip
        notes = [
            f"A prompt of full length alone takes {show_seconds(of.prompt_s)} to its first token: {self._reached}."
        ]
        if of.acceptance_length == 1 and of.full.work.num_drafting:
            notes.append(
                "Drafts are paid for and none is counted: the acceptance length says how many tokens a step yields."
            )
        if of.calibrated.fitted_on:
            notes.append(f"Calibration {of.calibrated.name}, fitted on: {', '.join(of.calibrated.fitted_on)}.")
        return table(f"Steps, acceptance length {of.acceptance_length:g}", head, rows, notes)

    def _parts(self) -> dict[str, Any]:
        step = self._timed.full
        bound, reached = step.bound, step.reached
        bound_by_name = {part.name: part.seconds for part in bound.parts}
        rows = [
            (
                part.name, show_decimal(part.num_bytes), f"{part.operations / 1e9:,.1f}", part.rate,
                show_seconds(bound_by_name[part.name]), show_seconds(part.seconds),
                f"{part.seconds / reached.seconds:.1%}",
            )
            for part in reached.parts
        ]  # fmt: skip
        sent = show_decimal(reached.link_bytes)
        low, high = bound.link_s - bound.hidden_s, reached.link_s - reached.hidden_s
        rest = [("sent to other ranks", sent, low, high)] if reached.link_bytes else []
        for name, size, low, high in (*rest, ("whatever is in it", "-", bound.constant_s, reached.constant_s)):
            share = f"{high / reached.seconds:.1%}"
            rows.append((name, size, "-", "-", show_seconds(low), show_seconds(high), share))
        size = weakest(self._bytes, self._room)
        head = (
            "part", cell("bytes", size), cell("G operations", size), "arithmetic",
            cell("bound", weakest(self._bound, self._room)), cell("calibrated", self._full), cell("share", self._full),
        )  # fmt: skip
        return table(f"Parts of a step: {step.words}", head, rows)

    def _costs(self) -> dict[str, Any]:
        of, rows = self._found.deployment, []
        for basis, dollars in self._timed.dollars_by_base.items():
            price = of.device.figures[f"price_{basis}"]
            note = "; ".join(word for word in (price.source, price.note) if word)
            rows.append(
                (
                    basis,
                    cell(price.written, price.status),
                    cell(f"{dollars:,.3f} $", weakest(price.status, self._full)),
                    note,
                )
            )
        words = ["Of the full step, prompts not counted."] if rows else [
            f"The sheet of {of.device.name} has no price; nothing is made up."
        ]  # fmt: skip
        head = ("whose price", "a device", "a million tokens of answers", "source")
        return table("Cost", head, rows, words)

    # -- what they are made of ----------------------------------------------------------------------------------------

    def _curve(self, of: Deployment, calibrated: Calibration) -> Curve:
        key = (of.strategy, calibrated.name)
        if key not in self._curves:
            length = self._query.acceptance_length
            self._curves[key] = Curve(of, calibrated, self._traffic, length, self._prefill)
        return self._curves[key]

    def _words(self) -> list[str]:
        traffic = self._traffic
        if not traffic.output_tokens:
            return [f"Sequences of {traffic.input_tokens:,} tokens decode all the time; prompts are not counted."]
        where = "in the prefill engine" if self._prefill else "in steps of their own, which hold up the answers"
        cached = f", {traffic.cached_tokens:,} of them cached" if traffic.cached_tokens else ""
        prompts = f"Prompts of {traffic.input_tokens:,} tokens{cached}, computed {where}"
        return [f"{prompts}; answers of {traffic.output_tokens:,}. Averages of a steady load: queues are not in it."]

    @staticmethod
    def _point(point: Point, *, is_own: bool) -> dict[str, Any]:
        each, device = f"{point.answers_s:,.1f}", f"{point.device_answers_s:,.0f}"
        return {
            "strategy": point.strategy, "x": point.answers_s, "y": point.device_answers_s, "is_best": point.is_best,
            "is_own": is_own,
            "words": f"{point.strategy}, {point.num_sequences:,} side by side: {each} tokens/s each, {device} a device",
        }  # fmt: skip


_FIGURES: tuple[tuple[str, Callable[[Point], str]], ...] = (
    ("step", lambda point: show_seconds(point.step_s)),
    ("tokens/s each", lambda point: f"{point.answers_s:,.1f}"),
    ("tokens/s in all", lambda point: f"{point.all_answers_s:,.0f}"),
    ("tokens/s a device", lambda point: f"{point.device_answers_s:,.0f}"),
)


def _rate_statuses(of: Deployment, timed: Speed) -> Iterator[str]:
    """Of the rates that times rest on."""
    names = {"memory_bandwidth", *(part.rate for step in timed.steps for part in step.bound.parts)}
    yield from (figure.status for name, figure in of.device.figures.items() if name in names)
    if of.num_ranks > 1:
        rate, assumed = roofline.link_of(of)
        yield weakest(rate.status, "convention" if assumed else "")
