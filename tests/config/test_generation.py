"""sampling defaults of a model"""

import json
from pathlib import Path

import pytest

from minnow.config import generation
from minnow.core.errors import ConfigError


def _write(directory: Path, text: str) -> Path:
    (directory / "generation_config.json").write_text(text, encoding="utf-8")
    return directory


def test_the_files_values_are_taken_by_name(tmp_path: Path) -> None:
    values = {"temperature": 0.2, "top_p": 0.9, "top_k": 40, "eos_token_id": 2, "do_sample": True, "min_p": None}
    _write(tmp_path, json.dumps(values))
    assert generation.read(tmp_path, "auto") == {"temperature": 0.2, "top_p": 0.9, "top_k": 40}
    assert generation.read(tmp_path, "vllm") == {}


def test_a_model_without_the_file_is_neutral(tmp_path: Path) -> None:
    assert generation.read(tmp_path, "auto") == {}


@pytest.mark.parametrize("text", ["{", "[]", '{"temperature": "hot"}', '{"top_k": 1.5}', '{"top_p": true}'])
def test_a_broken_file_is_named_with_the_way_out(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"generation_config\.json.*--generation-config vllm"):
        generation.read(_write(tmp_path, text), "auto")
