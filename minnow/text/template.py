"""ChatTemplate: messages to prompt text, by the model's own Jinja template in a sandbox"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from minnow.core.errors import CheckpointError, ConfigError, RequestError

# Some templates mark the assistant's words for training; when rendering, the marks mean nothing.
_TRAINING_MARK = re.compile(r"\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}")
_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")


class ChatTemplate:
    """A chat template; it comes with the model or from the operator, never from a request.

    The sandbox keeps a template from Python's insides and from changing the messages. It does not bound the
    time or memory that a hostile template takes.

    Args:
        source_by_name: Jinja sources; "default", and where the model has one "tool_use" for requests with tools.
        words: variables that every rendering sees, such as "bos_token".
        now: the clock behind `strftime_now`.

    Raises:
        CheckpointError: a source that is no Jinja.
    """

    def __init__(
        self,
        source_by_name: Mapping[str, str],
        words: Mapping[str, str],
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: now().strftime(form)
        self._words = dict(words)
        self._template_by_name = {name: _compile(environment, source) for name, source in source_by_name.items()}

    @classmethod
    def load(cls, directory: Path, override: Path | None = None) -> ChatTemplate:
        """The template of a checkpoint directory, or the operator's file.

        `chat_template.jinja` goes before the `chat_template` of tokenizer_config.json. A model with neither loads,
        and refuses messages.

        Raises:
            ConfigError: the override does not exist or is no template.
            CheckpointError: the model's own template is broken.
        """
        config_path = directory / "tokenizer_config.json"
        config = _read_config(config_path)
        words = {
            word: _content(config[word], f"{config_path}: {word}") for word in _TOKENS if config.get(word) is not None
        }
        if override is not None:
            if not override.is_file():
                raise ConfigError(f"the chat template {override} does not exist; --chat-template names a Jinja file")
            try:
                return cls({"default": _read_text(override)}, words)
            except CheckpointError as error:
                raise ConfigError(f"{override}: {error}") from None
        path = directory / "chat_template.jinja"
        if path.is_file():
            return cls({"default": _read_text(path)}, words)
        return cls(_sources(config.get("chat_template"), f"{config_path}: chat_template"), words)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt text of a conversation.

        Args:
            messages: objects with role and content, as in the chat API.
            tools: function descriptions, as in the chat API.
            add_generation_prompt: end with the words that make the model answer.
            variables: more names for the template, such as enable_thinking; they replace neither the ones above
                nor the model's words.

        Raises:
            RequestError: the model has no template, or its template refuses these messages (with its words).
        """
        template = self._template_by_name.get("tool_use") if tools else None
        template = template or self._template_by_name.get("default")
        if template is None:
            raise RequestError(
                "this model has no chat template; use completions, or start with --chat-template FILE", param="messages"
            )
        own = {"messages": messages, "tools": tools, "documents": None, "add_generation_prompt": add_generation_prompt}
        try:
            return template.render({**(variables or {}), **self._words, **own})
        except RequestError:
            raise
        except Exception as error:  # whatever the template's expressions raise on these messages
            reason = f"{type(error).__name__}: {error}"
            raise RequestError(f"the chat template cannot render these messages: {reason}", param="messages") from None


def _compile(environment: jinja2.Environment, source: str) -> jinja2.Template:
    def plain(mark: re.Match[str]) -> str:
        return f"{{%{mark[1]} {'endif' if mark[2] else 'if true'} {mark[3]}%}}"

    try:
        return environment.from_string(_TRAINING_MARK.sub(plain, source))
    except jinja2.TemplateError as error:
        raise CheckpointError(f"the chat template is no Jinja: {error}") from None


def _read_config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path} is no JSON: {error}") from None
    if not isinstance(config, dict):
        raise CheckpointError(f"{path} holds no JSON object")
    return config


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path} is no UTF-8 text: byte {error.start} cannot be read") from None


def _content(token: Any, where: str) -> str:
    """A special token is written as its text or as an object that holds it."""
    content = token.get("content") if isinstance(token, Mapping) else token
    if not isinstance(content, str):
        raise CheckpointError(f"{where} is {token!r}; it must be a text, or an object with a text content")
    return content


def _sources(own: Any, where: str) -> dict[str, str]:
    """Templates by name: one text is the default, a list has a name for each."""
    if own is None:
        return {}
    entries = own if isinstance(own, list) else [{"name": "default", "template": own}]
    sources: dict[str, str] = {}
    for entry in entries:
        name, source = (entry.get("name"), entry.get("template")) if isinstance(entry, Mapping) else (None, None)
        if not isinstance(name, str) or not isinstance(source, str):
            raise CheckpointError(f"{where} must be a text, or a list of objects with a name and a template as texts")
        sources[name] = source
    return sources


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja's own filter escapes <, >, & and ' for web pages; models were trained on plain JSON
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> NoReturn:
    raise RequestError(f"the chat template refuses these messages: {message}", param="messages")
