"""how many drafts of a round are kept"""

import statistics
from collections.abc import Callable
from random import Random

import pytest

from minnow.core.errors import ConfigError
from minnow.plan import acceptance
from minnow.plan.acceptance import Acceptances


@pytest.mark.parametrize(
    ("length", "num_drafts", "rate"), [(3.16, 7, 0.70), (3.26, 7, 0.71), (2.45, 3, 0.68), (3.2, 3, 0.85)]
)
def test_published_lengths_and_the_rates_behind_them(length: float, num_drafts: int, rate: float) -> None:
    law = acceptance.from_length(length, num_drafts)
    assert law.rates == pytest.approx((rate,) * num_drafts, abs=0.006)
    assert law.length == pytest.approx(length, abs=1e-9)


@pytest.mark.parametrize(("length", "num_drafts"), [(1.0, 7), (8.0, 7), (1.0, 0)])
def test_the_ends(length: float, num_drafts: int) -> None:
    draws = Acceptances(acceptance.from_length(length, num_drafts), Random(0))
    assert {draws.draw(num_drafts) for _ in range(100)} == {round(length) - 1}


def test_draws_have_the_mean_and_the_variance_of_the_law() -> None:
    rates = (0.9, 0.5, 0.8)
    law = acceptance.from_rates(rates, 3)
    draws = Acceptances(law, Random(7))
    kept = [draws.draw(3) for _ in range(60_000)]
    shares = [sum(k > j for k in kept) / len(kept) for j in range(3)]
    assert shares == pytest.approx([0.9, 0.45, 0.36], abs=0.01)
    chances = [0.1, 0.9 * 0.5, 0.45 * 0.2, 0.36]
    mean = sum(k * chance for k, chance in enumerate(chances))
    assert statistics.variance(kept) == pytest.approx(
        sum((k - mean) ** 2 * chance for k, chance in enumerate(chances)), rel=0.03
    )
    assert law.length == pytest.approx(1 + mean)
    assert max(draws.draw(1) for _ in range(100)) == 1


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: acceptance.from_length(9, 7), "--acceptance-length is 9, but 7 drafts a round yield 1 to 8 tokens"),
        (lambda: acceptance.from_length(2, 0), "nothing is drafted, so a round yields one token"),
        (lambda: acceptance.from_rates((0.5,), 3), "has 1 rates, but a round has 3 drafts"),
        (lambda: acceptance.from_rates((0.5, 1.2), 2), "has 1.2; each must be 0 to 1"),
    ],
)
def test_what_cannot_be_is_said(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()
