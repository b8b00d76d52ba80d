"""ways to ask the door in a test: over ASGI in process, or by hand where the connection matters"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.routing import BaseRoute

from minnow.config.server import ServerConfig
from minnow.engine.client import EngineClient
from minnow.engine.host import EngineThread
from minnow.server import app
from minnow.text.tokenizer import Tokenizer
from tests.server.scripted import END, ScriptedEngine, byte_tokenizer, chat_template

MODEL_NAME = "scripted"
BYTES = byte_tokenizer()
END_ID = BYTES.id_of(END)


def spell(text: str, tokenizer: Tokenizer = BYTES) -> list[int]:
    """The tokens of a text, and the end token."""
    assert END_ID is not None
    return [*tokenizer.encode(text), END_ID]


def scripted(text: str, **settings: Any) -> ScriptedEngine:
    """An engine that answers everything with a text."""
    return ScriptedEngine(lambda request: spell(text), end_token_id=END_ID or 0, **settings)


def chat(**fields: Any) -> dict[str, Any]:
    """A chat body."""
    return {"model": MODEL_NAME, "messages": [{"role": "user", "content": "hi"}], **fields}


def completion(**fields: Any) -> dict[str, Any]:
    """A completion body."""
    return {"model": MODEL_NAME, "prompt": "hi", **fields}


@contextlib.asynccontextmanager
async def running(
    engine: ScriptedEngine, tokenizer: Tokenizer = BYTES, routes: Sequence[BaseRoute] = (), **config: Any
) -> AsyncIterator[Starlette]:
    """The application, started."""
    client = EngineClient(EngineThread(engine))
    door = app.build(
        client, tokenizer=tokenizer, template=chat_template(), model_name=MODEL_NAME, config=ServerConfig(**config),
        routes=routes,
    )  # fmt: skip
    await client.start()
    await client.ready()
    try:
        yield door
    finally:
        for _ in range(1000):
            engine.gate.release()
        await client.close()


def http(door: Starlette) -> httpx.AsyncClient:
    """A client of it; whole answers only."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(door, raise_app_exceptions=False), base_url="http://door")


def ask(
    engine: ScriptedEngine,
    scenario: Callable[[httpx.AsyncClient], Coroutine[Any, Any, None]],
    tokenizer: Tokenizer = BYTES,
    **config: Any,
) -> None:
    """Run a scenario against the application over an engine."""

    async def main() -> None:
        async with running(engine, tokenizer, **config) as door, http(door) as client:
            await asyncio.wait_for(scenario(client), timeout=20)

    asyncio.run(main())


def events(body: str) -> list[dict[str, Any]]:
    """The chunks of a stream; it must end as streams end."""
    parts = body.split("\n\n")
    assert parts[-2:] == ["data: [DONE]", ""], parts[-2:]
    assert all(part.startswith("data: ") for part in parts[:-1])
    return [json.loads(part.removeprefix("data: ")) for part in parts[:-2]]


def chat_text(chunks: list[dict[str, Any]], index: int = 0) -> str:
    """What a choice of a streamed chat said."""
    choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    return "".join(choice["delta"].get("content", "") for choice in choices)


class Connection:
    """One POST over ASGI whose client can leave at any moment.

    Args:
        num_unread: the server waits while so many messages lie unread; 0 never lets it wait.
    """

    def __init__(self, door: Starlette, path: str, body: dict[str, Any], *, num_unread: int = 0) -> None:
        self._gone = asyncio.Event()
        self._body = json.dumps(body).encode()
        self._has_sent = False
        self.sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue(num_unread)
        scope = {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "method": "POST",
            "scheme": "http", "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "",
            "headers": [(b"host", b"door")], "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2),
        }  # fmt: skip
        self.task = asyncio.create_task(door(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if not self._has_sent:
            self._has_sent = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        await self.sent.put(dict(message))

    async def leave(self) -> None:
        """Close the connection and wait until the server is done with it."""
        self._gone.set()
        await asyncio.wait_for(self.task, timeout=10)
