"""what comes when"""

import itertools
import math
import statistics
from collections.abc import Callable
from random import Random

import pytest

from minnow.core.errors import ConfigError
from minnow.plan import workload
from minnow.plan.workload import Piece, Text


def test_ids_of_pieces_are_made_as_they_are_looked_at() -> None:
    text = Text((Piece(5, 3), Piece(9, 4), Piece(2, 1)))
    whole = [5, 5, 5, 9, 9, 9, 9, 2]
    assert len(text) == 8 and text[:] == whole and list(text) == whole
    for start, stop in itertools.product(range(9), range(9)):
        assert text[start:stop] == whole[start:stop]
    assert text[3] == 9 and len(Text(())) == 0


@pytest.mark.parametrize(
    ("other", "shared"),
    [
        (((5, 3), (9, 4)), 7),
        (((5, 3), (9, 2), (7, 9)), 5),
        (((5, 2), (9, 4)), 2),
        (((5, 8),), 3),
        (((6, 3), (9, 4)), 0),
    ],
)
def test_texts_begin_alike_as_far_as_their_pieces_do(other: tuple[tuple[int, int], ...], shared: int) -> None:
    text, second = Text((Piece(5, 3), Piece(9, 4))), Text(tuple(itertools.starmap(Piece, other)))
    assert text.num_shared_tokens(second) == second.num_shared_tokens(text) == shared
    assert text[:shared] == second[:shared]


@pytest.mark.parametrize("burstiness", [1.0, 0.25])
def test_arrivals_have_the_rate_and_the_burstiness(burstiness: float) -> None:
    times = list(itertools.islice(workload.arrivals(20.0, burstiness, Random(1)), 40_000))
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert statistics.mean(gaps) == pytest.approx(0.05, rel=0.03)
    assert statistics.variance(gaps) == pytest.approx(0.05**2 / burstiness, rel=0.08)
    assert list(itertools.islice(workload.arrivals(math.inf, 1.0, Random(1)), 3)) == [0.0] * 3


def test_lengths() -> None:
    rng = Random(3)
    assert {workload.fixed(7)(rng) for _ in range(5)} == {7}
    assert {workload.uniform(10, 0.2)(rng) for _ in range(500)} == set(range(8, 13))
    drawn = [workload.log_normal(600, 1300, 10**6)(rng) for _ in range(40_000)]
    assert statistics.median(drawn) == pytest.approx(600, rel=0.03)
    assert statistics.mean(drawn) == pytest.approx(1300, rel=0.04)
    assert max(workload.log_normal(600, 1300, 1000)(rng) for _ in range(200)) == 1000


def test_requests_share_the_prefix_and_nothing_else() -> None:
    starts = workload.arrivals(5.0, 1.0, Random(0))
    sessions = list(
        workload.independent(
            starts, workload.fixed(30), workload.fixed(4), count=3, num_prefix_tokens=20, rng=Random(0)
        )
    )
    texts = [Text(session.turns[0].pieces) for session in sessions]
    assert [len(text) for text in texts] == [50] * 3 and len({session.start_s for session in sessions}) == 3
    assert texts[0].num_shared_tokens(texts[1]) == texts[1].num_shared_tokens(texts[2]) == 20


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: workload.arrivals(0.0, 1.0, Random(0)), "--request-rate is 0; it must be above 0"),
        (lambda: workload.arrivals(1.0, -1.0, Random(0)), "--burstiness is -1"),
        (lambda: workload.uniform(5, 1.0), "--random-range-ratio is 1; it must be at least 0 and below 1"),
    ],
)
def test_what_cannot_be_is_said(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()
