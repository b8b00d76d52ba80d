"""Speed: steps of a deployment by its roofline, and what tokens cost at it"""

from dataclasses import dataclass

from minnow.core.errors import ConfigError
from minnow.plan import calibration, roofline, work
from minnow.plan.calibration import Calibration
from minnow.plan.capacity import Capacity
from minnow.plan.deployment import Deployment
from minnow.plan.roofline import StepModel, StepTime
from minnow.plan.work import Row, Work

PRICE_BASES = ("hyperscaler", "neocloud", "rental")  # whose price a device has; figures price_... of a sheet


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One kind of step.

    Attributes:
        words: what is in it.
        bound: at the full rates of the device.
        reached: at the calibrated ones.
        num_answers: tokens of answers that it yields on all ranks; 0 for a part of a prompt.
        answers_s: of one sequence, a second; 0 for a part of a prompt.
    """

    words: str
    work: Work
    bound: StepTime
    reached: StepTime
    num_answers: float = 0.0
    answers_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Steps of a deployment.

    Attributes:
        acceptance_length: tokens that a sequence gets in a step; an input, as no arithmetic gives it.
        full: of `steps`, the one that decodes all sequences that fit into cache and step.
        prompt_s: from an empty cache to the first token of a sequence of full length, alone.
        dollars_by_base: of a million tokens of answers while the full step repeats; prompts are not counted.
    """

    calibrated: Calibration
    acceptance_length: float
    steps: tuple[Step, ...]
    full: Step
    prompt_s: float
    dollars_by_base: dict[str, float]


def measure(capacity: Capacity, calibrated: Calibration, acceptance_length: float = 1.0) -> Speed:
    """Steps that decode one sequence and all that fit, and one that computes a prompt.

    Raises:
        ConfigError: the sheet lacks a rate, or no step can yield so many tokens.
    """
    of = capacity.deployment
    check_acceptance(of, acceptance_length)
    bound, reached = StepModel(of, calibration.BOUND), StepModel(of, calibrated)
    context = of.context_tokens
    # A step that had no room for all sequences' drafts would decode them in turns.
    most = min(capacity.allocated.num_sequences, max_in_step(of))
    row = Row(1 + of.num_drafts, context, 1 + of.num_drafts, of.num_drafts > 0)

    def step(words: str, rows: list[Row], is_answer: bool) -> Step:
        done = work.add_up(rows, reached.limits)
        time, num_ranks = reached.time(done), of.config.parallel.data_parallel_size
        return Step(
            words=words, work=done, bound=bound.time(done), reached=time,
            num_answers=len(rows) * acceptance_length * num_ranks if is_answer else 0.0,
            answers_s=acceptance_length / time.seconds if is_answer else 0.0,
        )  # fmt: skip

    counts = sorted({1, max(most // 4, 1), most})
    decoding = [step(f"decode, {n} x {context:,} tokens", [row] * n, is_answer=True) for n in counts]
    chunk = min(of.config.scheduler.max_num_batched_tokens, context)
    prompt = step(f"prompt, {chunk:,} of {context:,} tokens", [_chunk(of, chunk, context)], is_answer=False)
    full = decoding[-1]
    dollars = {
        base: price * of.num_ranks / 3600 * full.reached.seconds / full.num_answers * 1e6
        for base, price in prices(of).items()
    }
    return Speed(
        calibrated=calibrated, acceptance_length=acceptance_length, steps=(*decoding, prompt), full=full,
        prompt_s=prompt_seconds(reached, context), dollars_by_base=dollars,
    )  # fmt: skip


def max_in_step(of: Deployment) -> int:
    """Sequences that a step of a replica decodes with all their drafts, one at least."""
    return max(of.config.scheduler.max_num_batched_tokens // (1 + of.num_drafts), 1)


def check_acceptance(of: Deployment, length: float) -> None:
    """Refuse a number of tokens that no round yields.

    Raises:
        ConfigError: names it and the range.
    """
    if not 1 <= length <= 1 + of.num_drafts:
        yields = f"1 to {1 + of.num_drafts} tokens" if of.num_drafts else "one token, as nothing is drafted,"
        raise ConfigError(f"--acceptance-length is {length:g}; a step of this engine yields {yields} a sequence")


def prices(of: Deployment) -> dict[str, float]:
    """Dollars an hour for one device, by whose price it is; empty where none is known."""
    found = {base: of.device.figures.get(f"price_{base}") for base in PRICE_BASES}
    return {base: figure.value for base, figure in found.items() if figure is not None}


def prompt_seconds(model: StepModel, num_tokens: int) -> float:
    """Of computing a prompt alone, in steps of max_num_batched_tokens."""
    of = model.deployment
    chunk = of.config.scheduler.max_num_batched_tokens
    ends = [*range(chunk, num_tokens, chunk), num_tokens]
    rows = [
        _chunk(of, end - start, end, is_last=end == num_tokens) for start, end in zip([0, *ends], ends, strict=False)
    ]
    return sum(model.seconds(work.add_up([row], model.limits)) for row in rows)


def _chunk(of: Deployment, count: int, end: int, *, is_last: bool = True) -> Row:
    return Row(count, end, int(is_last), is_last and of.num_drafts > 0)


def needs_rates(of: Deployment) -> str:
    """Why there is no speed: what the device's sheet lacks; "" where it has all."""
    try:
        roofline.StepModel(of)
    except ConfigError as error:
        return str(error)
    return ""
