"""chat templates render as transformers renders them, in a sandbox"""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from minnow.core.errors import CheckpointError, ConfigError, RequestError
from minnow.text.template import ChatTemplate
from tests import tiny

MESSAGES = [
    {"role": "system", "content": "Be <brief> & 'kind'."},
    {"role": "user", "content": "Gr\xfc\xdfe\n  \U0001f44d"},
    {"role": "assistant", "content": "Hi."},
    {"role": "user", "content": ""},
]
TOOLS = [{"type": "function", "function": {"name": "wet", "parameters": {"\xfc": ["<&>", 1.5, None, True]}}}]
TEMPLATES = {
    "chatml": tiny.CHAT_TEMPLATE,
    "blocks on lines of their own": (
        "{% for message in messages %}\n    {% if message.role == 'user' %}\n  U: {{ message.content | trim }}\n"
        "    {%- else %}\n{{ message['role'] }}\n    {% endif %}\n{% endfor %}\n"
    ),
    "loop controls": (
        "{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}"
        "{{ m.content }}|{% if loop.index > 2 %}{% break %}{% endif %}{% endfor %}"
    ),
    "tojson": "{{ messages | tojson }}{{ (tools or []) | tojson(indent=2) }}",
    "special tokens": "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}",
    "training marks": (
        "{% for m in messages %}\n{% if m.role == 'assistant' %}\n  {%- generation -%}\n {{ m.content }}\n"
        "  {% endgeneration %}\n{% endif %}\n{% endfor %}"
    ),
    "namespace and macro": (
        "{% macro say(x) %}<{{ x }}>{% endmacro %}{% set ns = namespace(n=0) %}"
        "{% for m in messages %}{% set ns.n = ns.n + 1 %}{{ say(ns.n) }}{% endfor %}"
    ),
    "variables": "{{ enable_thinking is defined and enable_thinking }} {{ documents }} {{ tools is none }}",
}


def load(tmp_path: Path, template: object | None, jinja: str | None = None) -> ChatTemplate:
    tiny.write_tiny_tokenizer(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    config = json.loads(path.read_text()) | {"chat_template": template}
    path.write_text(json.dumps(config))
    if jinja is not None:
        (tmp_path / "chat_template.jinja").write_text(jinja)
    return ChatTemplate.load(tmp_path)


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("tools", [None, TOOLS])
def test_text_is_that_of_transformers(tmp_path: Path, name: str, tools: list[dict[str, Any]] | None) -> None:
    ours = load(tmp_path, TEMPLATES[name])
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    for prompted in (True, False):
        right = theirs.apply_chat_template(
            MESSAGES, tools=tools, add_generation_prompt=prompted, tokenize=False, enable_thinking=True
        )
        variables = {"enable_thinking": True}
        seen = ours.render(MESSAGES, tools=tools, add_generation_prompt=prompted, variables=variables)
        assert seen == right


def test_the_jinja_file_goes_before_the_config_and_the_operators_before_both(tmp_path: Path) -> None:
    assert load(tmp_path, "config").render(MESSAGES) == "config"
    assert load(tmp_path, "config", "file").render(MESSAGES) == "file"
    override = tmp_path / "mine.jinja"
    override.write_text("mine{{ eos_token }}")
    assert ChatTemplate.load(tmp_path, override).render(MESSAGES) == "mine<|im_end|>"


def test_named_templates_are_chosen_by_tools(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    template = load(tmp_path, named)
    assert template.render(MESSAGES) == "plain"
    assert template.render(MESSAGES, tools=TOOLS) == "tools"
    assert load(tmp_path, named[:1]).render(MESSAGES, tools=TOOLS) == "plain"


def test_special_tokens_may_be_objects(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": {"content": "<s>"}, "eos_token": None, "chat_template": "{{ bos_token }}."})
    )
    assert ChatTemplate.load(tmp_path).render(MESSAGES) == "<s>."


def test_the_clock_is_the_callers() -> None:
    template = ChatTemplate({"default": "{{ strftime_now('%d %b %Y') }}"}, {}, now=lambda: datetime(2026, 3, 9))
    assert template.render(MESSAGES) == "09 Mar 2026"


def test_variables_do_not_replace_the_conversation(tmp_path: Path) -> None:
    template = load(tmp_path, "{{ messages | length }}{{ x }}")
    assert template.render(MESSAGES, variables={"messages": [], "x": 7}) == "47"


def test_variables_do_not_replace_the_models_words(tmp_path: Path) -> None:
    template = load(tmp_path, "{{ eos_token }}{{ x }}")
    assert template.render(MESSAGES, variables={"eos_token": "mine", "x": 7}) == "<|im_end|>7"


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('roles must alternate') }}", "refuses these messages: roles must alternate"),
        ("{{ messages[9].content.x }}", "cannot render these messages: UndefinedError"),
        ("{{ 1 + messages }}", "TypeError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "SecurityError"),
        ("{{ messages.__init__.__globals__ }}", "SecurityError"),
        ("{{ range(10**9) | list }}", "OverflowError"),
        ("{% include 'config.json' %}", "TypeError"),
    ],
)
def test_what_a_template_refuses_is_the_requests_fault(tmp_path: Path, template: str, words: str) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        load(tmp_path, template).render(MESSAGES)
    assert caught.value.param == "messages"


def test_a_model_without_template_loads_and_refuses_messages(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="has no chat template"):
        ChatTemplate.load(tmp_path).render(MESSAGES)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"bos_token": 5}, "bos_token is 5; it must be a text"),
        ({"eos_token": {"id": 1}}, "eos_token is .*; it must be a text"),
        ({"eos_token": {"content": 1}}, "eos_token is .*; it must be a text"),
        ({"chat_template": 5}, "chat_template must be a text, or a list"),
        ({"chat_template": ["x"]}, "chat_template must be a text, or a list"),
        ({"chat_template": [{"template": "x"}]}, "chat_template must be a text, or a list"),
        ({"chat_template": [{"name": "default"}]}, "chat_template must be a text, or a list"),
    ],
)
def test_settings_of_another_shape_are_one_sentence(tmp_path: Path, settings: dict[str, object], words: str) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(CheckpointError, match=rf"tokenizer_config\.json: {words}"):
        ChatTemplate.load(tmp_path)


def test_a_template_that_is_no_utf_8_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"ok \xff")
    with pytest.raises(CheckpointError, match=r"chat_template\.jinja is no UTF-8 text: byte 3"):
        ChatTemplate.load(tmp_path)
    with pytest.raises(ConfigError, match=r"chat_template\.jinja is no UTF-8 text: byte 3"):
        ChatTemplate.load(tmp_path, tmp_path / "chat_template.jinja")


def test_broken_templates_are_said_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="chat template is no Jinja"):
        load(tmp_path, "{% if %}")
    with pytest.raises(ConfigError, match=r"gone\.jinja does not exist"):
        ChatTemplate.load(tmp_path, tmp_path / "gone.jinja")
    (tmp_path / "bad.jinja").write_text("{{")
    with pytest.raises(ConfigError, match=r"bad\.jinja: the chat template is no Jinja"):
        ChatTemplate.load(tmp_path, tmp_path / "bad.jinja")
    (tmp_path / "tokenizer_config.json").write_text("[]")
    with pytest.raises(CheckpointError, match="holds no JSON object"):
        ChatTemplate.load(tmp_path)
