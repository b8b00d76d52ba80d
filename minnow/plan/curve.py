"""tokens a second for each sequence and for each device, by the roofline, over the number of sequences side by side"""

import dataclasses
import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from minnow.core.errors import CapacityError, ConfigError
from minnow.plan import capacity, frontier, speed, work
from minnow.plan.calibration import Calibration
from minnow.plan.capacity import EVERYTHING
from minnow.plan.deployment import Deployment
from minnow.plan.roofline import StepModel
from minnow.plan.work import Row

_MOST_STEPS = 48  # of one prompt that are worked out one by one


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What requests are like, on average.

    Attributes:
        input_tokens: of a prompt.
        output_tokens: of an answer; 0 only decodes at that length, and no prompts are counted.
        cached_tokens: of a prompt, that need not be computed.
    """

    input_tokens: int
    output_tokens: int = 0
    cached_tokens: int = 0

    @property
    def context_tokens(self) -> int:
        """Length of a sequence in the middle of its answer."""
        return self.input_tokens + self.output_tokens // 2

    @property
    def most_tokens(self) -> int:
        """Length at its end, which the cache must hold."""
        return self.input_tokens + self.output_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """An engine under a steady load.

    Attributes:
        num_sequences: side by side, of all replicas.
        step_s: of a step that decodes those of a replica.
        answers_s: tokens of one answer, a second, from its first on.
        all_answers_s: tokens of all answers, a second.
        num_devices: of the engine, and of engines for prefill beside it as many as it keeps busy: a fraction.
        requests_s: that end, a second; 0 where no prompts are counted.
        is_best: no other point gives one more without giving less of the other: tokens for each, tokens a device.
    """

    strategy: str
    num_sequences: int
    step_s: float
    answers_s: float
    all_answers_s: float
    num_devices: float
    requests_s: float = 0.0
    is_best: bool = False

    @property
    def device_answers_s(self) -> float:
        """Tokens of answers for each device, a second."""
        return self.all_answers_s / self.num_devices


class Curve:
    """A deployment under loads from one sequence a replica to all that fit.

    Prompts run in steps of their own between those that decode, unless another engine computes them: both are averages
    of a steady load. Nothing waits in a queue, so what bursts do is not in it; the simulator has that.
    """

    def __init__(
        self,
        of: Deployment,
        calibrated: Calibration,
        traffic: Traffic,
        acceptance_length: float = 1.0,
        prefill: Deployment | None = None,
    ) -> None:
        """Add up what does not depend on the load.

        Args:
            prefill: of an engine that computes the prompts; None where this one does.

        Raises:
            CapacityError: not one sequence fits, or is admitted.
            ConfigError: the device's sheet lacks a rate, or requests are longer than the engine takes.
        """
        limit = of.config.max_model_len
        if traffic.most_tokens > limit:
            raise ConfigError(
                f"a request has {traffic.most_tokens:,} tokens, but --max-model-len is {limit:,}; take shorter ones"
            )
        speed.check_acceptance(of, acceptance_length)
        self._of, self._traffic, self._length, self._prefill = of, traffic, acceptance_length, prefill
        whole = dataclasses.replace(of, context_tokens=max(traffic.most_tokens, 1))
        self.most = capacity.hold(whole, EVERYTHING).num_sequences  # of a replica
        if not self.most:
            raise CapacityError(
                f"not one sequence of {whole.context_tokens:,} tokens is admitted beneath a watermark of "
                f"{of.config.scheduler.watermark:g}; lower it, or take shorter ones"
            )
        self._model = StepModel(of, calibrated)
        self.prompt_s = _prompt_s(StepModel(prefill, calibrated) if prefill else self._model, traffic)
        drafts = of.num_drafts
        self._row = Row(1 + drafts, max(traffic.context_tokens, 1), 1 + drafts, drafts > 0)

    def points(self) -> tuple[Point, ...]:
        """One for 1, 2, 4 ... sequences a replica and for all that fit."""
        doubled = itertools.takewhile(lambda count: count < self.most, (1 << i for i in itertools.count()))
        return tuple(self.at(count) for count in [*doubled, self.most])

    def at(self, count: int, total: int = 0) -> Point:
        """With so many sequences in the fullest replica.

        Args:
            total: in all of them; 0 is as many in each.
        """
        of, traffic, prefill = self._of, self._traffic, self._prefill
        total = total or count * of.config.parallel.data_parallel_size
        step_s = self._model.seconds(work.add_up([self._row] * count, self._model.limits))
        if not traffic.output_tokens:
            each = self._length / step_s
            return Point(
                strategy=of.strategy, num_sequences=total, step_s=step_s, answers_s=each, all_answers_s=each * total,
                num_devices=of.num_ranks,
            )  # fmt: skip
        decode_s = traffic.output_tokens / self._length * step_s
        held_up_s = 0.0 if prefill else self.prompt_s  # by every prompt that comes in between
        requests_s = total / (decode_s + count * held_up_s)
        busy = 0.0  # engines for prefill
        if prefill is not None:
            busy = requests_s * self.prompt_s / prefill.config.parallel.data_parallel_size
        return Point(
            strategy=of.strategy, num_sequences=total, step_s=step_s,
            answers_s=traffic.output_tokens / (decode_s + (count - 1) * held_up_s),
            all_answers_s=requests_s * traffic.output_tokens,
            num_devices=of.num_ranks + (busy * prefill.num_ranks if prefill else 0.0), requests_s=requests_s,
        )  # fmt: skip

    def least_for(self, requests_s: float) -> Point | None:
        """With as few sequences as let so many requests a second end; None where even all that fit do not."""
        if self.at(self.most).requests_s < requests_s:
            return None
        low, high = 1, self.most
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self.at(middle).requests_s < requests_s else (low, middle)
        return self.at(low)


def mark(points: Iterable[Point]) -> tuple[Point, ...]:
    """The same points, the best of them marked."""
    found = tuple(points)
    flags = frontier.best([(point.answers_s, point.device_answers_s) for point in found])
    return tuple(dataclasses.replace(point, is_best=flag) for point, flag in zip(found, flags, strict=True))


def _prompt_s(model: StepModel, traffic: Traffic) -> float:
    """Of computing what is not cached of a prompt, alone; 0 where prompts are not counted.

    Of many steps some are worked out, and those between two of them are taken to lie on a line: what grows with the
    context grows in proportion, so little is lost.
    """
    if not traffic.output_tokens:
        return 0.0
    of, last = model.deployment, max(traffic.input_tokens, 1)
    starts = range(min(traffic.cached_tokens, last - 1), last, of.config.scheduler.max_num_batched_tokens)

    def seconds(start: int) -> float:
        end = min(start + starts.step, last)
        row = Row(end - start, end, int(end == last), end == last and of.num_drafts > 0)
        return model.seconds(work.add_up([row], model.limits))

    *whole, final = starts
    stride = -(-len(whole) // _MOST_STEPS) or 1
    marks = sorted({*range(0, len(whole), stride), len(whole) - 1} - {-1})
    found = [seconds(whole[mark]) for mark in marks]
    between = sum(
        (after - before) * first + (then - first) * (after - before - 1) / 2
        for before, after, first, then in zip(marks, marks[1:], found, found[1:], strict=False)
    )
    return float(between + sum(found[-1:]) + seconds(final))
