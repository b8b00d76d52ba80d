"""bytes, seconds, tokens: parsing "16GiB", printing with units"""

import re

from minnow.core.errors import ConfigError

_BYTE_UNITS = {
    "": 1, "b": 1,
    "k": 10**3, "kb": 10**3, "kib": 2**10,
    "m": 10**6, "mb": 10**6, "mib": 2**20,
    "g": 10**9, "gb": 10**9, "gib": 2**30,
    "t": 10**12, "tb": 10**12, "tib": 2**40,
}  # fmt: skip


def parse_bytes(text: str) -> int:
    """Read a number of bytes such as "4096", "16GiB" or "1.5GB" (binary with an i, decimal without).

    Raises:
        ConfigError: no number, or an unknown unit.
    """
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", text)
    if match is None or match[2].lower() not in _BYTE_UNITS:
        raise ConfigError(f"{text!r} is no number of bytes; write for example 16GiB")
    return int(float(match[1]) * _BYTE_UNITS[match[2].lower()])


def show_bytes(num_bytes: float) -> str:
    """Print bytes in binary units, three figures: 1822720 -> "1.74 MiB"."""
    value = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:.4g} TiB"


def show_decimal(num_bytes: float) -> str:
    """Print bytes in decimal units, as vendors and published comparisons count: 288400343040 -> "288.4 GB"."""
    value = float(num_bytes)
    for unit in ("B", "kB", "MB"):
        if abs(value) < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.4g} {unit}"
        value /= 1000
    return f"{value:.4g} GB" if abs(value) < 1000 else f"{value / 1000:.4g} TB"


def show_seconds(seconds: float) -> str:
    """Print a time in ms below one second, in s above."""
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 1000 else f"{seconds:,.0f} s"
