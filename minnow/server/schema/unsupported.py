"""request fields that this server knows but cannot honour; a table, so that none is dropped in silence"""

from collections.abc import Mapping
from typing import Any

import msgspec

from minnow.core.errors import RequestError

# Field -> the values that ask for nothing. Null always does.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "structured_outputs": ({},),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "suffix": ("",),
    "use_beam_search": (False,),
    "length_penalty": (1, 1.0),
    "thinking": (),
    "prompt_embeds": (),
    "truncate_prompt_tokens": (),
    "bad_words": ([],),
    "logits_processors": ([],),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
    "documents": ([],),
    "chat_template": (),
    "mm_processor_kwargs": ({},),
    "kv_transfer_params": ({},),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
}


def check_supported(fields: Mapping[str, msgspec.Raw]) -> None:
    """Refuse a body that asks for something that would not be done.

    Args:
        fields: the body's fields, values not decoded yet.

    Raises:
        RequestError: names the first such field.
    """
    for name, neutral in _NEUTRAL.items():
        value = msgspec.json.decode(fields[name]) if name in fields else None
        if value is not None and value not in neutral:
            raise RequestError(f"{name} is not supported by this server; leave it out", param=name, code="unsupported")
    if "best_of" in fields:
        best_of = msgspec.json.decode(fields["best_of"])
        num_choices = msgspec.json.decode(fields["n"]) if "n" in fields else 1
        if best_of is not None and best_of != (num_choices or 1):
            raise RequestError(
                f"best_of is {best_of}, and other values than n are not supported; leave it out",
                param="best_of",
                code="unsupported",
            )
