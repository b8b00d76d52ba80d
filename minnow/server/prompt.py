"""a request's messages or texts -> Prompt (through text/)"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from minnow.core.errors import RequestError
from minnow.server.schema.chat import ChatMessage, ChatRequest, ToolCall
from minnow.server.schema.completions import CompletionRequest
from minnow.text import conversation
from minnow.text.template import ChatTemplate
from minnow.text.tokenizer import Tokenizer

MAX_CHOICES = 128
MAX_TOTAL_CHOICES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What the model continues.

    Attributes:
        text: the text it came from; None where it came as token ids.
    """

    token_ids: tuple[int, ...]
    text: str | None = None


def from_messages(request: ChatRequest, tokenizer: Tokenizer, template: ChatTemplate) -> Prompt:
    """Render a conversation and encode it.

    Raises:
        RequestError: messages that are missing, empty, of a kind that is not served, or refused by the template;
            or a number of answers that is not served.
    """
    _check_num_choices(request.n, num_prompts=1)
    if not request.messages:
        raise RequestError("messages is empty; send at least one", param="messages")
    messages = [_to_template(message, f"messages[{i}]") for i, message in enumerate(request.messages)]
    variables = dict(request.chat_template_kwargs or {})
    if request.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", request.reasoning_effort)
    rendered = conversation.render(
        messages,
        template,
        tokenizer,
        add_generation_prompt=request.add_generation_prompt is not False,
        continue_final_message=bool(request.continue_final_message),
        add_special_tokens=bool(request.add_special_tokens),
        variables=variables,
    )
    if not rendered.token_ids:
        raise RequestError("the messages make an empty prompt; send some text", param="messages")
    return Prompt(token_ids=rendered.token_ids, text=rendered.text)


def from_texts(request: CompletionRequest, tokenizer: Tokenizer, vocab_size: int) -> list[Prompt]:
    """Encode the prompts of a completion request; token ids are taken as they are.

    Raises:
        RequestError: no prompt, an empty one, a mixture of kinds, or an id outside the vocabulary; or a number of
            answers that is not served, which is said before any work.
    """
    items = _split(request.prompt)
    if not items:
        raise RequestError("prompt is empty; send text or token ids", param="prompt")
    _check_num_choices(request.n, num_prompts=len(items))
    has_special = request.add_special_tokens is not False
    prompts: list[Prompt] = []
    for item in items:
        if isinstance(item, str):
            prompts.append(_from_text(item, tokenizer, has_special=has_special))
        else:
            check_ids(item, vocab_size, "prompt")
            prompts.append(Prompt(token_ids=tuple(item)))
        if not item or not prompts[-1].token_ids:
            raise RequestError("prompt is empty; send text or token ids", param="prompt")
    return prompts


def _check_num_choices(given: int | None, *, num_prompts: int) -> None:
    num_choices = 1 if given is None else given
    if not 1 <= num_choices <= MAX_CHOICES:
        raise RequestError(f"n is {num_choices}; it must be 1 to {MAX_CHOICES}", param="n")
    if num_choices * num_prompts > MAX_TOTAL_CHOICES:
        raise RequestError(
            f"{num_prompts} prompts with n {num_choices} make more than {MAX_TOTAL_CHOICES} answers; send fewer",
            param="prompt",
        )


def check_ids(token_ids: Sequence[int], vocab_size: int, param: str) -> None:
    """Refuse ids that the model has no row for.

    Args:
        param: the request field that they came in.

    Raises:
        RequestError: names the first one.
    """
    outside = next((i for i in token_ids if not 0 <= i < vocab_size), None)
    if outside is not None:
        raise RequestError(f"{param} holds token id {outside}; ids are 0 to {vocab_size - 1}", param=param)


def text_of(token_ids: Sequence[int], tokenizer: Tokenizer) -> str:
    """The text of token ids, control tokens included; a model may have rows that its tokenizer has no word for."""
    known = [i for i in token_ids if i < tokenizer.vocab_size]
    return tokenizer.decode(known, skip_special_tokens=False)


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


def _from_text(text: str, tokenizer: Tokenizer, *, has_special: bool) -> Prompt:
    return Prompt(token_ids=tuple(tokenizer.encode(text, add_special_tokens=has_special)), text=text)


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
    if content is None and message.role != "assistant":
        path = f"{where}.content"
        raise RequestError(f"{path} is missing; only an assistant needs none", param=path)
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
        path = f"{where}.content[{i}]"
        if part.type not in ("text", "input_text", "output_text"):
            words = f"{path} is of type {part.type!r}; this server takes text parts only"
            raise RequestError(words, param=path, code="unsupported")
        if part.text is None:
            raise RequestError(f"{path}.text is missing", param=f"{path}.text")
    return "".join(part.text or "" for part in message.content)


def _call_to_template(call: ToolCall, where: str) -> dict[str, Any]:
    """Templates walk over the arguments, so their JSON is opened."""
    try:
        arguments = json.loads(call.function.arguments or "{}")
    except (ValueError, RecursionError):  # the latter: nested too deeply
        path = f"{where}.tool_calls"
        raise RequestError(f"{path}: the arguments of {call.function.name} are no JSON", param=path) from None
    return {"id": call.id, "type": call.type, "function": {"name": call.function.name, "arguments": arguments}}
