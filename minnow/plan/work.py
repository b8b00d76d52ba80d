"""Work: what a step does, added up over its sequences, as times are worked out from it"""

from dataclasses import dataclass
from typing import NamedTuple

from minnow.config.drafter import DrafterConfig
from minnow.config.model import ModelConfig

# Verified drafts look at much the same blocks as the token before them. How much is in no source: of so many queries
# in a row the chosen keys are taken to be so many times those of one, and of more no more than that.
UNION = 3
_CHUNK_TOKENS = 32  # queries of one sequence from which every block is taken to be chosen by one of them


class Row(NamedTuple):
    """What one sequence computes in a step.

    Attributes:
        num_tokens: its next ones, drafts to be verified among them.
        context_tokens: what it has when they are computed, they among it.
        num_logits: rows of logits: one for each token that may be drawn; 0 for a part of a prompt.
        is_drafting: whether its next drafts are made.
    """

    num_tokens: int
    context_tokens: int
    num_logits: int = 1
    is_drafting: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What bounds how much of a context is looked at.

    Attributes:
        chosen_tokens: keys that a query of a sparse layer chooses.
        window_tokens: keys that a draft looks at; 0 is all.
    """

    chosen_tokens: int
    window_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Sums over the sequences of a step, of one rank.

    Attributes:
        num_tokens: computed by the target.
        num_logits: rows of logits.
        num_drafting: sequences whose next drafts are made.
        context_tokens: keys that the sequences have.
        chosen_tokens: of those, the ones that some query of a sparse layer chooses.
        window_tokens: keys that the drafts of sequences look at.
        expert_tokens: tokens of all replicas that share the experts; 0: each has as many as this one.
        context_pairs, chosen_pairs: pairs of a query and a key that it sees in a dense layer, or chooses in a sparse.
    """

    num_sequences: int = 0
    num_tokens: int = 0
    num_logits: int = 0
    num_drafting: int = 0
    context_tokens: int = 0
    chosen_tokens: int = 0
    window_tokens: int = 0
    expert_tokens: int = 0
    context_pairs: float = 0.0
    chosen_pairs: float = 0.0


def limits_of(model: ModelConfig, drafter: DrafterConfig | None = None) -> Limits:
    """How much of a context a model's queries look at."""
    sparse = model.sparse
    return Limits(
        chosen_tokens=sparse.num_blocks * sparse.block_size, window_tokens=0 if drafter is None else drafter.window
    )


def add_up(rows: list[Row], limits: Limits) -> Work:
    """The work of a step.

    Args:
        rows: one for each sequence.
    """
    num_tokens = num_logits = num_drafting = context_tokens = chosen_tokens = window_tokens = 0
    context_pairs = chosen_pairs = 0.0
    most, window = limits.chosen_tokens, limits.window_tokens
    for count, context, logits, is_drafting in rows:
        num_tokens += count
        num_logits += logits
        context_tokens += context
        context_pairs += count * (context - (count - 1) / 2)
        chosen_tokens += context if count >= _CHUNK_TOKENS else min(context, most * min(count, UNION))
        chosen_pairs += _chosen_pairs(count, context, most)
        if is_drafting:
            num_drafting += 1
            window_tokens += min(context, window) if window else context
    return Work(
        num_sequences=len(rows), num_tokens=num_tokens, num_logits=num_logits, num_drafting=num_drafting,
        context_tokens=context_tokens, chosen_tokens=chosen_tokens, window_tokens=window_tokens,
        context_pairs=context_pairs, chosen_pairs=chosen_pairs,
    )  # fmt: skip


def _chosen_pairs(count: int, context: int, most: int) -> float:
    """Pairs of the last `count` of `context` tokens, each with the keys up to it, at most so many."""
    start = context - count
    if context <= most:
        return count * (context - (count - 1) / 2)
    growing = max(most - start, 0)
    return growing * (start + (growing + 1) / 2) + (count - growing) * most
