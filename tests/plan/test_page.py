"""the planner's page as plain JSON: the numbers of the plan, their statuses, what it refuses"""

import json
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from minnow.cli.main import main
from minnow.core.errors import CapacityError, ConfigError
from minnow.core.units import show_decimal, show_seconds
from minnow.plan import (
    calibration,
    capacity,
    claims,
    hardware,
    page,
    page_query,
    published,
    roofline,
    speed,
    status,
)
from minnow.plan.curve import Curve, Traffic
from tests.tiny import write_tiny

PD = {"hardware": "gb300", "prefill": "dep", "input": "100K", "output": "1K", "acceptance": "3.2"}


def answer(**query: str) -> dict[str, Any]:
    found = page.answer(query, {})
    return dict(json.loads(json.dumps(found)))  # plain JSON


def refusal(**query: str) -> str:
    with pytest.raises((ConfigError, CapacityError)) as error:
        page.answer(query, {})
    return str(error.value)


def cells(value: Any) -> Iterator[dict[str, str]]:
    if isinstance(value, dict):
        if {"text", "status", "note"} == value.keys():
            yield value
        for inner in value.values():
            yield from cells(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from cells(inner)


def rows(table: dict[str, Any]) -> dict[str, list[str]]:
    plain = [[one if isinstance(one, str) else one["text"] for one in row] for row in table["rows"]]
    return {row[0]: row[1:] for row in plain}


def test_both_accountings_of_the_published_comparison_stand_side_by_side() -> None:
    found, of = answer(), capacity.measure(published.flash())
    assert [count["count"] for count in found["counts"]] == [
        {"text": "76", "status": "fitted", "note": ""}, {"text": "60", "status": "fitted", "note": ""},
    ]  # fmt: skip
    for count, holding in zip(found["counts"], (of.published, of.allocated), strict=True):
        shown = {name: value if isinstance(value, str) else value["text"] for name, value in count["rows"]}
        assert count["name"] == holding.accounting.name
        assert shown["on each replica"] == str(holding.num_sequences)
        assert shown["bytes a token"] == f"{holding.layout.token_bytes:,}"
        assert shown["binds"] == holding.binds == "cache memory"
        assert shown["left over"] == f"{holding.slack:.2f} of a sequence"
        assert shown["or utilization"] == f"{holding.next_step.utilization:.3f}"


def test_the_parts_of_a_bar_are_all_of_the_memory() -> None:
    of = capacity.measure(published.flash())
    for bar, holding in zip(answer()["bars"], (of.published, of.allocated), strict=True):
        assert sum(part["share"] for part in bar["parts"]) == pytest.approx(1, abs=1e-3)
        by_kind = {kind: [p for p in bar["parts"] if p["kind"] == kind] for kind in ("kv", "index", "draft", "weights")}
        cache = sum(part["share"] for kind in ("kv", "index", "draft") for part in by_kind[kind])
        assert cache * of.deployment.device.memory_bytes == pytest.approx(holding.memory.cache_bytes)
        assert len(by_kind["index"]) == len(by_kind["draft"]) == (holding is of.allocated)
        routed = next(part for part in by_kind["weights"] if part["name"] == "routed expert")
        assert (routed["decimal"], routed["status"], routed["note"]) == ("58.1 GB", "forward", "nvfp4")


def test_times_are_those_of_the_plan() -> None:
    found, of = answer(acceptance="3.2"), capacity.measure(page_query.read({}, {}).settle("dep4"))
    timed = speed.measure(of, calibration.read("gpu"), 3.2)
    steps, parts, costs = (rows(table) for table in found["times"])
    for step in timed.steps:
        shown = steps[step.words]
        assert shown[:2] == [f"{step.work.num_tokens:,}", show_decimal(step.reached.num_bytes)]
        assert shown[2:4] == [show_seconds(step.bound.seconds), show_seconds(step.reached.seconds)]
    for part in timed.full.reached.parts:
        assert parts[part.name][4] == show_seconds(part.seconds)
    assert costs.keys() == timed.dollars_by_base.keys()
    for basis, dollars in timed.dollars_by_base.items():
        assert costs[basis][1] == f"{dollars:,.3f} $"
    load = rows(found["load"])
    assert load["step"] == [show_seconds(timed.full.bound.seconds), show_seconds(timed.full.reached.seconds)]
    assert load["tokens/s each"][1] == f"{timed.full.answers_s:,.1f}"


def test_a_load_is_what_is_asked_for() -> None:
    chat = {"input": "8K", "output": "1K"}
    assert answer(**chat, sequences="8")["load"]["title"] == "Load: 8 sequences side by side"
    many = answer(**chat, sequences="100000")["load"]
    assert "of the sequences wait" in many["notes"][-1]
    assert int(answer(**chat, rate="1")["load"]["title"].split()[1].replace(",", "")) < 256
    short = answer(**chat, rate="10000")["load"]["notes"][-1]
    assert short.startswith("one engine ends ")
    assert short.endswith("of them are needed")
    assert rows(answer(**chat)["load"]).keys() >= {"requests/s", "a prompt alone, to its first token"}


def test_the_frontier_has_the_engine_and_others_of_as_many_devices() -> None:
    frontier = answer()["frontier"]
    assert {point["strategy"] for point in frontier["points"]} == {"DEP4", "TP4", "TEP4"}
    assert {point["strategy"] for point in frontier["points"] if point["is_own"]} == {"DEP4"}
    assert any(note.startswith("DP4: one sequence of Longest") for note in frontier["notes"])  # why not
    best = [(point["x"], point["y"]) for point in frontier["points"] if point["is_best"]]
    assert len(best) == len(frontier["table"]["rows"])
    assert sorted(best) == sorted(best, key=lambda at: -at[1])  # more of one is less of the other


def test_prefill_and_decode_apart() -> None:
    found = answer(**PD)
    tables = {table["title"]: rows(table) for table in found["tables"]}
    assert "Prefill engine: 2 x NVIDIA GB300, DEP2" in tables
    moved = tables["One sequence from each prefill rank to decode"]
    assert moved["reads, a block in one row, as Minnow's"] == moved["blocks"]
    assert "prefill engines kept busy" in rows(found["load"])
    serving = found["commands"]["serving"]
    assert [one["title"] for one in serving] == ["Minnow, prefill", "Minnow, decode", "vLLM, prefill", "vLLM, decode"]
    assert {one["status"] for one in serving} == {"stated"}
    assert "VLLM_NIXL_SIDE_CHANNEL_HOST=PREFILL_ADDRESS" in serving[2]["text"]


QUERIES: tuple[dict[str, str], ...] = (
    {}, PD, {"hardware": "h100", "strategy": "tp", "devices": "8"}, {"model": "m3", "devices": "8"},
    {"hardware": "xeon-6980p", "strategy": "tp", "devices": "1"}, {"devices": "16", "utilization": "0.95"},
    {"hardware": "rubin", "reserve": "12GB", "drafts": "off"},
)  # fmt: skip


@pytest.mark.parametrize("query", QUERIES, ids=str)
def test_every_number_has_a_status_that_is_explained(query: dict[str, str]) -> None:
    found = answer(**query)
    known = page.choices({})["meanings"]
    assert {one["status"] for one in cells(found)} - {""} <= known.keys()
    assert all(part["status"] in known for bar in found["bars"] for part in bar["parts"])
    assert found["frontier"]["status"] in known
    for count in found["counts"]:
        assert count["count"]["status"]
        assert all(value["status"] for name, value in count["rows"] if name != "binds")
    for table in [*found["tables"], *found["times"], found["load"], found["frontier"]["table"]]:
        for row in table["rows"]:
            for head, one in zip(table["head"][1:], row[1:], strict=True):
                is_number = isinstance(one, str) and one[:1].isdigit() and head not in ("rests on", "source")
                assert not is_number or (isinstance(head, dict) and head["status"]), (table["title"], row)


def test_a_number_is_no_better_than_what_it_rests_on() -> None:
    assert status.weakest("reported", "fitted", "setting") == "fitted"
    assert status.weakest("", "forward") == "forward"
    assert status.weakest() == ""
    assert set(status.MEANING) >= {*claims.MEANING_BY_STATUS, *hardware.STATUSES}
    given = answer(reserve="9GB", utilization="0.9")
    assert given["counts"][0]["count"] == {"text": "76", "status": "convention", "note": ""}
    elsewhere = answer(strategy="tp")
    assert elsewhere["counts"][0]["count"]["status"] == "extrapolated"


def test_a_device_without_rates_or_prices_says_so() -> None:
    here = answer(hardware="xeon-6980p", strategy="tp", devices="1")
    assert here["times"][2]["notes"] == ["The sheet of xeon-6980p has no price; nothing is made up."]


def test_the_commands_are_the_recipes_or_there_is_a_reason() -> None:
    stated = answer(strategy="tp", devices="8")["commands"]["serving"]
    assert [(one["title"], one["status"]) for one in stated] == [("Minnow, serve", "stated"), ("vLLM, serve", "stated")]
    assert not stated[0]["reasons"]
    inferred = answer()["commands"]["serving"]
    assert {one["status"] for one in inferred} == {"inferred"}
    assert inferred[1]["reasons"]
    assert "--data-parallel-size 4" in inferred[1]["text"]
    other = answer(strategy="tp", devices="8", kv="fp8", index="fp8", utilization="0.8", drafts="off")
    words = shlex.split(other["commands"]["serving"][1]["text"].replace("\\\n", " "))
    assert words[words.index("--kv-cache-dtype") + 1] == "fp8"
    assert words[words.index("--gpu-memory-utilization") + 1] == "0.8"
    assert json.loads(words[words.index("--attention-config") + 1])["indexer_kv_dtype"] == "fp8"
    assert "--speculative-config" not in words
    assert other["commands"]["serving"][1]["status"] == "inferred"
    for query, reason in (
        ({"model": "m3", "devices": "8"}, "No recipe: recipes are for MiniMaxAI/MiniMax-M3.1-Flash, not for m3"),
        ({"hardware": "rubin"}, "No recipe: there is none for rubin; there are some for b200"),
        ({"strategy": "dep", "devices": "3"}, "No recipe: 3 devices do not divide the 128 experts"),
        (
            {**PD, "prefill_devices": "4"},
            "No recipe: of prefill and decode apart, the one for gb300 is dep2 beside dep4",
        ),
    ):
        assert answer(**query)["commands"]["lacking"].startswith(reason)


def test_a_recipe_that_holds_something_else_says_what() -> None:
    for query in ({**PD, "context": "200K"}, {"hardware": "mi355x", "strategy": "tp"}):  # where experts are converted
        notes = answer(**query)["commands"]["serving"][0]["notes"]
        assert notes[0].startswith("planned as it stands, it holds "), notes
    assert not any(note.startswith("planned as it stands") for note in answer()["commands"]["serving"][0]["notes"])


@pytest.mark.parametrize(
    "query",
    [{}, {"context": "200K", "kv": "fp8", "index": "fp8", "reserve": "11GB", "max_seqs": "32", "watermark": "0.05"},
     {"model": "m3", "devices": "8", "drafts": "off", "experts": "mxfp4"}, {**PD, "calibration": "bound"},
     {**PD, "prefill_devices": "3", "nodes": "2"}, {"longest": "300K", "strategy": "tp"}],
    ids=str,
)  # fmt: skip
def test_the_command_line_prints_the_same_plan(query: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(**query)
    words = shlex.split(found["commands"]["plan"]["text"])
    assert words[:2] == ["minnow", "plan"]
    assert main([*words[1:], "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)["plan"]
    assert found["counts"][-1]["count"]["text"] == f"{plan['allocated']['num_sequences_engine']:,}"
    assert found["counts"][0]["count"]["text"] == f"{plan['published']['num_sequences_engine']:,}"


def test_a_model_that_is_served_here_is_asked_for_by_its_name_alone(tmp_path: Path) -> None:
    write_tiny(tmp_path, family="llama")
    served = {"mine": str(tmp_path)}
    options = page.choices(served)["inputs"][0]["options"]
    assert [one["value"] for one in options] == ["m3", "m3-mxfp8", "m3.1-flash", "mine"]
    found = page.answer({"model": "mine", "hardware": "here", "strategy": "tp", "devices": "1"}, served)
    assert found["no_times"].startswith("No times: the sheet of here has no [")
    assert (found["load"], found["frontier"], found["times"]) == (None, None, [])
    assert "config" in {part["status"] for part in found["bars"][0]["parts"]}
    assert "Model is '/" in refusal(model=str(tmp_path))  # no directory is within reach


def test_where_a_served_model_lies_is_not_told(tmp_path: Path) -> None:
    write_tiny(tmp_path, family="llama")
    long = "a/" + "b" * 80
    served = {"m3": str(tmp_path), long: str(tmp_path), "m3.1-flash": "m3.1-flash"}
    assert [one["value"] for one in page.choices(served)["inputs"][0]["options"]] == [
        "m3", "m3-mxfp8", "m3.1-flash", "m3, here", long,
    ]  # fmt: skip
    for value, name in (("m3, here", "m3"), (long, long)):
        found = page.answer({"model": value, "hardware": "here", "strategy": "tp", "devices": "1"}, served)
        assert found["title"].startswith(f"{name} on 1 x ")
        assert found["commands"]["plan"]["text"].startswith(f"minnow plan {name} --hardware here")
        assert found["commands"]["lacking"].endswith(f", not for {name}")
        assert str(tmp_path) not in json.dumps(found)
    assert page.answer({"model": "m3", "devices": "8"}, served)["title"].startswith("m3 on 8 x NVIDIA B300")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError) as error:
        page.answer({"model": "m3, here"}, served)
    assert str(tmp_path) not in str(error.value)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"model": "m4"}, "Model is 'm4'; it must be one of m3, m3-mxfp8, m3.1-flash"),
        ({"hardware": "/etc/x.toml"}, "Hardware is '/etc/x.toml'; it must be one of b200, b300"),
        ({"calibration": "/x.toml"}, "Calibration is '/x.toml'; it must be one of bound, "),
        ({"hardwear": "b300"}, "a plan has no 'hardwear'; it has model, hardware"),
        ({"context": "x" * 65}, "Context has 65 letters; a value has 64 at most"),
        ({"context": "some"}, "Context: 'some' does not fit"),
        ({"context": "3M"}, "Context is 3145728, but Longest is 1048576; set at most that"),
        ({"devices": "-3"}, "Devices is '-3'; a whole number of devices is needed, 1 or more"),
        ({"prefill": "dep", "prefill_devices": "x"}, "Its devices is 'x'; a whole number of devices is needed"),
        ({"devices": "3", "strategy": "tp"}, "3 ranks do not divide the 64 attention heads; take a divisor"),
        ({"utilization": "2"}, "Utilization is 2; it must be 0.01 to 1"),
        ({"acceptance": "9"}, "Acceptance is 9; a step of this engine yields 1 to 8 tokens a sequence"),
        ({"acceptance": "nan"}, "Acceptance is nan"),
        ({"max_seqs": "5000"}, "Most in a step is 5000; the page takes 4,096 at most"),
        ({"strategy": "tp", "devices": "1"}, "one sequence of Longest 1048576 needs a cache of"),
        ({"hardware": "b200", "prefill": "dep"}, "the prefill engine: one sequence of Longest 1048576 needs"),
        ({"input": "8K"}, "Prompt is 8K, and Answer is left out; give both, or neither"),
        ({"input": "8", "output": "8", "cached": "8"}, "8 tokens of the prompt are cached, but it has 8"),
        ({"rate": "3"}, "requests/s is given, but not how long requests are; give Prompt and"),
        ({"input": "8", "output": "8", "rate": "-1"}, "requests/s is '-1'; a number of requests a second is needed"),
        ({"input": "8", "output": "8", "rate": "inf"}, "requests/s is 'inf'; a number of requests a second is needed"),
        ({"input": "8", "output": "8", "rate": "1", "sequences": "1"}, "requests/s and Side by side are both given"),
        ({"input": "1M", "output": "1K"}, "a request has 1,049,600 tokens, but Longest is 1,048,576"),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_is_one_sentence(query: dict[str, str], words: str) -> None:
    found = refusal(**query)
    assert words in found
    assert "\n" not in found


def test_where_nobody_is_admitted_there_are_no_times() -> None:
    found = answer(watermark="1", input="8", output="8", rate="1")
    assert [count["count"]["text"] for count in found["counts"]] == ["0", "0"]
    assert found["no_times"].startswith("No times: not one sequence of 16 tokens is admitted beneath a watermark of 1")


def test_a_strategy_that_cannot_be_is_listed_with_its_reason() -> None:
    notes = answer(devices="64")["frontier"]["notes"]
    assert any(note.startswith("TP64: ") and "a width of 48 does not fit" in note for note in notes)


def test_a_load_has_a_price_that_counts_its_prompts() -> None:
    alone, chat = answer()["load"], answer(context="9K", input="8K", output="1K")["load"]
    assert rows(alone)["$ a million tokens, rental"][1] == rows(answer()["times"][2])["rental"][1]
    query = page_query.read({"context": "9K"}, {})
    point = Curve(query.settle("dep4"), query.calibrated, Traffic(input_tokens=8192, output_tokens=1024))
    at = point.at(point.most)
    dollars = 3.48 * 4 / 3600 / at.all_answers_s * 1e6
    assert rows(chat)["$ a million tokens, rental"][1] == f"{dollars:,.3f} $"


@pytest.mark.parametrize(
    "query", [{"max_seqs": "4096", "context": "1"}, {"input": "1000K", "output": "1K", **{"context": "1M"}}]
)
def test_no_query_takes_long(query: dict[str, str]) -> None:
    answer(**query)  # the first one of a model adds up its weights
    start_s = time.process_time()
    answer(**query)
    assert time.process_time() - start_s < 1


def test_every_input_is_in_the_query_that_is_read() -> None:
    assert {one.name for one in page_query.inputs({})} >= {*QUERIES[1], "model", "hardware", "strategy"}
    for one in page_query.inputs({}):
        assert not one.options or one.default in {option.value for option in one.options}


def test_fitted_shares_are_no_better_than_extrapolated() -> None:
    query = {"hardware": "xeon-6980p", "strategy": "tp", "devices": "1", "drafts": "off"}
    fitted, bound = (answer(**query, calibration=name)["times"][0] for name in ("cpu", "bound"))
    assert fitted["head"][4] == {"text": "calibrated", "status": "extrapolated", "note": ""}
    assert bound["head"][4]["status"] == bound["head"][3]["status"] != "extrapolated"


def test_a_full_step_is_no_better_than_how_many_fit() -> None:
    query = {"calibration": "bound", "strategy": "tp"}  # the reserve was fitted for DEP
    steps, parts, _ = answer(**query, drafts="off")["times"]
    by_words = {row[0] if isinstance(row[0], str) else row[0]["text"]: row for row in steps["rows"]}
    one, *more, prompt = by_words.values()
    assert all(isinstance(text, str) for text in [*one, *prompt])
    assert {text["status"] for row in more for text in row} == {"extrapolated"}
    assert {head["status"] for head in parts["head"] if isinstance(head, dict)} == {"extrapolated"}
    drafted = answer(**query)["times"][0]["head"]
    assert (steps["head"][2]["status"], drafted[2]["status"]) == ("forward", "fitted")  # the drafter's shape
    assert drafted[3]["status"] == "fitted"


def test_the_longest_request_is_a_choice() -> None:
    found = answer(longest="300K", strategy="tp")
    assert rows(found["tables"][-1])["max_model_len"][0] == "307,200"
    assert "--max-model-len 307200" in found["commands"]["serving"][0]["text"].replace("\\\n ", "")
    assert "Context is 524288, but Longest is 307200" in refusal(longest="300K", context="512K")


def test_each_difference_between_a_plan_and_a_command_is_noted() -> None:
    notes = answer(hardware="mi355x", strategy="tp")["commands"]["serving"][0]["notes"]
    assert "planned otherwise: drafts a round 7 in the plan, 3 in this command" in notes
    first = answer(**PD)["commands"]["serving"][0]["notes"]
    assert "planned otherwise: max_num_batched_tokens 8,192 in the plan, 32,768 in this command" in first
    own = answer(**PD, kv="fp8")["commands"]["serving"][0]["notes"]  # what is laid over a recipe is no difference
    assert not any("format of K and V" in note for note in own)
    assert not any("otherwise" in note for note in answer()["commands"]["serving"][0]["notes"])


def test_fewer_sequences_than_replicas_are_not_counted_as_more() -> None:
    one, four = (answer(sequences=count)["load"] for count in ("1", "4"))
    assert one["title"] == "Load: 1 sequences side by side"
    each, in_all = (rows(one)[name][1].replace(",", "") for name in ("tokens/s each", "tokens/s in all"))
    assert float(in_all) == pytest.approx(float(each), abs=1)
    assert rows(four)["step"] == rows(one)["step"]
    chat = {"input": "8K", "output": "1K"}
    fewer, whole = (rows(answer(**chat, sequences=count)["load"])["requests/s"][1] for count in ("5", "8"))
    assert float(fewer) == pytest.approx(float(whole) * 5 / 8, rel=0.01)


def test_a_link_that_is_assumed_is_an_assumption() -> None:
    query = {"strategy": "tp", "devices": "16", "calibration": "bound", "drafts": "off"}
    far, near = answer(**query), answer(**query, hardware="gb300")  # one domain holds all of them
    assert far["tables"][-1]["rows"][-1][1] == {"text": "50 GB/s, one way", "status": "convention", "note": ""}
    assert far["times"][0]["head"][3]["status"] == "convention"
    assert near["tables"][-1]["rows"][-1][0] != "link of machines"
    assert near["times"][0]["head"][3]["status"] != "convention"
    assert roofline.link_of(page_query.read(query, {}).settle("tp16"))[1]


def test_the_command_of_a_plan_says_that_the_load_is_not_in_it() -> None:
    assert "minnow simulate" in answer(input="8K", output="1K")["commands"]["plan"]["notes"][0]
    assert not answer()["commands"]["plan"]["notes"]


def test_a_sentence_names_inputs_as_the_page_does() -> None:
    assert page_query.worded("--context is 3, but --max-model-len is 2; (--no-speculation)") == (
        "Context is 3, but Longest is 2; (Drafts)"
    )
    assert page_query.worded("max_num_seqs or --enable-x and side_by_side") == (
        "Most in a step or --enable-x and side_by_side"
    )
