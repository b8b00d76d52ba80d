"""order, admission, prefill budget, preemption choice (no torch)"""

import math
from collections.abc import Sequence as Ordered
from typing import Literal

from minnow.core.errors import RequestError
from minnow.core.request import Request
from minnow.engine.pace import seconds
from minnow.engine.sequence import Sequence

Policy = Literal["fcfs", "priority"]

# Log-probabilities of a prompt need the logits of all its tokens, and a row of logits is large: 0.8 MB for 200,000
# words. So a step scores only so many tokens, of all its sequences together: 0.4 GB of logits, and still enough
# tokens to keep the device busy. A prompt that is scored gets its chunks from this budget and from that of tokens.
MAX_PROMPT_LOGPROBS = 512


def rank(request: Request, order: int, policy: Policy) -> tuple[int, float, int]:
    """The sequence's place among all others, lowest first.

    Args:
        order: counts the requests of this engine, so no two ranks are equal.
        policy: "fcfs" goes by that order alone; "priority" by priority (lower first), then time of arrival.

    One rank serves for waiting, running and preempting. Under "fcfs" a preempted sequence has come before all that
    were never admitted, so it stands at the front of the queue again without a rule of its own.
    """
    return (0, 0.0, order) if policy == "fcfs" else (request.priority, request.arrival_s, order)


def check_fits(request: Request, *, max_model_len: int, cache_tokens: int) -> None:
    """Refuse a request that could never run to its end, however empty the engine is.

    Args:
        max_model_len: longest prompt plus output.
        cache_tokens: what all usable blocks hold.

    Raises:
        RequestError: with code "context_length_exceeded", or "cache_capacity_exceeded" where the cache is the
            narrower of the two.
    """
    num_prompt_tokens = len(request.token_ids)
    max_tokens = request.sampling.max_tokens
    if not num_prompt_tokens:
        raise RequestError("the prompt has no tokens; send at least one", param="prompt")
    num_wanted_tokens = 1 if max_tokens is None else max_tokens
    total = num_prompt_tokens + num_wanted_tokens
    if total > max_model_len:
        answer = "one token of answer" if max_tokens is None else f"max_tokens {max_tokens}"
        raise RequestError(
            f"the prompt of {num_prompt_tokens} tokens and {answer} make {total} tokens; "
            f"the context holds {max_model_len}",
            param="prompt" if num_prompt_tokens >= max_model_len else "max_tokens",
            code="context_length_exceeded",
        )
    # The last token drawn is no input of another step, so it needs no place in the cache.
    num_computed_tokens = total - min(num_wanted_tokens, 1)
    if num_computed_tokens > cache_tokens:
        raise RequestError(
            f"the request may need {num_computed_tokens} tokens of cache; the whole cache holds {cache_tokens}: "
            "shorten it, or start the engine with more --kv-cache-memory-bytes",
            param="prompt" if num_prompt_tokens > cache_tokens else "max_tokens",
            code="cache_capacity_exceeded",
        )


def num_chunk_tokens(num_remaining_tokens: int, budget_tokens: int, *, threshold_tokens: int, is_alone: bool) -> int:
    """Tokens of one sequence in this step.

    Args:
        num_remaining_tokens: that it still has to compute.
        budget_tokens: left in this step.
        threshold_tokens: longest chunk of one sequence, so that a long prompt leaves room for others; 0 is off.
        is_alone: no other sequence runs or waits, so there is nobody to leave room for.
    """
    chunk = min(num_remaining_tokens, budget_tokens)
    return chunk if is_alone or not threshold_tokens else min(chunk, threshold_tokens)


def can_admit(num_wanted_blocks: int, num_free_blocks: int, *, num_reserved_blocks: int) -> bool:
    """Whether a waiting sequence may take blocks.

    Args:
        num_wanted_blocks: new ones and free ones to revive.
        num_reserved_blocks: the watermark: kept for the growth of those that run; 0 when nothing runs, else the
            engine could stand still.
    """
    return num_wanted_blocks + num_reserved_blocks <= num_free_blocks


def num_reserved_blocks(watermark: float, num_blocks: int) -> int:
    """Blocks of a pool, the null block counted, that a watermark keeps for the growth of sequences that run."""
    return int(watermark * num_blocks)


def needs_whole(sequence: Sequence, *, is_reserving: bool) -> bool:
    """Whether a waiting sequence is admitted only when blocks for all its known tokens are free.

    Always for one that was preempted: resumed piece by piece it would be preempted again and again.
    """
    return is_reserving or sequence.num_preemptions > 0


def victim(running: Ordered[Sequence]) -> Sequence:
    """Who gives its blocks up: the last admitted under "fcfs", the lowest priority under "priority".

    Args:
        running: in the order of their ranks.
    """
    return running[-1]


def num_worthwhile_drafts(
    confidences: Ordered[Ordered[float]], step_costs: Ordered[float], num_others: int = 0
) -> list[int]:
    """How many drafts of each sequence to verify, so that a step yields the most tokens a second.

    Drafts are admitted from the likeliest on, and the first that does not raise the rate ends it: whether a draft is
    looked at then depends on nothing that was known after it was drawn, so the law of what comes out stays the same.

    Args:
        confidences: of each sequence's drafts in order, how likely each is kept if those before it are.
        step_costs: seconds of a step of 1, 2, ... tokens in which drafts are made; see minnow.engine.pace.
        num_others: sequences without drafts that are in the step, too.

    Source: DSpark (Cheng et al., arXiv 2607.05147), algorithm 1.
    """
    counts = [0] * len(confidences)
    survivals = [(-math.prod(own[:j]), j, s) for s, own in enumerate(confidences) for j in range(1, len(own) + 1)]
    num_tokens = expected = float(len(confidences) + num_others)
    best = expected / seconds(step_costs, num_tokens)
    for survival, j, s in sorted(survivals):
        num_tokens, expected = num_tokens + 1, expected - survival
        rate = expected / seconds(step_costs, num_tokens)
        if rate <= best:
            break
        best, counts[s] = rate, j
    return counts
