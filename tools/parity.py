"""perplexity of a model through Minnow's own decoder, by cache format, against transformers

    python -m tools.parity [--model DIR] [--kilobytes 200] [--window 1024] [--caches float32 bfloat16 fp8 nvfp4]
                           [--activations none int16 int8]

The text is Python's own topic documentation (pydoc_data.topics), cut into windows that are scored alone.
"""

import argparse
import math
import pydoc_data.topics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from minnow.checkpoint import demo
from minnow.checkpoint.load import fill, open_weights
from minnow.config import model as model_config
from minnow.formats.quantized import Weight, decode
from minnow.model.decoder import Decoder
from minnow.model.native_step import NativeStep
from minnow.text.tokenizer import Tokenizer
from tests.drive import CPU, Driver, even_chunks, make_kernels
from tests.model import llama_oracle

_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
_DIGITS = {"none": 3, "int16": 2, "int8": 1}


def text(num_bytes: int) -> str:
    """Real English with code in it: the first bytes of Python's topic documentation."""
    whole = "\n\n".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))
    return whole.encode()[:num_bytes].decode(errors="ignore")


def loss(logits_of: Callable[[Tensor], Tensor], ids: Tensor, window: int) -> tuple[float, int]:
    """Sum of negative log-likelihoods (natural logarithm) over windows, and the number of tokens scored."""
    total, count = 0.0, 0
    for part in torch.split(ids, window):
        if len(part) > 1:
            logits = logits_of(part)[:-1].float()
            total += float(functional.cross_entropy(logits, part[1:], reduction="sum"))
            count += len(part) - 1
    return total, count


def decoder_of(directory: Path, dtype: str) -> Decoder:
    """The model of a directory, with activations of a dtype."""
    config = model_config.read(directory)
    decoder = Decoder(config, make_kernels(), _DTYPES[dtype], CPU)
    fill(decoder, open_weights(directory, config))
    for module in decoder.modules():
        weights: tuple[Weight, ...] = getattr(module, "weights", ())
        if weights:  # the same values, decoded once and not for each chunk
            module.weights = tuple(decode(weight) for weight in weights)  # type: ignore[assignment]
    return decoder


def through_cache(decoder: Decoder, cache: str, chunk: int) -> Callable[[Tensor], Tensor]:
    """Logits of a window by prefill in chunks, through a cache of a format."""

    def run(ids: Tensor) -> Tensor:
        num_blocks = -(-len(ids) // 128) + 1
        driver = Driver(decoder, decoder.config, num_blocks=num_blocks, kv_format=cache)
        return driver.run(ids, even_chunks(len(ids), chunk))

    return run


def through_step(directory: Path, cache: str, chunk: int, window: int, digits: int) -> Callable[[Tensor], Tensor]:
    """The same through the native step as it is served: from the checkpoint's own weights, FP32 activations."""
    config = model_config.read(directory)
    decoder = Decoder(config, make_kernels(), torch.float32, CPU)
    fill(decoder, open_weights(directory, config))
    driver = Driver(decoder, config, num_blocks=-(-window // 128) + 1, kv_format=cache)
    driver.decoder = NativeStep(decoder, driver.pool.layers, is_resident=True, digits=digits)
    return lambda ids: driver.run(ids, even_chunks(len(ids), chunk))


def main() -> None:
    """Print one line a measurement."""
    parser = argparse.ArgumentParser(description="perplexity by cache format, against transformers")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--kilobytes", type=int, default=200)
    parser.add_argument("--window", type=int, default=1024)
    parser.add_argument("--chunk", type=int, default=512)
    parser.add_argument("--dtype", choices=_DTYPES, default="float32")
    parser.add_argument("--caches", nargs="*", default=["float32", "bfloat16", "fp8", "nvfp4"])
    parser.add_argument("--activations", nargs="*", choices=_DIGITS, default=list(_DIGITS), help="of the native step")
    args = parser.parse_args()
    directory = demo.untrained(args.model)  # transformers mixes no keys
    ids = torch.tensor(Tokenizer.load(directory).encode(text(args.kilobytes * 1000)))
    print(f"{args.kilobytes} kB of text, {len(ids):,} tokens, windows of {args.window}, {args.dtype} activations")
    reference = llama_oracle.make(directory)
    base = _show("transformers", lambda part: llama_oracle.forward(reference, part), ids, args.window, None)
    decoder = decoder_of(directory, args.dtype)
    for cache in args.caches:
        _show(f"minnow, {cache} cache", through_cache(decoder, cache, args.chunk), ids, args.window, base)
        for name in args.activations:
            step = through_step(directory, cache, args.chunk, args.window, _DIGITS[name])
            _show(f"native step, {name}, {cache} cache", step, ids, args.window, base)


def _show(name: str, run: Callable[[Tensor], Tensor], ids: Tensor, window: int, base: float | None) -> float:
    start_s = time.perf_counter()
    total, count = loss(run, ids, window)
    perplexity = math.exp(total / count)
    change = "" if base is None else f"{100 * (perplexity / base - 1):+.3f} %"
    print(f"{name:38} perplexity {perplexity:9.4f}  {change:>10}  {time.perf_counter() - start_s:6.0f} s", flush=True)
    return perplexity


if __name__ == "__main__":
    main()
