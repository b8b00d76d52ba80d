"""tables for people: steps by the roofline, their parts, and published steps beside it"""

from collections.abc import Iterable, Iterator
from statistics import median

from minnow.core.units import show_decimal, show_seconds
from minnow.plan.anchors import Comparison
from minnow.plan.report import table
from minnow.plan.roofline import StepTime
from minnow.plan.speed import Speed


def speed(of: Speed) -> Iterator[str]:
    """Steps, the parts of the full one, and what tokens cost."""
    yield f"Steps, calibration {of.calibrated.name}, acceptance length {of.acceptance_length:g}"
    rows = [
        (
            step.words,
            f"{step.work.num_tokens:,}",
            show_decimal(step.reached.num_bytes),
            show_seconds(step.bound.seconds),
            show_seconds(step.reached.seconds),
            f"{step.answers_s:,.1f}" if step.answers_s else "-",
            f"{step.num_answers / step.reached.seconds:,.0f}" if step.answers_s else "-",
        )
        for step in of.steps
    ]
    head = ("a rank's step", "tokens", "bytes", "bound", "calibrated", "tokens/s each", "tokens/s in all")
    yield from table(head, rows)
    yield f"  A prompt of full length alone takes {show_seconds(of.prompt_s)} to its first token."
    if of.acceptance_length == 1 and of.full.work.num_drafting:
        yield "  Drafts are paid for and none is counted: --acceptance-length says how many tokens a step yields."
    for base, dollars in of.dollars_by_base.items():
        yield f"  {dollars:,.3f} $ per million tokens of answers in the full step, {base} price, prompts not counted"
    yield ""
    yield f"Parts of a step: {of.full.words}"
    yield from parts(of.full.reached)
    fitted = ", ".join(of.calibrated.fitted_on)
    if fitted:
        error = of.calibrated.held_out_error
        known = "" if error is None else f"; on other points the median error was {error:.0%}"
        yield f"  Calibrated on {fitted}{known}. Everywhere else it is an extrapolation."
        yield "  `minnow plan --steps` shows every published step beside the model."


def parts(of: StepTime) -> Iterator[str]:
    """What a step is made of."""
    rows = [
        (
            part.name,
            show_decimal(part.num_bytes),
            f"{part.operations / 1e9:,.1f}",
            part.rate,
            show_seconds(part.seconds),
            f"{part.seconds / of.seconds:.1%}",
        )
        for part in of.parts
    ]
    for name, seconds, num_bytes in (
        ("sent to other ranks", of.link_s - of.hidden_s, of.link_bytes),
        ("whatever is in it", of.constant_s, 0.0),
    ):
        if seconds or num_bytes:
            sent = show_decimal(num_bytes) if num_bytes else ""
            rows.append((name, sent, "", "", show_seconds(seconds), f"{seconds / of.seconds:.1%}"))
    return table(("", "bytes", "G operations", "rate", "time", "share"), rows)


def steps(found: Iterable[Comparison]) -> Iterator[str]:
    """Published steps beside the roofline."""
    found = tuple(found)
    yield "Times in ms. The memory's bound is bytes over its full rate: no step can be faster. What is fitted proves"
    yield "nothing; of the others the conditions are assumed where the notes say so, and the errors are theirs, too."
    yield "Where what was measured is a range, the error is that against the nearest time within it."
    yield ""
    rows = [
        (
            c.anchor.name,
            f"{c.num_bytes / 1e9:.1f}",
            f"{c.memory_s * 1e3:.2f}",
            f"{c.bound_s * 1e3:.2f}",
            f"{c.calibrated_s * 1e3:.2f}",
            _range(c.anchor.least_s * 1e3, c.anchor.most_s * 1e3),
            "fitted" if c.is_fitted else f"{c.error:+.0%}",
            c.anchor.words,
        )
        for c in found
    ]
    head = ("step", "GB", "memory", "bound", "calibrated", "measured", "error", "note")
    yield from table(head, rows, indent="")
    yield ""
    errors = [abs(c.error) for c in found if not c.is_fitted]
    yield (
        f"{len(found) - len(errors)} fitted, {len(errors)} held out: median error {median(errors):.0%}, "
        f"worst {max(errors):.0%}"
    )


def _range(low: float, high: float) -> str:
    return f"{low:.2f}" if low == high else f"{low:.2f}-{high:.2f}"
