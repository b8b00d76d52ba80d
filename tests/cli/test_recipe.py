"""what minnow recipe prints"""

import json
import subprocess
import sys

import pytest

from minnow.cli.main import main

PAIR = ("hardware=mi355x", "strategy=pd_cluster", "features=reasoning,spec_decoding", "prefill_host=a", "decode_host=b")


def test_a_pair_with_the_hosts_set_up_and_a_proxy(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipe", *PAIR, "--for", "vllm"]) == 0
    out = capsys.readouterr().out
    assert (
        out.startswith("# MiniMaxAI/MiniMax-M3.1-Flash on mi355x, pd_cluster, variant default") and ": stated\n" in out
    )
    assert "# prefill\n# before the start: echo 2240 | sudo tee /sys/kernel/mm/hugepages/" in out
    assert "VLLM_NIXL_SIDE_CHANNEL_HOST=b \\\nvllm serve" in out and "in Docker: inferred" in out
    assert "--prefiller-host a --prefiller-port 8100" in out


def test_minnow_is_the_default_and_every_word_is_accounted_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipe", "hardware=b300", "strategy=single_node_dep"]) == 0
    out = capsys.readouterr().out
    assert "\nminnow serve MiniMaxAI/MiniMax-M3.1-Flash \\\n  --block-size 128 \\\n" in out and "docker" not in out
    assert "#   --block-size: every configuration" in out
    assert "# left out, without effect here: --moe-backend: --kernel-backends chooses" in out
    assert "# planned with, not launched yet: --reasoning-parser: reasoning is not split" in out


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipe", *PAIR, "--for", "vllm", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["status"], found["engine"], found["choice"]["hosts"]) == (
        "stated",
        "vllm",
        {"prefill": "a", "decode": "b"},
    )
    assert found["proxy"].startswith("python tests/v1/") and found["commands"][0]["docker_status"] == "inferred"
    assert [p["role"] for p in found["processes"]] == ["prefill", "decode"]
    assert found["processes"][0]["num_huge_pages"] == 2240
    assert found["commands"][1]["shell"].startswith("VLLM_ROCM_USE_AITER=1 ")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["hardware=b300", "--for", "sglang"], "--for is 'sglang'; it must be minnow or vllm"),
        (["hardware=gb300", "strategy=pd_cluster"], "pd_cluster needs prefill_host=ADDRESS and decode_host=ADDRESS"),
        (["hardware=x"], "no hardware is called 'x'"),
    ],
)
def test_what_cannot_be_is_one_sentence(capsys: pytest.CaptureFixture[str], words: list[str], sentence: str) -> None:
    assert main(["recipe", *words]) == 2
    err = capsys.readouterr().err
    assert err.startswith("minnow: ") and sentence in err and err.count("\n") == 1


def test_no_torch_is_loaded() -> None:
    code = "import sys; from minnow.cli.main import main; sys.exit(main(sys.argv[1:]) or 'torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code, "recipe", *PAIR], check=True, capture_output=True, timeout=120)
