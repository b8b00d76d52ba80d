"""the page in headless Chromium: what is said, and how answers are shown"""

import re

import pytest
from playwright.sync_api import Browser, expect

from tests.server.ask import MODEL_NAME, scripted
from tests.system.visit import ENGINE, at_door, delta, events, numbers_like, release, wait_until

pytestmark = [pytest.mark.system, pytest.mark.browser]


def test_an_answer_appears_piece_by_piece_with_its_numbers(browser: Browser) -> None:
    engine = scripted("Hello there", is_gated=True, **ENGINE)
    engine.num_cached_tokens = 2
    with at_door(browser, engine) as visit:
        answer, numbers = visit.page.locator(".answer"), visit.page.locator(".numbers")
        visit.say("Greet me")
        expect(numbers).to_have_text("waiting for the first token")
        release(engine, 1)
        expect(answer).to_have_text("H")
        release(engine, 4)
        expect(answer).to_have_text("Hello")
        assert not engine.is_idle
        expect(numbers).to_have_text(numbers_like(r"^first token [\d.]+ m?s . [\d.,]+ tokens/s . 5 tokens$"))
        expect(visit.page.locator("#chat")).to_have_attribute("aria-busy", "true")
        release(engine, 7)
        expect(answer).to_have_text("Hello there")
        whole = r"^first token [\d.]+ m?s . [\d.,]+ tokens/s . 12 tokens . prompt 24 tokens, 2 cached$"
        expect(numbers).to_have_text(numbers_like(whole))
        expect(visit.page.locator("#chat")).to_have_attribute("aria-busy", "false")
        assert visit.problems == []


def test_stop_ends_the_request_and_keeps_the_text(browser: Browser) -> None:
    engine = scripted("Hello" + " there" * 200, is_gated=True, **ENGINE)
    with at_door(browser, engine) as visit:
        answer = visit.page.locator(".answer")

        def is_aborted() -> bool:
            """Let steps go on: an abort comes between two of them, and some may pass before the server hears of it."""
            if engine.is_at_gate:
                release(engine, 1)
            return len(engine.aborted_at) == len(visit.bodies)

        for num, by_key in enumerate((False, True), 1):
            visit.say("Greet me")
            release(engine, 5)
            expect(answer.last).to_have_text("Hello")
            if by_key:
                visit.page.keyboard.press("Escape")
            else:
                visit.page.get_by_role("button", name="Stop").click()
            visit.wait_for_end(num)
            expect(visit.page.locator(".numbers").last).to_have_text(re.compile("stopped$"))
            expect(visit.page.locator(".error:visible")).to_have_count(0)
            wait_until(visit.page, is_aborted)
            while engine.gate.acquire(blocking=False):
                pass  # no step of the next request is free
            expect(answer.last).to_have_text("Hello")


def test_every_turn_sends_the_conversation_so_far(browser: Browser) -> None:
    with at_door(browser, scripted("Paris", **ENGINE)) as visit:
        visit.say("Capital of France?")
        visit.wait_for_end()
        visit.say("  Sure?\nReally? ")
        visit.wait_for_end(2)
        first, second = {"role": "user", "content": "Capital of France?"}, {"role": "assistant", "content": "Paris"}
        history = [first, second, {"role": "user", "content": "  Sure?\nReally? "}]
        assert visit.body() == {
            "model": MODEL_NAME,
            "messages": history,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        visit.page.get_by_role("button", name="Regenerate").click()
        visit.wait_for_end(2)
        assert len(visit.bodies) == 3
        assert visit.body()["messages"] == history
        visit.page.get_by_role("button", name="New chat").click()
        expect(visit.page.locator(".exchange")).to_have_count(0)
        visit.say("Anew")
        visit.wait_for_end()
        assert visit.body()["messages"] == [{"role": "user", "content": "Anew"}]


def test_errors_in_mid_stream_keep_the_text_and_say_what_happened(browser: Browser) -> None:
    engine = scripted("Hello there", is_gated=True, **ENGINE)
    with at_door(browser, engine) as visit:
        visit.say("Greet me")
        release(engine, 5)
        expect(visit.page.locator(".answer")).to_have_text("Hello")
        engine.failing_ids.add(engine.added[-1].request_id)
        release(engine, 1)
        expect(visit.page.get_by_role("alert")).to_contain_text("logits are not finite")
        expect(visit.page.locator(".answer")).to_have_text("Hello")
        cut = events(delta(content="Hel")).removesuffix("data: [DONE]\n\n")
        visit.page.route("**/chat/completions", lambda route: route.fulfill(body=cut))
        visit.page.get_by_role("button", name="Try again").click()
        expect(visit.page.get_by_role("alert")).to_have_text("the stream broke off before its end")
        expect(visit.page.locator(".answer")).to_have_text("Hel")


def test_model_text_is_never_markup(browser: Browser) -> None:
    text = (
        "<img src=x onerror=alert(1)> <b>a</b> **bold** `<i>` [x](javascript:alert(1))\n\n"
        "```html\n<script>alert(2)</script>\n\n  two ** stars **\n```\nafter\n\n```\nopen"
    )
    with at_door(browser, scripted(text, **ENGINE)) as visit:
        visit.page.on("dialog", lambda dialog: visit.problems.append(dialog.message))
        visit.say("<img src=x onerror=alert(3)>")
        visit.wait_for_end()
        answer = visit.page.locator(".answer")
        expect(visit.page.locator(".question")).to_have_text("<img src=x onerror=alert(3)>")
        assert visit.page.locator("#chat :is(img, b, i, a, script)").count() == 0
        assert answer.locator("p").all_text_contents() == [
            "<img src=x onerror=alert(1)> <b>a</b> bold <i> [x](javascript:alert(1))", "after",
        ]  # fmt: skip
        assert answer.locator("pre").all_text_contents() == [
            "<script>alert(2)</script>\n\n  two ** stars **", "open",
        ]  # fmt: skip
        assert answer.locator("strong").all_text_contents() == ["bold"]
        assert visit.problems == []


def test_whole_answers_and_code_are_copied(browser: Browser) -> None:
    text = "See `it`:\n\n```python\nx = 1\n```"
    with at_door(browser, scripted(text, **ENGINE), permissions=["clipboard-read", "clipboard-write"]) as visit:
        visit.page.clock.install()
        visit.say("Code, please")
        visit.wait_for_end()
        for place, copied in ((".exchange footer", text), (".code", "x = 1")):
            visit.page.locator(place).get_by_role("button", name="Copy").click()
            expect(visit.page.locator(place).get_by_text("Copied")).to_be_visible()
            assert visit.page.evaluate("navigator.clipboard.readText()") == copied
            visit.page.clock.fast_forward(1500)
        # Browsers have no such object on plain http from another machine.
        visit.page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
        visit.page.locator(".exchange footer").get_by_role("button", name="Copy").click()
        expect(visit.page.locator("textarea")).to_have_count(3)
        visit.page.locator("#question").press("Control+v")
        expect(visit.page.locator("#question")).to_have_value(text)


def test_reasoning_is_folded(browser: Browser) -> None:
    thinking = [delta(role="assistant", content=""), delta(reasoning="Let me "), delta(reasoning_content="think.")]
    with at_door(browser, scripted("", **ENGINE)) as visit:
        body = events(*thinking, delta(content="42"))
        visit.page.route("**/chat/completions", lambda route: route.fulfill(body=body))
        visit.say("Why?")
        expect(visit.page.locator(".answer")).to_have_text("42")
        expect(visit.page.get_by_text("Let me think.")).to_be_hidden()
        visit.page.get_by_text("Reasoning").click()
        expect(visit.page.get_by_text("Let me think.")).to_be_visible()


def test_the_keyboard_is_enough(browser: Browser) -> None:
    with at_door(browser, scripted("Paris", **ENGINE)) as visit:
        keyboard, focused = visit.page.keyboard, visit.page.locator(":focus")
        keyboard.type("one")
        keyboard.press("Shift+Enter")
        keyboard.type("two")
        keyboard.press("Enter")
        visit.wait_for_end()
        assert visit.body()["messages"] == [{"role": "user", "content": "one\ntwo"}]
        expect(focused).to_have_id("question")
        keyboard.press("Enter")  # nothing to say
        keyboard.press("Shift+Tab")
        expect(focused).to_have_text("Regenerate")
        keyboard.press("Enter")
        visit.wait_for_end()
        expect(focused).to_have_id("question")
        while focused.get_attribute("id") != "settings-button":
            keyboard.press("Shift+Tab")
        expect(focused).to_have_attribute("aria-expanded", "false")
        keyboard.press("Enter")
        expect(focused).to_have_attribute("name", "system")
        expect(visit.page.locator("#settings-button")).to_have_attribute("aria-expanded", "true")
        keyboard.press("Escape")
        expect(visit.page.locator("#settings")).to_be_hidden()
        expect(focused).to_have_id("settings-button")
        keyboard.press("Tab")
        keyboard.press("Enter")  # a new chat
        expect(visit.page.locator(".exchange")).to_have_count(0)
        expect(focused).to_have_id("question")
        assert len(visit.bodies) == 2


def test_blocks_that_stream_in_end_up_as_those_that_come_at_once(browser: Browser) -> None:
    text = (
        "one\nline\n\n```py\nx = `1`\n\ny\n```\n``\n```a`b` **c**\n```c d\nz\n```\n```\n\n```\n\n"
        + "- `item` of **many**\n" * 250
    )
    shown = "at => [...at.children].map((node) => [node.className, node.innerHTML])"
    found = []
    with at_door(browser, scripted(text, tokens_a_step=9, max_model_len=20_000)) as visit:
        visit.say("Blocks")
        visit.wait_for_end()
        found.append(visit.page.locator(".answer").evaluate(shown))
        body = events(delta(content=text))
        visit.page.route("**/chat/completions", lambda route: route.fulfill(body=body))
        visit.page.get_by_role("button", name="Regenerate").click()
        expect(visit.page.locator(".numbers")).to_have_text(numbers_like(r"^first token [\d.]+ m?s$"))
        visit.wait_for_end()
        found.append(visit.page.locator(".answer").evaluate(shown))
    assert found[0] == found[1]
    assert [kind for kind, _ in found[0]] == ["text", "code", "text", "code", "code", "text", "text on", "text on"]


def test_a_code_block_is_labelled_as_soon_as_its_language_is_whole(browser: Browser) -> None:
    engine = scripted("```python\nx = 1\n```\n", is_gated=True, **ENGINE)
    with at_door(browser, engine) as visit:
        label = visit.page.locator(".code span")
        visit.say("Code, please")
        for num_steps, language in ((3, ""), (2, "py"), (8, "python")):
            release(engine, num_steps)
            expect(label).to_have_count(1)
            expect(label).to_have_text(language)


def test_what_is_shown_stays_while_more_comes_in(browser: Browser) -> None:
    engine = scripted("See `it`:\n\n```\nx = 1\ny = 2\n```\nAfter.", is_gated=True, **ENGINE)
    with at_door(browser, engine) as visit:
        code = visit.page.locator(".code code")
        visit.say("Code, please")
        release(engine, 21)
        expect(code).to_have_text("x = 1")
        code.evaluate("at => getSelection().selectAllChildren(at)")
        release(engine, len("y = 2\n``"))
        expect(code).to_have_text("x = 1\ny = 2\n``")  # the last two may be of the code, or begin its end
        release(engine, 100)
        visit.wait_for_end()
        expect(code).to_have_text("x = 1\ny = 2")
        assert visit.page.evaluate("getSelection().toString()").startswith("x = 1")


@pytest.mark.parametrize("text", ["`a` " * 70_000, "`a`\n" * 20_000], ids=["one line", "lines"])
def test_very_long_answers_leave_the_page_alive(browser: Browser, text: str) -> None:
    with at_door(browser, scripted("ok", **ENGINE)) as visit:
        body = events(delta(content=text))
        visit.page.route("**/chat/completions", lambda route: route.fulfill(body=body))
        visit.say("At length")
        visit.wait_for_end()
        paragraphs = visit.page.locator(".answer > p")
        most = paragraphs.evaluate_all("nodes => Math.max(...nodes.map((node) => node.childNodes.length))")
        assert most <= 1100  # what a frame shows anew
        shown = "nodes => nodes.reduce((total, node) => total + node.textContent.match(/a/g).length, 0)"
        assert paragraphs.evaluate_all(shown) == text.count("a")
        visit.page.unroute("**/chat/completions")
        visit.page.get_by_role("button", name="Regenerate").click()
        expect(visit.page.locator(".answer")).to_have_text("ok")
        visit.wait_for_end()
        assert visit.problems == []
