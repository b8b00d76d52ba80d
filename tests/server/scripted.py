"""an engine that follows a script, and a tokenizer of single bytes, for tests without a model"""

import threading
from collections.abc import Callable, Sequence
from datetime import datetime

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from minnow.config.model import ModelConfig, SparseConfig
from minnow.core.errors import RequestError
from minnow.core.request import Request
from minnow.core.step import Control, ControlReply, EngineStats, FinishReason, TokenLogprobs, TokenOutput
from minnow.text.template import ChatTemplate
from minnow.text.tokenizer import Tokenizer as MinnowTokenizer

END = "<|end|>"
MODEL = ModelConfig(
    vocab_size=300,
    hidden_size=8,
    num_hidden_layers=1,
    num_attention_heads=1,
    num_key_value_heads=1,
    head_dim=8,
    dense_intermediate_size=8,
    is_moe=(False,),
    sparse=SparseConfig(is_sparse=(False,)),
)

Script = Callable[[Request], Sequence[int]]


def byte_tokenizer(words: Sequence[str] = ()) -> MinnowTokenizer:
    """One token a byte, then one for each of some words (never made by encoding), then the end token."""
    to_char = _byte_chars()
    spelled = ["".join(to_char[byte] for byte in word.encode()) for word in words]
    vocabulary = {char: i for i, char in enumerate([*sorted(to_char.values()), *spelled])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(END, special=True)])
    return MinnowTokenizer(tokenizer.to_str())


def chat_template() -> ChatTemplate:
    """ "role:content" a line, then "assistant:"."""
    source = (
        "{% for message in messages %}{{ message.role }}:{{ message.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}"
    )
    return ChatTemplate({"default": source}, {}, lambda: datetime(2025, 1, 1))


class ScriptedEngine:
    """Gives every request the tokens of a script, one a step, and ends it as a real engine does.

    Args:
        script: the tokens that a request draws; the end token ends it.
        end_token_id: of the model.
        max_model_len: of the model, in tokens.
        is_gated: a step waits for `gate.release()`.
        tokens_a_step: as many tokens as a step yields for a request.
    """

    def __init__(
        self,
        script: Script,
        *,
        end_token_id: int = -1,
        max_model_len: int = 64,
        is_gated: bool = False,
        tokens_a_step: int = 1,
    ) -> None:
        self.model = MODEL
        self.max_model_len = max_model_len
        self.gate = threading.Semaphore(0)
        self.is_at_gate = False  # it waits in a step
        self.added: list[Request] = []
        self.aborted_at: dict[str, int] = {}  # request -> steps that had run
        self.controls: list[Control] = []
        self.num_steps = 0
        self.num_drawn_tokens = 0
        self.step_error: Exception | None = None
        self.refusal: RequestError | None = None
        self.failing_ids: set[str] = set()
        self.top_logprobs: tuple[tuple[int, float], ...] = ()
        self.queued_s = 0.0  # told in each request's first output
        self.num_preemptions = 0  # told in every one
        self.num_cached_tokens = 0
        self._script = script
        self._end_token_id = end_token_id
        self._is_gated = is_gated
        self._tokens_a_step = tokens_a_step
        self._running: dict[str, tuple[Request, list[int], int]] = {}

    @property
    def is_idle(self) -> bool:
        return not self._running

    def add(self, request: Request) -> None:
        if self.refusal is not None:
            raise self.refusal
        request.sampling.check(self.model.vocab_size)
        self.added.append(request)
        self._running[request.request_id] = (request, list(self._script(request)), 0)

    def abort(self, request_id: str) -> TokenOutput | None:
        if self._running.pop(request_id, None) is None:
            return None
        self.aborted_at[request_id] = self.num_steps
        return TokenOutput(request_id=request_id, finish_reason="abort")

    def step(self) -> list[TokenOutput]:
        if self._is_gated:
            self.is_at_gate = True
            self.gate.acquire()
            self.is_at_gate = False
        if self.step_error is not None:
            raise self.step_error
        self.num_steps += 1
        return [self._advance(request_id) for request_id in tuple(self._running)]

    def control(self, message: Control) -> ControlReply:
        self.controls.append(message)
        return ControlReply(control_id=message.control_id, error=None if message.name == "known" else "unknown")

    def stats(self) -> EngineStats:
        return EngineStats(
            num_running=len(self._running), generation_tokens=self.num_steps, computed_tokens=self.num_steps
        )

    def _advance(self, request_id: str) -> TokenOutput:
        if request_id in self.failing_ids:
            del self._running[request_id]
            return TokenOutput(request_id=request_id, finish_reason="error", error="logits are not finite")
        request, tokens, num_done = self._running[request_id]
        sampling = request.sampling
        drawn: list[int] = []
        reason: FinishReason | None = None
        if sampling.max_tokens == 0:
            reason = "length"
        while len(drawn) < self._tokens_a_step and reason is None:
            drawn.append(tokens[num_done + len(drawn)])
            is_end = drawn[-1] == self._end_token_id and not sampling.ignore_eos
            if is_end or drawn[-1] in sampling.stop_token_ids:
                reason = "stop"
            elif num_done + len(drawn) == sampling.max_tokens:
                reason = "length"
        self.num_drawn_tokens += len(drawn)
        self._running[request_id] = (request, tokens, num_done + len(drawn))
        if reason is not None:
            del self._running[request_id]
        logprobs: tuple[TokenLogprobs, ...] = ()
        if sampling.logprobs is not None:
            top = self.top_logprobs[: sampling.logprobs]
            logprobs = tuple(TokenLogprobs(logprob=-0.5, rank=1, top=top) for _ in drawn)
        return TokenOutput(
            request_id=request_id,
            token_ids=tuple(drawn),
            logprobs=logprobs,
            prompt_logprobs=() if num_done else self._score(request),
            finish_reason=reason,
            stop_token_id=drawn[-1] if reason == "stop" else None,
            num_cached_tokens=self.num_cached_tokens,
            queued_s=0.0 if num_done else self.queued_s,
            num_preemptions=self.num_preemptions,
        )

    def _score(self, request: Request) -> tuple[TokenLogprobs, ...]:
        """The same likeliest tokens at every place; where token i is none of them it has -i / 8 and rank i + 1."""
        num_top = request.sampling.prompt_logprobs
        if num_top is None:
            return ()
        likeliest = {token_id: (value, rank) for rank, (token_id, value) in enumerate(self.top_logprobs, start=1)}
        own = [likeliest.get(token_id, (-i / 8, i + 1)) for i, token_id in enumerate(request.token_ids)]
        top = self.top_logprobs[:num_top]
        return tuple(TokenLogprobs(logprob=value, rank=rank, top=top) for value, rank in own[1:])


def _byte_chars() -> dict[int, str]:
    """The character that a byte-level vocabulary writes for each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
