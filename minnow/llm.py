"""LLM: the offline door (prompts in, texts out), a thin shell over engine/"""

import itertools
import time
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from minnow.checkpoint import demo
from minnow.config import generation, load
from minnow.config.engine import EngineConfig
from minnow.core.errors import RequestError
from minnow.core.request import Request, SamplingParams
from minnow.core.step import FinishReason, TokenLogprobs, TokenOutput
from minnow.engine import build
from minnow.text import conversation
from minnow.text.continuation import Continuation
from minnow.text.conversation import Rendered
from minnow.text.template import ChatTemplate
from minnow.text.tokenizer import Tokenizer

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionOutput:
    """One continuation.

    Attributes:
        text: without the stop string or stop token that ended it.
        token_ids: the token that ended it included.
        finish_reason: "stop", "length", or "error".
        stop_reason: the stop string or, for a stop token that was asked for, its id.
        logprobs: one a token, where they were asked for.
        error: one sentence, where finish_reason is "error".
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop_reason: str | int | None = None
    logprobs: tuple[TokenLogprobs, ...] | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutput:
    """What came of one prompt.

    Attributes:
        prompt: None where it was given as token ids.
        num_cached_tokens: prompt tokens whose keys and values another prompt had left.
        prompt_logprobs: one a token of the prompt, None first, where they were asked for; (None,) after an error.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]
    num_cached_tokens: int = 0
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """New text of one prompt's continuation, as it comes.

    Attributes:
        index: of the prompt.
        output: set with the last piece: all of it.
    """

    index: int
    text: str
    output: RequestOutput | None = None


class _Running:
    """One prompt on its way, and where its pieces go.

    Args:
        index: among the prompts of its stream.
        prompt: None where it was given as token ids.
        pieces: of its stream, in the order in which they came.
    """

    def __init__(
        self, index: int, request: Request, prompt: str | None, continuation: Continuation, pieces: deque[Piece]
    ) -> None:
        self._index = index
        self._request = request
        self._prompt = prompt
        self._continuation = continuation
        self._pieces = pieces
        self._text = ""
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self._num_cached_tokens = 0
        self._prompt_logprobs: tuple[TokenLogprobs, ...] = ()

    def take(self, output: TokenOutput) -> bool:
        """Take what a step yielded; whether the continuation ends with it."""
        gain = self._continuation.take(output)
        self._num_cached_tokens = max(self._num_cached_tokens, output.num_cached_tokens)
        self._prompt_logprobs = self._prompt_logprobs or output.prompt_logprobs
        self._text += gain.text
        self._token_ids += output.token_ids[: len(gain.offsets)]
        self._logprobs += output.logprobs[: len(gain.offsets)]
        whole = None
        if gain.finish_reason is not None:
            whole = self._whole(gain.finish_reason, gain.stop_reason, output.error)
        self._pieces.append(Piece(index=self._index, text=gain.text, output=whole))
        return whole is not None

    def _whole(self, finish_reason: FinishReason, stop_reason: str | int | None, error: str | None) -> RequestOutput:
        completion = CompletionOutput(
            index=0,
            text=self._text,
            token_ids=tuple(self._token_ids),
            finish_reason=finish_reason,
            stop_reason=stop_reason,
            logprobs=tuple(self._logprobs) if self._request.sampling.logprobs is not None else None,
            error=error if finish_reason == "error" else None,
        )
        return RequestOutput(
            request_id=self._request.request_id,
            prompt=self._prompt,
            prompt_token_ids=self._request.token_ids,
            outputs=(completion,),
            num_cached_tokens=self._num_cached_tokens,
            prompt_logprobs=None if self._request.sampling.prompt_logprobs is None else (None, *self._prompt_logprobs),
        )


class LLM:
    """A model in this process; to be used by one thread at a time.

    Args:
        model: a checkpoint's directory, a name such as "smollm2-135m", or a whole EngineConfig.
        record: file to write every step to, for `minnow replay`.
        settings: any setting of `minnow explain` by name, for example max_model_len=4096.

    Raises:
        ConfigError: no such model, an unknown setting, or settings that cannot work.
        CheckpointError: its weights are missing or broken.
        CapacityError: it does not fit the memory.
    """

    def __init__(self, model: str | EngineConfig, *, record: Path | None = None, **settings: object) -> None:
        if isinstance(model, EngineConfig):
            assert not settings, "an EngineConfig already holds every setting"
            config = model
        else:
            config = load.from_values({"model": model, **settings}).config
        directory = demo.resolve(config.model)
        override = Path(config.server.chat_template) if config.server.chat_template else None
        self.tokenizer = Tokenizer.load(directory)
        self._directory, self._override = directory, override
        self.sampling_defaults = generation.read(directory, config.generation_config)
        self.engine = build.build(config, directory, record=record)
        self._ids = itertools.count()
        self._running: dict[str, _Running] = {}  # of all streams: a step serves them all

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the record, where there is one."""
        self.engine.close()

    def generate(
        self,
        prompts: str | Sequence[str] | Sequence[Sequence[int]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        stop: Sequence[str] = (),
        include_stop_str_in_output: bool = False,
    ) -> list[RequestOutput]:
        """Continue every prompt; they run together, and the answers come in the order of the prompts.

        Args:
            prompts: a text, texts, or lists of token ids.
            sampling_params: one for all, or one for each; None asks the model's generation_config.json.
            stop: strings that end a continuation.

        Raises:
            RequestError: a prompt or a parameter that cannot be served; nothing is generated then.
        """
        pieces = self.stream(prompts, sampling_params, stop=stop, include_stop_str_in_output=include_stop_str_in_output)
        outputs = {piece.index: piece.output for piece in pieces if piece.output is not None}
        return [outputs[index] for index in sorted(outputs)]

    def chat(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        *,
        stop: Sequence[str] = (),
        template_variables: Mapping[str, Any] | None = None,
    ) -> RequestOutput:
        """Answer a conversation, rendered with the model's chat template.

        Args:
            messages: {"role": ..., "content": ...} each.

        Raises:
            RequestError: as `generate`, or the template refuses the messages.
        """
        ids = self.render(messages, template_variables).token_ids
        return self.generate([ids], sampling_params, stop=stop)[0]

    def render(self, messages: Sequence[Message], template_variables: Mapping[str, Any] | None = None) -> Rendered:
        """A conversation as the model continues it; control tokens that users, tools or variables spell are text."""
        template = ChatTemplate.load(self._directory, self._override)
        return conversation.render(messages, template, self.tokenizer, variables=template_variables)

    def stream(
        self,
        prompts: str | Sequence[str] | Sequence[Sequence[int]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        stop: Sequence[str] = (),
        include_stop_str_in_output: bool = False,
    ) -> Generator[Piece, None, None]:
        """As `generate`, piece by piece; leaving the iterator early stops what still runs.

        Several streams may be open, and `generate` be called meanwhile; their prompts then run together.
        """
        items: Sequence[str | Sequence[int]] = [prompts] if isinstance(prompts, str) else prompts
        sampling = self._sampling_of(sampling_params, len(items))
        pieces: deque[Piece] = deque()
        own_ids: list[str] = []
        try:
            for index, item in enumerate(items):
                request = self._request(item, sampling[index])
                continuation = Continuation(
                    self.tokenizer,
                    request.token_ids,
                    request.sampling,
                    stops=stop,
                    includes_stop=include_stop_str_in_output,
                )
                prompt = item if isinstance(item, str) else None
                self.engine.add(request)
                self._running[request.request_id] = _Running(index, request, prompt, continuation, pieces)
                own_ids.append(request.request_id)
            while pieces or any(request_id in self._running for request_id in own_ids):
                if pieces:
                    yield pieces.popleft()
                else:
                    self._step()
        finally:
            for request_id in own_ids:
                if self._running.pop(request_id, None) is not None:
                    self.engine.abort(request_id)

    def _step(self) -> None:
        """Run a step and give every stream its pieces, whichever stream asked for the step."""
        for output in self.engine.step():
            running = self._running.get(output.request_id)
            if running is not None and running.take(output):
                del self._running[output.request_id]
                if output.finish_reason is None:
                    self.engine.abort(output.request_id)  # a stop string ended it; the engine cannot know

    def _request(self, prompt: str | Sequence[int], sampling: SamplingParams) -> Request:
        ids = self.tokenizer.encode(prompt, add_special_tokens=True) if isinstance(prompt, str) else prompt
        return Request(
            request_id=f"llm-{next(self._ids)}", token_ids=tuple(ids), sampling=sampling, arrival_s=time.monotonic()
        )

    def _sampling_of(self, given: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
        if given is None or isinstance(given, SamplingParams):
            return [given or SamplingParams(**self.sampling_defaults)] * count
        if len(given) != count:
            raise RequestError(f"sampling_params has {len(given)} entries for {count} prompts", param="sampling_params")
        return list(given)
