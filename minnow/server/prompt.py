"""a request's messages or texts -> Prompt (through text/)"""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from minnow.core.errors import RequestError
from minnow.server.schema.chat import ChatMessage, ChatRequest, ToolCall
from minnow.server.schema.completions import CompletionRequest
from minnow.text.template import ChatTemplate
from minnow.text.tokenizer import Tokenizer

T = TypeVar("T")

# Longer texts are encoded on a thread: some ten thousand characters take a millisecond.
_MAX_INLINE_CHARS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What the model continues.

    Attributes:
        text: the text it came from; None where it came as token ids.
    """

    token_ids: tuple[int, ...]
    text: str | None = None


async def from_messages(request: ChatRequest, tokenizer: Tokenizer, template: ChatTemplate) -> Prompt:
    """Render a conversation and encode it.

    Raises:
        RequestError: messages that are missing, empty, of a kind that is not served, or refused by the template.
    """
    if not request.messages:
        raise RequestError("messages is empty; send at least one", param="messages")
    messages = [_to_template(message, f"messages[{i}]") for i, message in enumerate(request.messages)]
    variables = dict(request.chat_template_kwargs or {})
    if request.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", request.reasoning_effort)

    def render() -> Prompt:
        text = template.render(
            messages, add_generation_prompt=request.add_generation_prompt is not False, variables=variables
        )
        ids = tokenizer.encode(text, add_special_tokens=bool(request.add_special_tokens))
        return Prompt(token_ids=tuple(ids), text=text)

    num_chars = sum(len(str(message.get("content", ""))) for message in messages)
    prompt = await _away_when_long(render, num_chars)
    if not prompt.token_ids:
        raise RequestError("the messages make an empty prompt; send some text", param="messages")
    return prompt


async def from_texts(request: CompletionRequest, tokenizer: Tokenizer, vocab_size: int) -> list[Prompt]:
    """Encode the prompts of a completion request; token ids are taken as they are.

    Raises:
        RequestError: no prompt, an empty one, a mixture of kinds, or an id outside the vocabulary.
    """
    items = _split(request.prompt)
    if not items:
        raise RequestError("prompt is empty; send text or token ids", param="prompt")
    has_special = request.add_special_tokens is not False
    prompts: list[Prompt] = []
    for item in items:
        if isinstance(item, str):
            prompts.append(await _from_text(item, tokenizer, has_special=has_special))
        else:
            outside = next((i for i in item if not 0 <= i < vocab_size), None)
            if outside is not None:
                raise RequestError(f"prompt holds token id {outside}; ids are 0 to {vocab_size - 1}", param="prompt")
            prompts.append(Prompt(token_ids=tuple(item)))
        if not prompts[-1].token_ids:
            raise RequestError("prompt is empty; send text or token ids", param="prompt")
    return prompts


def check_length(prompt: Prompt, max_tokens: int | None, max_model_len: int, param: str) -> int:
    """How many tokens may be generated: what was asked for, or what is left of the context.

    Args:
        max_tokens: what the client asked for; None takes all that is left.
        param: the request field that the prompt came in.

    Raises:
        RequestError: prompt and output do not fit the context.
    """
    num_prompt = len(prompt.token_ids)
    if max_tokens is None and num_prompt < max_model_len:
        return max_model_len - num_prompt
    # A request for no tokens (echo) fits when its prompt does.
    wanted = 1 if max_tokens is None else max_tokens
    if num_prompt + wanted <= max_model_len:
        return wanted
    raise RequestError(
        f"the context is {max_model_len} tokens, but the request needs {num_prompt + wanted}: "
        f"{num_prompt} of the prompt and {wanted} to generate; shorten one of them",
        param=param,
        code="context_length_exceeded",
    )


async def _from_text(text: str, tokenizer: Tokenizer, *, has_special: bool) -> Prompt:
    if not text:
        raise RequestError("prompt is empty; send text or token ids", param="prompt")
    ids = await _away_when_long(lambda: tokenizer.encode(text, add_special_tokens=has_special), len(text))
    return Prompt(token_ids=tuple(ids), text=text)


async def _away_when_long(work: Callable[[], T], num_chars: int) -> T:
    """Do some work on the event loop when it is short, else on a thread."""
    return work() if num_chars <= _MAX_INLINE_CHARS else await asyncio.to_thread(work)


def _split(prompt: str | Sequence[str | int | list[int]]) -> list[str | list[int]]:
    """One entry a prompt."""
    if isinstance(prompt, str):
        return [prompt]
    if len({type(item) for item in prompt}) > 1:
        raise RequestError("prompt mixes texts and token ids; send one kind", param="prompt")
    ids = [item for item in prompt if isinstance(item, int)]
    return [ids] if ids else [item for item in prompt if not isinstance(item, int)]


def _to_template(message: ChatMessage, where: str) -> dict[str, Any]:
    """A message as chat templates read it."""
    content = _text_of(message, where)
    if content is None and not (message.role == "assistant" and message.tool_calls):
        path = f"{where}.content"
        raise RequestError(f"{path} is missing; only an assistant with tool calls needs none", param=path)
    entry: dict[str, Any] = {"role": message.role, "content": content or ""}
    for name in ("name", "tool_call_id"):
        if getattr(message, name) is not None:
            entry[name] = getattr(message, name)
    reasoning = message.reasoning if message.reasoning is not None else message.reasoning_content
    if reasoning is not None:
        entry["reasoning"] = entry["reasoning_content"] = reasoning
    if message.tool_calls:
        entry["tool_calls"] = [_call_to_template(call, where) for call in message.tool_calls]
    return entry


def _text_of(message: ChatMessage, where: str) -> str | None:
    if message.content is None or isinstance(message.content, str):
        return message.content
    if not message.content:
        raise RequestError(f"{where}.content is an empty list; send at least one part", param=f"{where}.content")
    for i, part in enumerate(message.content):
        if part.type not in ("text", "input_text", "output_text") or part.text is None:
            path = f"{where}.content[{i}]"
            raise RequestError(f"{path} is of type {part.type!r}; this server takes text parts only", param=path)
    return "".join(part.text or "" for part in message.content)


def _call_to_template(call: ToolCall, where: str) -> dict[str, Any]:
    """Templates walk over the arguments, so their JSON is opened."""
    try:
        arguments = json.loads(call.function.arguments or "{}")
    except ValueError:
        path = f"{where}.tool_calls"
        raise RequestError(f"{path}: the arguments of {call.function.name} are no JSON", param=path) from None
    return {"id": call.id, "type": call.type, "function": {"name": call.function.name, "arguments": arguments}}
