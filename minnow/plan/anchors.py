"""measured steps that were published, and what the roofline says of each; what is fitted proves nothing"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from minnow.plan import calibration, published, roofline, work
from minnow.plan.work import Row

_POST = "the serving team's post of October 2026; acceptance length over tokens a second and user"
_RECIPE = "the published serving recipe"


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """A step that somebody measured.

    Attributes:
        least_s, most_s: what the source leaves possible: its acceptance length is a range.
        words: what was measured, and which of its conditions are assumed here.
        num_sequences: of a rank; each computes num_tokens of context_tokens.
        settings: arguments of `published.deploy`.
    """

    name: str
    words: str
    source: str
    device: str
    strategy: str
    num_sequences: int
    num_tokens: int
    context_tokens: int
    least_s: float
    most_s: float
    is_prompt: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def middle_s(self) -> float:
        """Of what is possible."""
        return (self.least_s + self.most_s) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A measured step beside its roofline.

    Attributes:
        memory_s: its bytes at the full rate of the memory: nothing can be faster.
        bound_s: of bytes or operations of each part at full rates, and of the links.
        calibrated_s: with what is reached of them.
        error: of calibrated_s against the nearest time that the source leaves possible.
        is_fitted: some value of the calibration was chosen to meet this step.
    """

    anchor: Anchor
    num_bytes: float
    memory_s: float
    bound_s: float
    calibrated_s: float
    error: float
    is_fitted: bool


# Which topology, batch and context each of these points had is in no source: those below are assumed, so the errors
# beside them are of the assumptions, too.
_LATENCY = "one user of 100K tokens, TP4: assumed"
_THROUGHPUT = "19 sequences of 200K tokens on a rank of DEP4: assumed"
_REQUANTIZED: dict[str, Any] = {"experts_format": "mxfp8", "speculation": False}
_32K = "32K tokens of prompt alone, TP4, experts in MXFP8"
ANCHORS = (
    Anchor(
        name="GB300 latency", words=_LATENCY, source=_POST, device="gb300", strategy="tp4", num_sequences=1,
        num_tokens=8, context_tokens=100_000, least_s=3.16 / 418.9, most_s=3.26 / 418.9,
        settings={"has_index_cp": True},
    ),
    Anchor(
        name="GB300 throughput", words=_THROUGHPUT, source=_POST, device="gb300", strategy="dep4", num_sequences=19,
        num_tokens=8, context_tokens=200_000, least_s=3.16 / 127, most_s=3.26 / 127,
        settings={"utilization": published.DECODE_UTILIZATION},
    ),
    Anchor(
        name="Rubin latency", words=_LATENCY, source=_POST, device="rubin", strategy="tp4", num_sequences=1,
        num_tokens=8, context_tokens=100_000, least_s=3.16 / 724.9, most_s=3.26 / 724.9,
        settings={"has_index_cp": True},
    ),
    Anchor(
        name="Rubin throughput", words=_THROUGHPUT, source=_POST, device="rubin", strategy="dep4", num_sequences=19,
        num_tokens=8, context_tokens=200_000, least_s=3.16 / 134, most_s=3.26 / 134,
        settings={"utilization": published.DECODE_UTILIZATION},
    ),
    Anchor(
        name="MI355X latency", words=f"{_LATENCY}; 3 drafts", source=_POST, device="mi355x", strategy="tp4",
        num_sequences=1, num_tokens=4, context_tokens=100_000, least_s=2.45 / 331.0, most_s=3.2 / 331.0,
        settings={
            "experts_format": "mxfp8", "has_index_cp": True,
            "speculative_config": {"method": "dspark", "num_speculative_tokens": 3},
        },
    ),
    Anchor(
        name="MI355X prefill", words=f"{_32K}; the step below, which is fitted, without overlap", source=_RECIPE,
        device="mi355x", strategy="tp4", num_sequences=1, num_tokens=32_768, context_tokens=32_768, least_s=1.035,
        most_s=1.035, is_prompt=True,
        settings=_REQUANTIZED,
    ),
    Anchor(
        name="MI355X prefill, dual batches", words=_32K, source=_RECIPE, device="mi355x", strategy="tp4",
        num_sequences=1, num_tokens=32_768, context_tokens=32_768, least_s=0.655, most_s=0.655, is_prompt=True,
        settings=_REQUANTIZED | {"dual_batch_tokens": 16_384},
    ),
    Anchor(
        name="MI355X prefill, dual batches, sharded", words=f"{_32K}; what sharding by tokens saves is not modelled",
        source=_RECIPE, device="mi355x", strategy="tp4", num_sequences=1, num_tokens=32_768, context_tokens=32_768,
        least_s=0.484, most_s=0.484, is_prompt=True,
        settings=_REQUANTIZED | {"dual_batch_tokens": 16_384, "has_sequence_parallel": True},
    ),
)  # fmt: skip


def compare(anchor: Anchor, calibrated: calibration.Calibration) -> Comparison:
    """The roofline of a measured step, as it is and calibrated."""
    deployment = published.deploy("m3.1-flash", anchor.device, anchor.strategy, **anchor.settings)
    times = []
    for of in (calibration.BOUND, calibrated):
        model = roofline.StepModel(deployment, of)
        count = anchor.num_tokens
        row = Row(count, anchor.context_tokens, 1 if anchor.is_prompt else count, deployment.num_drafts > 0)
        times.append(model.time(work.add_up([row] * anchor.num_sequences, model.limits)))
    bound, reached = times
    nearest = min(max(reached.seconds, anchor.least_s), anchor.most_s)
    return Comparison(
        anchor=anchor,
        num_bytes=bound.num_bytes,
        memory_s=bound.num_bytes / roofline.figure(deployment, "memory_bandwidth"),
        bound_s=bound.seconds,
        calibrated_s=reached.seconds,
        error=reached.seconds / nearest - 1,
        is_fitted=anchor.name in calibrated.fitted_on,
    )


def compare_all() -> tuple[Comparison, ...]:
    """Every published step, with the calibration of GPUs."""
    calibrated = calibration.read("gpu")
    return tuple(compare(anchor, calibrated) for anchor in ANCHORS)
