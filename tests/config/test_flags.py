"""flags derived from the fields"""

import argparse
from pathlib import Path

import pytest

from minnow.config import flags
from minnow.core.errors import ConfigError

GOLDEN = Path(__file__).parents[1] / "golden" / "flags.txt"


def _parse(*words: str) -> dict[str, object]:
    parser = flags.new_parser("minnow serve", "about")
    flags.add_arguments(parser)
    return vars(flags.parse(parser, list(words)))


def _listing() -> str:
    lines = []
    for item in flags.settings().values():
        names = " ".join([item.flag, *item.field.aliases])
        kind = "|".join(item.choices) or item.kind.__name__
        lines.append(f"{names} {kind} {flags.show_default(item)} {item.field.unit}".rstrip())
    lines += [f"--{name.replace('_', '-')} JSON" for name in flags.documents()]
    return "\n".join(sorted(lines)) + "\n"


def test_flag_list_is_the_agreed_one() -> None:
    """A new flag is a decision: write it into tests/golden/flags.txt by hand."""
    assert _listing() == GOLDEN.read_text(encoding="utf-8")


def test_unset_flags_leave_nothing() -> None:
    assert _parse() == {}


def test_values_aliases_and_underscores() -> None:
    found = _parse("dir", "-tp", "2", "--block_size=64", "--no-enable-prefix-caching")
    assert found["engine:model tag"] == "dir"
    assert found["engine:tensor_parallel_size"] == "2"
    assert found["engine:block_size"] == "64"
    assert found["engine:enable_prefix_caching"] is False


def test_dotted_form_in_both_spellings() -> None:
    one = _parse("--attention-config.indexer_kv_dtype", "fp8")
    two = _parse("--attention-config.indexer-kv-dtype=fp8")
    assert one == two == {"engine:attention_config.indexer_kv_dtype": "fp8"}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--blok-size", "128"], "unknown flag --blok-size; did you mean --block-size?"),
        (["--zzzzzz"], "unknown flag --zzzzzz; see minnow serve --help"),
        (["--block-size"], "--block-size: expected one argument"),
        (["a", "b"], "'b' is one argument too many; see minnow serve --help"),
        (
            ["--kv-transfer-config.kv_role", "kv_both"],
            "--kv-transfer-config.kv_role is refused: blocks are not moved between machines",
        ),
    ],
)
def test_wrong_words_are_one_sentence(words: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        _parse(*words)
    assert str(error.value).startswith(sentence)
    assert "\n" not in str(error.value)


def test_help_names_unit_default_and_choices() -> None:
    parser = flags.new_parser("minnow serve", "about")
    flags.add_arguments(parser)
    text = " ".join(parser.format_help().split())
    assert "--max-num-seqs SEQUENCES sequences in one step (default: 64)" in text
    assert "--kv-cache-dtype {auto,float32,bfloat16,fp8,nvfp4}" in text
    assert "--enable-prefix-caching, --no-enable-prefix-caching" in text
    assert "--kv-transfer-config" not in text


def test_a_commands_own_arguments_do_not_collide() -> None:
    parser = argparse.ArgumentParser(exit_on_error=False, allow_abbrev=False)
    parser.add_argument("--model-file", dest="model")
    flags.add_arguments(parser)
    found = vars(flags.parse(parser, ["--model-file", "x", "--model", "y"]))
    assert (found["model"], found["engine:model"]) == ("x", "y")
