"""whether to go on drafting: what the last rounds came to, beside what they cost (no torch)"""

from collections.abc import Sequence as Ordered
from dataclasses import dataclass

_LEAST_ROUNDS = 8  # before anything is concluded
_SHARE = 0.1  # of the newest round in the averages, once there are ten
_PAUSE, _TRIAL = 256, 4  # who does not draft tries again for so many of so many steps


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    """Seconds of a step of 1, 2, ... tokens, never falling; steps of more cost in proportion.

    Attributes:
        drafting: tokens are those of sequences and of drafts that are verified; the next drafts are made.
        plain: nothing is drafted.
    """

    drafting: tuple[float, ...]
    plain: tuple[float, ...]


def seconds(costs: Ordered[float], num_tokens: float) -> float:
    """Of a step of so many tokens, one at least."""
    count = max(int(num_tokens), 1)
    known = min(count, len(costs))
    return costs[known - 1] * count / known


@dataclass(slots=True)
class Pace:
    """Of all sequences together: one that has just come knows nothing of its own yet, and most are short.

    What is decided depends on rounds that are over, so the law of what comes out stays the same.

    Attributes:
        num_rounds: steps behind rounds of drafts so far; tokens, verified: of a sequence and step on average, the last
            steps counting most.
        num_paused: steps since drafts stopped to pay.
    """

    num_rounds: int = 0
    tokens: float = 0.0
    verified: float = 0.0
    num_paused: int = 0

    def add(self, rounds: Ordered[tuple[int, int]]) -> None:
        """Take note of a step: (verified, accepted) of each sequence for which drafts had been made, if any had."""
        if not rounds:
            return
        self.num_rounds += 1
        share = max(1 / self.num_rounds, _SHARE)
        verified, accepted = (sum(counts) / len(rounds) for counts in zip(*rounds, strict=True))
        self.tokens += share * (1 + accepted - self.tokens)
        self.verified += share * (verified - self.verified)

    def pays(self, costs: StepCosts, num_sequences: int, num_others: int) -> bool:
        """Whether a step yields more tokens a second when so many sequences draft, beside others that never do."""
        num_drafting_tokens = round(num_sequences * (1 + self.verified)) + num_others
        drafting = (num_sequences * self.tokens + num_others) / seconds(costs.drafting, num_drafting_tokens)
        return drafting > (num_sequences + num_others) / seconds(costs.plain, num_sequences + num_others)

    def wants_drafts(self, costs: StepCosts, num_sequences: int, num_others: int = 0) -> bool:
        """Whether to draft in the next step; asked once in each step in which some sequence could."""
        if self.num_rounds < _LEAST_ROUNDS or self.pays(costs, num_sequences, num_others):
            self.num_paused = 0
            return True
        self.num_paused += 1
        return self.num_paused % _PAUSE >= _PAUSE - _TRIAL
