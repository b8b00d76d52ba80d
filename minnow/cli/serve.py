"""minnow serve: the OpenAI API on a port"""

import argparse
import dataclasses
import signal
from pathlib import Path
from types import FrameType

import minnow
from minnow.config import flags, generation, load
from minnow.config import model as model_config
from minnow.config.engine import EngineConfig, check, problems
from minnow.config.load import Loaded
from minnow.core import env
from minnow.core.errors import CapacityError, ConfigError

HELP = "serve a model over HTTP, as the OpenAI API"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    flags.add_arguments(parser)
    parser.add_argument("--dry-run", action="store_true", help="print what would be served and what is in the way; 1 "
                        "where something is to be mended")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Load the model, serve it until a signal comes, and leave with 0."""
    loaded = load.load(args, is_planning=args.dry_run)
    config = loaded.config
    if not config.model:
        raise ConfigError("minnow serve needs a model: minnow serve MODEL")
    check_key(loaded)
    if env.read("PROMETHEUS_MULTIPROC_DIR"):
        raise ConfigError(
            "PROMETHEUS_MULTIPROC_DIR is set, for metrics of several processes; unset it, there is one here"
        )
    if args.dry_run:
        return _dry_run(loaded)
    before = {number: signal.signal(number, _leave) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        _serve(config)
    except BaseException:
        for number, action in before.items():
            signal.signal(number, action)
        raise
    for number in before:
        signal.signal(number, signal.SIG_IGN)  # the process ends now; one signal more is no failure
    return 0


def check_key(loaded: Loaded) -> None:
    """Refuse a key that would let everyone in.

    Raises:
        ConfigError: it is given and empty.
    """
    origin = loaded.origin_by_field["api_key"]
    if origin != "default" and not loaded.config.server.api_key.strip():
        raise ConfigError(f"{origin}: the API key is empty; give one, or leave it out to let everyone in")


def _dry_run(loaded: Loaded) -> int:
    """Print the plan of a command on this machine, and all that keeps it from being launched here."""
    from minnow.plan import asked, capacity, command, hardware, report, transfer  # only now: serving needs no planner

    name, model, _, is_published = asked.find(loaded.config.model)
    parallel = loaded.config.parallel
    num_ranks = parallel.tensor_parallel_size * parallel.data_parallel_size
    here = dataclasses.replace(hardware.read(hardware.HERE), devices_per_node=num_ranks)  # all of them may share it
    engine = asked.settle(loaded, here, is_drafting=False)
    checked = command.check(loaded, engine)
    refusals = [f"{flag}: {reason}" for flag, reason in checked.not_yet.items()]
    refusals += problems(load.resolve_auto(loaded.config, model), model)
    needed, free = checked.host.num_huge_pages if checked.host else 0, transfer.free_huge_pages()
    if needed > free:
        refusals.append(f"{needed:,} pages of 1 GiB are needed for {num_ranks // engine.num_nodes} ranks, "
                        f"{free:,} are free here; reserve: echo {needed} > {transfer.HUGE_PAGES_FILE}")  # fmt: skip
    if is_published:
        refusals.append(f"the weights of {name} are not here, its configuration is; name a directory that holds them")
    lines = [f"{name}, {engine.strategy}: a dry run, no weights are read"]
    try:
        lines += ["", *report.plan(capacity.measure(engine))]
    except CapacityError as error:
        refusals.append(str(error))
    lines += report.command(dataclasses.replace(checked, not_yet={}))
    lines += ["", "A launch here is refused:" if refusals else "A launch here would start."]
    lines += [f"  {sentence}" for sentence in refusals]
    print("\n".join(lines))
    return 1 if checked.problems else 0


def _serve(config: EngineConfig) -> None:
    # Only now: the command line starts without the HTTP server. None of these load torch; the engine's process does.
    from minnow.checkpoint import demo
    from minnow.engine.client import EngineClient
    from minnow.engine.host import EngineProcess
    from minnow.plan import page
    from minnow.server import app, computed, listen
    from minnow.text.template import ChatTemplate
    from minnow.text.tokenizer import Tokenizer

    # A busy port, an unknown model or a broken template is said before the weights are read.
    listening = listen.bind(config.server.host, config.server.port)
    try:
        directory = demo.resolve(config.model)
        template = config.server.chat_template
        tokenizer = Tokenizer.load(directory)
        chat_template = ChatTemplate.load(directory, Path(template) if template else None)
        defaults = generation.read(directory, config.generation_config)
        model = model_config.read(directory)
        settled = load.resolve_auto(config, model)
        check(settled, model)
        load.resolve_speculation(settled, directory, model)
        client = EngineClient(EngineProcess(config, directory), step_timeout_s=config.server.engine_step_timeout)
        door = app.build(
            client,
            tokenizer=tokenizer,
            template=chat_template,
            model_name=config.model,
            config=config.server,
            sampling_defaults=defaults,
            routes=computed.routes(page.paths({config.server.served_model_name or config.model: config.model})),
        )

        def say() -> None:
            print(describe(settled, listen.address_of(listening), client.max_model_len), flush=True)

        listen.serve(door, listening, client, when_ready=say, drain_s=config.server.shutdown_timeout)
    finally:
        listening.close()


def describe(config: EngineConfig, address: str, max_model_len: int) -> str:
    """What is served, and where, in one line.

    Args:
        config: nothing in it is "auto" any more.
        address: of the page; the API is under it.
        max_model_len: in tokens.
    """
    name = config.server.served_model_name or config.model
    cache = config.cache.kv_cache_dtype
    return f"minnow {minnow.__version__} serves {name} on {address} (context {max_model_len:,} tokens, cache {cache})"


def _leave(number: int, frame: FrameType | None) -> None:
    """Stop while the model is loading."""
    raise SystemExit(0)
