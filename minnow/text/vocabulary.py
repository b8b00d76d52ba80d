"""Vocabulary: tokens, merges and special ids as a GGUF lists them, made into tokenizer files"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, processors

from minnow.core.errors import CheckpointError
from minnow.text import pretokenizer

# values of tokenizer.ggml.token_type
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """A byte-level BPE vocabulary.

    Attributes:
        tokens: by id, in the byte-level alphabet; control tokens as plain text.
        merges: "left right", best first.
        token_types: one a token, GGUF's numbers (1 normal, 2 unknown, 3 control, 4 user defined).
        pre: name of the pre-tokenizer.
        special_ids: "bos_token", "eos_token", "unk_token", "pad_token" -> id, those that exist.
        adds_bos: plain text starts with the bos token.
        chat_template: Jinja source, or None.
    """

    tokens: tuple[str, ...]
    merges: tuple[str, ...]
    token_types: tuple[int, ...]
    pre: str
    special_ids: tuple[tuple[str, int], ...] = ()
    adds_bos: bool = False
    chat_template: str | None = None


def from_metadata(metadata: Mapping[str, Any]) -> Vocabulary:
    """Read the `tokenizer.*` keys of a GGUF.

    Raises:
        CheckpointError: no byte-level BPE, or lists that do not fit together.
    """
    model = metadata.get("tokenizer.ggml.model")
    if model != "gpt2":
        raise CheckpointError(
            f"the GGUF's tokenizer.ggml.model is {model!r}; only byte-level BPE ('gpt2') can be rebuilt: "
            "convert the model's safetensors checkpoint instead"
        )
    tokens = _strings(metadata, "tokenizer.ggml.tokens")
    types = tuple(metadata.get("tokenizer.ggml.token_type") or [1] * len(tokens))
    if len(types) != len(tokens) or len(set(tokens)) != len(tokens):
        raise CheckpointError(
            f"the GGUF lists {len(tokens)} tokens, {len(set(tokens))} of them different, and {len(types)} token types"
        )
    keys = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {word: metadata.get(f"tokenizer.ggml.{key}_token_id") for word, key in keys.items()}
    for word, token_id in ids.items():
        if token_id is not None and not 0 <= token_id < len(tokens):
            raise CheckpointError(f"the GGUF's {word} is {token_id}; ids are 0 to {len(tokens) - 1}")
    return Vocabulary(
        tokens=tokens,
        merges=_strings(metadata, "tokenizer.ggml.merges"),
        token_types=types,
        pre=metadata.get("tokenizer.ggml.pre") or "default",
        special_ids=tuple((word, token_id) for word, token_id in ids.items() if token_id is not None),
        adds_bos=bool(metadata.get("tokenizer.ggml.add_bos_token", False)),
        chat_template=metadata.get("tokenizer.chat_template"),
    )


def build(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    """The tokenizer that the vocabulary describes; control tokens become special tokens of it.

    Raises:
        CheckpointError: an unknown pre-tokenizer, or a merge of tokens that are not in the vocabulary.
    """
    pre = pretokenizer.build(vocabulary.pre)
    id_by_token = {token: token_id for token_id, token in enumerate(vocabulary.tokens)}
    merges = [_pair(merge, id_by_token) for merge in vocabulary.merges]
    tokenizer = tokenizers.Tokenizer(
        models.BPE(id_by_token, merges, ignore_merges=vocabulary.pre in pretokenizer.IGNORES_MERGES)
    )
    tokenizer.pre_tokenizer = pre
    tokenizer.decoder = decoders.ByteLevel()
    typed = list(zip(vocabulary.tokens, vocabulary.token_types, strict=True))
    special = [AddedToken(t, special=True, normalized=False) for t, kind in typed if kind in (_UNKNOWN, _CONTROL)]
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t, kind in typed if kind == _USER_DEFINED])
    bos_id = dict(vocabulary.special_ids).get("bos_token")
    if vocabulary.adds_bos and bos_id is not None:
        bos = vocabulary.tokens[bos_id]
        # a list of pieces: the one-string form would be cut at blanks and colons
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[bos, "$A"], pair=[bos, "$A", "$B"], special_tokens=[(bos, bos_id)]
        )
    return tokenizer


def write(vocabulary: Vocabulary, directory: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json, generation_config.json and, where there is one, the template."""
    build(vocabulary).save(str(directory / "tokenizer.json"))
    words = {word: vocabulary.tokens[token_id] for word, token_id in vocabulary.special_ids}
    config = {
        **words,
        "add_bos_token": vocabulary.adds_bos,
        "clean_up_tokenization_spaces": False,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    _write_json(directory / "tokenizer_config.json", config)
    ids = {f"{word}_id": token_id for word, token_id in vocabulary.special_ids if word != "unk_token"}
    _write_json(directory / "generation_config.json", ids)
    if vocabulary.chat_template is not None:
        (directory / "chat_template.jinja").write_text(vocabulary.chat_template, encoding="utf-8")


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def _strings(metadata: Mapping[str, Any], key: str) -> tuple[str, ...]:
    values = metadata.get(key)
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise CheckpointError(f"the GGUF has no list of strings {key}; its tokenizer cannot be rebuilt")
    return tuple(values)


def _pair(merge: str, id_by_token: Mapping[str, int]) -> tuple[str, str]:
    left, blank, right = merge.partition(" ")
    if not blank or any(token not in id_by_token for token in (left, right, left + right)):
        raise CheckpointError(f"the GGUF merges {merge!r}, which are no tokens of its vocabulary")
    return left, right
