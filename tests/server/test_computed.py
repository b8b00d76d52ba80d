"""routes that compute: a query in, JSON out, one at a time; too much is refused"""

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

import httpx
from starlette.applications import Starlette

from minnow.config.server import ServerConfig
from minnow.core.errors import ConfigError
from minnow.server import app, computed
from tests.server.ask import ask, http, scripted


def alone(compute: computed.Compute, **config: Any) -> Starlette:
    return app.build_alone(ServerConfig(**config), computed.routes({"/echo": compute}))


def echo(query: Mapping[str, str]) -> Mapping[str, str]:
    if "bad" in query:
        raise ConfigError(f"bad is {query['bad']}; leave it out")
    return query


def run(door: Starlette, scenario: Any) -> None:
    async def main() -> None:
        async with http(door) as client:
            await asyncio.wait_for(scenario(client), timeout=20)

    asyncio.run(main())


def test_a_query_is_answered_as_json_and_errors_are_the_askers() -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        found = await client.get("/echo", params={"a": "1 & 2", "b": "\u2603"})
        assert (found.status_code, found.json()) == (200, {"a": "1 & 2", "b": "\u2603"})
        assert found.headers["cache-control"] == "no-store"
        refused = await client.get("/echo?bad=7")
        assert (refused.status_code, refused.json()["error"]["message"]) == (400, "bad is 7; leave it out")
        twice = await client.get("/echo?a=1&a=2")
        assert twice.json()["error"]["message"] == "a is given twice, with two values; leave one out"
        most = f"/echo?a={'x' * (computed.MAX_QUERY_BYTES - 2)}"
        assert (await client.get(most)).status_code == 200
        assert (await client.get(most + "x")).json()["error"]["message"] == (
            "the query has 2,001 bytes; 2,000 are the most"
        )
        assert (await client.post("/echo")).status_code == 405

    run(alone(echo), scenario)


def test_one_is_computed_at_a_time_and_few_wait() -> None:
    gate, running = threading.Semaphore(0), []

    def slow(query: Mapping[str, str]) -> str:
        running.append(query["n"])
        gate.acquire()
        return query["n"]

    async def scenario(client: httpx.AsyncClient) -> None:
        asked = [asyncio.ensure_future(client.get(f"/echo?n={n}")) for n in range(8)]
        while not running:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        assert running == ["0"]  # the others wait
        refused = await client.get("/echo?n=9")
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "busy")
        assert (await client.get("/v1/models")).json() == {"data": [], "object": "list"}  # nobody else waits
        for _ in asked:
            gate.release()
        assert [(await one).json() for one in asked] == [str(n) for n in range(8)]
        gate.release()
        assert (await client.get("/echo?n=9")).status_code == 200

    run(alone(slow), scenario)


def test_without_an_engine_the_page_is_served_and_no_model() -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        assert (await client.get("/")).headers["content-type"].startswith("text/html")
        assert (await client.get("/planner.js")).status_code == 200
        assert (await client.get("/metrics")).json()["error"]["message"] == "GET /metrics is not served here"

    run(alone(echo), scenario)


def test_a_key_guards_what_is_computed() -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        assert (await client.get("/")).status_code == 200
        assert (await client.get("/echo")).status_code == 401
        assert (await client.get("/echo", headers={"Authorization": "Bearer secret"})).status_code == 200

    run(alone(echo, api_key="secret"), scenario)


def test_pages_of_other_sites_may_not_ask() -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        refused = await client.get("/echo", headers={"Sec-Fetch-Site": "cross-site"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "cross_site")
        assert (await client.get("/echo", headers={"Sec-Fetch-Site": "same-origin"})).status_code == 200

    run(alone(echo), scenario)


def test_an_application_takes_more_routes() -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        assert (await client.get("/echo?a=1")).json() == {"a": "1"}
        assert (await client.get("/v1/models")).json()["data"]

    ask(scripted("ok"), scenario, routes=computed.routes({"/echo": echo}))
