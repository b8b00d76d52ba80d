"""drafts are made while that yields more tokens a second than not drafting would"""

import math

import pytest

from minnow.engine import costs, pace
from minnow.engine.pace import Pace, StepCosts

COSTS = StepCosts(drafting=(1.2, 1.4, 1.6, 1.8), plain=(1.0, 1.1))


def after(rounds: list[tuple[int, int]]) -> Pace:
    """One sequence, whose rounds verified and accepted so many drafts."""
    found = Pace()
    for one in rounds:
        found.add([one])
    return found


@pytest.mark.parametrize(
    ("rounds", "num_sequences", "pays"),
    [
        ([(1, 1)] * 10, 1, True),  # 2 tokens in 1.4 s
        ([(1, 0)] * 10, 1, False),
        ([(1, 0), (1, 1)] * 5, 1, True),  # 1.5 tokens in 1.4 s
        ([(3, 0), (3, 1)] * 5, 1, False),  # 1.5 tokens in 1.8 s
        ([(0, 0)] * 10, 1, False),  # none is looked at, and drafting them takes its time
        ([(1, 0), (1, 1)] * 5, 2, False),  # 3 tokens in 1.8 s instead of 2 in 1.1 s
    ],
)
def test_it_pays_by_tokens_a_second(rounds: list[tuple[int, int]], num_sequences: int, pays: bool) -> None:
    assert after(rounds).pays(COSTS, num_sequences, 0) is pays


def test_nothing_is_concluded_from_a_few_rounds() -> None:
    found = Pace()
    for _ in range(pace._LEAST_ROUNDS):
        assert found.wants_drafts(COSTS, 1)
        found.add([(1, 0)])
    assert not found.wants_drafts(COSTS, 1)


def test_a_pause_ends_in_a_trial_and_drafts_come_back_when_they_pay() -> None:
    found = after([(1, 0)] * 20)
    asked = [found.wants_drafts(COSTS, 1) for _ in range(2 * pace._PAUSE)]
    assert asked.count(True) == 2 * pace._TRIAL and not any(asked[: pace._PAUSE - pace._TRIAL - 1])
    for _ in range(8):
        found.add([(1, 1)])
    assert found.wants_drafts(COSTS, 1) and found.num_paused == 0


def test_the_last_rounds_count_most() -> None:
    assert after([(2, 0)] * 90 + [(2, 2)] * 30).tokens > 2.8
    assert math.isclose(after([(1, 0), (1, 1), (1, 1)]).tokens, 5 / 3)


@pytest.mark.parametrize(("most", "known"), [(1, 1), (5, 5), (12, 12), (200, 32)])
def test_costs_are_known_up_to_the_most_that_a_step_holds(
    most: int, known: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(costs, "_one_size", lambda runner, size, *_: 1.0 + size)
    found = costs._curve(None, 0, most, lambda: 0.0)  # type: ignore[arg-type]
    assert found == pytest.approx([2.0 + i for i in range(known)])


def test_costs_grow_in_proportion_beyond_what_was_measured() -> None:
    assert [pace.seconds((1.0, 1.5), n) for n in (0, 1, 2, 4)] == [1.0, 1.0, 1.5, 3.0]


def test_sequences_of_a_step_count_alike() -> None:
    """Whoever comes last in it, and a step is one step however many there are."""
    found, other = Pace(), Pace()
    for _ in range(30):
        found.add([(2, 2)] * 22 + [(2, 0)] * 10)
        other.add([(2, 0)] * 10 + [(2, 2)] * 22)
    assert found == other and found.num_rounds == 30
    assert math.isclose(found.tokens, 1 + 2 * 22 / 32) and math.isclose(found.verified, 2)
    found.add([])
    assert found == other


def test_others_that_never_draft_add_their_token_and_their_cost() -> None:
    found = after([(1, 1)] * 10)
    steep = StepCosts(drafting=(1.2, 1.4, 2.6), plain=(1.0, 1.1, 1.2))
    assert found.pays(steep, 1, 0)  # 2 tokens in 1.4 s
    assert not found.pays(steep, 1, 1)  # 3 tokens in 2.6 s instead of 2 in 1.1 s
