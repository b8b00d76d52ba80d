"""Sequence: one running generation, host side"""

from dataclasses import dataclass, field
from enum import Enum
from hashlib import sha256

from minnow.cache.prefix import HashChain
from minnow.core.request import Request
from minnow.core.step import FinishReason, RowStart, TokenLogprobs, TokenOutput


class State(Enum):
    """Where a sequence stands. A preempted one waits again, before all that never ran."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    """One running generation, host side. The scheduler alone changes it.

    Tokens [0, num_computed_tokens) have keys and values once every plan made so far has run; tokens
    [num_computed_tokens, num_known_tokens) are still to be computed. Blocks [0, num_published_blocks) of the table
    are known to the prefix cache.

    Attributes:
        token_ids: prompt and output.
        num_prompt_tokens: tokens of the prompt.
        is_generating: whether it may yield tokens at all; False with max_tokens 0, which only computes the prompt.
        rank: order among sequences: waiting ones are admitted from the lowest, the highest running one is preempted.
        max_total_tokens: prompt and output end here at the latest.
        stop_token_ids: every id that ends it.
        seed: of its random numbers.
        chain: hashes of its blocks; None without prefix caching.
        row: fixed place on the device while it runs.
        num_in_flight: plans that hold it and are not committed.
        num_pending_tokens: tokens that those plans will yield at least.
        num_ready_drafts: drafts that the device holds for its next step; confidences: of them, where they are known.
        num_made_drafts: those that its last step made, whether they will be verified or not.
        num_cached_tokens: prompt tokens found in the prefix cache when it was first admitted; None before.
        added_s: when it came, by the scheduler's clock.
        queued_s: until it was first admitted; 0 before.
        prompt_logprobs: of the prompt's tokens 1, 2, ... as far as they have been scored and not delivered.
    """

    request: Request
    token_ids: list[int]
    rank: tuple[int, float, int]
    max_total_tokens: int
    stop_token_ids: tuple[int, ...]
    seed: int
    chain: HashChain | None = None
    state: State = State.WAITING
    row: int | None = None
    block_ids: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    num_published_blocks: int = 0
    num_in_flight: int = 0
    num_pending_tokens: int = 0
    num_ready_drafts: int = 0
    confidences: tuple[float, ...] = ()
    num_made_drafts: int = 0
    num_cached_tokens: int | None = None
    num_preemptions: int = 0
    has_answered: bool = False
    added_s: float = 0.0
    queued_s: float = 0.0
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    num_prompt_tokens: int = field(init=False)  # asked for often, and never changes; so is_generating
    is_generating: bool = field(init=False)

    def __post_init__(self) -> None:
        """Work out what depends on the request alone."""
        self.num_prompt_tokens = len(self.request.token_ids)
        self.is_generating = self.max_total_tokens > self.num_prompt_tokens

    @property
    def is_repeatable(self) -> bool:
        """Whether its request names a seed that its tokens follow from."""
        return self.request.sampling.seed is not None and self.request.sampling.temperature > 0

    @property
    def num_known_tokens(self) -> int:
        """Tokens it has, with those that plans in flight yield."""
        return len(self.token_ids) + self.num_pending_tokens

    @property
    def num_remaining_tokens(self) -> int:
        """Tokens to compute before the next one can be drawn; 0 when it is bound to end.

        The last token that it may have is never an input, so nothing is computed for it.
        """
        last = self.max_total_tokens - self.is_generating
        known = len(self.token_ids) + self.num_pending_tokens
        return (known if known < last else last) - self.num_computed_tokens

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether its prompt is still to be scored; its first output takes them along."""
        return self.request.sampling.prompt_logprobs is not None and not self.has_answered

    def num_prompt_logprobs(self, start: int, num_tokens: int) -> int:
        """Prompt tokens that a chunk [start, start + num_tokens) has to score: each token the one after it."""
        if not self.wants_prompt_logprobs:
            return 0
        last = self.num_prompt_tokens - 1
        return max(min(start + num_tokens, last) - start, 0)

    def keep(self, start: int, logprobs: tuple[TokenLogprobs, ...]) -> None:
        """Add the scores of a chunk that began at `start`; a chunk computed anew replaces what it gave before."""
        assert start <= len(self.prompt_logprobs), f"{self.request.request_id} lost log-probabilities"
        self.prompt_logprobs[start:] = logprobs

    def take(self, token_ids: tuple[int, ...]) -> tuple[int, FinishReason | None]:
        """Append tokens up to the one that ends the sequence; says how many, and why it ends."""
        for num_taken_tokens, token_id in enumerate(token_ids, start=1):
            num_earlier_tokens = len(self.token_ids) - self.num_prompt_tokens
            self.token_ids.append(token_id)
            if token_id in self.stop_token_ids and num_earlier_tokens >= self.request.sampling.min_tokens:
                return num_taken_tokens, "stop"
            if len(self.token_ids) >= self.max_total_tokens:
                return num_taken_tokens, "length"
        return len(token_ids), None

    def row_start(self) -> RowStart:
        """What the device must know when the sequence takes its row."""
        assert self.row is not None, f"{self.request.request_id} has no row to start on"
        return RowStart(
            row=self.row,
            request_id=self.request.request_id,
            token_ids=tuple(self.token_ids),
            num_prompt_tokens=self.num_prompt_tokens,
            num_computed_tokens=self.num_computed_tokens,
            sampling=self.request.sampling,
            stop_token_ids=self.stop_token_ids,
            seed=self.seed,
        )

    def answer(
        self,
        token_ids: tuple[int, ...],
        logprobs: tuple[TokenLogprobs, ...],
        *,
        finish_reason: FinishReason | None,
        error: str | None,
    ) -> TokenOutput:
        """An output of this sequence; the first one tells of the prompt and the queue."""
        is_first, self.has_answered = not self.has_answered, True
        is_scored = len(self.prompt_logprobs) == self.num_prompt_tokens - 1
        scores, self.prompt_logprobs = self.prompt_logprobs, []
        return TokenOutput(
            request_id=self.request.request_id,
            token_ids=token_ids,
            logprobs=logprobs,
            prompt_logprobs=tuple(scores) if is_scored else (),
            finish_reason=finish_reason,
            stop_token_id=token_ids[-1] if finish_reason == "stop" else None,
            num_cached_tokens=self.num_cached_tokens or 0 if is_first else 0,
            queued_s=self.queued_s if is_first else 0.0,
            num_preemptions=self.num_preemptions,
            error=error,
        )


def make(
    request: Request,
    *,
    rank: tuple[int, float, int],
    max_context_tokens: int,
    eos_token_ids: tuple[int, ...],
    engine_seed: int,
    chain: HashChain | None,
    added_s: float = 0.0,
) -> Sequence:
    """A waiting sequence for a request that policy.check_fits has let in.

    Args:
        rank: see Sequence.
        max_context_tokens: prompt and output end here where max_tokens is None.
        eos_token_ids: the model's own stop tokens.
        engine_seed: with the order of arrival it gives requests without a seed one each.
        chain: for prefix caching.
        added_s: the time, by the scheduler's clock.
    """
    sampling = request.sampling
    num_prompt_tokens = len(request.token_ids)
    max_total_tokens = max_context_tokens if sampling.max_tokens is None else num_prompt_tokens + sampling.max_tokens
    own_stops = () if sampling.ignore_eos else eos_token_ids
    return Sequence(
        request=request,
        token_ids=list(request.token_ids),
        rank=rank,
        max_total_tokens=max_total_tokens,
        stop_token_ids=tuple(dict.fromkeys(own_stops + sampling.stop_token_ids)),
        seed=_fresh_seed(engine_seed, rank[-1]) if sampling.seed is None else sampling.seed,
        chain=chain,
        added_s=added_s,
    )


def _fresh_seed(engine_seed: int, order: int) -> int:
    """A seed that no other request of this engine has, 64 bits signed; the same in every run of the same requests."""
    return int.from_bytes(sha256(f"{engine_seed} {order}".encode()).digest()[:8], "little", signed=True)
