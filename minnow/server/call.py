"""a checked body -> Call: sampling, choices, stops, in our words"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from minnow.core.errors import RequestError
from minnow.core.request import SamplingParams
from minnow.server.door import Door
from minnow.server.prompt import Prompt, check_length
from minnow.server.schema.chat import ChatRequest
from minnow.server.schema.completions import CompletionRequest, StreamOptions
from minnow.text.stop import StopMatcher

_TOKEN_ID = re.compile("0|[1-9][0-9]{0,19}")  # an id has one spelling
MAX_SCORES = 1_000_000  # log-probabilities of prompts in one answer; some 40 MB of JSON

# Null means the default, as in the OpenAI API.
_PLAIN = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
    "min_tokens", "ignore_eos", "seed",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One body, checked: what is to be generated, and how it is to be told.

    Attributes:
        call_id: the answer's id; those of its requests begin with it.
        arrival_s: Unix time.
        sampling: one for each prompt; they differ in max_tokens where that fills the context.
        num_choices: answers to each prompt.
        has_echo: the text of each choice begins with its prompt, and its log-probabilities with the prompt's.
        prompt_logprobs: how many likeliest tokens to list at each place of the prompt, beside the answer; None lists
            nothing.
    """

    call_id: str
    arrival_s: float
    prompts: tuple[Prompt, ...]
    sampling: tuple[SamplingParams, ...]
    num_choices: int
    stops: tuple[str, ...]
    includes_stop: bool
    skips_special: bool
    has_echo: bool
    prompt_logprobs: int | None
    priority: int
    cache_salt: str | None
    streams: bool
    options: StreamOptions

    @property
    def is_scored(self) -> bool:
        """Log-probabilities of the prompts' tokens are asked for."""
        return self.sampling[0].prompt_logprobs is not None


def make_call(
    wire: ChatRequest | CompletionRequest, prompts: list[Prompt], door: Door, *, call_id: str, arrival_s: float
) -> Call:
    """Check a request against the model and put it in our words; how many answers it makes is checked already.

    Raises:
        RequestError: names the field, in the client's spelling, and what it takes.
    """
    is_chat = isinstance(wire, ChatRequest)
    has_echo = isinstance(wire, CompletionRequest) and bool(wire.echo)
    max_tokens = _max_tokens(wire, has_echo=has_echo)
    if isinstance(wire, ChatRequest) and wire.echo:
        raise RequestError("echo is for completions; leave it out of a chat", param="echo", code="unsupported")
    if wire.cache_salt == "":
        raise RequestError("cache_salt is empty; leave it out or name one", param="cache_salt")
    if wire.stream_options is not None and not wire.stream:
        raise RequestError("stream_options needs stream: true", param="stream_options")
    if wire.prompt_logprobs is not None and wire.stream:
        raise RequestError("prompt_logprobs comes with a whole answer only; leave stream out", param="prompt_logprobs")
    stops = (wire.stop,) if isinstance(wire.stop, str) else tuple(wire.stop or ())
    StopMatcher(stops)  # refuses stops that cannot be
    given = {field: getattr(wire, field) for field in _PLAIN if getattr(wire, field) is not None}
    sampling = SamplingParams(
        **{**door.sampling_defaults, **given},
        logit_bias=_logit_bias(wire.logit_bias or {}),
        allowed_token_ids=None if wire.allowed_token_ids is None else tuple(dict.fromkeys(wire.allowed_token_ids)),
        stop_token_ids=tuple(dict.fromkeys(wire.stop_token_ids or ())),
        logprobs=(num_top := _num_logprobs(wire, door.config.max_logprobs)),
        prompt_logprobs=_most(wire.prompt_logprobs, num_top if has_echo else None),
        max_tokens=max_tokens,
    )
    sampling.check(door.client.vocab_size, door.config.max_logprobs)
    num_choices = 1 if wire.n is None else wire.n
    _check_scores(sampling.prompt_logprobs, num_choices * sum(len(prompt.token_ids) for prompt in prompts))
    source = "messages" if is_chat else "prompt"
    limits = [check_length(prompt, max_tokens, door.client.max_model_len, source) for prompt in prompts]
    return Call(
        call_id=call_id,
        arrival_s=arrival_s,
        prompts=tuple(prompts),
        sampling=tuple(replace(sampling, max_tokens=limit) for limit in limits),
        num_choices=num_choices,
        stops=stops,
        includes_stop=bool(wire.include_stop_str_in_output),
        skips_special=wire.skip_special_tokens is not False,
        has_echo=has_echo,
        prompt_logprobs=wire.prompt_logprobs,
        priority=wire.priority or 0,
        cache_salt=wire.cache_salt,
        streams=bool(wire.stream),
        options=wire.stream_options or StreamOptions(),
    )


def check_model(name: str | None, door: Door) -> None:
    """Refuse a model that is not served; none named means the one that is.

    Raises:
        RequestError: with status 404.
    """
    if name is not None and name != door.model_name:
        raise unknown_model(name, door.model_name)


def unknown_model(name: str, served: str) -> RequestError:
    """The error for a model that is not served."""
    words = f"the model {name!r} is not served here; {served!r} is"
    return RequestError(words, param="model", code="model_not_found", status=404)


def _max_tokens(wire: ChatRequest | CompletionRequest, *, has_echo: bool) -> int | None:
    """The limit that was asked for."""
    name = "max_tokens"
    value = wire.max_tokens
    if isinstance(wire, ChatRequest) and wire.max_completion_tokens is not None:
        name, value = "max_completion_tokens", wire.max_completion_tokens
    if value is not None and value < (0 if has_echo else 1):
        at_least = "0 or more" if has_echo else "1 or more"
        raise RequestError(f"{name} is {value}; it must be {at_least}", param=name)
    return value


def _num_logprobs(wire: ChatRequest | CompletionRequest, max_logprobs: int) -> int | None:
    """How many likeliest tokens to report; None reports nothing."""
    if isinstance(wire, CompletionRequest):
        return wire.logprobs
    num_top = wire.top_logprobs or 0
    if not 0 <= num_top <= max_logprobs:
        raise RequestError(f"top_logprobs is {num_top}; it must be 0 to {max_logprobs}", param="top_logprobs")
    if num_top and not wire.logprobs:
        raise RequestError("top_logprobs needs logprobs: true", param="top_logprobs")
    return num_top if wire.logprobs else None


def _check_scores(num_top: int | None, num_tokens: int) -> None:
    """Refuse an answer that would hold more log-probabilities of prompts than anybody can read."""
    if num_top is not None and num_tokens * (num_top + 1) > MAX_SCORES:
        raise RequestError(
            f"the prompts ask for {num_tokens * (num_top + 1):,} log-probabilities; at most {MAX_SCORES:,} fit an "
            "answer: send fewer prompts, or ask for fewer at each token",
            param="logprobs",
        )


def _most(*counts: int | None) -> int | None:
    """The largest, of those that are given."""
    return max((count for count in counts if count is not None), default=None)


def _logit_bias(bias_by_id: Mapping[str, float]) -> tuple[tuple[int, float], ...]:
    """JSON's keys are text; these must be token ids."""
    pairs: list[tuple[int, Any]] = []
    for key, bias in bias_by_id.items():
        if _TOKEN_ID.fullmatch(key) is None:  # int() would take "1_0" and other alphabets' digits
            raise RequestError(f"logit_bias has the key {key!a}; keys are token ids", param="logit_bias")
        pairs.append((int(key), bias))
    return tuple(pairs)
