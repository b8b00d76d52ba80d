"""the inputs of the planner's page: what can be asked for, and a query read and checked"""

import functools
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from minnow.config import flags, load
from minnow.config import model as model_config
from minnow.config.load import Loaded
from minnow.core.errors import ConfigError
from minnow.formats.spec import SPEC_BY_NAME
from minnow.plan import asked, calibration, hardware
from minnow.plan.deployment import Deployment

MODEL, HARDWARE, STRATEGY = "m3.1-flash", "b300", "dep"  # what is shown first: the published comparison
DEVICES, PREFILL_DEVICES = "4", "2"
STRATEGIES = {
    "tp": "TP: all split",
    "tep": "TEP: attention split",
    "dep": "DEP: attention whole",
    "dp": "DP: all whole",
}
# name, label, group, what it is, what an empty one stands for, the same on the command line of `minnow plan`
_INPUTS = (
    ("model", "Model", "Engine", "what is served", MODEL, ""),
    ("hardware", "Hardware", "Engine", "what each rank runs on", HARDWARE, "--hardware"),
    ("strategy", "Strategy", "Engine", "how devices share the work; E spreads experts", STRATEGY, "--strategy"),
    ("devices", "Devices", "Engine", "of the engine, on all its machines", DEVICES, ""),
    ("nodes", "Machines", "Engine", "that the devices are spread over", "as few as hold them", "--nodes"),
    ("prefill", "Prefill engine", "Engine", "another engine beside it, which computes prompts", "", "--prefill"),
    ("prefill_devices", "Its devices", "Engine", "of the prefill engine", PREFILL_DEVICES, ""),
    ("context", "Context", "Sequences", "tokens of the sequences that are counted: 200K", "256K, or all", "--context"),
    ("drafts", "Drafts", "Sequences", "whether the drafter runs", "", ""),
    ("acceptance", "Acceptance", "Sequences", "tokens that a step with drafts yields a sequence: 3.2", "1",
     "--acceptance-length"),
    ("calibration", "Calibration", "Sequences", "shares of the rates that steps reach", "", "--calibration"),
    ("input", "Prompt", "Traffic", "tokens of a prompt: 8K", "not counted", ""),
    ("cached", "of it cached", "Traffic", "tokens of the prompt that lie in the prefix cache", "0", ""),
    ("output", "Answer", "Traffic", "tokens of an answer: 1K", "not counted", ""),
    ("sequences", "Side by side", "Traffic", "sequences at a time, on all replicas", "all that fit", ""),
    ("rate", "or requests/s", "Traffic", "requests a second, instead of sequences side by side", "not given", ""),
    ("kv", "K and V", "Memory", "format of keys and values", "", "--kv-cache-dtype"),
    ("index", "Index keys", "Memory", "format of the index keys", "", "--attention-config.indexer_kv_dtype"),
    ("utilization", "Utilization", "Memory", "share of a device's memory that the engine may use", "0.9 on a GPU",
     "--gpu-memory-utilization"),
    ("reserve", "Reserve", "Memory", "memory of a rank beside weights and cache", "9GB on a GPU", "--reserve"),
    ("max_seqs", "Most in a step", "Memory", "max_num_seqs: sequences in a step of a replica", "64", "--max-num-seqs"),
    ("longest", "Longest", "Memory", "max_model_len: tokens of a request, prompt and answer", "as the model's",
     "--max-model-len"),
    ("watermark", "Watermark", "Memory", "share of the blocks kept free when admitting", "0", "--watermark"),
    ("experts", "Experts", "Memory", "format that routed experts are converted to when loaded", "", "--experts-format"),
)  # fmt: skip
_MORE = ("nodes", "calibration", "max_seqs", "longest", "watermark", "experts")  # shown when more is asked for
_MOST_SEQUENCES = 4096  # of a step: a plan takes time in proportion
_MOST_LETTERS = 64  # of a value; none that is meant has more

# What an input is called in the query, and the setting of an engine that it is.
_SETTINGS = {
    "kv": "kv_cache_dtype",
    "index": "attention_config.indexer_kv_dtype",
    "utilization": "gpu_memory_utilization",
    "max_seqs": "max_num_seqs",
    "longest": "max_model_len",
    "watermark": "watermark",
}
_LABELS = {name: label for name, label, *_ in _INPUTS}
# What planners call an input in their sentences -> what the page calls it.
_WORDS = {setting: _LABELS[name] for name, setting in _SETTINGS.items() if name != "watermark"}
_WORDS |= {flag: _LABELS[name] for name, *_, flag in _INPUTS if flag} | {"--no-speculation": "Drafts"}
_RATE = "requests/s"
_HERE = ", here"  # of a served model that is called as a published one


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One value of an input: as it stands in a query, and as people read it."""

    value: str
    label: str
    group: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One input of the page.

    Attributes:
        name: in a query.
        flag: the same on the command line of `minnow plan`; "" where it has none.
        options: where it is a choice.
        default: what an empty one stands for; of a choice, the value.
        is_more: shown when more is asked for.
    """

    name: str
    label: str
    group: str
    hint: str
    flag: str = ""
    options: tuple[Option, ...] = ()
    default: str = ""
    is_more: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A query that was read; its numbers are checked, what they mean together is not yet.

    Attributes:
        given: what is not empty, as it was typed.
        name: of the model, as clients know it; where it lies is none of their business.
        prefill: the strategy of an engine that computes prompts; "" where there is none.
        input_tokens, output_tokens, cached_tokens: of a request; all 0 where none is described.
        num_sequences: side by side; 0 is not given.
        requests_s: a second; 0 is not given.
    """

    given: Mapping[str, str]
    name: str
    loaded: Loaded
    device: hardware.Sheet
    strategy: str
    prefill: str
    context_tokens: int
    num_nodes: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    num_sequences: int
    requests_s: float
    acceptance_length: float
    calibrated: calibration.Calibration

    def settle(self, strategy: str, num_nodes: int = 0) -> Deployment:
        """The deployment with this strategy or another.

        Args:
            num_nodes: 0 takes as few as hold the devices.

        Raises:
            ConfigError: as `asked.settle`.
        """
        return asked.settle(
            self.loaded, self.device, strategy, context_tokens=self.context_tokens, num_nodes=num_nodes,
            reserve=self.given.get("reserve", ""), experts_format=self.given.get("experts", ""),
        )  # fmt: skip


def inputs(served: Mapping[str, str]) -> tuple[Input, ...]:
    """Every input, in order.

    Args:
        served: models that are served here, by their names in the API.
    """
    return _inputs(tuple(_values(served)))


@functools.cache
def _inputs(served: tuple[str, ...]) -> tuple[Input, ...]:
    options = _options(served)
    return tuple(
        Input(
            name=name, label=label, group=group, hint=hint, default=default, flag=flag,
            options=options.get(name, ()), is_more=name in _MORE,
        )
        for name, label, group, hint, default, flag in _INPUTS
    )  # fmt: skip


def worded(text: str) -> str:
    """A planner's sentence with the page's own names of inputs."""
    return re.sub(r"(?<![\w-])--?[a-z][\w.-]*\w|\b[a-z]+(?:_[a-z]+)+\b", lambda at: _WORDS.get(at[0], at[0]), text)


def _values(served: Mapping[str, str]) -> dict[str, str]:
    """Served models by their values in a query; a published name goes on meaning the published model."""
    published = model_config.known_names()
    return {
        name + _HERE * (name in published): name for name in served if name not in published or served[name] != name
    }


def _options(served: Iterable[str]) -> dict[str, tuple[Option, ...]]:
    formats = (Option(value="", label="as the model's"), *_named(flags.settings()["kv_cache_dtype"].choices[1:]))
    kinds = tuple(Option(value=word, label=label) for word, label in STRATEGIES.items())
    return {
        "model": (*_named(model_config.known_names(), "Published"), *_named(served, "Here")),
        "hardware": tuple(_sheets()),
        "strategy": kinds,
        "prefill": (Option(value="", label="none"), *kinds),
        "drafts": (Option(value="", label="on, if any"), Option(value="off", label="off")),
        "calibration": (Option(value="", label="by device"), *_named(["bound", *calibration.names()])),
        "kv": formats,
        "index": formats,
        "experts": (Option(value="", label="as stored"), *_named(SPEC_BY_NAME)),
    }


def read(query: Mapping[str, str], served: Mapping[str, str]) -> Query:
    """Read a query; files of the server are not within its reach, whatever it names.

    Raises:
        ConfigError: an input that does not exist, or a value that does not fit it.
    """
    known = {one.name: one for one in inputs(served)}
    given = {name: text.strip() for name, text in query.items() if text.strip()}
    for name, text in given.items():
        if name not in known:
            raise ConfigError(f"a plan has no {name[:_MOST_LETTERS]!r}; it has {', '.join(known)}")
        label, words = _LABELS[name], [option.value for option in known[name].options]
        if text not in words and len(text) > _MOST_LETTERS:
            raise ConfigError(f"{label} has {len(text):,} letters; a value has {_MOST_LETTERS} at most")
        if words and text not in words:
            raise ConfigError(f"{label} is {text!r}; it must be one of {', '.join(word for word in words if word)}")
    value = given.get("model", MODEL)
    name = _values(served).get(value, value)
    settings: dict[str, object] = {setting: given[key] for key, setting in _SETTINGS.items() if key in given}
    settings["model"] = value if value not in _values(served) else served[name]
    if given.get("drafts"):
        settings["speculation"] = False
    loaded = load.from_values(settings, {})
    if loaded.config.scheduler.max_num_seqs > _MOST_SEQUENCES:
        raise ConfigError(f"{_LABELS['max_seqs']} is {given['max_seqs']}; the page takes {_MOST_SEQUENCES:,} at most")
    device = hardware.read(given.get("hardware", HARDWARE))
    prefill = given.get("prefill", "")
    found = Query(
        given=given, name=name, loaded=loaded, device=device,
        strategy=given.get("strategy", STRATEGY) + _devices(given, "devices", DEVICES),
        prefill=prefill and prefill + _devices(given, "prefill_devices", PREFILL_DEVICES),
        context_tokens=_whole(given, "context"), num_nodes=_whole(given, "nodes"), input_tokens=_whole(given, "input"),
        output_tokens=_whole(given, "output"), cached_tokens=_whole(given, "cached"),
        num_sequences=_whole(given, "sequences"), requests_s=asked.real(given.get("rate", "0"), _RATE),
        acceptance_length=asked.real(given.get("acceptance", "1"), _LABELS["acceptance"]),
        calibrated=calibration.read(given.get("calibration", "") or device.kind),
    )  # fmt: skip
    _check_traffic(found)
    return found


def _check_traffic(query: Query) -> None:
    if bool(query.input_tokens) != bool(query.output_tokens):
        has, lacks = ("input", "output") if query.input_tokens else ("output", "input")
        raise ConfigError(
            f"{_LABELS[has]} is {query.given[has]}, and {_LABELS[lacks]} is left out; give both, or neither"
        )
    if query.cached_tokens > max(query.input_tokens - 1, 0):
        raise ConfigError(
            f"{query.given['cached']} tokens of the prompt are cached, but it has {query.input_tokens:,}, of which one "
            "at least is computed; give less"
        )
    if not math.isfinite(query.requests_s) or query.requests_s < 0:
        raise ConfigError(f"{_RATE} is {query.given['rate']!r}; a number of requests a second is needed")
    if query.requests_s and not query.output_tokens:
        raise ConfigError(f"{_RATE} is given, but not how long requests are; give Prompt and Answer, too")
    if query.requests_s and query.num_sequences:
        raise ConfigError(f"{_RATE} and {_LABELS['sequences']} are both given; leave one out")


def _whole(given: Mapping[str, str], name: str) -> int:
    return asked.whole(given.get(name, ""), _LABELS[name])


def _devices(given: Mapping[str, str], name: str, usual: str) -> str:
    text = given.get(name, usual)
    if not (text.isascii() and text.isdigit() and int(text)):
        raise ConfigError(f"{_LABELS[name]} is {text!r}; a whole number of devices is needed, 1 or more")
    return str(int(text))


def _named(names: Iterable[str], group: str = "") -> tuple[Option, ...]:
    return tuple(Option(value=name, label=name, group=group) for name in names)


def _sheets() -> Iterator[Option]:
    for kind, group in (("gpu", "GPU"), ("cpu", "CPU")):
        for sheet in hardware.read_all(kind):
            yield Option(value=sheet.name, label=sheet.title, group=group)
    yield Option(value=hardware.HERE, label="this server's machine", group="CPU")
