"""sessions of coding agents as AgentX has them: trees of turns that meet its published lengths, gaps and reuse"""

import dataclasses
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from minnow.core.errors import ConfigError
from minnow.plan.workload import Lengths, Piece, Session, Turn, log_normal

MAX_GAP_S = 300.0  # of a tree; longer ones are cut to it when a session is replayed
MAX_IDLE_S = 10.0  # where nothing runs in the whole system
NUM_WARMUPS = 10  # requests of each lane
LEAST_S = 900.0  # that a replay should last
MAX_ANSWER_TOKENS = 32_000
MAX_CONTEXT_TOKENS = 1 << 20
_SHARES = (0.25, 0.75)  # of a session, between which a replay begins


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What sessions are drawn from.

    Published of the corpus: 393 sessions of 98,827 requests; 218.9K tokens of a prompt on average, of the main agent's
    half below 254K, 90 % below 651K, 99 % below 898K; half of the answers below 616, 1,374 on average; 98.31 % of all
    prompts' tokens stand in an earlier prompt of the session; half of the turns add up to 1,664 tokens, 3,792 on
    average; gaps of 4.9 s in the middle, 131 s at 90 %. All prompts together are 203 times all answers, which makes
    1,077 tokens an answer; so answers of 1,374 and additions of 3,792 are taken to be the main agent's. What is not
    published (how the main agent's context falls when it is summed up, the other agents' own lengths) is chosen here so
    that all of these come out.

    Attributes:
        most_tokens: a context is summed up at the latest there.
        growing_share: of the contexts' ends, those that lie evenly up to most_tokens; those of the others' logarithms
            do.
        least_tokens: the shortest of these ends.
        num_contexts: of a session on average.
        system_tokens, summary_tokens: that a context begins with; the first is the same in all of a session.
        call_share: of the main agent's turns, after which others are called.
        most_called: at once.
        agent_system_tokens, agent_task_tokens: what called agents begin with; the first is the same in a session.
        num_agent_turns: of a called agent on average.
    """

    most_tokens: int = 1_015_000
    growing_share: float = 0.42
    least_tokens: int = 45_000
    num_contexts: float = 1.5
    system_tokens: int = 14_000
    summary_tokens: int = 9_000
    call_share: float = 0.0258
    most_called: int = 2
    agent_system_tokens: int = 12_000
    agent_task_tokens: int = 6_000
    num_agent_turns: float = 16.0
    answer: tuple[float, float] = (616, 1374)  # median and mean
    addition: tuple[float, float] = (1655, 3800)
    agent_answer: tuple[float, float] = (260, 580)
    agent_addition: tuple[float, float] = (1500, 3250)
    gap_s: tuple[float, float] = (4.9, 131.0)  # median and 90th percentile


def profile_within(context_tokens: int) -> Profile:
    """The published profile, contexts and answers no longer than so many tokens."""
    most_tokens = min(Profile().most_tokens, context_tokens - MAX_ANSWER_TOKENS)
    return dataclasses.replace(Profile(), most_tokens=most_tokens)


class Generator:
    """Draws sessions from a profile; no two share any text."""

    def __init__(self, rng: Random, profile: Profile | None = None, *, is_recorded: bool = True) -> None:
        """Begin with fresh numbers of pieces.

        Args:
            is_recorded: prompts hold recorded answers, which what is generated does not equal, as in a replay; else
                they hold what was generated, and find it in the cache.

        Raises:
            ConfigError: contexts end before they begin.
        """
        self._rng, self._profile = rng, profile or Profile()
        profile = self._profile
        if profile.most_tokens <= profile.least_tokens:
            raise ConfigError(
                f"contexts of {profile.most_tokens + MAX_ANSWER_TOKENS:,} tokens are too short for these sessions; "
                f"give more than {profile.least_tokens + MAX_ANSWER_TOKENS:,} (--max-model-len)"
            )
        self._is_recorded = is_recorded
        self._numbers = itertools.count(1)
        self._answer = log_normal(*profile.answer, MAX_ANSWER_TOKENS)
        self._agent_answer = log_normal(*profile.agent_answer, MAX_ANSWER_TOKENS)
        most = profile.most_tokens // 8
        self._addition = log_normal(*profile.addition, most)
        self._agent_addition = log_normal(*profile.agent_addition, most)
        self._gap_sigma = math.log(profile.gap_s[1] / profile.gap_s[0]) / 1.2815515655446004

    def session(self) -> Session:
        """A whole session, as it was recorded: gaps are not cut."""
        profile, rng = self._profile, self._rng
        turns: list[Turn] = []
        system = Piece(next(self._numbers), profile.system_tokens)
        agent_system = Piece(next(self._numbers), profile.agent_system_tokens)
        last, num_agents, first_call = -1, 0, -1
        after: tuple[int, ...] = ()
        for _ in range(_geometric(profile.num_contexts, rng)):
            pieces = [system, self._piece(profile.summary_tokens)]
            num_tokens, end = sum(piece.num_tokens for piece in pieces), self._end()
            while True:
                turns.append(self._turn(pieces, self._answer, after, extends=last, agent=0))
                last, after = len(turns) - 1, (len(turns) - 1,)
                if rng.random() < profile.call_share:
                    for _ in range(rng.randint(1, profile.most_called)):
                        num_agents += 1
                        start = len(turns)
                        self._call(turns, last, agent_system, first_call, num_agents)
                        first_call = start if first_call < 0 else first_call
                        after = (*after, len(turns) - 1)
                num_tokens += self._add(pieces, turns[last], self._addition(rng))
                if num_tokens > end:
                    break
        return Session(turns=tuple(turns))

    def replay(self, num_lanes: int) -> Iterator[Session]:
        """Sessions without end as they are replayed: begun 25 to 75 % into each, gaps cut, all of their text fresh.

        Args:
            num_lanes: sessions alive at once: the first turns of so many are a warm-up.
        """
        for count in itertools.count():
            session = self.session()
            own = [place for place, turn in enumerate(session.turns) if not turn.agent]
            start = own[int(self._rng.uniform(*_SHARES) * len(own))]
            yield _from(session, start, NUM_WARMUPS if count < num_lanes else 0)

    def _call(self, turns: list[Turn], caller: int, system: Piece, extends: int, agent: int) -> None:
        """An agent that is called: turns of its own, with a context of its own."""
        profile = self._profile
        pieces, after = [system, self._piece(profile.agent_task_tokens)], caller
        num_tokens = sum(piece.num_tokens for piece in pieces)
        for _ in range(_geometric(profile.num_agent_turns, self._rng)):
            turns.append(self._turn(pieces, self._agent_answer, (after,), extends=extends, agent=agent))
            after = extends = len(turns) - 1
            num_tokens += self._add(pieces, turns[-1], self._agent_addition(self._rng))
            if num_tokens > profile.most_tokens:
                break

    def _turn(self, pieces: list[Piece], answer: Lengths, after: tuple[int, ...], *, extends: int, agent: int) -> Turn:
        median, _ = self._profile.gap_s
        gap_s = self._rng.lognormvariate(math.log(median), self._gap_sigma) if after else 0.0
        num_output_tokens = answer(self._rng)
        return Turn(
            pieces=tuple(pieces), num_output_tokens=num_output_tokens, after=after, gap_s=gap_s, extends=extends,
            answer=0 if self._is_recorded else next(self._numbers), agent=agent,
        )  # fmt: skip

    def _add(self, pieces: list[Piece], turn: Turn, num_tokens: int) -> int:
        """What the next prompt has more: the answer, as far as it is kept, and what came back."""
        num_kept_tokens = min(turn.num_output_tokens, num_tokens)
        pieces.append(Piece(turn.answer or next(self._numbers), num_kept_tokens))
        if num_tokens > num_kept_tokens:
            pieces.append(self._piece(num_tokens - num_kept_tokens))
        return num_tokens

    def _piece(self, num_tokens: int) -> Piece:
        return Piece(next(self._numbers), num_tokens)

    def _end(self) -> int:
        """Where a context is summed up."""
        profile = self._profile
        least, most = profile.least_tokens, profile.most_tokens
        if self._rng.random() < profile.growing_share:
            return round(self._rng.uniform(least, most))
        return round(math.exp(self._rng.uniform(math.log(least), math.log(most))))


def _from(session: Session, start: int, num_warmups: int) -> Session:
    """A session from one of its turns on; of the first ones some are a warm-up."""
    turns = [
        dataclasses.replace(
            turn,
            after=tuple(before - start for before in turn.after if before >= start),
            gap_s=min(turn.gap_s, MAX_GAP_S) if place else 0.0,
            extends=max(turn.extends - start, -1),
            is_warmup=place < num_warmups,
        )
        for place, turn in enumerate(session.turns[start:])
    ]
    return Session(turns=tuple(turns))


def _geometric(mean: float, rng: Random) -> int:
    """1 or more, on average so many."""
    return 1 + int(math.log(1 - rng.random()) / math.log(1 - 1 / mean)) if mean > 1 else 1
