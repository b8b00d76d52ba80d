"""the page in headless Chromium, over scripted engines and over a real server"""

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Route, expect

from tests.server.ask import MODEL_NAME, scripted
from tests.system.serving import serving, write_model
from tests.system.visit import (
    ENGINE,
    METRICS,
    at_door,
    delta,
    events,
    numbers_like,
    release,
    visiting,
    wait_until,
)

pytestmark = [pytest.mark.system, pytest.mark.browser]


def test_the_page_loads_cleanly_and_says_what_is_served(browser: Browser) -> None:
    with at_door(browser, scripted("ok", **ENGINE)) as visit:
        expect(visit.page.locator("#served")).to_have_text(f"{MODEL_NAME} 4,000 tokens of context 1.2.3")
        expect(visit.page).to_have_title(f"{MODEL_NAME} - Minnow")
        expect(visit.page.locator("#question")).to_be_focused()
        assert visit.problems == []


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
        expect(numbers).to_have_text(numbers_like(r"^first token [\d.]+ m?s . [\d.]+ tokens/s . 5 tokens$"))
        expect(visit.page.locator("#chat")).to_have_attribute("aria-busy", "true")
        release(engine, 7)
        expect(answer).to_have_text("Hello there")
        whole = r"^first token [\d.]+ m?s . [\d.]+ tokens/s . 12 tokens . prompt 24 tokens, 2 cached$"
        expect(numbers).to_have_text(numbers_like(whole))
        expect(visit.page.locator("#chat")).to_have_attribute("aria-busy", "false")
        assert visit.problems == []


def test_stop_ends_the_request_and_keeps_the_text(browser: Browser) -> None:
    engine = scripted("Hello there", is_gated=True, **ENGINE)
    with at_door(browser, engine) as visit:
        answer = visit.page.locator(".answer")
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
            release(engine, 1)  # an abort comes between two steps
            wait_until(visit.page, lambda: len(engine.aborted_at) == len(visit.bodies))
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


def test_settings_are_sent_as_they_are_typed_and_outlast_the_visit(browser: Browser) -> None:
    given = {
        "temperature": "0.7", "top_p": "0.90", "top_k": "40", "min_p": ".05", "max_tokens": "3",
        "seed": "9007199254740993", "repetition_penalty": "1.1", "presence_penalty": "-0.5",
        "frequency_penalty": "5e-1",
    }  # fmt: skip
    engine = scripted("Paris", **ENGINE)
    with at_door(browser, engine) as visit:
        visit.page.get_by_role("button", name="Settings").click()
        for name, text in given.items():
            visit.page.locator(f"[name={name}]").fill(text)
        visit.page.get_by_label("System prompt").fill("Be brief.")
        visit.page.get_by_label("Stop strings").fill("END\n\\n\\n\n\n\\\\n")
        visit.page.reload()
        expect(visit.page.get_by_role("button", name="Settings (11)")).to_be_visible()
        visit.say("Capital?")
        visit.wait_for_end()
        body = visit.body()
        assert {name: float(body[name]) for name in given} == {name: float(text) for name, text in given.items()}
        assert body["stop"] == ["END", "\n\n", "\\n"]
        assert body["messages"][0] == {"role": "system", "content": "Be brief."}
        assert engine.added[-1].sampling.seed == 9007199254740993  # more than a float can hold
        expect(visit.page.locator(".answer")).to_have_text("Par")
        expect(visit.page.locator(".numbers")).to_have_text(numbers_like("cut off by the limit$"))
        visit.page.get_by_role("button", name="Settings (11)").click()
        visit.page.get_by_role("button", name="Reset").click()
        visit.page.get_by_role("button", name="Regenerate").click()
        visit.wait_for_end()
        assert set(visit.body()) == {"model", "messages", "stream", "stream_options"}
        assert visit.page.evaluate("localStorage['minnow.settings']") == "{}"


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [("temperature", "-1", "temperature is -1.0; it must be"), ("top_k", "many", "top_k does not fit: expected")],
)
def test_a_bad_setting_is_answered_with_the_servers_sentence(
    browser: Browser, name: str, text: str, sentence: str
) -> None:
    with at_door(browser, scripted("Paris", **ENGINE)) as visit:
        visit.page.get_by_role("button", name="Settings").click()
        visit.page.locator(f"[name={name}]").fill(text)
        visit.say("Capital?")
        expect(visit.page.get_by_role("alert")).to_contain_text(sentence)
        expect(visit.page.locator(f"[name={name}]")).to_have_attribute("aria-invalid", "true")
        visit.page.locator(f"[name={name}]").fill("")
        expect(visit.page.locator("[aria-invalid]")).to_have_count(0)
        visit.page.get_by_role("button", name="Try again").click()
        expect(visit.page.locator(".answer")).to_have_text("Paris")
        expect(visit.page.locator(".error")).to_be_hidden()


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


def test_a_server_that_loads_goes_or_comes_back_is_spoken_of(browser: Browser) -> None:
    words = {"error": {"message": "the engine loads the model: 40 %", "type": "server_error"}}
    with at_door(browser, scripted("Paris", **ENGINE)) as visit:
        page, notice = visit.page, visit.page.locator("#notice")
        expect(page.locator("#model")).to_have_text(MODEL_NAME)
        expect(notice).to_be_hidden()
        page.route("**/metrics", lambda route: route.abort())
        page.route("**/v1/**", lambda route: route.abort())
        expect(notice).to_have_text("the server does not answer; see whether it still runs")
        visit.say("Capital?")
        expect(page.get_by_role("alert")).to_have_text("the server does not answer; see whether it still runs")
        page.route("**/v1/**", lambda route: route.fulfill(status=503, json=words))
        expect(notice).to_have_text("the engine loads the model: 40 %")
        page.get_by_role("button", name="Try again").click()
        expect(page.get_by_role("alert")).to_have_text("the engine loads the model: 40 %")
        page.unroute("**/v1/**")
        page.route("**/metrics", lambda route: route.fulfill(status=502, body="<html>"))
        expect(notice).to_be_hidden()
        expect(page.locator("#no-numbers")).to_have_text("No numbers: the server answered with status 502")
        page.get_by_role("button", name="Try again").click()
        expect(page.locator(".answer")).to_have_text("Paris")
        visit.problems.clear()


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
        visit.say("Code, please")
        visit.wait_for_end()
        for place, copied in ((".exchange footer", text), (".code", "x = 1")):
            visit.page.locator(place).get_by_role("button", name="Copy").click()
            expect(visit.page.locator(place).get_by_text("Copied")).to_be_visible()
            assert visit.page.evaluate("navigator.clipboard.readText()") == copied
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


def test_the_live_strip_reads_the_metrics(browser: Browser) -> None:
    totals = iter(range(100, 10**6, 500))

    def answer(route: Route) -> None:
        route.fulfill(body=METRICS.replace("TOTAL", f"{next(totals)}.0"))

    with at_door(browser, scripted("ok", **ENGINE)) as visit:
        live = visit.page.locator("#live")
        expect(live).to_have_text(re.compile(r"Cache\s+37 %\s+Running 3\s+Waiting 1\s+Tokens/s 0\s"))
        assert visit.page.locator("#cache-bar").evaluate("bar => bar.value") == 0.37
        visit.page.route("**/metrics", answer)
        expect(visit.page.locator("#speed")).to_have_text(re.compile(r"^([1-4]\d\d|500)$"))  # 500 in a second or more
        visit.page.route("**/metrics", lambda route: route.fulfill(status=404, body=""))
        expect(visit.page.get_by_text("No numbers: the server answered with status 404")).to_be_visible()
        expect(visit.page.locator("#cache-bar")).to_be_hidden()


def test_nobody_is_asked_for_numbers_that_nobody_sees(browser: Browser) -> None:
    with at_door(browser, scripted("ok", **ENGINE)) as visit:
        page = visit.page
        page.clock.install()
        page.reload()
        expect(page.locator("#running")).to_have_text("3")

        def num_asked() -> int:
            return sum(url.endswith("/metrics") for url in visit.addresses)

        before = num_asked()
        page.clock.run_for(1000)
        wait_until(page, lambda: num_asked() == before + 1)
        page.evaluate("Object.defineProperty(document, 'hidden', { value: true, configurable: true })")
        page.clock.run_for(60_000)
        page.evaluate("fetch('/health')")  # later than what the clock has set off
        assert num_asked() == before + 1
        page.evaluate("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
        wait_until(page, lambda: num_asked() == before + 2)


def test_the_key_is_asked_for_and_kept_for_the_tab_alone(browser: Browser) -> None:
    key = "s\u00e9cret \u2603"
    with at_door(browser, scripted("Paris", **ENGINE), api_key=key) as visit:
        dialog, model = visit.page.get_by_role("dialog"), visit.page.locator("#model")
        expect(dialog).to_contain_text("the API key is missing or wrong")
        visit.page.keyboard.press("Escape")
        expect(dialog).to_be_hidden()
        expect(visit.page.locator("#notice")).to_contain_text("the API key is missing or wrong")
        visit.say("Capital?")
        for text in ("wrong", key):
            expect(dialog).to_be_visible()
            expect(dialog.get_by_label("API key")).to_have_value("")
            dialog.get_by_label("API key").fill(text)
            visit.page.keyboard.press("Enter")
        expect(visit.page.locator(".answer")).to_have_text("Paris")
        expect(model).to_have_text(MODEL_NAME)
        visit.page.reload()
        expect(model).to_have_text(MODEL_NAME)
        expect(dialog).to_be_hidden()
        assert visit.page.evaluate("Object.values(sessionStorage)") == [key]
        assert key not in str(visit.page.evaluate("[Object.values(localStorage), document.cookie]"))


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


def test_a_chat_with_a_real_server(browser: Browser, tmp_path: Path) -> None:
    with serving(write_model(tmp_path)) as server, visiting(browser, server.address, has_metrics=True) as visit:
        page = visit.page
        expect(page.locator("#served")).to_have_text(re.compile(r"^\S+ [\d,]+ tokens of context \d+\.\d+"))
        expect(page.locator("#live")).to_have_text(re.compile(r"Cache\s+0 %\s+Running 0\s+Waiting 0\s+Tokens/s 0\s"))
        page.get_by_role("button", name="Settings").click()
        page.get_by_label("Temperature").fill("0")
        visit.say("Hello " * 30)
        expect(page.locator("#running")).to_have_text("1")
        expect(page.locator("#cache")).not_to_have_text("0 %")
        expect(page.locator("#speed")).not_to_have_text("0")
        page.get_by_role("button", name="Stop").click()
        expect(page.locator("#running")).to_have_text("0")
        told = r"^first token .* tokens/s . [\d,]+ tokens . prompt \d+ tokens, 0 cached . stopped$"
        expect(page.locator(".numbers")).to_have_text(numbers_like(told))
        first = page.locator(".answer").inner_text()
        page.get_by_label("Most tokens").fill("50")
        page.get_by_role("button", name="Regenerate").click()
        visit.wait_for_end()
        told = r" 50 tokens . prompt \d+ tokens, [1-9]\d* cached . cut off by the limit$"
        expect(page.locator(".numbers")).to_have_text(numbers_like(told))
        assert first.startswith(page.locator(".answer").inner_text()[:20])
        assert [problem for problem in visit.problems if "ERR_ABORTED" not in problem] == []
