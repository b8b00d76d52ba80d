"""prefix hits as the scheduler uses them"""

from dataclasses import replace

import pytest

from minnow.cache.blocks import BlockPool
from minnow.core.request import MediaItem
from minnow.engine.scheduler import Scheduler
from tests.fakes import (
    CONFIG,
    Collector,
    FakeRunner,
    alone,
    expect_alone,
    make_request,
    make_scheduler,
    run_until_idle,
    step,
)


@pytest.mark.parametrize("num_tokens", [127, 128, 129, 256, 2176])
def test_a_prompt_that_is_cached_whole(num_tokens: int) -> None:
    """Case C06: sent three times, plain and with log-probabilities of the prompt."""
    scheduler, runner = make_scheduler(
        replace(CONFIG, max_num_batched_tokens=512), num_blocks=40, block_size=128, max_model_len=4096
    )
    for number in range(3):
        asked = make_request(str(number), num_tokens, 5)
        scheduler.add(asked)
        collector = Collector()
        run_until_idle(scheduler, runner, collector)
        expect_alone(collector, asked, max_model_len=4096)
        expected = (num_tokens - 1) // 128 * 128 if number else 0
        assert collector.num_cached_tokens[str(number)] == expected <= num_tokens - 1
    echoed = make_request("echo", num_tokens, 5)
    scheduler.add(replace(echoed, sampling=replace(echoed.sampling, prompt_logprobs=1)))
    collector, num_before = Collector(), runner.num_computed_tokens
    run_until_idle(scheduler, runner, collector)
    assert collector.token_ids["echo"] == alone(echoed, eos_token_ids=(0,), max_total_tokens=4096)[0]
    assert collector.num_cached_tokens["echo"] == 0
    assert runner.num_computed_tokens - num_before == num_tokens + 4


def test_hits_are_counted_in_tokens() -> None:
    scheduler, runner = make_scheduler()
    for number in range(2):
        scheduler.add(make_request(str(number), 10, 3))
        run_until_idle(scheduler, runner, Collector())
    stats = scheduler.stats()
    assert (stats.prefix_queries_tokens, stats.prefix_hits_tokens) == (20, 8)
    assert (stats.prompt_tokens, stats.generation_tokens) == (20, 6)
    assert (stats.num_blocks, stats.num_free_blocks, stats.num_running, stats.num_waiting) == (32, 32, 0, 0)


def test_a_running_sequence_shares_its_blocks() -> None:
    scheduler, runner = make_scheduler()
    scheduler.add(make_request("a", 12, 9))
    step(scheduler, runner)
    scheduler.add(make_request("b", 13, 9))
    plan = step(scheduler, runner)[0]
    assert plan.starts[0].num_computed_tokens == 12
    assert scheduler.stats().num_free_blocks == 32 - 3 - 2


def test_another_salt_or_image_shares_nothing_and_a_reset_forgets() -> None:
    """Case C07 on the scheduler's side: hits end before the first block that an image touches."""
    scheduler, runner = make_scheduler()
    image = MediaItem(content_hash="1111aaaabeef", offset=5, num_tokens=3)
    other = replace(image, content_hash="2222bbbbbeef")
    sent = [
        ("a", {"media": (image,)}, 0),
        ("b", {"media": (other,)}, 4),
        ("c", {"media": (image,)}, 12),
        ("d", {"media": (image,), "cache_salt": "x"}, 0),
        ("e", {"media": (image,), "cache_salt": "x"}, 12),
    ]
    for name, changes, expected in sent:
        scheduler.add(make_request(name, 14, 2, **changes))
        collector = Collector()
        run_until_idle(scheduler, runner, collector)
        assert collector.num_cached_tokens[name] == expected
    scheduler.reset_prefix_cache()
    scheduler.add(make_request("f", 14, 2, media=(image,)))
    collector = Collector()
    run_until_idle(scheduler, runner, collector)
    assert collector.num_cached_tokens["f"] == 0


def test_caching_can_be_switched_off() -> None:
    scheduler, runner = make_scheduler(is_caching=False)
    for number in range(2):
        scheduler.add(make_request(str(number), 10, 3))
        run_until_idle(scheduler, runner, Collector())
    scheduler.reset_prefix_cache()
    assert scheduler.stats().prefix_queries_tokens == 20 and scheduler.stats().prefix_hits_tokens == 0


def test_blocks_are_positions_of_one_sequence_whatever_their_slots() -> None:
    """Case A12, the bookkeeping: two long sequences in a scrambled pool, computed and decoded in turn."""
    pool = BlockPool(64, 128)
    for block_id in sorted(pool.allocate(63), key=lambda block_id: block_id * 29 % 64):
        pool.free([block_id])
    scheduler = Scheduler(
        replace(CONFIG, max_num_batched_tokens=300, long_prefill_token_threshold=150),
        pool,
        max_model_len=4096,
        eos_token_ids=(0,),
        seed=0,
        enable_prefix_caching=True,
    )
    runner, collector = FakeRunner(128), Collector()
    asked = [make_request("a", 3000, 200), make_request("b", 3000, 200, first=2)]
    for each in asked:
        scheduler.add(each)
    while len(collector.token_ids.get("b", ())) < 10:
        collector.take(step(scheduler, runner)[1])
    tables = [row.table for row in runner.rows.values()]
    assert all(table != sorted(table) for table in tables)
    run_until_idle(scheduler, runner, collector)
    expect_alone(collector, *asked, max_model_len=4096)
