"""Request, SamplingParams: what a client asked for, frozen"""

from dataclasses import dataclass, field

from minnow.core.errors import RequestError

# More of them are a mistake, or an attack: they are looked at in every step.
MAX_LISTED_IDS = {"stop_token_ids": 1_024, "logit_bias": 1_024, "allowed_token_ids": 65_536}

_REALS = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
_WHOLES = ("top_k", "min_tokens", "max_tokens", "seed", "logprobs", "prompt_logprobs")


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are drawn from the model's distribution; names and defaults as in vLLM.

    Attributes:
        temperature: 0 is greedy.
        top_k: keep the k likeliest tokens; 0 or -1 keeps all.
        top_p: keep the smallest set whose mass reaches top_p.
        min_p: drop tokens below min_p times the likeliest.
        presence_penalty, frequency_penalty: subtracted for tokens already generated.
        repetition_penalty: divides (multiplies, when negative) logits of tokens seen in prompt or output.
        logit_bias: added to the logits, as (token id, bias) pairs.
        allowed_token_ids: nothing else may be drawn; None allows all.
        min_tokens: no stop token before that many tokens.
        max_tokens: None fills the context.
        stop_token_ids: end the sequence; the end-of-sequence ids of the model are added by the engine.
        ignore_eos: keep going past the model's end-of-sequence ids.
        seed: fixes the random numbers of this sequence whatever runs beside it; None draws a fresh one.
        logprobs: log-probabilities of the drawn token and of so many likeliest; None returns none.
        prompt_logprobs: the same for the tokens of the prompt.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    min_tokens: int = 0
    max_tokens: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None

    def check(self, vocab_size: int, max_logprobs: int = 20) -> None:
        """Refuse values that cannot mean anything, before any work is done.

        Raises:
            RequestError: names the field, the value and the range.
        """
        self._check_types()
        ranges = (
            ("temperature", self.temperature, 0.0, 100.0, "0 (greedy) to 100"),
            ("top_p", self.top_p, 1e-9, 1.0, "above 0, at most 1"),
            ("min_p", self.min_p, 0.0, 1.0, "0 to 1"),
            ("presence_penalty", self.presence_penalty, -2.0, 2.0, "-2 to 2"),
            ("frequency_penalty", self.frequency_penalty, -2.0, 2.0, "-2 to 2"),
            ("repetition_penalty", self.repetition_penalty, 1e-6, 100.0, "above 0, at most 100"),
            ("top_k", self.top_k, -1, vocab_size, f"-1 or 0 (all) to {vocab_size}"),
            ("min_tokens", self.min_tokens, 0, 2**31, "0 or more"),
        )
        for name, value, low, high, words in ranges:
            if not low <= value <= high:
                raise RequestError(f"{name} is {value}; it must be {words}", param=name)
        self._check_counts(max_logprobs)
        self._check_all_ids(vocab_size)

    def _check_types(self) -> None:
        """Python hands over anything; the door has checked types already."""
        for name in _REALS:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise RequestError(f"{name} is {value!r}; it must be a number", param=name)
        for name in _WHOLES:
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
                raise RequestError(f"{name} is {value!r}; it must be a whole number", param=name)

    def _check_counts(self, max_logprobs: int) -> None:
        if self.max_tokens is not None and self.max_tokens < 0:
            raise RequestError(f"max_tokens is {self.max_tokens}; it must be 0 or more", param="max_tokens")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(
                f"min_tokens is {self.min_tokens}, above max_tokens {self.max_tokens}", param="min_tokens"
            )
        if self.seed is not None and not -(2**63) <= self.seed < 2**63:
            raise RequestError(f"seed is {self.seed}; it must fit 64 bits", param="seed")
        for name, count in (("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)):
            if count is not None and not 0 <= count <= max_logprobs:
                raise RequestError(f"{name} is {count}; it must be 0 to {max_logprobs}", param=name)

    def _check_all_ids(self, vocab_size: int) -> None:
        self._check_ids("stop_token_ids", self.stop_token_ids, vocab_size)
        if self.allowed_token_ids is not None:
            self._check_ids("allowed_token_ids", self.allowed_token_ids, vocab_size)
            if not self.allowed_token_ids:
                raise RequestError("allowed_token_ids is empty; name at least one id", param="allowed_token_ids")
        self._check_ids("logit_bias", tuple(i for i, _ in self.logit_bias), vocab_size)
        for token_id, bias in self.logit_bias:
            if not -100.0 <= bias <= 100.0:
                raise RequestError(f"logit_bias of {token_id} is {bias}; it must be -100 to 100", param="logit_bias")

    @staticmethod
    def _check_ids(name: str, ids: tuple[int, ...], vocab_size: int) -> None:
        most = MAX_LISTED_IDS[name]
        if len(ids) > most:
            raise RequestError(f"{name} holds {len(ids):,} entries; at most {most:,} are allowed", param=name)
        for i in ids:
            if not 0 <= i < vocab_size:
                raise RequestError(f"{name} holds {i}; token ids are 0 to {vocab_size - 1}", param=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaItem:
    """An image or video of the prompt; the pixels travel beside the request, never in it."""

    content_hash: str
    offset: int  # of its first placeholder token in the prompt
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """A LoRA adapter as the cache must know it: by name and by version of its weights."""

    name: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One generation. A client that asks for n choices makes n of these.

    Attributes:
        request_id: unique among the requests of an engine.
        token_ids: the prompt.
        arrival_s: clock of the door when it came; orders requests of equal priority.
        priority: lower runs first, as in vLLM.
        cache_salt: keeps the prefix cache of this client apart from others'.
        media: images and videos, in prompt order.
        adapter: the LoRA adapter, if any.
    """

    request_id: str
    token_ids: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    arrival_s: float = 0.0
    priority: int = 0
    cache_salt: str | None = None
    media: tuple[MediaItem, ...] = ()
    adapter: Adapter | None = None
