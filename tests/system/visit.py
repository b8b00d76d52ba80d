"""somebody who has the page open in Chromium, and what they do there"""

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.server.scripted import ScriptedEngine
from tests.server.test_listen import serving as door_serving
from tools.browser import find as find_browser

FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()
ENGINE = {"max_model_len": 4000}
METRICS = """\
# HELP vllm:kv_cache_usage_perc share of the cache
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="a } b"} 0.37
vllm:num_requests_running{engine="0",model_name="a } b"} 3.0
vllm:num_requests_waiting{engine="0",model_name="a } b"} 1.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 7.0
vllm:generation_tokens_total{engine="0",model_name="a } b"} TOTAL
"""
# Of texts against the first ground behind them that is not transparent, as WCAG defines it.
CONTRAST = """elements => elements.map((element) => {
    const luminance = (colour) => {
        const parts = colour.match(/[\\d.]+/g).slice(0, 3).map((part) => part / 255);
        const [r, g, b] = parts.map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    let behind = element;
    while (/, 0\\)$/.test(getComputedStyle(behind).backgroundColor)) behind = behind.parentElement;
    const both = [getComputedStyle(element).color, getComputedStyle(behind).backgroundColor].map(luminance);
    return (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05);
})"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """A page that somebody has opened, and what it did.

    Attributes:
        bodies: of its chat requests, as text.
        problems: errors in its console, exceptions, dialogs, requests that failed.
    """

    page: Page
    bodies: list[str] = field(default_factory=list)
    addresses: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def say(self, text: str) -> None:
        """Send a message by the keyboard."""
        self.page.locator("#question").fill(text)
        self.page.locator("#question").press("Enter")

    def wait_for_end(self, num_answers: int = 1) -> None:
        """Wait until nothing streams and so many answers are there."""
        expect(self.page.locator(".exchange")).to_have_count(num_answers)
        expect(self.page.locator("#send")).to_have_text("Send")

    def body(self) -> dict[str, Any]:
        """The last chat request."""
        found: dict[str, Any] = json.loads(self.bodies[-1])
        return found


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """A browser that asks the page's server only."""
    path = find_browser()
    assert path is not None, "these tests drive Debian's chromium: apt-get install chromium"
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield opened
        opened.close()


@contextlib.contextmanager
def visiting(browser: Browser, address: str, *, has_metrics: bool = False, **context: Any) -> Iterator[Visit]:
    """Open the page; metrics and version are canned, unless the server's own are wanted."""
    opened = browser.new_context(**context)
    page = opened.new_page()
    page.set_default_timeout(10_000)
    visit = Visit(page=page)
    page.on("console", lambda line: visit.problems.append(line.text) if line.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: visit.problems.append(str(error)))
    page.on("requestfailed", lambda request: visit.problems.append(f"{request.url}: {request.failure}"))
    page.on("request", lambda request: visit.addresses.append(request.url))
    page.on("request", lambda sent: visit.bodies.append(sent.post_data) if sent.post_data else None)
    if not has_metrics:
        page.route("**/metrics", lambda route: route.fulfill(body=METRICS.replace("TOTAL", "0")))
        page.route("**/version", lambda route: route.fulfill(json={"version": "1.2.3"}))
    page.goto(address)
    try:
        yield visit
        assert all(url.startswith(address) for url in visit.addresses)
        # Refusals are logged by the browser, and requests that the page itself ends count as failed.
        expected = re.compile(r"Failed to load resource|.*ERR_ABORTED$")
        assert [problem for problem in visit.problems if not expected.match(problem)] == []
    finally:
        opened.close()


@contextlib.contextmanager
def at_door(browser: Browser, engine: ScriptedEngine, api_key: str | None = None, **context: Any) -> Iterator[Visit]:
    """The page of a server over a scripted engine."""
    with door_serving(engine, api_key=api_key) as address, visiting(browser, address, **context) as visit:
        yield visit


def release(engine: ScriptedEngine, num_steps: int) -> None:
    """Let a gated engine take so many steps."""
    for _ in range(num_steps):
        engine.gate.release()


def wait_until(page: Page, is_true: Callable[[], bool]) -> None:
    """Wait for something outside the page, for some seconds."""
    for _ in range(600):
        if is_true():
            return
        page.wait_for_timeout(10)
    pytest.fail("it did not happen")


def numbers_like(pattern: str) -> re.Pattern[str]:
    """Of the line below an answer, whose blanks do not break."""
    return re.compile(pattern.replace(" ", r"\s"))


def events(*chunks: dict[str, Any]) -> str:
    """A canned stream."""
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"


def delta(**fields: str) -> dict[str, Any]:
    """A chunk of one."""
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": None}]}
