"""how the page looks in headless Chromium: scrolling, narrow screens, contrast in both schemes"""

from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from tests.server.ask import scripted
from tests.system.visit import CONTRAST, ENGINE, at_door, release

pytestmark = [pytest.mark.system, pytest.mark.browser]


def test_a_reader_who_scrolled_up_is_left_alone(browser: Browser) -> None:
    engine = scripted("line\n" * 200, is_gated=True, **ENGINE)
    from_end = "at => at.scrollHeight - at.scrollTop - at.clientHeight"
    with at_door(browser, engine, viewport={"width": 600, "height": 400}) as visit:
        scroller = visit.page.locator("#scroller")
        visit.say("Many lines")
        release(engine, 500)
        expect(visit.page.locator(".numbers")).to_contain_text("500")
        assert scroller.evaluate(from_end) < 8
        expect(visit.page.locator("#to-end")).to_be_hidden()
        scroller.evaluate("at => { at.scrollTop = 50; }")
        release(engine, 501)
        visit.wait_for_end()
        assert scroller.evaluate("at => at.scrollTop") == 50
        visit.page.get_by_role("button", name="To the end").click()
        assert scroller.evaluate(from_end) < 8


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_narrow_screens_and_is_legible_in_both_schemes(browser: Browser, scheme: Any) -> None:
    text = f"{'word' * 50}\n\n```\n{'code ' * 50}\n```\n`{'x' * 90}`"
    engine = scripted(text, **ENGINE)
    with at_door(browser, engine, viewport={"width": 320, "height": 600}, color_scheme=scheme) as visit:
        visit.say("wide " * 20 + "w" * 100)
        visit.wait_for_end()
        page = visit.page
        page.get_by_role("button", name="Settings").click()
        page.locator("[name=temperature]").fill("-1")
        assert page.evaluate("document.documentElement.scrollWidth") == 320
        page.get_by_role("button", name="Close").click()
        visit.say("again")
        expect(page.get_by_role("alert")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") == 320
        assert page.locator("#scroller").evaluate("at => at.scrollWidth - at.clientWidth") == 0
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert ground == ("rgb(16, 22, 23)" if scheme == "dark" else "rgb(246, 248, 248)")
        ratios = page.locator("p, dd, dt, button, label, .question, .numbers, code, .hint").evaluate_all(CONTRAST)
        assert min(ratios) >= 4.5, ratios
