"""minnow generate: continue prompts, once"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minnow.config import flags, load
from minnow.core.errors import ConfigError, MinnowError
from minnow.core.request import SamplingParams

if TYPE_CHECKING:
    from minnow.llm import LLM, Piece

HELP = "continue prompts with a model, in this process"

_DEFAULT_MAX_TOKENS = 256
_ANY_VOCAB_SIZE = 2**31  # the engine checks against the model's own


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    group = parser.add_argument_group("What to continue")
    group.add_argument("--prompt", metavar="TEXT", action="append", default=[], help="may be given several times")
    group.add_argument("--prompt-file", metavar="FILE", action="append", default=[],
                       help="a prompt in a file, or - for standard input; may be given several times")  # fmt: skip
    group.add_argument("--chat", action="store_true", help="prompts are user messages, put into the chat template")
    group.add_argument("--record", metavar="FILE", help="write every step to a file, for minnow replay")
    add_sampling_arguments(parser, temperature=0.0, max_tokens=_DEFAULT_MAX_TOKENS)
    flags.add_arguments(parser)


def add_sampling_arguments(
    parser: argparse.ArgumentParser, *, temperature: float | None, max_tokens: int | None
) -> None:
    """Declare how tokens are drawn; `--seed` is the engine's own flag. What is left out is the model's choice."""
    group = parser.add_argument_group("How tokens are drawn")
    own = "the model's"
    usual = own if temperature is None else f"{temperature:g}"
    default = "fills the context" if max_tokens is None else str(max_tokens)
    group.add_argument("--max-tokens", type=int, metavar="TOKENS", default=max_tokens,
                       help=f"longest continuation (default: {default})")  # fmt: skip
    group.add_argument("--min-tokens", type=int, metavar="TOKENS", default=0, help="no end before (default: 0)")
    group.add_argument("--temperature", type=float, metavar="X", default=temperature,
                       help=f"0 takes the likeliest token (default: {usual})")  # fmt: skip
    group.add_argument("--top-k", type=int, metavar="TOKENS",
                       help=f"draw from so many likeliest; 0 takes all (default: {own})")  # fmt: skip
    group.add_argument("--top-p", type=float, metavar="X",
                       help=f"draw from the likeliest that hold this share (default: {own})")  # fmt: skip
    group.add_argument("--min-p", type=float, metavar="X",
                       help=f"leave out tokens below this times the likeliest (default: {own})")  # fmt: skip
    for name in ("presence", "frequency", "repetition"):
        group.add_argument(f"--{name}-penalty", type=float, metavar="X", help=f"(default: {own})")
    group.add_argument("--stop", metavar="TEXT", action="append", default=[],
                       help="end before this text; may be given several times")  # fmt: skip
    group.add_argument("--ignore-eos", action="store_true", help="go on past the model's end of text")


_FIELDS = (
    "temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
    "min_tokens", "max_tokens", "ignore_eos",
)  # fmt: skip


def sampling_of(args: argparse.Namespace, defaults: Mapping[str, Any] | None = None) -> SamplingParams:
    """The sampling parameters that `add_sampling_arguments` found, on top of the model's own.

    Raises:
        RequestError: a value out of range, said before a model is loaded.
    """
    given = {name: getattr(args, name) for name in _FIELDS if getattr(args, name) is not None}
    sampling = SamplingParams(**{**(defaults or {}), **given})
    sampling.check(_ANY_VOCAB_SIZE)
    return sampling


def run(args: argparse.Namespace) -> int:
    """Print one continuation as it comes, or several one below the other; 1 where one failed."""
    config = load.load(args).config
    sampling_of(args)  # refuses before a model is loaded
    prompts = [*args.prompt, *(_read(name) for name in args.prompt_file)]
    if not prompts:
        raise ConfigError("minnow generate needs --prompt TEXT or --prompt-file FILE")
    if not config.model:
        raise ConfigError("minnow generate needs a model: minnow generate MODEL --prompt TEXT")
    from minnow.llm import LLM  # only now: it loads torch

    with LLM(config, record=Path(args.record) if args.record else None) as llm:
        tokens = [_encode(llm, prompt, is_chat=args.chat) for prompt in prompts]
        pieces = llm.stream(tokens, sampling_of(args, llm.sampling_defaults), stop=args.stop)
        return _print_one(pieces) if len(prompts) == 1 else _print_several(pieces, len(prompts))


def _encode(llm: "LLM", prompt: str, *, is_chat: bool) -> Sequence[int]:
    if not is_chat:
        return llm.tokenizer.encode(prompt, add_special_tokens=True)
    return llm.render([{"role": "user", "content": prompt}]).token_ids


def _print_one(pieces: "Iterator[Piece]") -> int:
    for piece in pieces:
        print(piece.text, end="", flush=True)
        if piece.output is not None and piece.output.outputs[0].error is not None:
            print()
            raise MinnowError(piece.output.outputs[0].error)
    print()
    return 0


def _print_several(pieces: "Iterator[Piece]", count: int) -> int:
    """In the order of the prompts, each as soon as those before it are done."""
    done: dict[int, str] = {}
    next_index = 0
    status = 0
    for piece in pieces:
        if piece.output is None:
            continue
        completion = piece.output.outputs[0]
        done[piece.index] = completion.text
        if completion.error is not None:
            print(f"minnow: prompt {piece.index + 1}: {completion.error}", file=sys.stderr)
            status = 1
        while next_index in done:
            print(f"--- prompt {next_index + 1} of {count}\n{done.pop(next_index)}", flush=True)
            next_index += 1
    return status


def _read(name: str) -> str:
    try:
        return sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--prompt-file: {name} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"--prompt-file: {name} is no UTF-8 text") from None
