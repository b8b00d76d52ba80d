"""plots of a frontier as SVG and PNG: lines, points and words on a plane, drawn either way"""

import io
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from PIL import Image, ImageDraw, ImageFont

from minnow.core.errors import ConfigError

_WIDTH, _HEIGHT = 880, 540
_LEFT, _RIGHT, _TOP, _BOTTOM = 92, 180, 48, 64
_COLORS = ("#1f6f8b", "#d1495b", "#66a182", "#edae49", "#5b4b8a", "#8d6a4f", "#3d5a80", "#7a7a7a")
_INK, _GREY, _GRID = "#22262b", "#6b7280", "#e4e7eb"
_SCALE = 4  # pixels of a PNG for each of an SVG, of which every second one is kept
_NUM_TICKS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Points of one kind.

    Attributes:
        points: x, y, and a few words beside it.
        best: of them, those that are on the frontier.
    """

    name: str
    points: tuple[tuple[float, float, str], ...]
    best: tuple[bool, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """What is to be drawn; axes begin at 0 and name their units."""

    title: str
    x_title: str
    y_title: str
    series: tuple[Series, ...]


@dataclass(frozen=True, slots=True)
class _Line:
    points: tuple[tuple[float, float], ...]
    color: str
    width: float
    is_dashed: bool = False


@dataclass(frozen=True, slots=True)
class _Dot:
    x: float
    y: float
    radius: float
    color: str
    is_full: bool


@dataclass(frozen=True, slots=True)
class _Words:
    x: float
    y: float  # of the middle of the line
    text: str
    size: int
    color: str
    anchor: str = "start"  # or middle, or end
    is_upright: bool = False


_Mark = _Line | _Dot | _Words
_At = Callable[[float, float], tuple[float, float]]  # where on the picture values lie


def save(chart: Chart, path: Path) -> None:
    """Write a chart as the end of the file's name says.

    Raises:
        ConfigError: it is neither .svg nor .png.
    """
    check(path)
    if path.suffix.lower() == ".svg":
        path.write_text(svg(chart), encoding="ascii")
    else:
        path.write_bytes(png(chart))


def check(path: Path) -> None:
    """Refuse a file that `save` could not write.

    Raises:
        ConfigError: its name ends otherwise, or its directory is not there.
    """
    if path.suffix.lower() not in (".svg", ".png"):
        raise ConfigError(f"--plot is {str(path)!r}; name a file that ends in .svg or .png")
    if not path.parent.is_dir():
        raise ConfigError(f"--plot is {str(path)!r}, but {str(path.parent)!r} is no directory; make it first")


def svg(chart: Chart) -> str:
    """The chart as SVG, ASCII."""
    marks = "\n".join(map(_element, _marks(chart)))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" '
        f'font-family="Inter, Helvetica, Arial, sans-serif">\n'
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>\n{marks}\n</svg>\n'
    )


def png(chart: Chart) -> bytes:
    """The chart as PNG, twice as many pixels each way as the SVG has."""
    image = Image.new("RGB", (_WIDTH * _SCALE, _HEIGHT * _SCALE), "#ffffff")
    draw = ImageDraw.Draw(image)
    for mark in _marks(chart):
        if isinstance(mark, _Line):
            _draw_line(draw, mark)
        elif isinstance(mark, _Dot):
            x, y, radius = mark.x * _SCALE, mark.y * _SCALE, mark.radius * _SCALE
            fill = mark.color if mark.is_full else "#ffffff"
            draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=fill, outline=mark.color, width=_SCALE)
        else:
            _draw_words(image, draw, mark)
    out = io.BytesIO()
    image.reduce(2).save(out, format="PNG", optimize=True)
    return out.getvalue()


def ticks(most: float) -> list[float]:
    """Round numbers from 0 to the first at or above the most, some six of them."""
    if most <= 0:
        return [0.0, 1.0]
    rough = most / (_NUM_TICKS - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * next(factor for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * (1 - 1e-9))
    return [step * i for i in range(math.ceil(most / step - 1e-9) + 1)]


def _marks(chart: Chart) -> Iterator[_Mark]:
    points = [point for series in chart.series for point in series.points]
    x_ticks, y_ticks = ticks(max(x for x, _, _ in points)), ticks(max(y for _, y, _ in points))
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT

    def at(x: float, y: float) -> tuple[float, float]:
        across, up = x / x_ticks[-1] * (right - _LEFT), y / y_ticks[-1] * (bottom - _TOP)
        return round(_LEFT + across, 1), round(bottom - up, 1)

    yield _Words(_LEFT, 24, chart.title, 16, _INK)
    for y in y_ticks:
        place = at(0, y)[1]
        yield _Line(((_LEFT, place), (right, place)), _GRID, 1)
        yield _Words(_LEFT - 8, place, _short(y), 12, _GREY, "end")
    for x in x_ticks:
        yield _Words(at(x, 0)[0], bottom + 16, _short(x), 12, _GREY, "middle")
    yield _Line(((_LEFT, bottom), (right, bottom)), _GREY, 1)
    yield _Words((_LEFT + right) / 2, _HEIGHT - 20, chart.x_title, 13, _INK, "middle")
    yield _Words(22, (_TOP + bottom) / 2, chart.y_title, 13, _INK, "middle", is_upright=True)
    flags = [
        (*point[:2], flag) for series in chart.series for point, flag in zip(series.points, series.best, strict=True)
    ]
    frontier = tuple(at(x, y) for x, y, is_best in sorted(flags) if is_best)
    if len(frontier) > 1:
        yield _Line(frontier, _INK, 1.5, is_dashed=True)
    for i, series in enumerate(chart.series):
        yield from _series(series, _COLORS[i % len(_COLORS)], at, _TOP + 8 + 22 * i)
    yield _Dot(right + 24, _TOP + 8 + 22 * len(chart.series), 5, _GREY, is_full=False)
    yield _Words(right + 36, _TOP + 8 + 22 * len(chart.series), "beaten by another", 12, _GREY)


def _series(series: Series, color: str, at: _At, key_y: float) -> Iterator[_Mark]:
    places = [at(x, y) for x, y, _ in series.points]
    if len(places) > 1:
        yield _Line(tuple(places), color, 1.5)
    for (x, y), (_, _, words), is_best in zip(places, series.points, series.best, strict=True):
        yield _Dot(x, y, 5, color, is_best)
        yield _Words(x + 8, y - 9, words, 11, _GREY)
    right = _WIDTH - _RIGHT
    yield _Dot(right + 24, key_y, 5, color, is_full=True)
    yield _Words(right + 36, key_y, series.name, 12, _INK)


def _short(value: float) -> str:
    for unit, size in (("M", 1e6), ("K", 1e3)):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def _element(mark: _Mark) -> str:
    if isinstance(mark, _Line):
        points = " ".join(f"{x:g},{y:g}" for x, y in mark.points)
        dashes = ' stroke-dasharray="6 4"' if mark.is_dashed else ""
        return f'<polyline points="{points}" fill="none" stroke="{mark.color}" stroke-width="{mark.width:g}"{dashes}/>'
    if isinstance(mark, _Dot):
        fill = mark.color if mark.is_full else "#ffffff"
        place = f'cx="{mark.x:g}" cy="{mark.y:g}" r="{mark.radius:g}"'
        return f'<circle {place} fill="{fill}" stroke="{mark.color}" stroke-width="1.5"/>'
    turn = f' transform="rotate(-90 {mark.x:g} {mark.y:g})"' if mark.is_upright else ""
    text = escape(mark.text.encode("ascii", "xmlcharrefreplace").decode())
    place = f'x="{mark.x:g}" y="{mark.y:g}" dy="0.35em"'
    return f'<text {place} font-size="{mark.size}" fill="{mark.color}" text-anchor="{mark.anchor}"{turn}>{text}</text>'


def _draw_line(draw: ImageDraw.ImageDraw, mark: _Line) -> None:
    points = [(x * _SCALE, y * _SCALE) for x, y in mark.points]
    width = round(mark.width * _SCALE)
    if not mark.is_dashed:
        draw.line(points, fill=mark.color, width=width, joint="curve")
        return
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        length = math.hypot(x1 - x0, y1 - y0) or 1.0
        for start in range(0, int(length), 10 * _SCALE):
            first, last = start / length, min(start + 6 * _SCALE, length) / length
            ends = [(x0 + (x1 - x0) * share, y0 + (y1 - y0) * share) for share in (first, last)]
            draw.line(ends, fill=mark.color, width=width)


def _draw_words(image: Image.Image, draw: ImageDraw.ImageDraw, mark: _Words) -> None:
    font = ImageFont.load_default(size=mark.size * _SCALE)
    x, y = mark.x * _SCALE, mark.y * _SCALE
    if not mark.is_upright:
        draw.text(
            (x, y),
            mark.text,
            fill=mark.color,
            font=font,
            anchor={"start": "lm", "middle": "mm", "end": "rm"}[mark.anchor],
        )
        return
    left, top, right, bottom = draw.textbbox((0, 0), mark.text, font=font)
    words = Image.new("L", (int(right - left), int(bottom - top) + 4))
    ImageDraw.Draw(words).text((-left, -top), mark.text, fill=255, font=font)
    turned = words.rotate(90, expand=True)
    image.paste(mark.color, (int(x - turned.width / 2), int(y - turned.height / 2)), turned)
