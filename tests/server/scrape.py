"""reading /metrics in a test"""

import asyncio

import httpx
from prometheus_client.parser import text_string_to_metric_families

from minnow.core.request import Request, SamplingParams
from minnow.engine.client import EngineClient
from minnow.engine.host import EngineThread
from minnow.server.metrics import Metrics
from tests.server.ask import MODEL_NAME, scripted
from tests.server.scripted import ScriptedEngine

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
OWN = {"model_name": MODEL_NAME, "engine": "0"}
Samples = dict[str, float]


def parse(text: str) -> Samples:
    """Values by name and the labels that are not those of all; kinds and labels are checked."""
    samples: Samples = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation
        for sample in family.samples:
            labels = dict(sample.labels)
            assert {name: labels.pop(name) for name in OWN} == OWN
            assert family.type != "counter" or sample.name.endswith("_total")
            suffix = "".join(f"[{value}]" for value in labels.values())
            assert sample.name + suffix not in samples
            samples[sample.name + suffix] = sample.value
    return samples


async def scrape(client: httpx.AsyncClient) -> Samples:
    answer = await client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return parse(answer.text)


def gained(before: Samples, after: Samples) -> Samples:
    """What changed; whatever counts may only grow."""
    assert before.keys() == after.keys()
    change = {name: after[name] - before[name] for name in after}
    counts = {name: by for name, by in change.items() if "_total" in name or "_bucket" in name or "_count" in name}
    assert min(counts.values()) >= 0
    return {name: by for name, by in change.items() if by}


async def until(client: httpx.AsyncClient, name: str, number: float) -> None:
    """Wait for a value."""
    async with asyncio.timeout(10):
        while (await scrape(client))[name] != number:
            await asyncio.sleep(0.001)


async def until_done(engine: ScriptedEngine, client: httpx.AsyncClient) -> None:
    """Wait until the server knows that every request has ended."""
    async with asyncio.timeout(10):
        while not engine.added or (await scrape(client))["minnow:open_requests"]:
            await asyncio.sleep(0.001)


def read(metrics: Metrics) -> Samples:
    """The values of metrics without a server."""

    async def render() -> Samples:
        return parse(metrics.render().decode())

    return asyncio.run(render())


def make_metrics() -> Metrics:
    return Metrics(EngineClient(EngineThread(scripted("ok"))), MODEL_NAME)


def make(name: str, max_tokens: int = 7) -> Request:
    return Request(
        request_id=name, token_ids=(1, 2, 3), sampling=SamplingParams(max_tokens=max_tokens), arrival_s=1000.0
    )
