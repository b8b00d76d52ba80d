import pytest

from minnow.bench import summary
from minnow.bench.load import Outcome
from minnow.text.tokenizer import Tokenizer
from tests import tiny


def _outcome(sent_s: float, *text_s: float, tokens: int | None, error: str = "", due_s: float | None = None) -> Outcome:
    return Outcome(
        prompt="abc", due_s=sent_s if due_s is None else due_s, sent_s=sent_s, ended_s=max(text_s, default=sent_s),
        text_s=text_s, text="xyz!", num_input_tokens=None if tokens is None else 10, num_output_tokens=tokens,
        error=error,
    )  # fmt: skip


def test_latencies_are_those_of_the_definitions() -> None:
    # 0.2 s to the first token; three pieces that hold five tokens; 1.0 s in all
    result = summary.summarize([_outcome(5.0, 5.2, 5.5, 6.0, tokens=5)])
    assert result["mean_ttft_ms"] == pytest.approx(200.0)
    assert result["mean_tpot_ms"] == pytest.approx(200.0)  # 0.8 s for four tokens after the first
    assert result["mean_itl_ms"] == pytest.approx(400.0) and result["num_itl"] == 2
    assert result["p99_e2el_ms"] == pytest.approx(1000.0)
    assert (result["completed"], result["failed"], result["duration"]) == (1, 0, pytest.approx(1.0))
    assert result["output_throughput"] == pytest.approx(5.0) and result["total_token_throughput"] == pytest.approx(15.0)


def test_percentiles_are_over_requests_and_pieces_are_pooled() -> None:
    outcomes = [_outcome(0.0, 0.001 * i, 0.001 * i + 0.01 * i, tokens=2) for i in range(1, 101)]
    result = summary.summarize(outcomes, percentiles=(50, 99.9))
    assert result["p50_ttft_ms"] == pytest.approx(result["median_ttft_ms"]) == pytest.approx(50.5)
    assert result["p99.9_ttft_ms"] == pytest.approx(99.901)
    assert result["num_itl"] == 100 and "p90_ttft_ms" not in result


def test_failures_count_and_slow_nothing_but_the_clock() -> None:
    outcomes = [_outcome(0.0, 0.1, 0.2, tokens=2), _outcome(0.0, tokens=None, error="status 500: no")]
    result = summary.summarize([*outcomes, _outcome(1.0, tokens=None, error="other")])
    assert (result["completed"], result["failed"], result["first_error"]) == (1, 2, "status 500: no")
    assert (result["num_ttft"], result["duration"], result["notes"]) == (1, 1.0, [])
    assert list(summary.table(result, ["ttft"], {}))[-1] == "2 failed, the first with status 500: no"


def test_goodput_counts_requests_that_keep_every_promise() -> None:
    quick, slow = _outcome(0.0, 0.1, 1.0, tokens=10), _outcome(0.0, 0.6, 1.0, tokens=10)
    single = _outcome(0.0, 0.1, tokens=1)  # no time per token after the first: nothing to break

    def of(**limits: float) -> float:
        found: float = summary.summarize([quick, slow, single], goodput_ms=limits)["request_goodput"]
        return found

    assert of(ttft=200.0) == 2.0
    assert of(ttft=200.0, tpot=50.0) == 1.0
    assert of(ttft=1000.0, e2el=1000.0) == 3.0
    assert "request_goodput" not in summary.summarize([quick])


def test_peaks_are_of_any_second_and_any_moment() -> None:
    first, second = _outcome(0.0, 0.5, 0.9, 1.5, tokens=6), _outcome(0.8, 0.9, 1.2, tokens=4)
    result = summary.summarize([first, second, _outcome(1.5, 2.0, tokens=1)])
    assert result["max_output_tokens_per_s"] == pytest.approx(4.0 + 2.0)  # 0.5, 0.9 and 0.9
    assert result["max_concurrent_requests"] == 2


@pytest.mark.parametrize("text_s", [(0.1, 0.4), (0.1, 0.7, 1.4), (1.1, 1.9), (0.0, 1.99), (0.5, 1.2, 2.2, 2.3, 3.7)])
def test_a_peak_is_not_below_the_mean(text_s: tuple[float, ...]) -> None:
    result = summary.summarize([_outcome(0.0, *text_s, tokens=10)])
    assert result["max_output_tokens_per_s"] >= result["output_throughput"] * (1 - 1e-9) > 0


def test_a_median_is_printed_once() -> None:
    result = summary.summarize([_outcome(0.0, 0.1, 0.3, tokens=2)])
    lines = list(summary.table(result, ["ttft"], {}))
    assert [line.split()[0] for line in lines if "TTFT (ms)" in line] == ["Mean", "Median", "P90", "P99"]
    assert result["p50_ttft_ms"] == result["median_ttft_ms"]


def test_lateness_of_sending_is_told_and_in_the_duration() -> None:
    result = summary.summarize([_outcome(2.0, 3.0, tokens=1, due_s=0.5)])
    assert result["max_lag_ms"] == pytest.approx(1500.0)
    assert result["duration"] == 2.5 and result["mean_ttft_ms"] == 1000.0


def test_tokens_that_the_server_does_not_count_are_counted_and_said(tmp_path) -> None:
    tiny.write_tiny_tokenizer(tmp_path)
    outcomes = [_outcome(0.0, 0.1, 0.2, tokens=None)]
    counted = summary.summarize(outcomes, tokenizer=Tokenizer.load(tmp_path))
    assert (counted["total_input_tokens"], counted["total_output_tokens"]) == (3, 4)
    assert "counted with --tokenizer" in counted["notes"][0]
    guessed = summary.summarize(outcomes)
    assert guessed["total_output_tokens"] == 2
    assert "chunks: give --tokenizer DIR" in guessed["notes"][0]
    assert "note: the server sent no usage" in "\n".join(summary.table(guessed, [], {}))


def test_the_table_has_the_labels_of_vllm() -> None:
    result = summary.summarize([_outcome(0.0, 0.1, 0.2, tokens=2)], goodput_ms={"ttft": 500.0})
    lines = list(summary.table(result, ["ttft", "tpot", "itl", "e2el"], {"Maximum request concurrency:": 4}))
    assert lines[:3] == [
        "============ Serving Benchmark Result ============",
        "Successful requests:                     1",
        "Failed requests:                         0",
    ]
    labels = [line.split(":")[0] for line in lines]
    for label in (
        "Maximum request concurrency", "Benchmark duration (s)", "Total input tokens", "Total generated tokens",
        "Request throughput (req/s)", "Request goodput (req/s)", "Output token throughput (tok/s)",
        "Peak output token throughput (tok/s)", "Total token throughput (tok/s)", "Mean TTFT (ms)", "Median TPOT (ms)",
        "P90 ITL (ms)", "P99 E2EL (ms)",
    ):  # fmt: skip
        assert label in labels
    assert "---------------Time to First Token----------------" in lines
    assert f"{'P99 E2EL (ms):':<40} 200.00" in lines
    assert not any("ITL" in line for line in summary.table(result, ["ttft"], {}))


def test_no_outcome_at_all_is_no_crash() -> None:
    result = summary.summarize([])
    assert (result["completed"], result["duration"], result["request_throughput"]) == (0, 0.0, 0.0)
    assert len(list(summary.table(result, list(summary.TITLES), {}))) > 5
