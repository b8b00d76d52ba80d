"""one call -> stream of deltas: requests, stop strings, usage, n > 1"""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace

from minnow.core.errors import RequestError
from minnow.core.request import Request, SamplingParams
from minnow.core.step import TokenLogprobs, TokenOutput
from minnow.engine.client import EngineClient
from minnow.server.call import Call
from minnow.server.prompt import Prompt
from minnow.server.schema.completions import PromptTokensDetails, Usage
from minnow.text.detokenize import Detokenizer
from minnow.text.stop import StopMatcher
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
    """One answer in the making."""

    def __init__(self, index: int, call: Call, prompt: Prompt, sampling: SamplingParams, tokenizer: Tokenizer) -> None:
        self.index = index
        self.is_done = False
        self.num_tokens = 0
        self.num_cached_tokens = 0
        self._sampling = sampling
        self._includes_stop = call.includes_stop
        self._num_words = tokenizer.vocab_size  # a model may have more rows than its tokenizer has words
        self._detokenizer = Detokenizer(tokenizer, prompt.token_ids, call.skips_special)
        self._matcher = StopMatcher(call.stops, call.includes_stop)
        # Before its first delta, the prompt's text when it is to be echoed.
        self._echo = _text_of(prompt, tokenizer) if call.has_echo else ""
        self._num_chars = len(self._echo)

    def take(self, output: TokenOutput) -> Delta:
        """What an output of the engine adds; nothing that belongs to a stop string is shown before it is certain.

        Raises:
            RequestError: the engine failed.
        """
        if output.finish_reason == "error":
            raise RequestError(output.error or "the engine failed", code="engine_error", status=500)
        self.num_cached_tokens = max(self.num_cached_tokens, output.num_cached_tokens)
        shown, tokens, stop = [self._echo], [], None
        self._echo = ""
        for i, token_id in enumerate(output.token_ids):
            self.num_tokens += 1
            if output.logprobs:
                tokens.append(Token(token_id=token_id, offset=self._num_chars, logprobs=output.logprobs[i]))
            is_end = output.finish_reason == "stop" and i == len(output.token_ids) - 1
            is_silent = (is_end and not self._includes_stop) or token_id >= self._num_words
            text, stop = self._show("" if is_silent else self._detokenizer.step(token_id))
            shown.append(text)
            if stop is not None:
                break
        if output.finish_reason is not None and stop is None:
            text, stop = self._show(self._detokenizer.flush())
            shown += [text, self._matcher.flush()]
        self.is_done = stop is not None or output.finish_reason is not None
        return Delta(
            index=self.index,
            text="".join(shown),
            tokens=tuple(tokens),
            finish_reason="stop" if stop is not None else output.finish_reason,
            stop_reason=stop if stop is not None else self._stop_token(output),
        )

    def _show(self, text: str) -> tuple[str, str | None]:
        """The text that is certain, and the stop string that it completed."""
        self._num_chars += len(text)
        if self.num_tokens < self._sampling.min_tokens:
            return text, None  # too early to stop, so nothing of this text is part of a stop string
        return self._matcher.step(text)

    def _stop_token(self, output: TokenOutput) -> int | None:
        return output.stop_token_id if output.stop_token_id in self._sampling.stop_token_ids else None


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
        self._choices = [
            _Choice(i * call.num_choices + k, call, prompt, sampling, tokenizer)
            for i, (prompt, sampling) in enumerate(zip(call.prompts, call.sampling, strict=True))
            for k in range(call.num_choices)
        ]

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
    return prompt.text if prompt.text is not None else tokenizer.decode(prompt.token_ids, skip_special_tokens=False)
