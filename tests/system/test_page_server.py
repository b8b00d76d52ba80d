"""the page in headless Chromium: its settings, the key, and what it tells of its server"""

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Route, expect

from tests.server.ask import MODEL_NAME, scripted
from tests.system.serving import serving, write_model
from tests.system.visit import ENGINE, METRICS, at_door, numbers_like, visiting, wait_until

pytestmark = [pytest.mark.system, pytest.mark.browser]


def test_the_page_loads_cleanly_and_says_what_is_served(browser: Browser) -> None:
    with at_door(browser, scripted("ok", **ENGINE)) as visit:
        expect(visit.page.locator("#served")).to_have_text(f"{MODEL_NAME} 4,000 tokens of context 1.2.3")
        expect(visit.page).to_have_title(f"{MODEL_NAME} - Minnow")
        expect(visit.page.locator("#question")).to_be_focused()
        assert visit.problems == []


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


def test_a_bad_setting_is_answered_with_the_servers_sentence(browser: Browser) -> None:
    bad = [("temperature", "-1", "temperature is -1.0; it must be"), ("top_k", "many", "top_k does not fit: expected")]
    with at_door(browser, scripted("Paris", **ENGINE)) as visit:
        visit.page.get_by_role("button", name="Settings").click()
        for num, (name, text, sentence) in enumerate(bad, 1):
            field = visit.page.locator(f"[name={name}]")
            field.fill(text)
            visit.say("Capital?")
            expect(visit.page.get_by_role("alert")).to_contain_text(sentence)
            expect(field).to_have_attribute("aria-invalid", "true")
            field.fill("")
            expect(visit.page.locator("[aria-invalid]")).to_have_count(0)
            visit.page.get_by_role("button", name="Try again").click()
            visit.wait_for_end(num)
            expect(visit.page.locator(".answer").last).to_have_text("Paris")
            expect(visit.page.locator(".error:visible")).to_have_count(0)


def test_a_server_that_loads_goes_or_comes_back_is_spoken_of(browser: Browser) -> None:
    words = {"error": {"message": "the engine loads the model: 40 %", "type": "server_error"}}
    with at_door(browser, scripted("Paris", **ENGINE)) as visit:
        page, notice = visit.page, visit.page.locator("#notice")
        page.clock.install()
        page.reload()
        expect(page.locator("#running")).to_have_text("3")
        expect(notice).to_be_hidden()
        page.route("**/metrics", lambda route: route.abort())
        page.route("**/v1/**", lambda route: route.abort())
        page.clock.fast_forward(3000)
        expect(notice).to_have_text("the server does not answer; see whether it still runs")
        visit.say("Capital?")
        expect(page.get_by_role("alert")).to_have_text("the server does not answer; see whether it still runs")
        page.route("**/v1/**", lambda route: route.fulfill(status=503, json=words))
        page.clock.fast_forward(3000)
        expect(notice).to_have_text("the engine loads the model: 40 %")
        page.get_by_role("button", name="Try again").click()
        expect(page.get_by_role("alert")).to_have_text("the engine loads the model: 40 %")
        page.unroute("**/v1/**")
        page.route("**/metrics", lambda route: route.fulfill(status=502, body="<html>"))
        page.clock.fast_forward(3000)
        expect(notice).to_be_hidden()
        expect(page.locator("#no-numbers")).to_have_text("No numbers: the server answered with status 502")
        page.get_by_role("button", name="Try again").click()
        expect(page.locator(".answer")).to_have_text("Paris")
        visit.problems.clear()


def test_the_live_strip_reads_the_metrics(browser: Browser) -> None:
    totals = iter(range(100, 10**9, 50_000))

    def answer(route: Route) -> None:
        route.fulfill(body=METRICS.replace("TOTAL", f"{next(totals)}.0"))

    with at_door(browser, scripted("ok", **ENGINE)) as visit:
        page, live = visit.page, visit.page.locator("#live")
        page.clock.install()
        page.reload()
        expect(live).to_have_text(re.compile(r"Cache\s+37 %\s+Running 3\s+Waiting 1\s+Tokens/s 0\s"))
        assert page.locator("#cache-bar").evaluate("bar => bar.value") == 0.37
        page.route("**/metrics", answer)
        page.clock.fast_forward(1000)
        expect(page.locator("#speed")).not_to_have_text("0")  # 100 in a second or more
        page.clock.fast_forward(1000)
        expect(page.locator("#speed")).to_have_text(re.compile(r"^[1-5]\d,\d{3}$"))  # 50,000 in a second or more
        page.route("**/metrics", lambda route: route.fulfill(status=404, body=""))
        page.clock.fast_forward(1000)
        expect(page.get_by_text("No numbers: the server answered with status 404")).to_be_visible()
        expect(page.locator("#cache-bar")).to_be_hidden()


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
        expect(dialog).to_contain_text("Whoever runs the server knows it.")
        visit.page.keyboard.press("Escape")
        expect(dialog).to_be_hidden()
        expect(visit.page.locator("#notice")).to_contain_text("the API key is missing or wrong")
        visit.say("Capital?")
        for text in ("wrong", key):
            expect(dialog).to_be_visible()
            expect(dialog.get_by_label("API key")).to_have_value("")
            expect(dialog).to_contain_text("Whoever" if text == "wrong" else "missing or wrong")
            dialog.get_by_label("API key").fill(text)
            visit.page.keyboard.press("Enter")
        expect(visit.page.locator(".answer")).to_have_text("Paris")
        expect(model).to_have_text(MODEL_NAME)
        visit.page.reload()
        expect(model).to_have_text(MODEL_NAME)
        expect(dialog).to_be_hidden()
        assert visit.page.evaluate("Object.values(sessionStorage)") == [key]
        assert key not in str(visit.page.evaluate("[Object.values(localStorage), document.cookie]"))


def test_settings_that_somebody_has_broken_are_not_those_of_the_page(browser: Browser) -> None:
    mixed = '{"temperature": null, "top_p": 0.5, "top_k": {}, "seed": "5"}'
    with at_door(browser, scripted("Paris", **ENGINE)) as visit:
        for kept in ("null", "7", '"text"', "[1]", "{", mixed):
            visit.page.evaluate("kept => { localStorage['minnow.settings'] = kept; }", kept)
            visit.page.reload()
            expect(visit.page.locator("#model")).to_have_text(MODEL_NAME)
            expect(visit.page.locator("#settings-button")).to_have_text("Settings (1)" if kept == mixed else "Settings")
        visit.say("Capital?")
        visit.wait_for_end()
        assert visit.body()["seed"] == 5
        assert {"temperature", "top_p", "top_k"}.isdisjoint(visit.body())


def test_a_server_that_began_anew_with_another_model_is_asked_for_that(browser: Browser) -> None:
    listed = {"data": [{"id": "before", "max_model_len": 12}]}
    with at_door(browser, scripted("Paris", **ENGINE)) as visit:
        page = visit.page
        page.route("**/v1/models", lambda route: route.fulfill(json=listed))
        page.reload()
        expect(page.locator("#model")).to_have_text("before")
        visit.say("Capital?")  # still of the one that is gone
        expect(page.get_by_role("alert")).to_contain_text("before")
        assert [json.loads(body)["model"] for body in visit.bodies] == ["before", "before"]
        page.unroute("**/v1/models")
        page.get_by_role("button", name="Try again").click()
        expect(page.locator(".answer")).to_have_text("Paris")
        expect(page.locator("#model")).to_have_text(MODEL_NAME)
        assert [json.loads(body)["model"] for body in visit.bodies[2:]] == ["before", MODEL_NAME]


def test_a_chat_with_a_real_server(browser: Browser, tmp_path: Path) -> None:
    # An answer that lasts until it is stopped: 20,000 tokens of slow steps.
    model, slow = write_model(tmp_path, max_position_embeddings=20_000), ("--kernel-backends", "*=reference")
    with serving(model, *slow) as server, visiting(browser, server.address, has_metrics=True) as visit:
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


def test_how_many_tokens_a_round_of_drafts_yields(browser: Browser) -> None:
    """Nothing is said of drafts before there are any; then the acceptance length since the last look."""
    kept = iter([0, *range(0, 3_000, 3)])

    def answer(route: Route) -> None:
        num = next(kept)
        labels = '{engine="0",model_name="m"}'
        lines = [
            f"vllm:spec_decode_num_drafts_total{labels} {num // 3 * 2}.0",
            f"vllm:spec_decode_num_accepted_tokens_total{labels} {num}.0",
            f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",model_name="m",position="0"}} {num}.0',
        ]
        route.fulfill(body=METRICS.replace("TOTAL", "0") + "\n".join(lines) + "\n")

    with at_door(browser, scripted("Paris", **ENGINE)) as visit:
        expect(visit.page.locator("#drafts")).to_be_hidden()
        visit.page.route("**/metrics", answer)
        expect(visit.page.locator("#drafts")).to_have_text(re.compile(r"Tokens/round\s+2\.50"))
