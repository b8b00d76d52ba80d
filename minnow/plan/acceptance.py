"""how many drafts of a round are kept: a law to draw from, from an acceptance length or from rates"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from minnow.core.errors import ConfigError

_HALVINGS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceLaw:
    """The law of the drafts that a round keeps.

    Attributes:
        rates: of each draft in order, how likely it is kept if those before it are.
    """

    rates: tuple[float, ...]

    @property
    def survivals(self) -> tuple[float, ...]:
        """Of each draft, how likely it is kept."""
        return tuple(itertools.accumulate(self.rates, lambda before, rate: before * rate))

    @property
    def length(self) -> float:
        """Tokens that a round with all its drafts yields on average, the target's own included."""
        return 1 + sum(self.survivals)


def from_length(length: float, num_drafts: int) -> AcceptanceLaw:
    """The law with one rate for every draft that has an acceptance length.

    Args:
        length: tokens of a round on average, the target's own included.

    Raises:
        ConfigError: rounds of so many drafts cannot have it.
    """
    if not 1 <= length <= num_drafts + 1:
        drafts = f"{num_drafts} drafts a round yield 1 to {num_drafts + 1} tokens" if num_drafts else (
            "nothing is drafted, so a round yields one token"
        )  # fmt: skip
        raise ConfigError(f"--acceptance-length is {length:g}, but {drafts}; set one of these or leave it out")
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _length(middle, num_drafts) < length else (low, middle)
    return AcceptanceLaw(rates=(high,) * num_drafts)


def from_rates(rates: Sequence[float], num_drafts: int) -> AcceptanceLaw:
    """The law with a rate for each draft.

    Raises:
        ConfigError: there are not as many as drafts, or one is no share.
    """
    if len(rates) != num_drafts:
        raise ConfigError(f"--acceptance-rates has {len(rates)} rates, but a round has {num_drafts} drafts; give each")
    for rate in rates:
        if not 0 <= rate <= 1:
            raise ConfigError(f"--acceptance-rates has {rate:g}; each must be 0 to 1")
    return AcceptanceLaw(rates=tuple(rates))


class Acceptances:
    """Draws from a law, by a random generator of its own."""

    def __init__(self, law: AcceptanceLaw, rng: Random) -> None:
        self._survivals = law.survivals
        self._draw = rng.random

    def draw(self, num_drafts: int) -> int:
        """Drafts that a round keeps of so many, at most as many as the law has."""
        left, kept = self._draw(), 0
        for survival in self._survivals[:num_drafts]:
            if left >= survival:
                break
            kept += 1
        return kept


def _length(rate: float, num_drafts: int) -> float:
    return float(sum(rate**i for i in range(num_drafts + 1)))
