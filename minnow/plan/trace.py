"""traces of requests as JSON lines: sessions with shared text, or requests with the hashes of their blocks"""

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from minnow.core.errors import ConfigError
from minnow.plan.workload import Piece, Session, Turn

_T = TypeVar("_T")
_HASHED_TOKENS = 512  # that a hash stands for, unless a line says otherwise
_MOST_NUMBER = 2**30 - 1  # of pieces that a trace names; those beyond are of text that it does not


def read(path: Path) -> Iterator[Session]:
    """Sessions of a trace, as they are needed; docs/guide/simulate.md describes the fields.

    Raises:
        ConfigError: there is no such file. While it is read: a line is not as it should be; names it.
    """
    if not path.is_file():
        raise ConfigError(f"there is no trace {str(path)!r}; name a file of JSON lines, poisson, closed or agentx")
    return _read(path)


def write(path: Path, sessions: Iterable[Session]) -> int:
    """Write sessions as a trace that `read` gives back; says how many lines it has."""
    count = 0
    with path.open("w", encoding="ascii") as file:
        for number, session in enumerate(sessions):
            for place, turn in enumerate(session.turns):
                file.write(json.dumps(_line(session, number, place, turn)) + "\n")
                count += 1
    return count


def _line(session: Session, number: int, place: int, turn: Turn) -> dict[str, Any]:
    earlier = session.turns[turn.extends].pieces if turn.extends >= 0 else ()
    pairs = zip(earlier, turn.pieces, strict=False)
    num_kept = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    line: dict[str, Any] = {
        "session": number,
        "input_length": turn.num_input_tokens,
        "output_length": turn.num_output_tokens,
        "pieces": turn.pieces[num_kept:],
    }
    if not place:
        line["timestamp"] = session.start_s * 1000
    optional = {
        "extends": turn.extends if turn.extends >= 0 else None,
        "kept_pieces": num_kept or None,
        "after": turn.after or None,
        "gap_s": turn.gap_s or None,
        "answer": turn.answer or None,
        "agent": turn.agent or None,
        "warmup": turn.is_warmup or None,
    }
    return line | {name: value for name, value in optional.items() if value is not None}


class _Names:
    """Numbers of pieces that a trace does not number itself."""

    def __init__(self) -> None:
        self._numbers = itertools.count(_MOST_NUMBER + 1)
        self._number_by_name: dict[object, int] = {}

    def fresh(self) -> int:
        return next(self._numbers)

    def number_of(self, name: object) -> int:
        number = self._number_by_name.get(name)
        if number is None:
            number = self._number_by_name[name] = self.fresh()
        return number


def _read(path: Path) -> Iterator[Session]:
    turns: list[Turn] = []
    current, start_s, last_s = None, 0.0, 0.0
    names = _Names()
    with path.open(
        encoding="utf-8", errors="surrogateescape"
    ) as file:  # what is no UTF-8 is no JSON, and its line says so
        for count, text in enumerate(file, start=1):
            if not text.strip():
                continue
            where = f"{path}:{count}"
            line = _object(where, text)
            session = line.get("session", f"line {count}")
            if session != current and turns:
                yield Session(turns=tuple(turns), start_s=start_s)
                turns = []
            if not turns:
                current, start_s = session, _number(where, line, "timestamp", start_s * 1000) / 1000
                if start_s < last_s:
                    raise ConfigError(f"{where}: timestamp is {start_s * 1000:g}, before the one above; sort the lines")
                last_s = start_s
            turns.append(_turn(where, line, turns, names))
    if turns:
        yield Session(turns=tuple(turns), start_s=start_s)


def _turn(where: str, line: Mapping[str, Any], turns: list[Turn], names: _Names) -> Turn:
    num_output_tokens = _count(where, line, "output_length")
    after = _of_type(where, line, "after", list, [])
    extends = line.get("extends", -1)
    for place in [*after, *([extends] if extends != -1 else [])]:
        if type(place) is not int or not 0 <= place < len(turns):
            raise ConfigError(f"{where}: turn {place!r} is named, but its session has {len(turns)} lines before this")
    pieces = _pieces(where, line, turns[extends].pieces if extends >= 0 else (), names)
    num_input_tokens = sum(piece.num_tokens for piece in pieces)
    if "input_length" in line and _count(where, line, "input_length") != num_input_tokens:
        raise ConfigError(f"{where}: input_length is {line['input_length']}, but pieces have {num_input_tokens} tokens")
    return Turn(
        pieces=pieces,
        num_output_tokens=num_output_tokens,
        after=tuple(after),
        gap_s=_number(where, line, "gap_s", 0.0),
        extends=extends,
        answer=_whole(where, line, "answer", _MOST_NUMBER),
        agent=_whole(where, line, "agent", _MOST_NUMBER),
        is_warmup=_of_type(where, line, "warmup", bool, False),
    )


def _pieces(where: str, line: Mapping[str, Any], earlier: tuple[Piece, ...], names: _Names) -> tuple[Piece, ...]:
    if "pieces" in line:
        try:
            own = tuple(Piece(int(number), int(num_tokens)) for number, num_tokens in line["pieces"])
        except (TypeError, ValueError):
            raise ConfigError(f"{where}: pieces is {line['pieces']!r}; write [[number, tokens], ...]") from None
        if not all(0 < piece.number <= _MOST_NUMBER and piece.num_tokens > 0 for piece in own):
            raise ConfigError(f"{where}: pieces have numbers from 1 to {_MOST_NUMBER}, and one token each at least")
        pieces = (*earlier[: _whole(where, line, "kept_pieces", len(earlier))], *own)
        if not pieces:
            raise ConfigError(f"{where}: pieces are none; a prompt has a token at least")
        return pieces
    num_tokens = _count(where, line, "input_length")
    hashes = line.get("hash_ids")
    if hashes is None:
        return (Piece(names.fresh(), num_tokens),)
    if not isinstance(hashes, list) or not all(isinstance(name, int | str) for name in hashes):
        raise ConfigError(f"{where}: hash_ids is {hashes!r}; a list of numbers or words is needed")
    size = _count(where, line, "block_size", _HASHED_TOKENS)
    if len(hashes) != -(-num_tokens // size):
        raise ConfigError(
            f"{where}: input_length {num_tokens} has {-(-num_tokens // size)} blocks of {size} tokens, "
            f"but hash_ids has {len(hashes)}; say block_size, where it is another"
        )
    lengths = [size] * (len(hashes) - 1) + [num_tokens - size * (len(hashes) - 1)]
    return tuple(Piece(names.number_of(name), length) for name, length in zip(hashes, lengths, strict=True))


def _object(where: str, text: str) -> Mapping[str, Any]:
    try:
        line = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{where}: no JSON ({error})") from None
    if not isinstance(line, dict):
        raise ConfigError(f"{where}: {text.strip()[:60]!r} is no JSON object")
    return line


def _number(where: str, line: Mapping[str, Any], name: str, default: float) -> float:
    value = line.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ConfigError(f"{where}: {name} is {value!r}; it must be a number, 0 or more")
    return value


def _whole(where: str, line: Mapping[str, Any], name: str, most: int) -> int:
    value = line.get(name, 0)
    if type(value) is not int or not 0 <= value <= most:
        raise ConfigError(f"{where}: {name} is {value!r}; it must be a whole number from 0 to {most}")
    return value


def _of_type(where: str, line: Mapping[str, Any], name: str, wanted: type[_T], default: _T) -> _T:
    value = line.get(name, default)
    if type(value) is not wanted:
        raise ConfigError(f"{where}: {name} is {value!r}; it must be a {wanted.__name__}")
    return value


def _count(where: str, line: Mapping[str, Any], name: str, default: int = 0) -> int:
    value = line.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{where}: {name} is {value!r}; it must be a number of tokens, 1 or more")
    return value
