"""open-loop load; TTFT, ITL, goodput; percentiles with counts"""

import argparse
import asyncio
import json
import math
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import httpx

from minnow.bench import check_least, dataset, load, names_in, record, summary
from minnow.core import env
from minnow.core.errors import ConfigError, TransferError
from minnow.text.tokenizer import Tokenizer

HELP = "load an OpenAI server, any one, and say how fast it answers"

_CHAT = "/v1/chat/completions"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments, as `vllm bench serve` spells them."""
    group = parser.add_argument_group("server")
    group.add_argument(
        "--backend", choices=("vllm", "openai", "openai-chat"), default="openai", help="completions or chat"
    )
    group.add_argument("--base-url", metavar="URL", help="instead of --host and --port")
    group.add_argument("--host", default="127.0.0.1")
    group.add_argument("--port", type=int, default=8000)
    group.add_argument("--endpoint", metavar="PATH", help="default: what the backend has")
    group.add_argument("--model", metavar="NAME", help="as the server calls it; default: the first it names")
    group.add_argument("--served-model-name", metavar="NAME", help="where --model is the directory of the tokenizer")
    group.add_argument("--tokenizer", metavar="DIR", help="a directory or a pulled model; makes and counts tokens")
    group.add_argument("--header", nargs="*", default=[], metavar="KEY=VALUE", help="of every request")
    dataset.add_arguments(parser)
    group = parser.add_argument_group("load")
    group.add_argument("--request-rate", type=float, default=math.inf, metavar="R", help="a second; inf is all at once")
    group.add_argument(
        "--burstiness", type=float, default=1.0, metavar="X", help="1 is a Poisson process, less: bursts"
    )
    group.add_argument("--max-concurrency", type=int, metavar="N", help="requests on their way at a time")
    group.add_argument("--num-warmups", type=int, default=0, metavar="N", help="requests before, not counted")
    group.add_argument("--temperature", type=float, default=0.0)
    group.add_argument("--ignore-eos", action="store_true", help="every answer gets its full length")
    group.add_argument("--extra-body", type=json.loads, default={}, metavar="JSON", help="more fields of a request")
    group = parser.add_argument_group("result")
    group.add_argument("--percentile-metrics", default="ttft,tpot,itl,e2el", metavar="NAMES")
    group.add_argument("--metric-percentiles", default="50,90,99", metavar="NUMBERS")
    group.add_argument("--goodput", nargs="+", default=[], metavar="METRIC:MS", help="good: ttft:200 tpot:50")
    group.add_argument("--save-result", action="store_true", help="append it to a file, as a line of JSON")
    group.add_argument("--result-dir", type=Path, default=Path(), metavar="DIR")
    group.add_argument("--result-filename", default="serve.jsonl", metavar="FILE")
    group.add_argument("--disable-tqdm", action="store_true", help="accepted: there is no bar")


def run(args: argparse.Namespace, say: Callable[[str], None], transport: httpx.AsyncBaseTransport | None = None) -> int:
    """Send the load, and say what came of it; 1 when every request failed.

    Args:
        transport: what carries the requests; None is the network.
    """
    metrics = names_in(args.percentile_metrics, summary.TITLES, "--percentile-metrics")
    percentiles, goodput = _percentiles(args.metric_percentiles), _goodput(args.goodput)
    check_least(args, 0, "--num-warmups", "--random-prefix-len")
    check_least(args, 1, "--num-prompts", "--max-concurrency", "--random-input-len", "--random-output-len",
                "--sharegpt-output-len", "--custom-output-len")  # fmt: skip
    for name in ("request_rate", "burstiness"):
        if not getattr(args, name) > 0:
            raise ConfigError(f"--{name.replace('_', '-')} is {getattr(args, name)}; it must be above 0")
    tokenizer = _tokenizer(args)
    wanted = argparse.Namespace(**{**vars(args), "num_prompts": args.num_warmups + args.num_prompts})
    samples = dataset.read(wanted, tokenizer)  # those that warm up are others: the server may keep what it has read
    due = load.arrivals(args.num_prompts, args.request_rate, args.burstiness, Random(args.seed))

    async def go() -> tuple[list[load.Outcome], dict[str, Any]]:
        server = await _server(args, transport)
        warm, counted = samples[: args.num_warmups], samples[args.num_warmups :]
        await load.run(server, warm, [0.0] * len(warm), max_concurrency=args.max_concurrency)
        before = await _counters(server)
        outcomes = await load.run(server, counted, due, max_concurrency=args.max_concurrency)
        return outcomes, summary.drafting(before, await _counters(server))

    outcomes, drafting = asyncio.run(go())
    result = summary.summarize(outcomes, percentiles=percentiles, goodput_ms=goodput, tokenizer=tokenizer) | drafting
    if tokenizer is None and args.dataset_name == "random":
        result["notes"].append("without --tokenizer DIR a prompt is words, about a token each; the server counts them")
    settings: dict[str, object] = {}
    if args.max_concurrency:
        settings["Maximum request concurrency:"] = args.max_concurrency
    if math.isfinite(args.request_rate):
        settings |= {"Request rate configured (RPS):": args.request_rate, "Latest start (ms):": result["max_lag_ms"]}
    if args.save_result:
        chosen = {name: value for name, value in vars(args).items() if isinstance(value, str | int | float | None)}
        chosen["request_rate"] = str(args.request_rate)  # infinity is no JSON
        record.append(args.result_dir / args.result_filename, record.new("serve", chosen, result))
    for line in summary.table(result, metrics, settings):
        say(line)
    return 1 if result["failed"] and not result["completed"] else 0


async def _server(args: argparse.Namespace, transport: httpx.AsyncBaseTransport | None) -> load.Server:
    address = (args.base_url or f"http://{args.host}:{args.port}").rstrip("/")
    endpoint = args.endpoint or (_CHAT if args.backend == "openai-chat" else "/v1/completions")
    is_chat = endpoint.endswith("/chat/completions")
    if is_chat != (args.backend == "openai-chat") and args.backend != "vllm":
        raise ConfigError(f"--backend {args.backend} does not go with --endpoint {endpoint}")
    headers = {}
    for word in args.header:
        key, separator, headers[key] = word.partition("=")
        if not separator:
            raise ConfigError(f"--header {word!r} is not KEY=VALUE")
    model = args.served_model_name or args.model
    if model is None:
        try:
            async with httpx.AsyncClient(transport=transport, trust_env=False) as client:
                answer = await client.get(f"{address}/v1/models", headers=headers)
            model = answer.json()["data"][0]["id"]
        except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
            why = str(error) if isinstance(error, httpx.HTTPError) else f"status {answer.status_code}"
            raise TransferError(
                f"{address}/v1/models names no model ({why}); start the server, or say --model"
            ) from None
    body: dict[str, Any] = {"model": model, "temperature": args.temperature, **args.extra_body}
    if args.ignore_eos:
        body["ignore_eos"] = True
    return load.Server(url=address + endpoint, is_chat=is_chat, body=body, headers=headers, transport=transport)


async def _counters(server: load.Server) -> str:
    """What the server's /metrics says; nothing where it has none."""
    try:
        async with httpx.AsyncClient(transport=server.transport, trust_env=False) as client:
            answer = await client.get(httpx.URL(server.url).join("/metrics"), headers=server.headers)
    except httpx.HTTPError:
        return ""
    return answer.text if answer.status_code == 200 else ""


def _tokenizer(args: argparse.Namespace) -> Tokenizer | None:
    """That of --tokenizer, or of --model where it is here: a directory, or the name of a pulled model."""
    pulled = Path(env.read("MINNOW_HOME")).expanduser() / "models"
    for name in filter(None, (args.tokenizer, args.model)):
        for folder in (Path(name).expanduser(), pulled / name):
            if (folder / "tokenizer.json").is_file():
                return Tokenizer.load(folder)
    if args.tokenizer:
        raise ConfigError(f"--tokenizer {args.tokenizer}: there is no tokenizer.json in it")
    return None


def _percentiles(text: str) -> list[float]:
    try:
        numbers = [float(word) for word in text.split(",")]
    except ValueError:
        numbers = [-1.0]
    if not all(0 <= number <= 100 for number in numbers):
        raise ConfigError(f"--metric-percentiles is {text!r}; write numbers from 0 to 100: 50,90,99")
    return numbers


def _goodput(words: list[str]) -> dict[str, float]:
    limits = {}
    for word in words:
        name, _, value = word.partition(":")
        names_in(name, summary.TITLES, "--goodput")
        try:
            limits[name] = float(value)
        except ValueError:
            raise ConfigError(f"--goodput {word!r} is not METRIC:MS, for example ttft:200") from None
    return limits
