"""one call -> stream of deltas: requests, stop strings, usage, n > 1"""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace

from minnow.core.errors import RequestError
from minnow.core.request import Request
from minnow.core.step import TokenLogprobs, TokenOutput
from minnow.engine.client import EngineClient
from minnow.server.call import Call
from minnow.server.prompt import Prompt
from minnow.server.schema.completions import PromptTokensDetails, Usage
from minnow.text.continuation import Continuation
from minnow.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A drawn token, as far as log-probabilities need it.

    Attributes:
        offset: characters of the choice's text before it.
    """

    token_id: int
    offset: int
    logprobs: TokenLogprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """What a choice gained.

    Attributes:
        tokens: those drawn; empty unless log-probabilities were asked for.
        finish_reason: set in the last one.
        stop_reason: the stop string or the client's stop token that ended it; None for the model's own end.
    """

    index: int
    text: str = ""
    tokens: tuple[Token, ...] = ()
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class _Choice:
    """One answer in the making.

    Args:
        echo: the text of the prompt where it is to come first, else empty.
    """

    def __init__(self, index: int, echo: str, continuation: Continuation) -> None:
        self.index = index
        self.is_done = False
        self.num_cached_tokens = 0
        self._continuation = continuation
        self._num_echo_chars = len(echo)
        self._echo = echo  # before its first delta

    @property
    def num_tokens(self) -> int:
        """Tokens that were drawn and count."""
        return self._continuation.num_tokens

    def take(self, output: TokenOutput) -> Delta:
        """What an output of the engine adds.

        Raises:
            RequestError: the engine failed.
        """
        if output.finish_reason == "error":
            raise RequestError(output.error or "the engine failed", code="engine_error", status=500)
        self.num_cached_tokens = max(self.num_cached_tokens, output.num_cached_tokens)
        gain = self._continuation.take(output)
        echo, self._echo = self._echo, ""
        tokens = tuple(
            Token(token_id=output.token_ids[i], offset=self._num_echo_chars + offset, logprobs=output.logprobs[i])
            for i, offset in enumerate(gain.offsets if output.logprobs else ())
        )
        self.is_done = gain.finish_reason is not None
        return Delta(
            index=self.index,
            text=echo + gain.text,
            tokens=tokens,
            finish_reason=gain.finish_reason,
            stop_reason=gain.stop_reason,
        )


class Generation:
    """All the answers of one call.

    Args:
        call: what is asked for.
        client: asks the engine.
        tokenizer: the model's.
    """

    def __init__(self, call: Call, client: EngineClient, tokenizer: Tokenizer) -> None:
        self._call = call
        self._client = client
        self._tokenizer = tokenizer
        self._choices: list[_Choice] = []
        for prompt, sampling in zip(call.prompts, call.sampling, strict=True):
            echo = _text_of(prompt, tokenizer) if call.has_echo else ""
            for _ in range(call.num_choices):
                continuation = Continuation(
                    tokenizer,
                    prompt.token_ids,
                    sampling,
                    stops=call.stops,
                    includes_stop=call.includes_stop,
                    skips_special=call.skips_special,
                )
                self._choices.append(_Choice(len(self._choices), echo, continuation))

    @property
    def usage(self) -> Usage:
        """Tokens so far; a prompt counts once, and as cached what its first choice found in the cache."""
        num_prompt = sum(len(prompt.token_ids) for prompt in self._call.prompts)
        num_generated = sum(choice.num_tokens for choice in self._choices)
        num_cached = sum(choice.num_cached_tokens for choice in self._choices[:: self._call.num_choices])
        return Usage(
            prompt_tokens=num_prompt,
            completion_tokens=num_generated,
            total_tokens=num_prompt + num_generated,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=num_cached),
        )

    async def deltas(self) -> AsyncGenerator[Delta]:
        """Each choice's deltas, in the order in which they come; the last of each has a finish_reason.

        Closing this aborts what still runs.

        Raises:
            RequestError: the engine refuses the call (before any delta), or fails.
        """
        if all(sampling.max_tokens == 0 for sampling in self._call.sampling):
            for choice in self._choices:
                yield choice.take(TokenOutput(request_id="", finish_reason="length"))
            return
        requests = self._requests()
        choice_by_id = {request.request_id: choice for request, choice in zip(requests, self._choices, strict=True)}
        async with self._client.submit(requests) as stream:
            async for output in stream:
                choice = choice_by_id[output.request_id]
                delta = choice.take(output)
                if choice.is_done and output.finish_reason is None:
                    stream.abort(output.request_id)  # a stop string ended it; the engine cannot know
                if delta.text or delta.tokens or delta.finish_reason:
                    yield delta

    def _requests(self) -> Sequence[Request]:
        """One a choice. Those of one prompt draw differently, but the same again for the same seed."""
        call = self._call
        return [
            Request(
                request_id=f"{call.call_id}-{i * call.num_choices + k}",
                token_ids=prompt.token_ids,
                sampling=replace(sampling, seed=_nth_seed(sampling.seed, k)),
                arrival_s=call.arrival_s,
                priority=call.priority,
                cache_salt=call.cache_salt,
            )
            for i, (prompt, sampling) in enumerate(zip(call.prompts, call.sampling, strict=True))
            for k in range(call.num_choices)
        ]


def _nth_seed(seed: int | None, k: int) -> int | None:
    """The seed of the k-th choice, within 64 bits."""
    return None if seed is None else (seed + k + 2**63) % 2**64 - 2**63


def _text_of(prompt: Prompt, tokenizer: Tokenizer) -> str:
    if prompt.text is not None:
        return prompt.text
    known = [i for i in prompt.token_ids if i < tokenizer.vocab_size]  # a model may have more rows than words
    return tokenizer.decode(known, skip_special_tokens=False)
