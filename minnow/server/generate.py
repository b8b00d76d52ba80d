"""one call -> stream of deltas: requests, stop strings, usage, n > 1"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from minnow.core.errors import RequestError
from minnow.core.request import Request
from minnow.core.step import TokenOutput
from minnow.engine.client import EngineClient
from minnow.server.call import Call
from minnow.server.echo import Echo
from minnow.server.logprob import Token
from minnow.server.metrics import Metrics
from minnow.server.schema.completions import PromptTokensDetails, Usage
from minnow.server.watch import CallWatch
from minnow.text.continuation import Continuation
from minnow.text.tokenizer import Tokenizer

_SCORE_BYTES = 40  # of JSON, for one log-probability and its token


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """What a choice gained.

    Attributes:
        tokens: those drawn; empty unless log-probabilities were asked for.
        prompt: the prompt's tokens, where log-probabilities of them were asked for; in the choice's first delta.
        finish_reason: set in the last one.
        stop_reason: the stop string or the client's stop token that ended it; None for the model's own end.
    """

    index: int
    text: str = ""
    tokens: tuple[Token, ...] = ()
    prompt: tuple[Token, ...] = ()
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class _Choice:
    """One answer in the making.

    Args:
        echo: what it gives back of its prompt.
    """

    def __init__(self, index: int, echo: Echo, continuation: Continuation) -> None:
        self.index = index
        self.is_done = self.has_begun = False
        self.num_cached_tokens = 0
        self._continuation = continuation
        self._echo = echo

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
        is_first, self.has_begun = not self.has_begun, True
        tokens = tuple(
            Token(token_id=output.token_ids[i], offset=len(self._echo.text) + offset, logprobs=output.logprobs[i])
            for i, offset in enumerate(gain.offsets if output.logprobs else ())
        )
        self.is_done = gain.finish_reason is not None
        return Delta(
            index=self.index,
            text=self._echo.text + gain.text if is_first else gain.text,
            tokens=tokens,
            prompt=self._echo.take(output.prompt_logprobs) if is_first else (),
            finish_reason=gain.finish_reason,
            stop_reason=gain.stop_reason,
        )


class Generation:
    """All the answers of one call.

    Args:
        call: what is asked for.
        client: asks the engine.
        tokenizer: the model's.
        metrics: told what happens.
    """

    def __init__(self, call: Call, client: EngineClient, tokenizer: Tokenizer, metrics: Metrics) -> None:
        self._call = call
        self._client = client
        self._metrics = metrics
        self._choices: list[_Choice] = []
        for prompt, sampling in zip(call.prompts, call.sampling, strict=True):
            echo = Echo(prompt, tokenizer, has_text=call.has_echo, has_logprobs=call.is_scored)
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
        if not self._call.is_scored and all(sampling.max_tokens == 0 for sampling in self._call.sampling):
            for choice in self._choices:
                yield choice.take(TokenOutput(request_id="", finish_reason="length"))
            return
        requests = self._requests()
        choice_by_id = {request.request_id: choice for request, choice in zip(requests, self._choices, strict=True)}
        with CallWatch(self._metrics, requests, self._call.num_choices, self._call.arrival_s) as watch:
            held: dict[int, list[TokenOutput]] = {}
            async with self._client.submit(requests, watch.arrive) as stream:
                async for arrived in stream:
                    for output in self._in_order(arrived, choice_by_id[arrived.request_id], held):
                        choice = choice_by_id[output.request_id]
                        if choice.is_done:
                            continue  # held back, and a stop string has ended it meanwhile
                        delta = choice.take(output)
                        watch.take(output.request_id, choice.num_tokens, delta.finish_reason)
                        if choice.is_done and output.finish_reason is None:
                            stream.abort(output.request_id)  # a stop string ended it; the engine cannot know
                        if delta.text or delta.tokens or delta.prompt or delta.finish_reason:
                            yield delta

    def _in_order(
        self, output: TokenOutput, choice: _Choice, held: dict[int, list[TokenOutput]]
    ) -> Sequence[TokenOutput]:
        """What can be told now. The first choice of a scored prompt scores it for all; the others wait for it.

        Args:
            held: by first choice, what the others have got meanwhile.
        """
        if not self._call.is_scored:
            return (output,)
        first = self._choices[choice.index - choice.index % self._call.num_choices]
        if choice is first:
            return (output, *held.pop(first.index, ()))
        if first.has_begun:
            return (output,)
        held.setdefault(first.index, []).append(output)
        return ()

    def num_bytes(self, parts: Sequence[Delta]) -> int:
        """About how much JSON the log-probabilities of some deltas make."""
        sampling = self._call.sampling[0]
        num_top = max(sampling.logprobs or 0, sampling.prompt_logprobs or 0)
        return _SCORE_BYTES * (num_top + 1) * sum(len(part.tokens) + len(part.prompt) for part in parts)

    async def whole(self) -> list[list[Delta]]:
        """All deltas of each choice, once they have ended.

        Raises:
            RequestError: as `deltas`.
        """
        parts: list[list[Delta]] = [[] for _ in self._choices]
        async with aclosing(self.deltas()) as deltas:
            async for delta in deltas:
                parts[delta.index].append(delta)
        return parts

    def _requests(self) -> Sequence[Request]:
        """One a choice. Those of one prompt draw differently, but the same again for the same seed."""
        call = self._call
        return [
            Request(
                request_id=f"{call.call_id}-{i * call.num_choices + k}",
                token_ids=prompt.token_ids,
                sampling=replace(
                    sampling,
                    seed=_nth_seed(sampling.seed, k),
                    prompt_logprobs=None if k else sampling.prompt_logprobs,
                ),
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
