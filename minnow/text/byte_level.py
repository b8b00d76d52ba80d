"""the 256 characters that stand for bytes in byte-level vocabularies"""


def _alphabet() -> dict[str, int]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    pairs = {chr(byte): byte for byte in printable}
    return pairs | {chr(256 + index): byte for index, byte in enumerate(others)}


BYTE_BY_CHARACTER: dict[str, int] = _alphabet()
"""Printable Latin-1 characters stand for themselves; the other bytes, in order, are U+0100 and up.

Source: the encoder of GPT-2, whose vocabularies this alphabet comes from.
"""


def to_bytes(token: str) -> bytes | None:
    """The bytes that a byte-level token stands for, or None where it has a character outside the alphabet."""
    values = [BYTE_BY_CHARACTER.get(character) for character in token]
    return None if None in values else bytes(value for value in values if value is not None)
