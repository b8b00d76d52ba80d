"""models whose drafts are as good as one likes, and all that an engine can say with how likely each is"""

import itertools
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from minnow.checkpoint.load import fill, open_weights
from minnow.config import model
from minnow.config.model import ModelConfig
from minnow.core.request import SamplingParams
from minnow.engine.drafting import PlainDrafts
from minnow.engine.engine import Engine
from minnow.engine.pace import Pace
from minnow.kernels.probabilities.reference import probabilities
from minnow.model.decoder import Decoder
from minnow.model.step import StepInputs, StepOutput
from tests import tiny
from tests.drive import CPU, Driver, make_kernels
from tests.engine import running
from tests.kernels.test_verify import RULES, kept, next_law
from tests.model.test_dspark import Plain

AT = "language_model.model."


def write_bigram(directory: Path, *, noise: float = 0.0, heat: float = 1.0, **settings: Any) -> ModelConfig:
    """A model whose next token depends on the last one alone, and a drafter whose Markov head says the same.

    Layers and backbone pass nothing on. So the ideal drafts are as good at any depth.

    Args:
        noise: added to what the drafter says, in logits; 0 drafts with the target's own distribution.
        heat: the spread of logits.
        settings: `drafter` ones begin with "draft_", the others are the target's.
    """
    own = {k: v for k, v in settings.items() if not k.startswith("draft_")}
    target = tiny.write_tiny(directory, family="llama", dtype="float32", layers=2, tie_word_embeddings=False, **own)
    rank = target.hidden_size
    drafter = {k.removeprefix("draft_"): v for k, v in settings.items() if k.startswith("draft_")}
    tiny.write_tiny_drafter(directory, target, markov_rank=rank, **drafter)
    file = directory / "model.safetensors"
    tensors = load_file(file)
    for name in tensors:
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensors[name].zero_()
    tensors[f"{AT}norm.weight"].fill_(heat)
    save_file(tensors, file)
    table = tensors[f"{AT}embed_tokens.weight"].float()
    file = directory / "dspark" / "model.safetensors"
    drafts = load_file(file)
    drafts["norm.weight"].zero_()
    states = heat * table / (table.square().mean(1, keepdim=True) + 1e-5).sqrt()
    drafts["markov_head.markov_w1.weight"] = states
    generator = torch.Generator().manual_seed(5)
    head = tensors["language_model.lm_head.weight"].float()
    rows = head + noise * head.std() * torch.randn(head.shape, generator=generator)
    if "d2t" in drafts:
        rows = rows[drafts["d2t"] + torch.arange(len(drafts["d2t"]))]
    drafts["markov_head.markov_w2.weight"] = rows.contiguous()
    save_file(drafts, file)
    return target


def write_served(directory: Path, **settings: Any) -> None:
    """Let a drafter propose how it is served."""
    path = directory / "dspark" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"speculative_config": settings}))


class Chooser:
    """Makes every draw by a script, and goes on with the first of what is possible."""

    def __init__(self, script: list[int]) -> None:
        self.script = script
        self.trail: list[tuple[int, list[float]]] = []

    def choose(self, law: list[float]) -> int:
        """One of the outcomes."""
        place = len(self.trail)
        found = self.script[place] if place < len(self.script) else next(i for i, p in enumerate(law) if p > 0)
        self.trail.append((found, law))
        return found

    @property
    def likelihood(self) -> float:
        """Of all choices together."""
        likely = 1.0
        for found, law in self.trail:
            likely *= law[found]
        return likely

    def following(self) -> list[int] | None:
        """The next script, or None after the last one."""
        for place in reversed(range(len(self.trail))):
            found, law = self.trail[place]
            later = next((i for i in range(found + 1, len(law)) if law[i] > 0), None)
            if later is not None:
                return [chosen for chosen, _ in self.trail[:place]] + [later]
        return None

    # -- in place of operations ---------------------------------------------------------------------------------

    def sample(self, logits: Tensor, temperature: Tensor, *others: Tensor) -> Tensor:
        """One token of a row."""
        assert len(logits) == 1
        return torch.tensor([self.choose(probabilities(logits, temperature, *others[:3])[0].tolist())])

    def verify(
        self, p: Tensor, q: Tensor | None, drafts: Tensor, starts: Tensor, uniform: Tensor, rule: str
    ) -> tuple[Tensor, Tensor]:
        """A proposal where there are no drafts; else how many are kept, and the token after them."""
        assert len(starts) == 2 and len(uniform) == len(p)
        if not len(drafts):
            return torch.tensor([0]), torch.tensor([self.choose(p[0].tolist())])
        ids = tuple(drafts.tolist())
        if q is None:
            q = torch.zeros(len(ids), p.shape[1]).scatter_(1, drafts[:, None], 1.0)
        limits, counts_last, rests = RULES[rule](p.double(), q.double(), ids)
        law = [0.0] * (len(ids) + 1)
        for passes in itertools.product((True, False), repeat=len(ids)):
            share = 1.0
            for passed, limit in zip(passes, limits, strict=True):
                share *= limit if passed else 1 - limit
            law[kept(list(passes), counts_last)] += share
        num = self.choose(law)
        return torch.tensor([num]), torch.tensor([self.choose(next_law(p.double(), rests, num).tolist())])


class _Patched:
    """Bound operations, some of them replaced."""

    def __init__(self, kernels: Any, **others: Callable[..., Any]) -> None:
        self.__dict__.update(kernels.__dict__ | others)


def law_of(make: Callable[[], Engine], prompt: list[int], sampling: SamplingParams) -> dict[tuple[int, ...], float]:
    """What an engine says to a prompt, and how likely, by going through every draw that it can make.

    Args:
        make: an engine; called once. The requests follow each other, without a prefix cache.
    """
    engine, law, script = make(), Counter[tuple[int, ...]](), list[int]()
    runner: Any = engine.runner
    speculator = runner._speculator
    assert speculator is None or isinstance(speculator._network, PlainDrafts), "its draws cannot be chosen"
    plain = runner._kernels
    while True:
        scheduler: Any = engine._scheduler
        scheduler._pace = Pace()  # each request comes after the same past, which is none
        chooser = Chooser(script)
        patched = _Patched(plain, sample=chooser.sample, verify=chooser.verify)
        runner._kernels = patched
        if speculator is not None:
            speculator._kernels = speculator._network._kernels = patched
        law[tuple(running.run(engine, [prompt], sampling)[0])] += chooser.likelihood
        following = chooser.following()
        if following is None:
            return dict(law)
        script = following


def plain_drafter(directory: Path) -> Plain:
    """The drafter of a model, written anew."""
    source = open_weights(directory, model.read(directory))
    table, head = source.take("model.embed_tokens"), source.take("lm_head")
    assert isinstance(table, Tensor) and isinstance(head, Tensor)
    return Plain(directory / "dspark", table.float(), head.float())


def features(directory: Path, ids: list[int]) -> Tensor:
    """[T K * D], residuals of the target after the layers that its drafter looks at."""
    config = model.read(directory)
    decoder = Decoder(config, make_kernels("*=reference"), torch.float32, CPU)
    fill(decoder, open_weights(directory, config))
    driver = Driver(decoder, config, num_blocks=40)
    found: list[Tensor] = []
    layers = tuple(json.loads((directory / "dspark" / "config.json").read_text())["target_layer_ids"])

    def tapped(inputs: StepInputs, caches: Any) -> StepOutput:
        output = decoder(replace(inputs, tap_layers=layers), caches)
        found.extend(output.taps)
        return output

    driver.decoder = tapped
    driver.run(torch.tensor(ids), [len(ids)])
    return torch.cat(found, 1)


def plain_drafts(drafter: Plain, taps: Tensor, tokens: list[int], count: int) -> list[int]:
    """The greedy drafts after some tokens, by the specification's formulas."""
    hidden = drafter.hidden(taps, tokens[-1], len(tokens) - 1, count)
    before = tokens[-1:]
    for k in range(count):
        before.append(int(drafter.logits(hidden[: k + 1], before)[k].argmax()))
    return before[1:]
