"""a recipe as text: shell commands and their Docker form, for vLLM or for Minnow"""

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from minnow.config import vllm
from minnow.plan import recipe_rules, recipe_table
from minnow.plan.recipe_build import Process, Recipe, Word
from minnow.plan.transfer import HUGE_PAGES_FILE

Engine = Literal["minnow", "vllm"]
ENGINES: tuple[Engine, ...] = ("minnow", "vllm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A process as an engine is started.

    Attributes:
        title: whose it is.
        before: what the host needs first.
        environment, words: without what has no effect on this engine.
        left_out: words that have none -> why.
        not_yet: words that a launch does not take yet -> why.
        shell: to be typed.
        docker: the same in a container, "" where there is no image.
        docker_status: "stated" for the one form that is public, "inferred" for others.
    """

    title: str
    before: tuple[str, ...]
    environment: tuple[Word, ...]
    words: tuple[Word, ...]
    left_out: dict[str, str]
    not_yet: dict[str, str]
    shell: str
    docker: str
    docker_status: str


def commands(recipe: Recipe, engine: Engine) -> tuple[Command, ...]:
    """Each process of a recipe."""
    return tuple(_command(recipe, process, engine) for process in recipe.processes)


def _command(recipe: Recipe, process: Process, engine: Engine) -> Command:
    environment, words = process.environment, process.words
    left_out: dict[str, str] = {}
    not_yet: dict[str, str] = {}
    if engine == "minnow":
        left_out = _reasons((*environment, *words), "no effect", "refused")
        not_yet = _reasons(words, "not yet")
        environment = tuple(word for word in environment if word.name not in left_out)
        words = tuple(word for word in words if word.name not in left_out)
    docker = _docker(recipe, process) if engine == "vllm" else ""
    is_stated = recipe.status == "stated" and recipe.choice.hardware == "b300"
    return Command(
        title=process.role + (f", node {process.node}" if recipe.choice.nodes > 1 else ""),
        before=tuple(_before(process)),
        environment=environment,
        words=words,
        left_out=left_out,
        not_yet=not_yet,
        shell=_shell(f"{engine} serve {recipe.model}", environment, words),
        docker=docker,
        docker_status="" if not docker else "stated" if is_stated else "inferred",
    )


def _reasons(words: Iterable[Word], *verdicts: str) -> dict[str, str]:
    """Words with one of some verdicts in the table of vLLM's, and why."""
    rows = {word.name: vllm.find(word.name.replace("--no-", "--", 1)) for word in words}
    return {name: row.reason for name, row in rows.items() if row is not None and row.verdict in verdicts}


def _before(process: Process) -> Iterator[str]:
    if process.num_huge_pages:
        yield f"echo {process.num_huge_pages} | sudo tee {HUGE_PAGES_FILE}"


def pair(word: Word) -> str:
    """A flag and its value, quoted for a shell."""
    return word.name if word.value is None else f"{word.name} {shlex.quote(word.value)}"


def _shell(start: str, environment: tuple[Word, ...], words: tuple[Word, ...]) -> str:
    exports = " ".join(f"{word.name}={shlex.quote(word.value or '')}" for word in environment)
    return " \\\n".join([*([exports] if exports else []), start, *(f"  {pair(word)}" for word in words)])


def _docker(recipe: Recipe, process: Process) -> str:
    platform = recipe_table.read().platforms[recipe.choice.platform]
    is_alone = len(recipe.processes) == 1
    network = f"-p {process.port}:{process.port}" if is_alone else "--network host"
    lines = [
        f"docker run {' '.join(platform.docker)}",
        f"  --privileged --ipc=host {network}",
        "  -v ~/.cache/huggingface:/root/.cache/huggingface",
        *(f"  -e {word.name}={shlex.quote(word.value or '')}" for word in process.environment),
        f"  {platform.image} {recipe.model}",
        *(f"  {pair(word)}" for word in process.words),
    ]
    return " \\\n".join(lines)


def proxy(recipe: Recipe, engine: Engine) -> str:
    """A command for a quick test that joins the two roles of vLLM; "" where there is one, and for Minnow."""
    hosts = recipe.choice.hosts
    if engine != "vllm" or not recipe_rules.PORT_BY_ROLE.keys() <= hosts.keys():
        return ""
    script = "python tests/v1/kv_connector/nixl_integration/toy_proxy_server.py"
    ports = recipe_rules.PORT_BY_ROLE
    return " \\\n".join(
        [
            f"{script} --port {recipe_rules.PROXY_PORT}",
            f"  --prefiller-host {hosts['prefill']} --prefiller-port {ports['prefill']}",
            f"  --decoder-host {hosts['decode']} --decoder-port {ports['decode']}",
        ]
    )


def show(recipe: Recipe, engine: Engine) -> Iterator[str]:
    """All of it, for people."""
    choice = recipe.choice
    words = (
        f"{choice.hardware}, {choice.strategy}, variant {choice.variant}, {','.join(choice.features) or 'no features'}"
    )
    yield f"# {recipe.model} on {words}: {recipe.status}" + (
        " for vLLM, as Minnow reads it" if engine == "minnow" else ""
    )
    if engine == "vllm":
        yield f"# vLLM {recipe.version} or newer"
    else:
        yield "# --dry-run behind a command says what a launch here refuses"
    yield from (f"# {note}" for note in recipe.notes)
    for command in commands(recipe, engine):
        yield ""
        yield f"# {command.title}"
        yield from (f"# before the start: {line}" for line in command.before)
        yield command.shell
        if command.docker:
            yield ""
            yield f"# {command.title}, in Docker: {command.docker_status}"
            yield from (["# the container's hugetlb limit must allow those pages"] if command.before else [])
            yield command.docker
        if recipe.status == "inferred":
            yield ""
            yield "# inferred: why each word is there"
            yield from (f"#   {word.name}: {word.rule}" for word in (*command.environment, *command.words))
        if command.left_out or command.not_yet:
            yield ""
            yield from (f"# left out, without effect here: {n}: {why}" for n, why in command.left_out.items())
            yield from (f"# planned with, not launched yet: {n}: {why}" for n, why in command.not_yet.items())
    if joined := proxy(recipe, engine):
        yield ""
        yield "# before both, for a quick test"
        yield joined
