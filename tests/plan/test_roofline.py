"""times of steps: what they are added up from, and that nothing measured is faster than the bound"""

import itertools
import random
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

import pytest

from minnow.config.parallel import ParallelConfig
from minnow.core.errors import ConfigError
from minnow.kernels import index_score
from minnow.plan import anchors, calibration, hardware, published, roofline, speed_text, work
from minnow.plan.calibration import BOUND, Calibration
from minnow.plan.roofline import StepModel, StepTime
from minnow.plan.work import Limits, Row

# What the published roofline of a decode step counts; Minnow's own counts gates, activations and the rest of the
# drafter besides.
COUNTED = (
    "routed experts", "attention weights", "dense feed-forward", "shared experts", "head", "index scan",
    "chosen blocks", "drafter's keys",
)  # fmt: skip
EXPERT = 3 * 6144 * 3072


def model_of(device: str, strategy: str, calibrated: Calibration = BOUND, **settings: Any) -> StepModel:
    return StepModel(published.deploy("m3.1-flash", device, strategy, **settings), calibrated)


def decode(model: StepModel, num_sequences: int, context: int, num_tokens: int = 8) -> StepTime:
    row = Row(num_tokens, context, num_tokens, model.deployment.num_drafts > 0)
    return model.time(work.add_up([row] * num_sequences, model.limits))


def part(time: StepTime, name: str) -> roofline.Part:
    return next(p for p in time.parts if p.name == name)


@pytest.mark.parametrize(
    ("device", "strategy", "num_sequences", "context", "tokens", "gigabytes", "settings"),
    [
        ("gb300", "tp4", 1, 100_000, 8, 16.5, {"has_index_cp": True}),
        ("gb300", "tp4", 1, 500_000, 8, 17.0, {"has_index_cp": True}),
        ("gb300", "tp4", 1, 500_000, 8, 18.6, {}),
        ("gb300", "dep4", 19, 200_000, 8, 92.3, {"utilization": 0.95}),
        ("rubin", "tp4", 1, 100_000, 8, 16.5, {"has_index_cp": True}),
        ("mi355x", "tp4", 1, 100_000, 4, 16.2, {"experts_format": "mxfp8", "has_index_cp": True}),
    ],
)
def test_bytes_of_a_decode_step_are_the_published_ones_and_activations(
    device: str, strategy: str, num_sequences: int, context: int, tokens: int, gigabytes: float, settings: Any
) -> None:
    time = decode(model_of(device, strategy, **settings), num_sequences, context, tokens)
    counted = sum(p.num_bytes for p in time.parts if p.name in COUNTED) / 1e9
    assert 0 <= counted / gigabytes - 1 < 0.03


def test_arithmetic_of_a_prefill_is_the_published_one() -> None:
    model = model_of("mi355x", "tp4", experts_format="mxfp8", speculation=False)
    time = model.time(work.add_up([Row(32_768, 32_768)], model.limits))
    of = {p.name: 4 * p.operations for p in time.parts}
    linear = sum(of[name] for name in ("attention weights", "dense feed-forward", "shared experts", "routed experts"))
    # Index keys are projected on every rank, and gates are not counted.
    assert linear == pytest.approx(1.54e15, rel=0.01)
    assert of["chosen blocks"] == pytest.approx(1.3e14, rel=0.05)
    assert of["index scan"] == pytest.approx(3.3e13, rel=0.02)
    assert time.link_bytes == pytest.approx(72.5e9, rel=0.001)


def test_experts_that_are_read_are_the_expected_number_of_different_ones() -> None:
    model = model_of("gb300", "tp4", speculation=False)
    for tokens in (1, 2, 5):
        read = part(decode(model, 1, 4096, tokens), "routed experts").num_bytes
        rng = random.Random(tokens)
        drawn = fmean(len({e for _ in range(tokens) for e in rng.sample(range(128), 4)}) for _ in range(4000))
        weights = drawn * EXPERT * 0.5625 * 57 / 4
        assert read == pytest.approx(weights, rel=0.03)


def test_index_context_parallelism_divides_the_bytes_of_the_scan_and_nothing_else() -> None:
    with_it, without = (decode(model_of("gb300", "tp4", has_index_cp=on), 1, 300_000) for on in (True, False))
    for one, other in zip(with_it.parts, without.parts, strict=True):
        ratio = 4 if one.name == "index scan" else 1
        assert other.num_bytes == pytest.approx(ratio * one.num_bytes), one.name
        assert other.operations == pytest.approx(one.operations), one.name


def test_costs_are_those_of_the_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("gb300", "tp4")
    before = decode(model, 2, 50_000)
    cost = index_score.OP.cost
    monkeypatch.setattr(
        index_score, "OP", type("Twice", (), {"cost": lambda **dims: tuple(2 * c for c in cost(**dims))})
    )
    after = decode(model, 2, 50_000)
    assert part(after, "index scan").num_bytes == 2 * part(before, "index scan").num_bytes
    assert part(after, "chosen blocks") == part(before, "chosen blocks")


@pytest.mark.parametrize("anchor", anchors.ANCHORS, ids=lambda anchor: anchor.name)
def test_no_measured_step_is_faster_than_the_memory(anchor: anchors.Anchor) -> None:
    compared = anchors.compare(anchor, calibration.read("gpu"))
    assert 0 < compared.memory_s < compared.bound_s < anchor.least_s
    assert compared.bound_s < compared.calibrated_s


def test_what_is_fitted_meets_its_points_and_is_not_shown_as_evidence() -> None:
    found = anchors.compare_all()
    fitted = [c for c in found if c.is_fitted]
    assert [c.anchor.name for c in fitted] == list(calibration.read("gpu").fitted_on)
    assert all(abs(c.calibrated_s / c.anchor.middle_s - 1) < 0.01 for c in fitted)
    lines = list(speed_text.steps(found))
    for compared in found:
        line = next(line for line in lines if line.startswith(f"{compared.anchor.name}  "))
        assert ("  fitted  " in line) == compared.is_fitted
        assert (f" {compared.error:+.0%} " in line) == (not compared.is_fitted)
    errors = [abs(c.error) for c in found if not c.is_fitted]
    assert calibration.read("gpu").held_out_error == pytest.approx(median(errors), abs=0.01)
    assert lines[-1] == (f"2 fitted, 6 held out: median error {median(errors):.0%}, worst {max(errors):.0%}")


def test_messages_hide_behind_the_other_half_of_a_dual_batch_from_its_threshold_on() -> None:
    model = model_of("mi355x", "tp4", calibration.read("gpu"), speculation=False, dual_batch_tokens=1000)
    long, short = (model.time(work.add_up([Row(n, n)], model.limits)) for n in (1000, 999))
    assert long.hidden_s == long.link_s > 0 and short.hidden_s == 0
    assert short.seconds - long.seconds > 0.9 * long.link_s


@pytest.mark.parametrize(("overlaps", "join"), [(True, max), (False, lambda a, b: a + b)])
def test_a_part_takes_its_bytes_and_its_operations_at_their_shares(overlaps: bool, join: Any) -> None:
    shares = {"memory": {"weights": 0.5, "attention": 0.25}, "arithmetic": {"weights": 0.1}}
    calibrated = Calibration(name="x", overlaps=overlaps, step_s=0.25, draft_s=1.0, prompt_s=2.0, sources={}, **shares)
    time = decode(model_of("gb300", "tp1", calibrated), 3, 20_000)
    rates = {"fp4": 15e15, "fp8": 5e15, "bf16": 2.5e15}
    for p in time.parts:
        memory, arithmetic = shares["memory"].get(p.kind, 1.0), shares["arithmetic"].get(p.kind, 1.0)
        assert p.seconds == pytest.approx(join(p.num_bytes / 8e12 / memory, p.operations / rates[p.rate] / arithmetic))
    assert time.constant_s == 1.25  # a step of decoding computes no prompt
    assert time.seconds == pytest.approx(sum(p.seconds for p in time.parts) + 1.25)


def test_replicas_that_share_experts_bring_their_tokens_to_them() -> None:
    shared, alone = (decode(model_of("gb300", strategy, speculation=False), 4, 1000, 1) for strategy in ("dep4", "tp1"))
    here = 32 * (1 - (1 - 4 / 128) ** 16)  # of the 32 experts of a rank, for 16 tokens
    assert part(shared, "routed experts").num_bytes == pytest.approx(here * EXPERT * 0.5625 * 57, rel=0.02)
    assert part(shared, "routed experts").operations == pytest.approx(part(alone, "routed experts").operations)
    assert shared.link_bytes == pytest.approx(57 * 4 * 4 * 0.75 * 6144 * 3)


def test_experts_get_the_tokens_that_all_replicas_bring() -> None:
    model = model_of("gb300", "dep4", speculation=False)
    own = work.add_up([Row(1, 1000)] * 8, model.limits)
    as_many, few = (part(model.time(replace(own, expert_tokens=n)), "routed experts") for n in (32, 10))
    assert as_many == part(model.time(own), "routed experts")
    assert few.operations == pytest.approx(as_many.operations * 10 / 32)
    assert few.num_bytes < as_many.num_bytes


def test_seconds_are_those_of_the_parts() -> None:
    rng = random.Random(5)
    for strategy in ("tp4", "dep4", "tep8"):
        model = model_of("b300", strategy, calibration.read("gpu"), dual_batch_tokens=200)
        for _ in range(20):
            rows = [
                Row(rng.choice((1, 8, 300)), 4000 + rng.randrange(100_000), 1, rng.random() < 0.5) for _ in range(5)
            ]
            done = work.add_up(rows, model.limits)
            assert model.seconds(done) == pytest.approx(model.time(done).seconds, rel=1e-12)


def rate(device: str, strategy: str, num_nodes: int = 0) -> float:
    """Bytes a second of what a decode step sends."""
    of = published.deploy("m3.1-flash", device, strategy, speculation=False)
    time = decode(StepModel(replace(of, num_nodes=num_nodes or of.num_nodes)), 1, 1000, 1)
    return time.link_bytes / time.link_s


def test_links_between_machines_are_network_cards_beyond_what_scales_up() -> None:
    assert rate("gb300", "dep16") == pytest.approx(900e9)  # four machines, one domain
    assert rate("b300", "dep16") == pytest.approx(50e9)
    assert rate("b300", "dep8") == pytest.approx(900e9)
    assert rate("b300", "dep8", num_nodes=2) == pytest.approx(50e9)
    assert rate("mi355x", "tp4") == pytest.approx(576e9 * 3 / 7)  # of a mesh, the links to three others


def test_sums_of_a_replica_go_over_its_own_links_however_many_replicas_there_are() -> None:
    of = published.deploy("m3.1-flash", "b300", "tp8", speculation=False)
    twice = replace(of.config, parallel=ParallelConfig(tensor_parallel_size=8, data_parallel_size=2))
    one, other = (decode(StepModel(each), 1, 1000, 1) for each in (of, replace(of, config=twice, num_nodes=2)))
    assert (one.link_bytes, one.link_s) == (other.link_bytes, other.link_s)


def test_drafts_and_divided_scans_send_too() -> None:
    plain, drafting = (decode(model_of("gb300", "tp4", speculation=on), 1, 100_000) for on in (False, True))
    rows = 7  # drafts: sums of five layers, and parts of logits
    more = 2 * 2 * 0.75 * rows * 5 * 6144 * 2 + rows * 200_064 / 4 * 3 * 4
    assert drafting.link_bytes - plain.link_bytes == pytest.approx(more)
    divided = decode(model_of("gb300", "tp4", speculation=False, has_index_cp=True), 1, 100_000)
    assert divided.link_bytes - plain.link_bytes == pytest.approx(60 * 8 * 4 * 16 * 8 * 3)


def test_a_sheet_without_a_rate_is_refused(tmp_path: Path) -> None:
    sheet = tmp_path / "bare.toml"
    entry = '[{}]\nvalue = "{}"\nstatus = "nominal"\nsource = "a test"\n'
    sheet.write_text('kind = "gpu"\n' + entry.format("memory", "400 GB") + entry.format("bf16", "1 PFLOP/s"))
    with pytest.raises(ConfigError, match=r"the sheet of bare has no \[memory_bandwidth\]"):
        model_of(str(sheet), "tp1")
    sheet.write_text('kind = "gpu"\n' + entry.format("memory", "400 GB") + entry.format("memory_bandwidth", "1 TB/s"))
    with pytest.raises(ConfigError, match=r"the sheet of bare has no \[bf16\]"):
        model_of(str(sheet), "tp1")


def test_bandwidths_of_servers_follow_from_their_channels() -> None:
    servers = hardware.read_all("cpu")
    assert len(servers) >= 3
    for server in servers:
        figure = server.figures["memory_bandwidth"]
        channels, rate = [int(word.replace(",", "")) for word in figure.source.split() if word[0].isdigit()][:2]
        assert figure.value == pytest.approx(channels * rate * 8 * 1e6)
    one, two = (model_of("xeon-6980p", s, speculation=False) for s in ("tp1", "tp2"))  # 428B on one server
    assert decode(one, 1, 100_000, 1).seconds > 1.5 * decode(two, 1, 100_000, 1).seconds


# -- work -----------------------------------------------------------------------------------------------------------


def test_work_is_what_counting_pair_by_pair_gives() -> None:
    limits = Limits(chosen_tokens=6, window_tokens=4)
    rng = random.Random(1)
    for _ in range(200):
        rows = []
        for _ in range(rng.randrange(4)):
            count = rng.randrange(1, 50)
            rows.append(Row(count, count + rng.randrange(60), rng.randrange(2), rng.random() < 0.5))
        done = work.add_up(rows, limits)
        keys = [
            position
            for row in rows
            for position in range(row.context_tokens - row.num_tokens + 1, row.context_tokens + 1)
        ]
        assert done.context_pairs == sum(keys) and done.chosen_pairs == sum(min(k, 6) for k in keys)
        assert done.num_tokens == len(keys) and done.context_tokens == sum(row.context_tokens for row in rows)
        assert done.window_tokens == sum(min(row.context_tokens, 4) for row in rows if row.is_drafting)
        chosen = [
            row.context_tokens if row.num_tokens >= 32 else min(row.context_tokens, 6 * min(row.num_tokens, work.UNION))
            for row in rows
        ]
        assert done.chosen_tokens == sum(chosen)


# -- calibration files ----------------------------------------------------------------------------------------------


def test_every_shipped_calibration_names_its_sources() -> None:
    for name in calibration.names():
        found = calibration.read(name)
        assert found.sources and all(found.sources.values())
        assert bool(found.fitted_on) == any(source.startswith("fitted") for source in found.sources.values())
    points = {anchor.name for anchor in anchors.ANCHORS}
    assert set(calibration.read("gpu").fitted_on) <= points


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[link]\nvalue = 1.5\nsource = 'x'", "link: value is 1.5; a share above 0, at most 1"),
        ("[step_s]\nvalue = -1\nsource = 'x'", "step_s: value is -1; seconds"),
        ("[step_s]\nvalue = 1", "step_s is .*; a table with value and source"),
        ("[speed]\nvalue = 1\nsource = 'x'", "speed is no entry"),
        ("link", "is no TOML"),
    ],
)
def test_a_calibration_that_says_nothing_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "own.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        calibration.read(str(path))


def test_an_unknown_calibration_names_the_known() -> None:
    with pytest.raises(ConfigError, match=r"no calibration is called 'x'; known are bound, cpu, gpu"):
        calibration.read("x")


def test_pairs_of_a_long_prompt_are_those_of_its_chunks() -> None:
    limits = Limits(chosen_tokens=2048)
    whole = work.add_up([Row(5000, 5000)], limits)
    ends = (512, 1024, 3000, 5000)
    chunks = [work.add_up([Row(end - start, end)], limits) for start, end in itertools.pairwise((0, *ends))]
    assert sum(c.context_pairs for c in chunks) == whole.context_pairs
    assert sum(c.chosen_pairs for c in chunks) == whole.chosen_pairs
