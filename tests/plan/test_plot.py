"""plots say what is on their axes, in which units, and are what their names say"""

import io
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from PIL import Image

from minnow.core.errors import ConfigError
from minnow.plan import plot
from minnow.plan.plot import Chart, Series

CHART = Chart(
    title="a < b & c",
    x_title="tokens/s for a user",
    y_title="tokens/s of a device",
    series=(
        Series(name="TP4", points=((120.0, 3000.0, "1"), (100.0, 9000.0, "4")), best=(True, False)),
        Series(name="DEP4", points=((75.0, 26_000.0, "16"), (40.0, 60_000.0, "64")), best=(True, True)),
    ),
)
SVG = "{http://www.w3.org/2000/svg}"


def test_an_svg_has_words_ticks_points_and_the_frontier() -> None:
    text = plot.svg(CHART)
    assert text.isascii() and len(text) < 10_000
    root = ET.fromstring(text)
    words = [element.text for element in root.iter(f"{SVG}text")]
    for word in ("a < b & c", "tokens/s for a user", "tokens/s of a device", "TP4", "DEP4", "64", "60K", "125"):
        assert word in words
    circles = [c for c in root.iter(f"{SVG}circle")]
    assert len(circles) == 4 + 3  # and those of the key
    assert sum(circle.get("fill") == "#ffffff" for circle in circles) == 2  # one is beaten, and the key shows it
    (frontier,) = [line for line in root.iter(f"{SVG}polyline") if line.get("stroke-dasharray")]
    assert len((frontier.get("points") or "").split()) == 3


def test_points_lie_where_their_values_are() -> None:
    root = ET.fromstring(plot.svg(CHART))
    places = [(float(c.get("cx") or 0), float(c.get("cy") or 0)) for c in root.iter(f"{SVG}circle")]
    (x0, y0), (x1, y1) = places[0], places[1]
    assert x0 > x1 and y0 > y1  # more for a user to the right, more of a device further up
    assert all(0 < x < 880 and 0 < y < 540 for x, y in places)


def test_a_png_is_a_picture_with_the_colors_in_it() -> None:
    image = Image.open(io.BytesIO(plot.png(CHART)))
    assert image.size == (1760, 1080) and image.format == "PNG"
    found = {color for _, color in image.getcolors(1 << 20) or []}
    assert {(0x1F, 0x6F, 0x8B), (0xD1, 0x49, 0x5B), (255, 255, 255)} <= found


@pytest.mark.parametrize(
    ("most", "last", "count"), [(125, 125, 6), (1, 1.0, 6), (60_000, 60_000, 4), (0, 1.0, 2), (0.3, 0.3, 4)]
)
def test_ticks_are_round_and_reach_the_most(most: float, last: float, count: int) -> None:
    found = plot.ticks(most)
    assert found[0] == 0 and found[-1] == pytest.approx(last) and len(found) == count


def test_files_by_their_names(tmp_path: Path) -> None:
    for name in ("a.svg", "a.PNG"):
        plot.save(CHART, tmp_path / name)
        assert (tmp_path / name).stat().st_size > 1000
    with pytest.raises(ConfigError, match=r"--plot is 'a.pdf'; name a file that ends in .svg or .png"):
        plot.save(CHART, Path("a.pdf"))
    with pytest.raises(ConfigError, match="is no directory; make it first"):
        plot.check(tmp_path / "none" / "a.svg")
