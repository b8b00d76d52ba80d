"""what a user is told before anything is bought"""

import contextlib
import dataclasses
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from minnow.cli.main import main
from minnow.core.errors import ConfigError
from minnow.plan import claims, recipe_table
from minnow.plan.asked import find
from minnow.server import listen
from tests.tiny import write_tiny

FLASH = ("plan", "MiniMaxAI/MiniMax-M3.1-Flash", "--hardware", "b300", "--strategy", "dep4")


def _lines(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, str]:
    """The lines of a plan by their first words."""
    assert main([*words]) == 0
    out = capsys.readouterr().out
    return {k: " ".join(v.split()) for k, v in re.findall(r"^ +(\S+(?: \S+)*?) {2,}(.*)$", out, re.M)}


def _json(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_76_and_60_stand_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    lines = _lines(capsys, *FLASH)
    assert lines["sequences of 4 replicas"] == "76 60"
    assert lines["bytes a token"] == "34,560 44,000"
    assert lines["whose count"] == "as published comparisons do what an engine allocates"
    assert lines["memory of a device"].startswith("288.4 GB = 269 GiB reported 275040 MiB")
    assert lines["reserve"].startswith("9 GB 8.38 GiB fitted")
    assert lines["routed expert"] == "58.1 GB 54.1 GiB nvfp4"
    assert lines["gpu_memory_utilization"] == "0.9 convention"
    assert lines["binds"] == "cache memory cache memory"


def test_the_same_as_json_without_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    found = _json(capsys, *FLASH, "--api-key", "secret")
    plan = found["plan"]
    assert plan["published"]["num_sequences_engine"] == 76 and plan["allocated"]["num_sequences_engine"] == 60
    assert plan["allocated"]["layout"]["token_bytes_by_group"] == {"kv": 34_560, "index": 4_320, "draft": 5_120}
    assert plan["deployment"]["memory"]["status"] == "reported"
    assert plan["deployment"]["reserve"]["num_bytes"] == 9 * 10**9
    assert "secret" not in json.dumps(found)


def test_prefill_beside_decode_and_host_memory(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("plan", "m3.1-flash", "--hardware", "gb300", "--strategy", "dep4", "--prefill", "dep2",
             "--context", "200000", "--gpu-memory-utilization", "0.95", "--watermark", "0.05", "--max-num-seqs", "28",
             "--max-num-batched-tokens", "8192", "--host-memory", "180GiB")  # fmt: skip
    found = _json(capsys, *words)
    assert found["plan"]["allocated"]["num_sequences"] == 21 and found["plan"]["allocated"]["binds"] == "watermark"
    assert found["plan"]["graph_tokens"] == 224
    assert found["move"]["has_one_layout"] and found["move"]["reads_by_page"] == 195_375
    assert found["host"]["num_huge_pages"] == 360  # of the two ranks that prefill
    assert main([*words]) == 0
    out = capsys.readouterr().out
    assert (
        "Decode\nm3.1-flash on 4x NVIDIA GB300, DEP4" in out and "Prefill\nm3.1-flash on 2x NVIDIA GB300, DEP2" in out
    )
    assert "computed again in 25 steps of 8,192 tokens" in out
    assert "Host memory of prefill, 180 GiB a rank" in out
    assert "before the start: echo 360 > /sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages" in out


def test_huge_pages_are_those_of_a_node(capsys: pytest.CaptureFixture[str]) -> None:
    two = ("plan", "m3.1-flash", "--hardware", "gb300", "--strategy", "dep8", "--host-memory", "180GiB")
    assert main([*two]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "all ranks 1.406 TiB = 1.546 TB" in out and "huge pages of 1 GiB on each of 2 nodes 720" in out
    assert "before the start, on each node: echo 720 > " in out
    assert _json(capsys, *two)["host"]["num_nodes"] == 2
    choice = ("hardware=mi355x", "strategy=multi_node_dep", "nodes=2", "head_host=a", "host_memory=180GiB")
    host = _json(capsys, "plan", "--recipe", *choice)["serve"]["command"]["host"]
    built = _json(capsys, "recipe", *choice)
    assert [host["num_huge_pages"]] * 2 == [process["num_huge_pages"] for process in built["processes"]] == [1440] * 2
    assert host["total_bytes"] == 16 * 180 * 2**30


def test_flags_of_a_serving_command_are_taken_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    lines = _lines(capsys, "plan", "m3.1-flash", "--hardware", "h200", "-tp", "8", "--kv-cache-dtype", "fp8",
                   "--attention-config", '{"indexer_kv_dtype": "fp8"}', "--max-model-len", "262144", "--max-num-seqs",
                   "80", "--no-speculation")  # fmt: skip
    assert lines["sequences of 1 replica"].split()[-1] == "15" and lines["sum"].startswith(
        "23,040 184,320 on the 8 ranks"
    )


PAIR = ("--recipe", "hardware=gb300", "strategy=pd_cluster", "features=reasoning,spec_decoding")


def test_a_recipe_is_checked_against_its_hardware(capsys: pytest.CaptureFixture[str]) -> None:
    found = _json(capsys, "plan", *PAIR, "--context", "200000")
    assert found["status"] == "stated" and found["move"]["reads_by_block"] == 1563
    decode = found["decode"]["plan"]
    assert (decode["graph_tokens"], decode["allocated"]["num_sequences"], decode["allocated"]["binds"]) == (
        224, 21, "watermark",
    )  # fmt: skip
    assert not found["prefill"]["command"]["problems"] and not found["decode"]["command"]["problems"]
    lines = _lines(capsys, "plan", "--recipe", "hardware=mi355x&features=reasoning,spec_decoding,prefill_dbo_sp")
    assert lines["output projections again"].startswith("3.114 GB") and lines["routed experts"].startswith("mxfp8")
    assert lines["--reasoning-parser"].startswith("reasoning is not split")
    host = _json(capsys, "plan", "--recipe", "hardware=mi355x", "strategy=pd_cluster")["prefill"]["command"]["host"]
    assert (host["num_huge_pages"], host["num_blocks"]) == (2240, 329_889)


def test_a_recipe_that_does_not_fit_and_the_way_out(capsys: pytest.CaptureFixture[str]) -> None:
    """GB200 with the commands of GB300: two devices do not hold a sequence of a million tokens beside the weights."""
    pair = ("plan", "--recipe", "hardware=gb200", *PAIR[2:])
    assert main([*pair]) == 1
    assert "minnow: prefill: one sequence of max_model_len 1048576 needs a cache of" in capsys.readouterr().err
    found = _json(capsys, *pair, "--max-model-len", "512K")
    assert found["prefill"]["plan"]["allocated"]["num_sequences"] == 3
    assert found["decode"]["plan"]["allocated"]["num_sequences"] == 8


def test_each_recipe_would_start_on_its_hardware(capsys: pytest.CaptureFixture[str]) -> None:
    for hardware in recipe_table.read().platform_by_hardware:
        assert main(["plan", "--recipe", f"hardware={hardware}"]) == 0
        assert "To be mended" not in capsys.readouterr().out
    assert main(["plan", "--recipe", "hardware=b300", "strategy=multi_node_dep", "nodes=2"]) == 0
    assert "16x NVIDIA B300 SXM on 2 nodes, DEP16" in capsys.readouterr().out


def test_what_is_to_be_mended_makes_it_fail(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "m3.1-flash", "--hardware", "b300", "-tp", "4", "--enable-dbo"]) == 1
    assert "To be mended\n  --dbo-decode-token-threshold is 32" in capsys.readouterr().out


def test_a_local_checkpoint_on_this_machine(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write_tiny(tmp_path)
    lines = _lines(capsys, "plan", str(tmp_path), "--kv-cache-memory-bytes", "8MiB", "--max-model-len", "1000")
    same = ("--kv-cache-memory-bytes", "8MiB", "--max-model-len", "1000")
    assert main(["explain", str(tmp_path), "--device", "cpu", *same]) == 0
    explained = capsys.readouterr().out
    num_blocks = lines["blocks a rank"].split()[-1]
    assert re.search(rf"  cache +8 MiB +{num_blocks} blocks, one of them the null block", explained)
    concurrency = re.search(r"  concurrency +(\d+) +sequences of 1,000 tokens", explained)
    assert concurrency is not None and lines["sequences a rank"].split()[-1] == concurrency[1]


def test_claims(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["plan", "--claims"]) == 0
    out = capsys.readouterr().out
    for claim in claims.CLAIMS:
        line = next(line for line in out.splitlines() if line.startswith(f"{claim.id} "))
        assert " ok " in line and f" {claim.status}" in line
    assert out.endswith("33 of 33 ok\n")
    found = _json(capsys, "plan", "--claims")
    assert {row["claim"]["id"] for row in found} == {claim.id for claim in claims.CLAIMS}
    wrong = tuple(verdict for verdict in claims.judge_all() if verdict.claim.id == "K1")
    monkeypatch.setattr(claims, "CLAIMS", tuple(dataclasses.replace(v.claim, stated=1) for v in wrong))
    assert main(["plan", "--claims"]) == 1
    assert " OFF " in capsys.readouterr().out


def test_assumptions_forecast_and_sheets(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--assumptions"]) == 0
    out = capsys.readouterr().out
    assert "A' A, M3 with its MTP layer" in out and "4.4-11.6 [7.1-11.5]" in out and out.count("inconsistent") == 2
    lines = _lines(capsys, "plan", "--forecast")
    assert lines["b300 dep4"] == "75.8 75.8 174.7 44,000 15.89 60"
    assert main(["plan", "--sheets"]) == 0
    assert re.search(
        r"b300: NVIDIA B300 SXM, gpu, 8 a node\n.*\n  memory +275040 MiB  reported", capsys.readouterr().out
    )
    for word in ("--assumptions", "--forecast", "--sheets"):
        assert _json(capsys, "plan", word)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "minnow plan needs a model: a directory, or a published name"),
        (["m3", "--hardware", "b3000"], "no hardware is called 'b3000'; known are b200"),
        (["m3", "--hardware", "b300", "--strategy", "tp4", "-tp", "4"], "--strategy tp4 and -tp, -dp or -ep are both"),
        (["m3", "--hardware", "b300", "--context", "x"], "--context: 'x' does not fit --context; it takes a whole"),
        (["m3", "--host-memory", "1GB", "--hardware", "b300", "--strategy", "tp8"], "no whole number of 1 GiB pages"),
        ([*PAIR, "--hardware", "b300"], "--recipe says so itself, and --hardware is given, too; leave it out"),
        (["--recipe", "hardware=b3000"], "no hardware is called 'b3000'; it must be one of b200"),
        (["--recipe", "hardware=h100", "features=spec_decoding"], "DSpark is not served on Hopper"),
        (["m3", "--claims"], "--claims is about published models and takes none; leave m3 out"),
        (["--claims", "--forecast"], "--claims and --forecast are both given; ask for one at a time"),
        (
            ["--page", "--strategy", "tp4"],
            "--page and --strategy are both given; leave --strategy out and choose it on",
        ),
        (["--page", "-tp", "4"], "--page and --tensor-parallel-size are both given; leave --tensor-parallel-size out"),
        (["--page", "nothing"], "the model directory nothing does not exist"),
        (["--page", "--claims"], "--page and --claims are both given; leave --claims out and choose it on the page"),
        (["--page", "--api-key", ""], "flag --api-key: the API key is empty; give one, or leave it out"),
    ],
)
def test_what_cannot_be_is_one_sentence(capsys: pytest.CaptureFixture[str], words: list[str], sentence: str) -> None:
    assert main(["plan", *words]) == 2
    err = capsys.readouterr().err
    assert err.startswith("minnow: ") and sentence in err and err.count("\n") == 1


@pytest.mark.parametrize("path", ["typo/m3.1-flash", "m3.1-flash", "MiniMaxAI/MiniMax-M3.1-Flash"])
@pytest.mark.parametrize("is_there", [False, True])
def test_a_path_is_no_published_model(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, path: str, is_there: bool
) -> None:
    directory = tmp_path / path
    if is_there:
        directory.mkdir(parents=True)
    assert main(["plan", str(directory), "--hardware", "b300", "--strategy", "dep4"]) == 2
    err = capsys.readouterr().err
    assert f"the model directory {directory} {'holds no config.json' if is_there else 'does not exist'}" in err
    assert err.endswith("published models are m3, m3-mxfp8, m3.1-flash\n")


@pytest.mark.parametrize("name", ["m3.1-flash", "MiniMax-M3.1-Flash", "MiniMaxAI/MiniMax-M3.1-Flash"])
def test_a_published_model_has_names(name: str) -> None:
    assert find(name)[0] == "m3.1-flash"


def test_no_other_owner_has_published_models() -> None:
    for name in ("Other/MiniMax-M3.1-Flash", "MiniMaxAI/m3.1-flash", "./m3.1-flash", "m4"):
        with pytest.raises(ConfigError, match=r"published models are m3, m3-mxfp8, m3\.1-flash"):
            find(name)


def test_what_does_not_fit_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "m3", "--hardware", "b300", "--strategy", "tp2"]) == 1
    assert "weights 399 GiB" in capsys.readouterr().err


@pytest.mark.parametrize("words", [FLASH, ("plan", "--claims")])
def test_no_torch_is_loaded(words: tuple[str, ...]) -> None:
    code = "import sys; from minnow.cli.main import main; sys.exit(main(sys.argv[1:]) or 'torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code, *words], check=True, capture_output=True, timeout=120)


def test_the_page_alone_is_served_until_a_signal_and_loads_no_torch() -> None:
    code = "import sys; from minnow.cli.main import main; sys.exit(main(sys.argv[1:]) or 'torch' in sys.modules)"
    words = [sys.executable, "-c", code, "plan", "--page", "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            found = re.fullmatch(r"minnow plans on (http://127\.0\.0\.1:\d+)\n", line)
            assert found is not None, line
            assert httpx.get(found[1] + "/").text.startswith("<!doctype html>")
            plan = httpx.get(found[1] + "/plan", params={"hardware": "gb300"}, timeout=60).json()
            assert plan["title"] == "m3.1-flash on 4 x NVIDIA GB300, DEP4"
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=20) == 0
            assert process.stdout.read() == ""
        finally:
            process.kill()


def test_a_busy_port_of_the_page_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.closing(listen.bind("127.0.0.1", 0)) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["plan", "--page", "--port", str(port)]) == 2
        assert f"port {port} on 127.0.0.1 cannot be taken" in capsys.readouterr().err
