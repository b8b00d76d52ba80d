"""the page's files: what they are sent with, and that they need no key"""

import re
from pathlib import Path

import httpx
import pytest

from minnow.server import limits
from minnow.server.routes import page
from tests.server.ask import ask, scripted

WEB = Path(page.__file__).parents[1] / "web"
TYPES = {
    "/": "text/html; charset=utf-8",
    "/app.js": "text/javascript; charset=utf-8",
    "/planner.js": "text/javascript; charset=utf-8",
    "/figures.js": "text/javascript; charset=utf-8",
    "/chart.js": "text/javascript; charset=utf-8",
    "/server.js": "text/javascript; charset=utf-8",
    "/style.css": "text/css; charset=utf-8",
    "/planner.css": "text/css; charset=utf-8",
    "/icon.svg": "image/svg+xml",
}


def test_every_file_is_served_with_its_type_and_strict_headers() -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        assert tuple(TYPES) == limits.PAGE_PATHS
        assert {path.name for path in WEB.iterdir()} == {path.strip("/") or "index.html" for path in TYPES}
        for path, media_type in TYPES.items():
            answer = await client.get(path)
            assert (answer.status_code, answer.headers["content-type"]) == (200, media_type)
            assert answer.content == (WEB / (path.strip("/") or "index.html")).read_bytes()
            assert answer.headers["content-security-policy"].startswith("default-src 'self'; ")
            assert "unsafe" not in answer.headers["content-security-policy"]
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["referrer-policy"] == "no-referrer"
            head = await client.head(path)
            assert (head.status_code, head.content, head.headers["etag"]) == (200, b"", answer.headers["etag"])
            assert (await client.post(path)).status_code == 405

    ask(scripted("ok"), scenario)


def test_a_browser_that_has_a_file_is_not_sent_it_again() -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        tags = [(await client.get(path)).headers["etag"] for path in TYPES]
        assert len(set(tags)) == len(TYPES)
        for known in (tags[0], f'"other", W/{tags[0]}', "*"):
            answer = await client.get("/", headers={"If-None-Match": known})
            assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", tags[0])
            assert answer.headers["cache-control"] == "no-cache"
        for other in (tags[1], tags[0].strip('"'), ""):
            assert (await client.get("/", headers={"If-None-Match": other})).status_code == 200

    ask(scripted("ok"), scenario)


def test_the_key_does_not_guard_the_page_but_every_other_spelling_of_its_paths() -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        async def status(path: str, method: str = "GET") -> int:
            url = httpx.URL("http://door").copy_with(raw_path=path.encode())
            return (await client.request(method, url)).status_code

        for path in (*TYPES, "/health"):
            assert (await status(path), await status(f"{path}?x=1")) == (200, 200)
            assert [await status(path, method) for method in ("POST", "PUT", "DELETE", "OPTIONS")] == [401] * 4
        others = [
            "//", "/%2e", "/index.html", "/app.js/", "//app.js", "/App.js", "/%61pp.js", "/app%2ejs",
            "/app.js%00", "/web/app.js", "/%68ealth", "/icon.svg;x", "/web",
        ]  # fmt: skip
        assert {path: await status(path) for path in others} == dict.fromkeys(others, 401)

    ask(scripted("ok"), scenario, api_key="secret")


@pytest.mark.parametrize("path", sorted(WEB.iterdir()), ids=lambda path: path.name)
def test_the_files_name_no_other_address_and_hold_no_inline_code(path: Path) -> None:
    text = path.read_text(encoding="ascii").replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.search(r"https?:|//\w+\.\w+/|data:[\w/]+[,;]", text)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", text)
    assert not re.search(r"<style|\sstyle=|\son\w+=\"|<script(?! type=\"module\" src=)", text)
    assert len(text.splitlines()) <= 400
