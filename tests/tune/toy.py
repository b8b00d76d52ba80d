"""a target of 64 tokens that learns a grammar in seconds: what follows depends on what stood some tokens before"""

import torch
from torch import Tensor
from torch.nn import functional

from minnow.arch import names
from minnow.config import model
from minnow.tune.answers import Answer
from minnow.tune.target import Target
from tests import tiny

NUM_KINDS = 12
NUM_TOKENS = 64
_FIRST, _SECOND, _THIRD, _FOURTH, _COMMON, _STOP = 8, 20, 32, 44, 4, 6


def grammar(num_texts: int, num_tokens: int, generator: torch.Generator) -> Tensor:
    """Texts of sentences "A x B x C x D ." of one kind each; the next kind follows from the last, or is any: [S T].

    After "x" a table of pairs of tokens cannot know whether B, C or D comes, nor of which kind.
    """
    num_sentences = num_tokens // 8 + 1
    kinds = torch.randint(NUM_KINDS, (num_texts, num_sentences), generator=generator)
    follows = torch.rand(num_texts, num_sentences, generator=generator) < 0.7
    for i in range(1, num_sentences):
        kinds[:, i] = torch.where(follows[:, i], (5 * kinds[:, i - 1] + 3) % NUM_KINDS, kinds[:, i])
    sentence = torch.tensor([_FIRST, _COMMON, _SECOND, _COMMON, _THIRD, _COMMON, _FOURTH, _STOP])
    is_kind = (sentence >= _FIRST).long()
    return (sentence + is_kind * kinds[:, :, None]).flatten(1)[:, :num_tokens]


def target(steps: int = 250, seed: int = 0) -> Target:
    """A dense model of two layers, trained on the grammar from random weights."""
    raw = tiny.config_json(
        family="llama", layers=2, dtype="float32", vocab_size=NUM_TOKENS, bos_token_id=1, eos_token_id=2
    )
    config = model.parse(raw)
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for module in names.modules(config).values():
        is_norm = module.kind == "norm"
        value = torch.ones(module.shape) if is_norm else torch.randn(module.shape, generator=generator) * 0.08
        weights[module.name] = value.requires_grad_(True)
    learning = Target(config, weights, torch.float32)
    optimizer = torch.optim.AdamW(weights.values(), lr=4e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, steps)
    for _ in range(steps):
        ids = grammar(16, 48, generator)
        logits = learning.logits(learning.hidden(learning.forward(ids).last))
        loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        schedule.step()
    return Target(config, {name: value.detach() for name, value in weights.items()}, torch.float32)


@torch.no_grad()
def answers(toy: Target, count: int, num_tokens: int, seed: int) -> list[Answer]:
    """What the target says after the first sentence of a text; every second one at temperature 0, a fourth held out."""
    generator = torch.Generator().manual_seed(seed)
    ids = grammar(count, 9, generator)
    is_greedy = torch.arange(count) % 2 == 0
    while ids.shape[1] < num_tokens:
        logits = toy.logits(toy.hidden(toy.forward(ids).last[:, -1]))
        drawn = torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]
        ids = torch.cat((ids, torch.where(is_greedy, logits.argmax(-1), drawn)[:, None]), dim=1)
    return [
        Answer(
            ids=tuple(row),
            num_prompt_tokens=9,
            temperature=0.0 if is_greedy[i] else 1.0,
            top_p=1.0,
            is_held_out=i % 8 < 2,
        )
        for i, row in enumerate(ids.tolist())
    ]
