"""generated sessions beside what is published of the corpus, and how they are replayed"""

import statistics
from collections.abc import Iterator
from itertools import islice
from random import Random

import pytest

from minnow.core.errors import ConfigError
from minnow.plan import agentx
from minnow.plan.agentx import Generator, profile_within
from minnow.plan.workload import Session, Text

NUM_SESSIONS = 400


class Corpus:
    """Sessions, and of their turns the tokens of prompt, answer and what no earlier prompt begins with."""

    def __init__(self, sessions: Iterator[Session]) -> None:
        self.num_sessions = 0
        self.own: list[tuple[int, int, int]] = []
        self.called: list[tuple[int, int, int]] = []
        self.gaps: list[float] = []
        for session in sessions:
            self.num_sessions += 1
            texts = [Text(turn.pieces) for turn in session.turns]
            for text, turn in zip(texts, session.turns, strict=True):
                shared = text.num_shared_tokens(texts[turn.extends]) if turn.extends >= 0 else 0
                (self.called if turn.agent else self.own).append(
                    (len(text), turn.num_output_tokens, len(text) - shared)
                )
                if turn.after:
                    self.gaps.append(turn.gap_s)

    @property
    def all(self) -> list[tuple[int, int, int]]:
        return self.own + self.called


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    generator = Generator(Random(0))
    return Corpus(generator.session() for _ in range(NUM_SESSIONS))


def mean(turns: list[tuple[int, int, int]], place: int) -> float:
    return statistics.mean(turn[place] for turn in turns)


def shares(turns: list[tuple[int, int, int]], place: int) -> list[float]:
    return statistics.quantiles((turn[place] for turn in turns), n=100)


def test_prompts_are_as_long_as_published(corpus: Corpus) -> None:
    assert mean(corpus.all, 0) == pytest.approx(218_900, rel=0.05)
    found = shares(corpus.own, 0)
    assert found[49] == pytest.approx(254_000, rel=0.08)
    assert found[89] == pytest.approx(651_000, rel=0.05)
    assert found[98] == pytest.approx(898_000, rel=0.05)


def test_answers_are_as_long_as_published(corpus: Corpus) -> None:
    assert shares(corpus.own, 1)[49] == pytest.approx(616, rel=0.03)
    assert mean(corpus.own, 1) == pytest.approx(1374, rel=0.03)
    assert mean(corpus.all, 0) / mean(corpus.all, 1) == pytest.approx(203, rel=0.06)


def test_as_much_is_found_again_as_published(corpus: Corpus) -> None:
    assert 1 - mean(corpus.all, 2) / mean(corpus.all, 0) == pytest.approx(0.9831, abs=0.001)
    assert shares(corpus.own, 2)[49] == pytest.approx(1664, rel=0.03)
    assert mean(corpus.own, 2) == pytest.approx(3792, rel=0.05)
    assert mean(corpus.all, 2) / mean(corpus.all, 1) == pytest.approx(3.4, rel=0.05)


def test_gaps_and_sizes_of_sessions(corpus: Corpus) -> None:
    found = statistics.quantiles(corpus.gaps, n=100)
    assert found[49] == pytest.approx(4.9, rel=0.05) and found[89] == pytest.approx(131, rel=0.06)
    assert len(corpus.all) / corpus.num_sessions == pytest.approx(98_827 / 393, rel=0.08)


def test_agents_are_called_and_waited_for() -> None:
    session = next(s for s in iter(Generator(Random(3)).session, None) if any(t.agent for t in s.turns))
    for place, turn in enumerate(session.turns):
        assert all(before < place for before in turn.after) and turn.extends < place
        if turn.agent and session.turns[place - 1].agent != turn.agent:  # the first of an agent
            (caller,) = turn.after
            assert not session.turns[caller].agent
            after = next(t for t in session.turns[place:] if not t.agent)
            assert caller in after.after and len(after.after) >= 2


def test_a_replay_begins_within_sessions_and_cuts_gaps() -> None:
    generator = Generator(Random(1))
    played = list(islice(generator.replay(num_lanes=4), 30))
    whole = [Generator(Random(1)).session() for _ in range(1)]
    assert len(played[0].turns) < len(whole[0].turns)
    numbers: set[int] = set()
    for count, session in enumerate(played):
        own = {piece.number for turn in session.turns for piece in turn.pieces}
        assert not own & numbers, "two plays share text"
        numbers |= own
        first = session.turns[0]
        assert not first.after and not first.gap_s and not first.agent and first.extends == -1
        assert max(turn.gap_s for turn in session.turns) <= agentx.MAX_GAP_S
        warm = [turn.is_warmup for turn in session.turns]
        assert warm == [count < 4 and place < agentx.NUM_WARMUPS for place in range(len(warm))]
        for place, turn in enumerate(session.turns):
            assert all(0 <= before < place for before in turn.after)
            assert place == 0 or turn.after
    starts = [Text(session.turns[0].pieces) for session in played]
    assert statistics.mean(map(len, starts)) > 80_000  # all of it is computed anew


def test_sessions_keep_within_a_shorter_context() -> None:
    generator = Generator(Random(2), profile_within(262_144))
    for session in islice(generator.replay(1), 40):
        assert max(turn.num_input_tokens + turn.num_output_tokens for turn in session.turns) <= 262_144
    with pytest.raises(ConfigError, match=r"contexts of 50,000 tokens are too short .*--max-model-len"):
        Generator(Random(0), profile_within(50_000))


def test_generated_answers_stand_in_later_prompts_unless_recorded_ones_do() -> None:
    recorded, generated = (Generator(Random(4), is_recorded=is_recorded).session() for is_recorded in (True, False))
    assert not any(turn.answer for turn in recorded.turns)
    first, second = generated.turns[:2]
    assert second.pieces[len(first.pieces)].number == first.answer
