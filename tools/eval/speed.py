"""decoding with drafts beside decoding without, and beside peers, in turns"""

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks.peers.install import is_installed
from minnow.bench import record, sides
from minnow.bench.contest import CANDIDATES, WORKS
from minnow.bench.sides import Place, Process, SideError
from minnow.bench.timing import Interleaved
from minnow.checkpoint import demo
from minnow.core.request import Request, SamplingParams
from minnow.kernels import native
from minnow.llm import LLM
from tools.eval.drafts import NO_DRAFTER, chat_prompts, lengths
from tools.eval.finding import Finding
from tools.eval.models import Models, open_llm, pinned

_PLAIN, _SERVED = "without", "as served"
_LEAST_TOKENS = 16  # of an answer that is timed
_NUM_PEER_ROUNDS = 5


def decode(llm: LLM, prompt: Sequence[int], num_tokens: int) -> float:
    """Tokens a second of a greedy answer after its first token, alone; 0 where the answer is too short to tell."""
    sampling = SamplingParams(temperature=0.0, max_tokens=num_tokens)
    llm.engine.add(Request(request_id=f"speed-{time.monotonic_ns()}", token_ids=tuple(prompt), sampling=sampling))
    while not any(output.token_ids for output in llm.engine.step()):
        pass
    started, gained = time.perf_counter(), 0
    while not llm.engine.is_idle:
        gained += sum(len(output.token_ids) for output in llm.engine.step())
    return gained / (time.perf_counter() - started) if gained >= _LEAST_TOKENS else 0.0


def speed(models: Models) -> Iterator[Finding]:
    """The rate with drafts over that without, and over that of the best peer that is installed."""
    own = Finding(name="decode with drafts, 1 request, T = 0, against without", unit="x", bar=1.3)
    peer = Finding(name="decode with drafts, 1 request, T = 0, against the best peer", unit="x", bar=2.0)
    if models.drafter is None:
        for row in (own, peer):
            yield replace(row, reason=NO_DRAFTER)
        return
    num_prompts, num_tokens = (8, 64) if models.is_quick else (30, 96)
    llms = {_PLAIN: models.plain()} | {f"{n} drafts": models.drafting(n) for n in lengths(models)}
    if models.drafter.served:
        llms[_SERVED] = open_llm(models.model)
    prompts = chat_prompts(models, num_prompts + 1)
    functions: dict[str, Callable[[int], float]] = {
        name: partial(lambda llm, i: decode(llm, prompts[i], num_tokens), llm) for name, llm in llms.items()
    }
    with peers(models) as (asked, silent), pinned():
        seen = take_turns({**functions, **asked}, set(asked), len(prompts))
    if not seen.samples[_PLAIN]:
        for row in (own, peer):
            yield replace(row, reason="all answers are too short to time", absence="not measured")
        return
    ratios = {name: seen.ratio(name, _PLAIN) for name in functions if name != _PLAIN}
    served = ratios.get(_SERVED)
    best = max(ratios, key=lambda name: ratios[name].median)
    details = [f"without: {_show(seen, _PLAIN)}"]
    details += [f"{name}: {_show(seen, name)}, {ratio.median:.3f} x" for name, ratio in ratios.items()]
    details += [f"best: {best}; quartiles of its ratio, prompt by prompt: {ratios[best].low:.3f} to "
                f"{ratios[best].high:.3f}, {ratios[best].num} prompts of benchmarks/prompts/chat.jsonl"]  # fmt: skip
    yield replace(own, value=ratios[best].median, details=tuple(details))
    if served is not None:
        row = Finding(name="decode as served, 1 request, T = 0, against without drafts", unit="x")
        settings = ", ".join(f"{name} {value}" for name, value in models.drafter.served.items())
        yield replace(row, value=served.median, details=(settings, f"quartiles {served.low:.3f} to {served.high:.3f}"))
    rates = {name: seen.of(name).median for name in asked if seen.samples.get(name)}
    if not rates:
        yield replace(peer, reason="no peer took part", absence="not measured", details=tuple(silent))
        return
    first = max(rates, key=lambda name: rates[name])
    details = [*(f"{name}: {_show(seen, name)}" for name in rates), *silent]
    yield replace(peer, value=seen.of(best).median / rates[first], details=tuple(details))


def take_turns(functions: Mapping[str, Callable[[int], float]], few: set[str], num_rounds: int) -> Interleaved:
    """Rates of several things in turns; the first round warms up, and a round in which one has no rate is left out.

    Args:
        functions: name -> the rate in a round, by the round's number.
        few: names that take part in the first rounds only, and whose failure ends their part.
    """
    kept: dict[str, list[float]] = {name: [] for name in functions}
    failed: set[str] = set()
    names = list(functions)
    for number in range(num_rounds):
        rates = {}
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            if name in failed or (name in few and number > _NUM_PEER_ROUNDS):
                continue
            try:
                rates[name] = functions[name](number)
            except SideError:
                if name not in few:
                    raise
                failed.add(name)
        main = {name: rate for name, rate in rates.items() if name not in few}
        for name, rate in rates.items():
            if number and (name in few or all(main.values())):
                kept[name].append(rate)
    return Interleaved(samples={name: tuple(values) for name, values in kept.items()})


@contextlib.contextmanager
def peers(models: Models) -> Iterator[tuple[dict[str, Callable[[int], float]], list[str]]]:
    """Functions for the rates of the peers that are installed, and words about those that take no part.

    They decode as many tokens from prompts of random tokens about as long: what they compute does not depend on which.
    """
    home, known = demo.home() / "peers", demo.DEMO_BY_NAME["smollm2-135m"]
    if models.base.resolve() != demo.untrained_directory_of(known.name).resolve():
        yield {}, [f"peers are asked with {known.name} alone"]
        return
    there = [peer for peer in sides.TITLE_BY_PEER if is_installed(peer, home)]
    asked = there[:1] if models.is_quick else there
    silent = [f"{sides.TITLE_BY_PEER[peer]} is not installed" for peer in sides.TITLE_BY_PEER if peer not in there]
    silent += [f"{sides.TITLE_BY_PEER[peer]} is not asked in a quick run" for peer in there if peer not in asked]
    processes: list[Process] = []
    functions: dict[str, Callable[[int], float]] = {}
    try:
        if asked:
            gguf = demo.fetch(known, demo.home() / "downloads", say=lambda words: None)
            place = Place(home=home, model=models.model, gguf=gguf, num_threads=native.num_threads())
            for peer in asked:
                settings = _settings(peer, place.num_threads)
                of_process = settings if peer == "vllm_cpu" else {}
                log = home / "logs" / f"{peer}.log"
                process = Process(command=place.command(peer, of_process), log=log)
                processes.append(process)
                try:
                    process.wait()
                except SideError as error:
                    silent.append(f"{sides.TITLE_BY_PEER[peer]}: {error}")
                else:
                    functions[sides.TITLE_BY_PEER[peer]] = partial(_ask, process, settings)
        yield functions, silent
    finally:
        for process in processes:
            process.close()


def _ask(process: Process, settings: Mapping[str, Any], number: int) -> float:
    question = {"work": "decode", "context": 48, "tokens": 64, "seed": number, "settings": settings}
    return 64 / process.ask(question)


def _settings(peer: str, num_threads: int) -> Mapping[str, Any]:
    """Those that `minnow bench compare` found best here for short contexts, or the likeliest."""
    file = sides.FOLDER / "settings.json"
    recorded = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    here = recorded.get(f"{record.machine()['processor']}, {num_threads} threads", {})
    settings: Mapping[str, Any] = here.get(peer, {}).get(WORKS[0].name, CANDIDATES[peer][0])
    return settings


def _show(seen: Interleaved, name: str) -> str:
    spread = seen.of(name)
    return f"{spread.median:.1f} tokens/s ({spread.low:.1f} - {spread.high:.1f})"
