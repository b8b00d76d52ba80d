"""traces: what is written is read again, other people's are read, and mistakes are named"""

import json
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pytest

from minnow.core.errors import ConfigError
from minnow.plan import trace
from minnow.plan.agentx import Generator
from minnow.plan.workload import Piece, Session, Text, Turn
from tests.plan.simulated import cluster, play


def write(tmp_path: Path, *lines: Any) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    sessions = list(islice(Generator(Random(0), is_recorded=False).replay(1), 3))
    path = tmp_path / "sessions.jsonl"
    assert trace.write(path, sessions) == sum(len(session.turns) for session in sessions)
    assert list(trace.read(path)) == sessions
    timed = [Session(turns=(Turn(pieces=(Piece(n, 4),), num_output_tokens=2),), start_s=n * 0.5) for n in (1, 2)]
    trace.write(path, timed)
    assert list(trace.read(path)) == timed


def test_hashes_of_blocks_say_what_is_shared(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [46, 47, 48]},
        "",
        {"timestamp": 1500, "input_length": 1536, "output_length": 7, "hash_ids": [46, 47, 2353]},
        {"timestamp": 1500, "input_length": 30, "output_length": 1},
        {"timestamp": 2000, "input_length": 30, "output_length": 1, "hash_ids": [9, 46], "block_size": 16},
    )
    sessions = list(trace.read(path))
    texts = [Text(session.turns[0].pieces) for session in sessions]
    assert [len(text) for text in texts] == [1100, 1536, 30, 30]
    assert [session.start_s for session in sessions] == [0, 1.5, 1.5, 2.0]
    assert texts[0].num_shared_tokens(texts[1]) == 1024
    assert texts[1].num_shared_tokens(texts[3]) == texts[1].num_shared_tokens(texts[2]) == 0
    outcome = play(cluster(num_blocks=4000), trace.read(path))
    assert (outcome.num_requests, outcome.cached_tokens, outcome.output_tokens) == (4, 1024, 14)


GOOD = {"timestamp": 5, "input_length": 10, "output_length": 5}


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["no"], r"trace.jsonl:1: no JSON"),
        (['{"timestamp": 1e400, "input_length": 1, "output_length": 1}'], "timestamp is inf; it must be a number"),
        (['{"timestamp": NaN, "input_length": 1, "output_length": 1}'], "timestamp is nan; it must be a number"),
        ([{"input_length": 5, "output_length": 5, "after": 3}], "after is 3; it must be a list"),
        (
            [{"output_length": 5, "pieces": [[1, 5]], "kept_pieces": "x"}],
            "kept_pieces is 'x'; it must be a whole number",
        ),
        ([{"output_length": 5, "pieces": []}], "pieces are none; a prompt has a token at least"),
        (
            [{"input_length": 5, "output_length": 5, "hash_ids": [[1]]}],
            r"hash_ids is \[\[1\]\]; a list of numbers or words",
        ),
        (
            [{"input_length": 5, "output_length": 5, "answer": 2**40}],
            "answer is 1099511627776; it must be a whole number",
        ),
        ([{"input_length": 5, "output_length": 5, "warmup": "no"}], "warmup is 'no'; it must be a bool"),
        (["[1]"], r"trace.jsonl:1: '\[1\]' is no JSON object"),
        ([GOOD, GOOD | {"timestamp": 4}], r":2: timestamp is 4, before the one above; sort the lines"),
        ([GOOD | {"timestamp": "now"}], r":1: timestamp is 'now'; it must be a number, 0 or more"),
        ([GOOD | {"output_length": 0}], r":1: output_length is 0; it must be a number of tokens, 1 or more"),
        ([{"output_length": 3}], r":1: input_length is 0"),
        ([GOOD | {"hash_ids": [1, 2]}], r":1: input_length 10 has 1 blocks of 512 tokens, but hash_ids has 2"),
        ([GOOD | {"pieces": [[1, 4]]}], r":1: input_length is 10, but pieces have 4 tokens"),
        ([GOOD | {"pieces": "x"}], r":1: pieces is 'x'; write \[\[number, tokens\], ...\]"),
        ([GOOD | {"pieces": [[0, 10]]}], r":1: pieces have numbers from 1 to"),
        ([GOOD | {"after": [0]}], r":1: turn 0 is named, but its session has 0 lines before this"),
        ([GOOD | {"hash_ids": 5}], r":1: hash_ids is 5; a list of numbers or words is needed"),
    ],
)
def test_mistakes_are_named_by_line(tmp_path: Path, lines: list[Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        list(trace.read(write(tmp_path, *lines)))


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match=r"there is no trace 'nowhere\.jsonl'"):
        trace.read(Path("nowhere.jsonl"))
