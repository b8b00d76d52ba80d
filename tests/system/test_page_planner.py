"""the planner in headless Chromium: what it shows, its address, its commands, narrow screens, the chat beside it"""

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.server.ask import scripted
from tests.system.serving import MAIN, serving, write_model
from tests.system.visit import CONTRAST, ENGINE, Visit, at_door, visiting

pytestmark = [pytest.mark.system, pytest.mark.browser]


@pytest.fixture(scope="module")
def planner() -> Iterator[str]:
    """The address of a planner without an engine."""
    words = [sys.executable, "-c", MAIN, "plan", "--page", "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**os.environ}) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split()[-1]
        process.terminate()


@contextlib.contextmanager
def planning(browser: Browser, address: str, query: str = "", **context: Any) -> Iterator[Visit]:
    """The page of a planner, with a plan on it."""
    with visiting(browser, address, **context) as visit:
        visit.page.set_default_timeout(20_000)
        if query:
            visit.page.goto("about:blank")
            visit.page.goto(f"{address}/#plan?{query}")
            visit.addresses[:] = [url for url in visit.addresses if url != "about:blank"]
        expect(visit.page.locator(".count").first).to_be_visible(timeout=20_000)
        yield visit


def counts(page: Page) -> Locator:
    return page.locator(".much strong")


def field(page: Page, name: str) -> Locator:
    return page.locator("#asked").get_by_label(name, exact=True)


def test_the_planner_alone_shows_both_counts_of_the_published_comparison(browser: Browser, planner: str) -> None:
    with planning(browser, planner) as visit:
        page = visit.page
        expect(counts(page)).to_have_text(["76", "60"])
        expect(page.locator(".much .status")).to_have_text(["fitted", "fitted"])
        expect(page.locator("#plan-title")).to_have_text("m3.1-flash on 4 x NVIDIA B300 SXM, DEP4")
        expect(page.locator("#to-chat")).to_be_hidden()  # there is nobody to talk to
        expect(page.locator("#talk")).to_be_hidden()
        expect(page.get_by_role("heading", name="Frontier")).to_contain_text("extrapolated")
        expect(page.locator("#chart circle.best").first).to_be_visible()
        meanings = page.locator("#meanings")
        meanings.locator("summary").click()
        expect(meanings).to_contain_text("fittedan input was chosen after the number was seen")
        shown = page.locator(".status").all_text_contents()
        assert set(shown) <= set(meanings.locator("dt").all_text_contents())
        assert visit.problems == []


def test_what_is_typed_is_planned_and_stands_in_the_address(browser: Browser, planner: str) -> None:
    with planning(browser, planner) as visit:
        page = visit.page
        field(page, "Strategy").select_option("tp")
        field(page, "Devices").fill("8")
        field(page, "Context").fill("500K")
        expect(page.locator("#plan-title")).to_have_text("m3.1-flash on 8 x NVIDIA B300 SXM, TP8")
        expect(page.locator(".much").first).to_contain_text("sequences of 512,000 tokens")
        assert page.url == f"{planner}/#plan?strategy=tp&devices=8&context=500K"
        before = counts(page).all_text_contents()
        field(page, "Utilization").fill("0.95")
        expect(counts(page)).not_to_have_text(before)


def test_an_address_restores_a_plan(browser: Browser, planner: str) -> None:
    query = (
        "hardware=gb300&prefill=dep&context=200K&utilization=0.95&input=100K&output=1K&acceptance=3.2&watermark=0.05"
    )
    with planning(browser, planner, query) as visit:
        page = visit.page
        expect(field(page, "Hardware")).to_have_value("gb300")
        expect(field(page, "Prefill engine")).to_have_value("dep")
        expect(field(page, "Watermark")).to_have_value("0.05")  # one of those that are folded away
        expect(field(page, "Watermark")).to_be_visible()
        expect(page.get_by_role("heading", name="Prefill engine: 2 x NVIDIA GB300, DEP2")).to_be_visible()
        expect(page.locator("#load")).to_contain_text("prefill engines kept busy")
        first = counts(page).all_text_contents()
        page.reload()
        expect(counts(page)).to_have_text(first)
        page.evaluate("location.hash = '#plan?devices=8'")
        expect(page.locator("#plan-title")).to_have_text("m3.1-flash on 8 x NVIDIA B300 SXM, DEP8")
        expect(field(page, "Watermark")).to_have_value("")


def test_an_error_is_the_planners_sentence_and_the_plan_before_stays(browser: Browser, planner: str) -> None:
    with planning(browser, planner) as visit:
        page, alert = visit.page, visit.page.get_by_role("alert")
        expect(alert).to_have_count(0)
        field(page, "Acceptance").fill("9")
        expect(alert).to_have_text("Acceptance is 9; a step of this engine yields 1 to 8 tokens a sequence")
        expect(counts(page)).to_have_text(["76", "60"])
        field(page, "Acceptance").fill("3.2")
        expect(alert).to_have_count(0)
        field(page, "Strategy").select_option("tp")
        field(page, "Devices").fill("3")
        expect(alert).to_have_text("3 ranks do not divide the 64 attention heads; take a divisor")
    with visiting(browser, planner) as visit:  # an address that somebody made up
        visit.page.goto(f"{planner}/#plan?model=nobody")
        expect(visit.page.get_by_role("alert")).to_contain_text("Model is 'nobody'; it must be one of m3,")


def test_half_of_the_traffic_is_a_hint_and_an_address_with_more_is_refused(browser: Browser, planner: str) -> None:
    with planning(browser, planner, "hardware=gb300&input=8K") as visit:
        page, hint = visit.page, visit.page.locator("#plan-lacks")
        expect(hint).to_have_text("Traffic is not counted yet: Answer is empty.")
        expect(page.get_by_role("alert")).to_have_count(0)
        expect(page.locator("#plan-title")).to_have_text("m3.1-flash on 4 x NVIDIA GB300, DEP4")
        page.locator("#asked summary", has_text="Traffic").locator("..").evaluate("at => { at.open = true }")
        field(page, "Answer").fill("1K")
        expect(hint).to_be_hidden()
        expect(page.locator("#load")).to_contain_text("requests/s")
        expect(field(page, "Answer")).to_have_accessible_description("tokens of an answer: 1K")
        page.evaluate("location.hash = '#plan?hardwear=b300'")
        expect(page.get_by_role("alert")).to_contain_text("a plan has no 'hardwear'; it has model")
        field(page, "Devices").fill("8")
        expect(page.get_by_role("alert")).to_have_count(0)
        assert page.url == f"{planner}/#plan?devices=8"


@pytest.mark.parametrize("typed", ["#chat", "#planner", ""])
def test_a_planner_alone_shows_no_chat_whatever_is_typed(browser: Browser, planner: str, typed: str) -> None:
    with planning(browser, planner) as visit:
        page = visit.page
        page.evaluate("at => { location.hash = at }", typed)
        expect(page).to_have_url(f"{planner}/#plan")
        expect(page.locator("#talk")).to_be_hidden()
        expect(counts(page)).to_have_text(["76", "60"])
        page.goto("about:blank")
        page.goto(f"{planner}/{typed}")
        expect(page).to_have_url(f"{planner}/#plan")
        expect(counts(page)).to_have_text(["76", "60"])
        visit.addresses[:] = [url for url in visit.addresses if url != "about:blank"]


def test_the_title_of_an_axis_is_beside_its_numbers(browser: Browser, planner: str) -> None:
    with planning(browser, planner, viewport={"width": 320, "height": 800}) as visit:
        boxes = visit.page.locator("#chart text").evaluate_all(
            "all => all.map((at) => [at.getAttribute('transform'), at.getAttribute('text-anchor'),"
            " at.getBoundingClientRect().left, at.getBoundingClientRect().right])"
        )
        title = next(right for turned, _, _, right in boxes if turned)
        assert min(left for _, anchor, left, _ in boxes if anchor == "end") >= title


def test_a_command_is_copied_as_it_stands(browser: Browser, planner: str) -> None:
    with planning(
        browser, planner, "strategy=tp&devices=8", permissions=["clipboard-read", "clipboard-write"]
    ) as visit:
        page = visit.page
        for title, start in (
            ("Copy: This plan", "minnow plan m3.1-flash --hardware b300 --strategy tp8"),
            ("Copy: Minnow, serve", "minnow serve MiniMaxAI/MiniMax-M3.1-Flash \\\n  --block-size 128"),
            ("Copy: vLLM, serve", "VLLM_FLOAT32_MATMUL_PRECISION=high \\\nvllm serve MiniMaxAI/MiniMax-M3.1-Flash"),
        ):
            button = page.get_by_role("button", name=title)
            button.click()
            expect(button).to_have_text("Copied")
            copied = page.evaluate("navigator.clipboard.readText()")
            assert copied.startswith(start)
            assert copied == page.locator(".command", has=button).locator("code").text_content()
        expect(page.locator(".command .row .status")).to_have_text(["stated", "stated"])


def test_of_several_plans_on_their_way_the_last_is_shown(browser: Browser, planner: str) -> None:
    with planning(browser, planner) as visit:
        page = visit.page
        held: list[Any] = []
        page.route("**/plan?*devices=8*", lambda route: held.append(route))
        field(page, "Devices").fill("8")
        with page.expect_request("**/plan?*devices=8*"):
            pass
        field(page, "Devices").fill("2")
        expect(page.locator("#plan-title")).to_have_text("m3.1-flash on 2 x NVIDIA B300 SXM, DEP2")
        held[0].continue_()  # the earlier one's answer comes last
        page.wait_for_timeout(500)
        expect(page.locator("#plan-title")).to_have_text("m3.1-flash on 2 x NVIDIA B300 SXM, DEP2")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 1400])
def test_it_fits_any_screen_is_legible_and_everything_has_a_name(
    browser: Browser, planner: str, scheme: Any, width: int
) -> None:
    query = "hardware=gb300&prefill=dep&input=100K&output=1K&acceptance=3.2"
    size = {"width": width, "height": 800}
    with planning(browser, planner, query, viewport=size, color_scheme=scheme) as visit:
        page = visit.page
        for summary in page.locator("summary").all():
            summary.click()
        assert page.evaluate("document.documentElement.scrollWidth") == width
        for pane in ("#planner", "#plan", "#asked"):
            assert page.locator(pane).evaluate("at => at.scrollWidth - at.clientWidth") <= 0, pane
        words = "#planner :is(p, h2, h3, dt, dd, th, td, label, button, summary, .status, code, .hint, li)"
        ratios = page.locator(words).evaluate_all(CONTRAST)
        assert min(ratios) >= 4.5
        unnamed = """controls => controls.filter((at) => {
            const labels = [...(at.labels ?? [])].map((label) => label.textContent);
            const texts = [at.ariaLabel, at.labels ? '' : at.textContent, ...labels];
            return !texts.some((text) => text?.trim());
        }).map((at) => at.outerHTML)"""
        focusable = "#planner :is(a, button, input, select, summary, [tabindex='0'], [role=img])"
        assert page.locator(focusable).evaluate_all(unnamed) == []
        ids = page.evaluate("[...document.querySelectorAll('[id]')].map((at) => at.id)")
        assert len(ids) == len(set(ids))


def test_the_keyboard_is_enough(browser: Browser, planner: str) -> None:
    with planning(browser, planner) as visit:
        page = visit.page
        page.locator("#asked summary").first.focus()
        page.keyboard.press("Tab")
        expect(field(page, "Model")).to_be_focused()
        page.keyboard.press("Tab")
        page.keyboard.press("Tab")
        page.keyboard.press("Tab")
        page.keyboard.type("8")
        expect(page.locator("#plan-title")).to_have_text("m3.1-flash on 8 x NVIDIA B300 SXM, DEP8")


def test_the_chat_goes_on_beside_the_planner(browser: Browser, tmp_path: Path) -> None:
    model = write_model(tmp_path, max_position_embeddings=20_000)
    with serving(model, "--served-model-name", "tiny") as server, visiting(browser, server.address) as visit:
        page = visit.page
        page.get_by_role("button", name="Settings").click()
        page.get_by_label("Most tokens").fill("20")
        page.get_by_role("button", name="Close").click()
        visit.say("Hello")
        visit.wait_for_end()
        said = page.locator(".answer").inner_text()
        page.get_by_role("link", name="Planner").click()
        expect(counts(page)).to_have_text(["76", "60"], timeout=20_000)
        expect(page.locator("#question")).to_be_hidden()
        expect(page.get_by_role("button", name="New chat")).to_be_hidden()
        expect(page.get_by_role("link", name="Planner")).to_have_attribute("aria-current", "page")
        field(page, "Model").select_option("tiny")
        field(page, "Hardware").select_option("here")
        field(page, "Strategy").select_option("tp")
        field(page, "Devices").fill("1")
        expect(page.locator("#tables")).to_contain_text("No times: the sheet of here has no [")
        page.get_by_role("link", name="Chat").click()
        expect(page.locator("#question")).to_be_visible()
        assert page.locator(".answer").inner_text() == said
        page.go_back()
        expect(page.locator("#plan-title")).to_contain_text("this machine")


def test_a_server_without_a_planner_says_so(browser: Browser) -> None:
    with at_door(browser, scripted("ok", **ENGINE)) as visit:
        visit.page.get_by_role("link", name="Planner").click()
        expect(visit.page.get_by_role("alert")).to_have_text("GET /plan/choices is not served here")
        visit.page.get_by_role("link", name="Chat").click()
        expect(visit.page.locator("#question")).to_be_visible()
        assert re.search(r"#chat$", visit.page.url)
