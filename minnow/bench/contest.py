"""the demo on Minnow and its peers: installed, tuned, and measured in turns"""

import argparse
import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from minnow.bench import dataset, record, sides, timing
from minnow.bench.sides import Place, Process, Server, Settings, SideError
from minnow.bench.verdict import Effort, Row, judge, take_turns
from minnow.cache.layout import layout_of
from minnow.checkpoint import demo
from minnow.config import model as model_config
from minnow.core.errors import ConfigError
from minnow.text.tokenizer import Tokenizer

Say = Callable[[str], None]

_DEMO = "smollm2-135m"
_NEAR = 1.25  # times the best one's seconds
SERVING = "16 requests at once, 256 in / 128 out, over HTTP"
# The first of each is what a quick run takes on a machine that no full run has tuned the peers on.
CANDIDATES: dict[str, list[dict[str, Any]]] = {
    "llama_cpp": [
        {"kv": kv, "flash": flash, "repack": repack}
        for kv, flash in (("f16", 1), ("q8_0", 1), ("q4_0", 1), ("f16", 0))
        for repack in (1, 0)
    ],
    "vllm_cpu": [{"eager": 0}, {"eager": 1}],
    "transformers": [{"dtype": "bfloat16"}, {"dtype": "float32"}],
}
_QUICK = Effort(least=2, most=3, budget_s=15.0, within=1.5)
_HAVE_SERVER = ("llama_cpp", "vllm_cpu")
_NUM_SERVED, _SERVED_IN, _SERVED_OUT = 16, 256, 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Something that every side does alike.

    Attributes:
        question: what a side is asked, see benchmarks/peers/protocol.py.
        num_tokens: that a repetition makes or reads.
        bar: so many times the best peer's rate.
    """

    name: str
    question: Mapping[str, Any]
    num_tokens: int
    bar: float

    @property
    def is_long(self) -> bool:
        """Whether a repetition, or what comes before it, takes seconds to minutes."""
        return bool(max(self.num_tokens, self.question.get("context", 0)) > 1000)


def _decode(context: int, num_tokens: int, bar: float) -> Work:
    where = "short context" if context < 100 else f"{context:,} tokens of context"
    question = {"work": "decode", "context": context, "tokens": num_tokens, "seed": context}
    return Work(name=f"decode, 1 request, {where}", question=question, num_tokens=num_tokens, bar=bar)


def _prefill(tokens: int, bar: float) -> Work:
    return Work(name=f"prefill {tokens:,}", question={"work": "prefill", "tokens": tokens}, num_tokens=tokens, bar=bar)


WORKS = (_decode(16, 64, 1.5), _decode(2048, 32, 4.0), _decode(6144, 32, 7.0), _prefill(512, 1.3), _prefill(4096, 1.7))


class Contest:
    """The first table.

    Attributes:
        versions: of the sides that started.
        used: peer -> work -> the settings that it runs with.
        errors: peer -> why it takes no part.
        skipped: what a quick run leaves out, for people.
    """

    def __init__(self, args: argparse.Namespace, peers: Sequence[str], say: Say) -> None:
        self._say, self._quick = say, args.quick
        self._effort = _QUICK if args.quick else Effort()
        gguf = demo.fetch(demo.DEMO_BY_NAME[_DEMO], demo.home() / "downloads", say=say)
        home = args.peers_dir or demo.home() / "peers"
        self._place = Place(home=home, model=demo.resolve(_DEMO), gguf=gguf, num_threads=args.num_threads)
        self._processes: dict[tuple[str, str], Process] = {}
        self.versions: dict[str, str] = {}
        self.skipped: list[str] = []
        self.errors = {peer: words for peer in peers if (words := self._install(peer))}
        self._peers = [peer for peer in peers if peer not in self.errors]
        self.used = self._settled()

    def rows(self) -> Iterator[Row]:
        """Measure, and give each row as it is there."""
        yield from self._offline()
        yield self._serving()
        yield from self._own_door()

    def close(self) -> None:
        """End every process."""
        while self._processes:
            self._processes.popitem()[1].close()

    def _install(self, peer: str) -> str:
        """Why the peer could not be installed, or ""."""
        command = [sides.FOLDER / "install.py", self._place.home, self._place.gguf, peer]
        done = subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True, check=False)
        return (done.stdout or done.stderr).strip().split("\n")[-1][:300] if done.returncode else ""

    def _settled(self) -> dict[str, dict[str, Settings]]:
        """Settings by peer and work: those on record for this machine in a quick run, else tuned now and recorded."""
        file = sides.FOLDER / "settings.json"
        key = f"{record.machine()['processor']}, {self._place.num_threads} threads"
        known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        if self._quick:
            how = "recorded" if key in known else "guessed"
            self.skipped += [
                f"tuning of the peers: they run as {how} for {key}",
                f"two thirds of the rounds, and after the first peers {_QUICK.within:g} times slower than the best one",
                f"warming up of {WORKS[-1].name} and of the servers",
            ]
        else:
            known[key] = {**known.get(key, {}), **{peer: self._tune(peer) for peer in self._peers}}
            file.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
        names, recorded = [work.name for work in WORKS] + [SERVING], known.get(key, {})
        return {
            peer: {name: recorded.get(peer, {}).get(name, CANDIDATES[peer][0]) for name in names}
            for peer in self._peers
        }

    def _tune(self, peer: str) -> dict[str, Settings]:
        """The fastest of all settings, work by work."""

        def offline(work: Work, settings: Settings) -> float:
            if not work.is_long:
                self._ask(peer, work, settings, 0)
            return self._ask(peer, work, settings, 1)

        def serving(settings: Settings) -> float:
            server = self._server(peer, settings)
            try:
                server.wait()
                return server.serve(self._samples(0))
            finally:
                server.close()

        trials: dict[str, Callable[[Settings], float]] = {work.name: partial(offline, work) for work in WORKS}
        if peer in _HAVE_SERVER:
            trials[SERVING] = serving
        best: dict[str, Settings] = {}
        left = {kind: CANDIDATES[peer] for kind in ("decode", "prefill")}
        for name, trial in trials.items():
            kind = next((str(work.question["work"]) for work in WORKS if work.name == name), "decode")
            if name == SERVING:
                self.close()
            say = partial(lambda name, words: self._say(f"{peer}, {name}: {words}"), name)
            # Longer work of a kind tries what was not far behind in shorter work: some take minutes to prove worse.
            worth = CANDIDATES[peer] if name == SERVING else left[kind]
            found = fastest(worth, trial, say) or worth
            best[name] = found[0]
            # Repacking concerns the weights, not the context.
            left[kind] = [settings for settings in found if settings.get("repack") == best[name].get("repack")]
        self.close()
        return best

    def _ask(self, side: str, work: Work, settings: Settings, number: int) -> float:
        """Seconds of one repetition; a prompt that is read anew has tokens of its own."""
        process = self._process(side, settings)
        process.wait()
        self.versions[side] = process.version
        return process.ask({"seed": number, **work.question, "settings": settings})

    def _process(self, side: str, settings: Settings) -> Process:
        of_process: Settings = {"minnow": {"kv_cache_dtype": "fp8"}, "vllm_cpu": settings}.get(side, {})
        key = (side, json.dumps(of_process))
        if key not in self._processes:
            log = self._place.home / "logs" / f"{side}.log"
            self._processes[key] = Process(command=self._place.command(side, of_process), log=log)
        return self._processes[key]

    def _offline(self) -> Iterator[Row]:
        for side in ("minnow", *self._peers):  # they load at the same time
            for work in WORKS:
                self._process(side, self.used.get(side, {}).get(work.name, {}))
        for process in self._processes.values():  # one that still loads would disturb the others
            with contextlib.suppress(SideError):  # said where it is asked
                process.wait()
        try:
            self._process("minnow", {}).wait()
        except SideError as error:
            raise ConfigError(f"Minnow itself {error}") from None
        for work in WORKS:
            used, failed = self._used(work.name), dict(self.errors)

            def rate(side: str, number: int, work: Work = work, used: Mapping[str, Settings] = used) -> float:
                return work.num_tokens / self._ask(side, work, used.get(side, {}), number)

            functions = {side: partial(rate, side) for side in ("minnow", *self._peers)}
            effort = replace(self._effort, num_warmups=0) if self._quick and work is WORKS[-1] else self._effort
            samples = take_turns(functions, effort, failed)
            num_bytes = self._read_bytes(work) if "minnow" in samples else 0
            question = {"work": "read", "bytes": num_bytes}
            limit = num_bytes / self._process("minnow", {}).ask(question) if num_bytes else 0.0
            yield judge(work.name, work.bar, samples, failed, used, num_bytes, limit)
        self.close()

    def _serving(self) -> Row:
        used, failed = self._used(SERVING), {**self.errors, "transformers": "has no server"}
        peers = [peer for peer in self._peers if peer in _HAVE_SERVER]
        servers = {side: self._server(side, used.get(side, {})) for side in ("minnow", *peers)}

        def rate(side: str, number: int) -> float:
            return _NUM_SERVED * _SERVED_OUT / servers[side].serve(self._samples(number))

        try:
            for side, server in servers.items():
                try:
                    server.wait()
                except SideError as error:
                    failed[side] = str(error)
            effort = replace(self._effort, num_warmups=0 if self._quick else 1)
            samples = take_turns({side: partial(rate, side) for side in servers}, effort, failed)
        finally:
            for server in servers.values():
                server.close()
        return judge(SERVING, 3.0, samples, failed, used)

    def _own_door(self) -> Iterator[Row]:
        """Start-up, and what HTTP costs one request."""
        start = Row(work="from the command to the first served token", unit="s", bar=3.0, is_least=False)
        door = Row(work="one request: HTTP over the bare engine", unit="%", bar=10.0, is_least=False)
        starts = []
        question = {"work": "request", "context": 16, "tokens": 128, "seed": 1}
        sample = dataset.Sample(prompt="The capital of France is a city of", max_tokens=128)
        for is_last in (False, False, True):
            server = self._server("minnow", {})
            try:
                starts.append(server.wait())
                if is_last:
                    process = self._process("minnow", {})
                    sides_by_name = {"http": lambda: server.serve([sample]), "bare": lambda: process.ask(question)}  # noqa: B023
                    seen = timing.interleave(sides_by_name, self._effort.most)
            except SideError as error:
                yield replace(start, details=(f"minnow: {error}",))
                yield replace(door, details=(f"minnow: {error}",))
                return
            finally:
                server.close()
        taken, over = timing.spread(starts), seen.ratio("http", "bare")
        yield replace(start, value=taken.median, low=taken.low, high=taken.high)
        http, bare = seen.of("http").median, seen.of("bare").median
        yield replace(
            door,
            value=100 * (over.median - 1), low=100 * (over.low - 1), high=100 * (over.high - 1),
            details=(f"128 tokens: {http:.3f} s over HTTP, {bare:.3f} s in the engine",),
            numbers={"http_s": http, "bare_s": bare},
        )  # fmt: skip

    def _server(self, side: str, settings: Settings) -> Server:
        port = sides.free_port()
        log = self._place.home / "logs" / f"{side}-server.log"
        return Server(command=self._place.server(side, settings, port), port=port, log=log)

    def _samples(self, number: int) -> list[dataset.Sample]:
        wanted = argparse.Namespace(
            dataset_name="random", seed=number, num_prompts=_NUM_SERVED, random_input_len=_SERVED_IN,
            random_output_len=_SERVED_OUT, random_range_ratio=0.0, random_prefix_len=0,
        )  # fmt: skip
        return dataset.read(wanted, Tokenizer.load(self._place.model))

    def _used(self, name: str) -> dict[str, Settings]:
        return {peer: by_work[name] for peer, by_work in self.used.items()}

    def _read_bytes(self, work: Work) -> int:
        """Bytes that a token of ours reads at depth: weights, keys and values; 0 for other work."""
        context = work.question.get("context", 0)
        if context < 100:
            return 0
        model = model_config.read(self._place.model)
        weights = sum(file.stat().st_size for file in self._place.model.glob("*.safetensors"))
        return int(weights + context * layout_of(model, "fp8", "fp8", block_size=128).token_bytes)


def fastest(candidates: list[dict[str, Any]], trial: Callable[[Settings], float], say: Say) -> list[dict[str, Any]]:
    """The settings with the least seconds, the best one first, and those near to it; failures are said and left out."""
    seconds = {}
    for number, settings in enumerate(candidates):
        try:
            seconds[number] = trial(settings)
            say(f"{settings} takes {seconds[number]:.3g} s")
        except SideError as error:
            say(f"{settings} fails: {error}")
    order = sorted(seconds, key=lambda number: seconds[number])
    return [candidates[number] for number in order if seconds[number] <= _NEAR * seconds[order[0]]]
