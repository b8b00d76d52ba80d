"""many streams at once for a long time, with clients that leave; fails when anything is left at the end

    python -m tools.soak [--model NAME|DIR|tiny] [--streams 32] [--seconds 600] [--seed 0] [-- FLAGS of minnow serve]
    python -m tools.soak --address http://127.0.0.1:8000 [--streams 32] [--seconds 600]

"tiny" is a random model made on the spot. With --address nothing is known of the server's processes, so only what it
says of itself is looked at. Answers are checked as they come: usage adds up, streams end as they should, the same
greedy request says the same again (but for tokens that were as good as equally likely).
"""

import argparse
import asyncio
import contextlib
import random
import signal
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from tools.soak_load import Counts, Fault, Load

IDLE = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc", "minnow:open_requests")
TASKS = "minnow:server_tasks"
# Blocks are scarce, so that requests wait and are preempted.
TINY_FLAGS = ("--dtype", "float32", "--kv-cache-dtype", "float32", "--num-gpu-blocks-override", "300")
FLAGS = ("--num-gpu-blocks-override", "80")


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a process holds."""

    num_files: int
    num_threads: int
    rss_mib: float


def held(pid: int) -> Held:
    """What a process holds now."""
    process = Path("/proc") / str(pid)
    pages = int((process / "statm").read_text().split()[1])
    return Held(
        num_files=len(list((process / "fd").iterdir())),
        num_threads=len(list((process / "task").iterdir())),
        rss_mib=pages * 4096 / 2**20,
    )


def family(pid: int) -> list[int]:
    """A process and all that it started, and so on, that run."""
    parent_by_pid: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            state, parent = (entry / "stat").read_text().rsplit(")", 1)[1].split()[:2]
            if state != "Z":
                parent_by_pid[int(entry.name)] = int(parent)
    pids = [pid]
    for member in pids:
        pids += [child for child, parent in parent_by_pid.items() if parent == member]
    return pids


def samples(text: str) -> dict[str, float]:
    """What /metrics says, by name, summed over the labels."""
    total_by_name: dict[str, float] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name = line.split("{")[0].split(" ")[0]
            total_by_name[name] = total_by_name.get(name, 0.0) + float(line.rsplit(" ", 1)[1])
    return total_by_name


async def metrics(client: httpx.AsyncClient) -> dict[str, float]:
    """The samples now."""
    answer = await client.get("/metrics")
    answer.raise_for_status()
    return samples(answer.text)


async def settle(condition: Callable[[], Awaitable[list[str]]], seconds: float = 30.0) -> list[str]:
    """Wait until nothing is wrong any more; what still is after so long."""
    until_s = time.monotonic() + seconds
    while wrong := await condition():
        if time.monotonic() > until_s:
            return wrong
        await asyncio.sleep(0.1)
    return []


@contextlib.asynccontextmanager
async def own_server(model: str, flags: Sequence[str], log: Path) -> AsyncIterator[tuple[Process, str]]:
    """`minnow serve` on a free port, and its address."""
    command = [str(Path(sys.executable).with_name("minnow")), "serve", model, "--port", "0", *flags]
    with log.open("w") as stderr:
        process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=stderr)
    try:
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode()
        if " on http" not in line:
            raise Fault(f"{' '.join(command)} did not start:\n{log.read_text()}")
        print(line.strip(), flush=True)
        yield process, line.split(" on ")[1].split()[0]
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def describe(counts: Counts, seconds: float, num_tokens_before: int, tasks: float, pids: Sequence[int]) -> str:
    """One line of how it goes."""
    parts = [
        f"{counts.num_answered:,} answered ({counts.num_repeats} repeats, {counts.num_ties} ties)",
        f"{counts.num_left:,} left early",
        f"{counts.num_refused:,} refused",
        f"{counts.num_faults} faults",
        f"{(counts.num_tokens - num_tokens_before) / seconds:,.0f} tokens/s",
        f"{tasks:.0f} tasks",
    ]
    for pid in pids:
        now = held(pid)
        name = "server" if pid == pids[0] else f"child {pid}"
        parts.append(f"{name} {now.rss_mib:,.0f} MiB {now.num_files} files {now.num_threads} threads")
    return ", ".join(parts)


async def soak(address: str, pid: int | None, arguments: argparse.Namespace) -> list[str]:
    """Load a server and look at what is left; returns all that is wrong."""
    limits = httpx.Limits(max_connections=None, keepalive_expiry=2)  # the server closes idle ones after 5 s
    chance = random.Random(arguments.seed)
    pids = [] if pid is None else family(pid)
    async with httpx.AsyncClient(base_url=address, timeout=600, limits=limits) as client:
        (card,) = (await client.get("/v1/models")).json()["data"]
        warm = Load(client, chance, card["id"], card["max_model_len"])
        await warm.run(arguments.streams, min(10.0, arguments.seconds / 4))
        await warm.fill()
    async with httpx.AsyncClient(base_url=address, timeout=600, limits=limits) as watch:

        async def busy() -> list[str]:
            found = await metrics(watch)
            return [f"{name} is {found.get(name)}, not 0" for name in IDLE if found.get(name) != 0]

        wrong = warm.counts.faults + await settle(busy)
        tasks = (await metrics(watch)).get(TASKS)
        before = {pid: held(pid) for pid in pids}
        async with httpx.AsyncClient(base_url=address, timeout=600, limits=limits) as client:
            load = Load(client, chance, card["id"], card["max_model_len"])
            running = asyncio.create_task(load.run(arguments.streams, arguments.seconds))
            await _report_until(running, load.counts, watch, pids, min(60.0, arguments.seconds / 3))
        wrong += load.counts.faults + await settle(busy)

        async def left() -> list[str]:
            now = (await metrics(watch)).get(TASKS)
            found = [] if now is not None and now == tasks else [f"{TASKS} is {now}, it was {tasks} before"]
            for pid, then in before.items():
                own = held(pid)
                if own.num_files > then.num_files or own.num_threads > then.num_threads:
                    found.append(f"process {pid} holds {own}, before the load {then}")
            return found

        wrong += await settle(left)
        for pid, then in before.items():
            name = "server" if pid == pids[0] else f"child {pid}"
            print(f"{name}: {then.rss_mib:,.0f} MiB before the load, {held(pid).rss_mib:,.0f} MiB after", flush=True)
        health = await watch.get("/health")
        if health.status_code != 200:
            wrong.append(f"/health says {health.status_code}: {health.text}")
    return wrong


async def _report_until(
    running: "asyncio.Task[None]", counts: Counts, watch: httpx.AsyncClient, pids: Sequence[int], every_s: float
) -> None:
    begin_s = last_s = time.monotonic()
    num_tokens_before = 0
    while not running.done():
        await asyncio.wait((running,), timeout=every_s)
        now_s = time.monotonic()
        tasks = (await metrics(watch)).get(TASKS, float("nan"))
        line = describe(counts, now_s - last_s, num_tokens_before, tasks, pids)
        print(f"{now_s - begin_s:5.0f} s: {line}", flush=True)
        last_s, num_tokens_before = now_s, counts.num_tokens
    await running


async def stop(process: Process, log: Path) -> list[str]:
    """End the server as an operator does; returns all that is wrong."""
    pids = family(process.pid)
    process.send_signal(signal.SIGTERM)
    try:
        status = await asyncio.wait_for(process.wait(), timeout=30)
    except TimeoutError:
        return ["the server did not end within 30 s of SIGTERM"]
    wrong = [] if status == 0 else [f"the exit code after SIGTERM is {status}"]
    await asyncio.sleep(0.5)
    wrong += [f"process {pid} outlives the server" for pid in pids if _runs(pid)]
    if "Traceback" in log.read_text():
        wrong.append(f"the server's log holds a traceback:\n{log.read_text()[-3000:]}")
    return wrong


def _runs(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return (Path("/proc") / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return False


async def run(arguments: argparse.Namespace) -> list[str]:
    """The whole of it; returns all that is wrong."""
    if arguments.address:
        return await soak(arguments.address, None, arguments)
    with tempfile.TemporaryDirectory() as directory:
        model, flags = arguments.model, list(arguments.flags or FLAGS)
        if model == "tiny":
            from tests import tiny  # only now: it loads torch

            model = str(Path(directory) / "tiny")
            tiny.write_tiny(Path(model), layers=2)
            tiny.write_tiny_tokenizer(Path(model))
            flags = list(arguments.flags or TINY_FLAGS)
        log = Path(directory) / "log.txt"
        async with own_server(model, flags, log) as (process, address):
            try:
                wrong = await soak(address, process.pid, arguments)
            except (httpx.HTTPError, OSError) as error:  # the latter: the process is gone
                return [f"the server does not answer: {type(error).__name__}: {error}", log.read_text()[-3000:]]
            return wrong + await stop(process, log)


def main() -> int:
    """Exit code 1 when anything is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tools.soak", description=__doc__, allow_abbrev=False)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--address", default="")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("flags", nargs="*", help="of minnow serve, after --")
    try:
        wrong = asyncio.run(run(parser.parse_args()))
    except (Fault, httpx.HTTPError) as error:
        wrong = [f"{type(error).__name__}: {error}"]
    for words in wrong:
        print(f"wrong: {words}")
    print(f"{len(wrong)} wrong" if wrong else "nothing is left, nothing was wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
