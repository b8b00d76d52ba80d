"""the load of tools/soak.py: requests drawn at random, sent, and their answers checked"""

import asyncio
import contextlib
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
WORDS = "time year people way day man thing woman life child world school state family student group country".split()
MAX_FAULTS = 50
# Far more than any context holds; bodies of this kind are looked at on threads.
TOO_LONG = json.dumps({"prompt": "x " * 50_000, "stream": True}).encode()
# The same token may lose by so little when a batch of another shape rounds in another order.
TIE = 0.05


class Fault(Exception):
    """Something that should not be, in one sentence."""


@dataclass(slots=True, kw_only=True)
class Counts:
    """What has happened so far."""

    num_answered: int = 0
    num_left: int = 0
    num_refused: int = 0
    num_repeats: int = 0
    num_ties: int = 0
    num_tokens: int = 0
    num_faults: int = 0
    faults: list[str] = field(default_factory=list)  # the first ones

    def add_fault(self, words: str) -> None:
        """Note something wrong."""
        self.num_faults += 1
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A request.

    Attributes:
        key: of a greedy one: equal keys must be answered equally; else None.
    """

    path: str
    body: dict[str, Any]
    key: str | None = None


@dataclass(slots=True, kw_only=True)
class Choice:
    """One of the answers to a job, as far as it has come.

    Attributes:
        tokens: each with the logarithm of how much likelier it was than the next; of greedy ones only.
    """

    text: str = ""
    finish_reason: str | None = None
    tokens: list[tuple[str, float]] = field(default_factory=list)


class Load:
    """Draws requests, sends them, and checks what comes back.

    Args:
        client: of the server.
        model: its name there.
        max_model_len: its context in tokens.
    """

    def __init__(self, client: httpx.AsyncClient, chance: random.Random, model: str, max_model_len: int) -> None:
        self.counts = Counts()
        self._client = client
        self._chance = chance
        self._model = model
        self._max_words = min(120, max_model_len // 20)
        self._prefixes = [self._words(self._max_words // 2) for _ in range(6)]
        self._greedy: list[Job] = [self._job(is_greedy=True) for _ in range(40)]
        self._choice_by_key: dict[str, Choice] = {}

    async def run(self, num_streams: int, seconds: float) -> None:
        """Keep so many requests open for so long; then wait for those that are still open."""
        until_s = time.monotonic() + seconds

        async def work() -> None:
            while time.monotonic() < until_s and self.counts.num_faults < MAX_FAULTS:
                try:
                    await self._one()
                except (Fault, httpx.HTTPError, OSError) as error:
                    self.counts.add_fault(f"{type(error).__name__}: {error}")

        async with asyncio.TaskGroup() as group:
            for _ in range(num_streams):
                group.create_task(work())

    async def fill(self) -> None:
        """Let the server start all the threads that it keeps for large bodies."""
        await asyncio.gather(*(self._client.post(TEXT, content=TOO_LONG) for _ in range(64)))

    async def _one(self) -> None:
        kind = self._chance.choices(("answer", "repeat", "leave", "refused"), (45, 15, 33, 7))[0]
        match kind:
            case "answer":
                await self._answer(self._job())
            case "repeat":
                await self._answer(self._chance.choice(self._greedy))
            case "leave":
                await self._leave(self._job())
            case _:
                await self._refused()

    # -- what is asked ------------------------------------------------------------------------------------------------

    def _words(self, num_words: int) -> str:
        return " ".join(self._chance.choices(WORDS, k=num_words))

    def _job(self, *, is_greedy: bool = False) -> Job:
        chance = self._chance
        prefix = chance.choice(self._prefixes) + " " if chance.random() < 0.5 else ""
        prompt = prefix + self._words(chance.randint(1, self._max_words // 2))
        path = chance.choice((CHAT, TEXT))
        body: dict[str, Any] = {"model": self._model, "max_tokens": min(64, 1 + int(chance.expovariate(1 / 16)))}
        body |= {"messages": [{"role": "user", "content": prompt}]} if path == CHAT else {"prompt": prompt}
        body["stream"] = chance.random() < 0.7
        if body["stream"]:
            body["stream_options"] = {"include_usage": True, "continuous_usage_stats": chance.random() < 0.3}
        if is_greedy:
            body |= {"temperature": 0, "top_p": 1} | (
                {"logprobs": True, "top_logprobs": 2} if path == CHAT else {"logprobs": 2}
            )
            return Job(path=path, body=body, key=f"{path} {body['max_tokens']} {prompt}")
        body["temperature"] = chance.choice((0.5, 0.8, 1.2))
        body["n"] = chance.choice((1, 1, 1, 1, 2, 4))
        if chance.random() < 0.5:
            body["seed"] = chance.randint(-(2**63), 2**63 - 1)
        if chance.random() < 0.2:
            body["stop"] = ["e", " the"]
        if chance.random() < 0.2:
            body["ignore_eos"] = True
        return Job(path=path, body=body)

    # -- what comes back ----------------------------------------------------------------------------------------------

    async def _answer(self, job: Job) -> None:
        """Ask and read it all."""
        if job.body["stream"]:
            async with self._client.stream("POST", job.path, json=job.body) as answer:
                lines = [line async for line in answer.aiter_lines() if line]
            status, text = answer.status_code, "\n".join(lines[:3])
        else:
            answer = await self._client.post(job.path, json=job.body)
            status, text = answer.status_code, answer.text
        if status != 200:
            raise Fault(f"status {status} for {job}: {text[:300]}")
        parts = _events(lines) if job.body["stream"] else [json.loads(text)]
        choices, usage = _joined(parts)
        _check(job, choices, usage)
        self.counts.num_answered += 1
        self.counts.num_tokens += usage["completion_tokens"]
        if job.key is not None:
            self._compare(job.key, choices[0])

    def _compare(self, key: str, found: Choice) -> None:
        """The same greedy request as before: the same text."""
        known = self._choice_by_key.setdefault(key, found)
        self.counts.num_repeats += known is not found
        for (token, gap), (other, other_gap) in zip(known.tokens, found.tokens, strict=False):
            if token != other:
                if min(gap, other_gap) > TIE:
                    raise Fault(f"a greedy request said {found.text!r}, earlier {known.text!r}: {key[:200]}")
                self.counts.num_ties += 1
                return
        if found.text != known.text:
            raise Fault(f"equal tokens, but {found.text!r}, earlier {known.text!r}: {key[:200]}")

    async def _leave(self, job: Job) -> None:
        """Ask and go: while the request is sent, before the first token, or in the middle of the answer."""
        chance = self._chance
        content = json.dumps(job.body | {"max_tokens": 200, "ignore_eos": True}).encode()
        head = f"POST {job.path} HTTP/1.1\r\nHost: soak\r\nContent-Length: {len(content)}\r\n\r\n".encode()
        whole = head + content
        sent = whole[: chance.randrange(1, len(whole))] if chance.random() < 0.2 else whole
        url = self._client.base_url
        reader, writer = await asyncio.open_connection(url.host, url.port)
        try:
            writer.write(sent)
            await writer.drain()
            if sent is whole and chance.random() < 0.6:
                for _ in range(chance.randint(1, 60)):
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(reader.readline(), timeout=1)
            else:
                await asyncio.sleep(chance.choice((0.0, 0.01, 0.1, 0.5)) * chance.random())
            if chance.random() < 0.2 and writer.can_write_eof():
                writer.write_eof()
                await asyncio.sleep(0.2 * chance.random())
        except ConnectionError:
            pass  # the server was first
        finally:
            if chance.random() < 0.5:
                writer.transport.abort()
            else:
                writer.close()
        self.counts.num_left += 1

    async def _refused(self) -> None:
        """Ask what no server could do."""
        table: list[tuple[str, bytes, int]] = [
            (CHAT, b"{", 400),
            (CHAT, json.dumps({"messages": []}).encode(), 400),
            (TEXT, json.dumps({"prompt": [10**9]}).encode(), 400),
            (TEXT, TOO_LONG, 400),
            (TEXT, json.dumps({"prompt": "x", "logit_bias": {"-1": 1}}).encode(), 400),
            (TEXT, json.dumps({"prompt": "x", "model": "no such model"}).encode(), 404),
        ]
        path, content, status = self._chance.choice(table)
        answer = await self._client.post(path, content=content)
        if answer.status_code != status or "message" not in answer.json().get("error", {}):
            raise Fault(f"{content[:80]!r} was answered with {answer.status_code}: {answer.text[:200]}")
        self.counts.num_refused += 1


def _events(lines: Sequence[str]) -> list[dict[str, Any]]:
    if lines[-1] != "data: [DONE]":
        raise Fault(f"a stream ended with {lines[-1]!r}")
    if not all(line.startswith("data: ") for line in lines):
        raise Fault(f"a stream held a line that is no event: {lines[:3]}")
    return [json.loads(line[6:]) for line in lines[:-1]]


def _joined(parts: Sequence[dict[str, Any]]) -> tuple[dict[int, Choice], dict[str, Any]]:
    """The choices and the usage of a whole answer, or of all events of a stream."""
    choices: dict[int, Choice] = {}
    for part in parts:
        if "error" in part:
            raise Fault(f"a stream broke: {part['error']}")
        for piece in part["choices"]:
            choice = choices.setdefault(piece["index"], Choice())
            if choice.finish_reason is not None:
                raise Fault(f"a choice went on after its end: {piece}")
            message = piece if "text" in piece else piece["delta"] if "delta" in piece else piece["message"]
            choice.text += message.get("text") or message.get("content") or ""
            choice.finish_reason = piece["finish_reason"]
            choice.tokens += _tokens(piece.get("logprobs"))
    return choices, parts[-1]["usage"]


def _tokens(logprobs: dict[str, Any] | None) -> list[tuple[str, float]]:
    if logprobs is None:
        return []
    if "content" in logprobs:
        tops = [[top["logprob"] for top in entry["top_logprobs"]] for entry in logprobs["content"]]
        tokens = [str(entry["token"]) for entry in logprobs["content"]]
    else:
        tops = [list(top.values()) for top in logprobs["top_logprobs"]]
        tokens = logprobs["tokens"]
    pairs = (sorted(top, reverse=True)[:2] for top in tops)
    return [(token, top[0] - top[-1]) for token, top in zip(tokens, pairs, strict=True)]


def _check(job: Job, choices: dict[int, Choice], usage: dict[str, Any]) -> None:
    """Whether an answer adds up."""
    num_choices, max_tokens = job.body.get("n", 1), job.body["max_tokens"]
    num_tokens = usage["completion_tokens"]
    reasons = [choice.finish_reason for choice in choices.values()]
    is_right = (
        sorted(choices) == list(range(num_choices))
        and set(reasons) <= {"stop", "length"}
        and usage["total_tokens"] == usage["prompt_tokens"] + num_tokens
        and usage["prompt_tokens_details"]["cached_tokens"] < usage["prompt_tokens"]
        and num_choices + (max_tokens - 1) * reasons.count("length") <= num_tokens <= num_choices * max_tokens
    )
    if not is_right:
        raise Fault(f"an answer does not add up: {usage}, {reasons} for {job}")
