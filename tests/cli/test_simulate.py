"""what a user is told of a load on a deployment"""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from minnow.cli.main import main

FLASH = ("simulate", "m3.1-flash", "--hardware", "b300")
SMALL = ("--num-prompts", "30", "--random-input-len", "512", "--random-output-len", "64")


def _json(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    assert main([*FLASH, *words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["points"]
    assert isinstance(found, list)
    return found


def _out(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main([*FLASH, *words]) == 0
    return capsys.readouterr().out


def test_a_poisson_load(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--strategy", "dep4", "--request-rate", "10", *SMALL, "--acceptance-length", "3.2")
    out = _out(capsys, *words)
    for part in (
        "poisson: 30 prompts of 512 tokens, answers of 64 at 10 a second",
        "1 engine of 4 ranks in lockstep, 4 devices",
        "3.20 tokens a round of 7 drafts (rates: 0.707 each)",
        "tokens/s: 1 / P90 of (time of an answer / its tokens)",
        "2.34 $/h a device, collected",
    ):
        assert part in out
    (point,) = _json(capsys, *words)
    outcome = point["outcome"]
    assert (outcome["num_requests"], outcome["input_tokens"], outcome["output_tokens"]) == (30, 15_360, 1_920)
    assert outcome["ttft_s"]["count"] == 30 and 0 < outcome["ttft_s"]["p50"] <= outcome["ttft_s"]["p99"]
    assert [price["basis"] for price in outcome["prices"]] == ["hyperscaler", "neocloud", "rental"]
    assert outcome["total_tokens_s_device"] == pytest.approx(17_280 / outcome["duration_s"] / 4)
    assert _json(capsys, *words) == [point]
    assert _json(capsys, *words, "--seed", "1") != [point]


def test_a_sweep_prints_and_draws_the_frontier(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ("--strategy", "tp4", "dep4", "--workload", "closed", "--max-concurrency", "1", "8", *SMALL)
    out = _out(capsys, *words, "--plot", str(tmp_path / "frontier.svg"))
    lines = [line for line in out.splitlines() if re.match(r" +(\* )?(TP4|DEP4) +\d", line)]
    assert len(lines) == 4 and any("* TP4" in line for line in lines)
    drawn = (tmp_path / "frontier.svg").read_text()
    assert "m3.1-flash on NVIDIA B300 SXM, closed" in drawn and ">DEP4<" in drawn
    points = _json(capsys, *words)
    assert [(point["topology"], point["load"]) for point in points] == [
        ("TP4", "1"), ("TP4", "8"), ("DEP4", "1"), ("DEP4", "8"),
    ]  # fmt: skip
    rates = [point["outcome"]["total_tokens_s_device"] for point in points]
    assert rates[0] < rates[1] and rates[2] < rates[3]  # more at once: more of a device, less for a user
    assert points[0]["outcome"]["tpot_interactivity"] > points[1]["outcome"]["tpot_interactivity"]


def test_agents_find_their_prefixes_again(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--strategy", "tp4", "--workload", "agentx", "--max-concurrency", "2", "--num-prompts", "10",
             "--acceptance-length", "7")  # fmt: skip
    out = _out(capsys, *words)
    assert "agentx: 10 turns of generated coding sessions, 2 at once" in out and "20 more to warm up" in out
    assert "a replay should last 900 s; give more --num-prompts" in out or "simulated" in out
    (point,) = _json(capsys, *words)
    outcome = point["outcome"]
    assert outcome["cached_tokens"] / outcome["input_tokens"] > 0.8
    assert outcome["skipped_s"] > 0


def test_prefill_apart_with_replicas(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--strategy", "dep4", "--prefill", "dep2", "--prefill-replicas", "2", "--request-rate", "5", *SMALL,
             "--max-model-len", "256K", "--acceptance-length", "3.2")  # fmt: skip
    out = _out(capsys, *words)
    assert "DEP2 x 2 + DEP4" in out and "handover" in out and "from each rank" in out
    (point,) = _json(capsys, *words)
    outcome = point["outcome"]
    assert outcome["num_devices"] == 8
    assert outcome["prefill"]["computed_tokens"] == 15_360
    assert outcome["decode"]["hit_rate"] is None  # what comes computed is no prefix


def test_a_workload_is_written_and_played(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = str(tmp_path / "sessions.jsonl")
    agents = ("--workload", "agentx", "--max-concurrency", "2", "--num-prompts", "40")
    assert main([*FLASH, *agents, "--save-trace", path]) == 0
    assert int(capsys.readouterr().out.split()[0].replace(",", "")) >= 40
    words = ("--strategy", "tp4", "--workload", path, "--max-concurrency", "2", "--num-prompts", "10")
    (point,) = _json(capsys, *words, "--no-speculation")
    assert point["outcome"]["num_requests"] == 10
    capsys.readouterr()


def test_host_memory_is_used(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trace = tmp_path / "visits.jsonl"
    lines = [{"timestamp": 60_000 * i, "output_length": 8, "pieces": [[n, 100_000], [10 + i, 20]]}
             for i, n in enumerate((1, 2, 1))]  # fmt: skip
    trace.write_text("\n".join(map(json.dumps, lines)))
    words = ("--strategy", "tp4", "--num-gpu-blocks-override", "1000", "--workload", str(trace), "--no-speculation")
    lost, kept = (_json(capsys, *words, *more)[0]["outcome"] for more in ((), ("--host-memory", "560GiB")))
    left = lost["cached_tokens"]  # the head of the first prompt has not been overwritten by the second
    assert 0 < left < 50_000 and kept["cached_tokens"] == 99_968  # whole blocks
    assert kept["decode"]["host_hit_rate"] == pytest.approx((99_968 - left) / 300_060)
    assert kept["ttft_s"]["mean"] < lost["ttft_s"]["mean"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--workload", "closed"), "--workload closed needs --max-concurrency N"),
        (("--workload", "agentx"), "--workload agentx needs --max-concurrency N"),
        (("--workload", "mine.jsonl"), "there is no trace 'mine.jsonl'"),
        (("--max-concurrency", "0"), "--max-concurrency is 0; it must be 1 or more"),
        (("--request-rate", "0"), "--request-rate is 0; it must be above 0"),
        (("--workload", "closed", "--max-concurrency", "1", "--request-rate", "2"), "only --workload poisson has one"),
        (("--acceptance-length", "9"), "--acceptance-length is 9, but 7 drafts a round yield 1 to 8 tokens"),
        (("--acceptance-length", "x"), "--acceptance-length is 'x'; a number is needed"),
        (("--acceptance-rates", "0.5,0.4"), "--acceptance-rates has 2 rates, but a round has 7 drafts"),
        (("--no-speculation", "--acceptance-length", "2"), "nothing is drafted"),
        (("--routing", "best"), "--routing is 'best'; it must be cache-aware, least-loaded, round-robin"),
        (("--plot", "a.gif"), "--plot is 'a.gif'; name a file that ends in .svg or .png"),
        (("--link", "nic-800g"), "are about engines for prefill; name their strategy (--prefill)"),
        (("--prefill", "tp4", "--link", "b300"), "--link is b300, a device; name the sheet of a link, or scale-up"),
        (("--random-range-ratio", "2"), "--random-range-ratio is 2"),
        (("--num-prompts", "-1"), "--num-prompts is -1; it must be 0 or more"),
        (("--replicas", "0"), "--replicas is 0; it must be 1 or more"),
        (("--host-memory", "1GiB", "--no-enable-prefix-caching"), "--host-memory keeps prefixes"),
        (
            ("--workload", "agentx", "--max-concurrency", "1", "--max-model-len", "60000"),
            "too short for these sessions",
        ),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    assert main([*FLASH, "--strategy", "tp4", *words]) == 2
    captured = capsys.readouterr()
    assert said in captured.err and captured.err.count("\n") == 1 and not captured.out


def test_hardware_without_a_rate_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    sheet = tmp_path / "bare.toml"
    sheet.write_text(
        'title = "Bare"\nkind = "gpu"\ndevices_per_node = 8\n'
        '[memory]\nvalue = "288 GB"\nstatus = "from memory"\nsource = "a test"\n'
    )
    assert main(["simulate", "m3.1-flash", "--hardware", str(sheet), "--strategy", "tp4"]) == 2
    assert (
        "the sheet of bare has no [bf16]; name one that does, or write a .toml of your own" in capsys.readouterr().err
    )


def test_no_torch_is_loaded() -> None:
    script = (
        "import sys; from minnow.cli.main import main; "
        "code = main(['simulate', 'm3.1-flash', '--hardware', 'b300', '--strategy', 'tp4', '--num-prompts', '2']); "
        "sys.exit(code or 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
