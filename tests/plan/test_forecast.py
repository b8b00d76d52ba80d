"""predictions of every device stay what they were"""

import pytest

from minnow.plan import forecast

# device, strategy: weights GB, cache GB, bytes a token on a rank, M tokens, sequences of 256K
EXPECTED = {
    ("h100", "tp8"): (31.3, 36.7, 23_040, 1.59, 6),
    ("h200", "tp8"): (31.3, 95.4, 23_040, 4.14, 15),
    ("b200", "tp4"): (62.5, 102.4, 14_240, 7.19, 27),
    ("gb200", "tp4"): (62.5, 107.3, 14_240, 7.53, 28),
    ("gb200", "dep4"): (75.8, 94.0, 44_000, 8.54, 32),
    ("b300", "tp2"): (125.0, 125.5, 24_160, 5.19, 19),
    ("b300", "tp4"): (62.5, 188.0, 14_240, 13.20, 50),
    ("b300", "tp8"): (31.3, 219.3, 14_240, 15.40, 58),
    ("b300", "dep4"): (75.8, 174.7, 44_000, 15.89, 60),
    ("gb300", "tp4"): (62.5, 196.7, 14_240, 13.81, 52),
    ("gb300", "dep2"): (133.9, 125.3, 44_000, 5.70, 20),
    ("gb300", "dep4"): (75.8, 198.3, 44_000, 18.03, 68),
    ("mi355x", "tp4"): (110.9, 158.4, 14_240, 11.12, 42),
    ("rubin", "tp4"): (62.5, 187.7, 14_240, 13.18, 50),
    ("rubin", "dep4"): (75.8, 174.4, 44_000, 15.85, 60),
}


@pytest.mark.parametrize("row", forecast.ROWS, ids=lambda row: f"{row.device}-{row.strategy}")
def test_row(row: forecast.Row) -> None:
    weights, cache, token_bytes, tokens, sequences = EXPECTED[row.device, row.strategy]
    found = forecast.forecast(row)
    assert found.even_bytes / 1e9 == pytest.approx(weights, abs=0.06)
    assert round(found.cache_bytes / 1e9, 1) == cache
    assert found.holding.layout.token_bytes == token_bytes
    assert round(found.num_tokens / 1e6, 2) == tokens
    assert found.holding.num_sequences_engine == sequences
    # What is copied to every rank makes Minnow's own shards larger, where there is tensor parallelism.
    copied = (found.sharded_bytes - found.even_bytes) / 1e9
    assert (0.9 < copied < 1.9) if "tp" in row.strategy else copied == 0


def test_every_row_is_expected() -> None:
    assert [(row.device, row.strategy) for row in forecast.ROWS] == list(EXPECTED)
