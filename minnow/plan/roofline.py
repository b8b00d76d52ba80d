"""sum of operation costs -> time of a step on a device"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter

from minnow.arch import size
from minnow.arch.size import Held
from minnow.cache.layout import PageGroup
from minnow.config.model import ModelConfig
from minnow.core.errors import ConfigError
from minnow.engine import budget
from minnow.kernels import (
    block_topk,
    dense_attention,
    embed,
    experts,
    index_score,
    kv_write,
    linear,
    norm,
    probabilities,
    qk_norm_rope,
    route,
    sparse_attention,
)
from minnow.kernels.contract import Cost
from minnow.plan import calibration, capacity, hardware
from minnow.plan.calibration import Calibration, Kind
from minnow.plan.deployment import Deployment
from minnow.plan.hardware import Figure
from minnow.plan.work import Limits, Work, limits_of

# The arithmetic that products with weights of a format are done in: the first that a device has a rate for. A CPU
# turns every weight into exact values first.
_RATES_BY_FORMAT = {
    "nvfp4": ("fp4", "fp8", "bf16"),
    "mxfp4": ("fp4", "fp8", "bf16"),
    "mxfp8": ("fp8", "bf16"),
    "fp8": ("fp8", "bf16"),
}
_EXACT = ("bf16", "f32")
_ITEM_BYTES = 2  # of activations
_LOGIT_BYTES = 4
_CANDIDATE_BYTES = 8  # a score and a block
_DISPATCHED_BYTES = 1  # a value on its way to an expert; back it has two
_NETWORK = "nic-400g"  # links ranks of different machines, one card each; an assumption

_NAME_BY_KIND = {
    "attention": "attention weights",
    "dense ffn": "dense feed-forward",
    "shared expert": "shared experts",
    "head": "head",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one sort of work in a step comes to on a rank.

    Attributes:
        rate: the arithmetic it is done in: "fp4", "fp8", "bf16" or "f32".
        num_bytes: read from and written to the device's memory.
        seconds: of its bytes or of its operations, whichever take longer, at the shares of the rates that it reaches.
    """

    name: str
    kind: Kind
    rate: str
    operations: float
    num_bytes: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """A step on a rank.

    Attributes:
        link_bytes: sent to other ranks.
        link_s: that sending takes, messages' own time included.
        constant_s: of the step whatever it does.
        hidden_s: of link_s, what runs beside the arithmetic of the other half of the batch.
    """

    parts: tuple[Part, ...]
    link_bytes: float
    link_s: float
    constant_s: float
    hidden_s: float = 0.0

    @property
    def num_bytes(self) -> float:
        """Bytes of the device's memory."""
        return sum(part.num_bytes for part in self.parts)

    @property
    def operations(self) -> float:
        """Multiplications and additions."""
        return sum(part.operations for part in self.parts)

    @property
    def seconds(self) -> float:
        """Of the whole step."""
        return sum(part.seconds for part in self.parts) + self.link_s - self.hidden_s + self.constant_s


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    kind: Kind
    rate: str
    cost: Callable[[Work], Cost]


class StepModel:
    """Times of the steps of one deployment: costs of operations over rates of the device."""

    def __init__(
        self,
        deployment: Deployment,
        calibrated: Calibration = calibration.BOUND,
        *,
        bytes_s: Callable[[float], float] | None = None,
        operations_s: Mapping[str, float] | None = None,
    ) -> None:
        """Add up what does not depend on the step.

        Args:
            deployment: settled.
            calibrated: shares of the rates that are reached; as it stands, all.
            bytes_s: bytes a second by working set, where it was measured; None takes the sheet's figure.
            operations_s: operations a second by arithmetic, where they were measured; None takes the sheet's.

        Raises:
            ConfigError: the sheet lacks a rate that is needed; names it.
        """
        self.deployment, self.calibrated = deployment, calibrated
        self._operations_s = _operations_s(deployment) if operations_s is None else operations_s
        self._ranks = budget.ranks_of(deployment.mesh)
        layout = capacity.stored_row(deployment)
        self._groups = {group.name: group for group in layout.groups}
        self._index_ranks = self._ranks.tp if deployment.has_index_cp else 1
        self._entries = tuple(self._all_entries())
        self._links = tuple(_link_bytes_s(deployment, ranks) for ranks in (self._ranks.tp, self._ranks.ep))
        if bytes_s is None:
            rate = figure(deployment, "memory_bandwidth")
            bytes_s = lambda _: rate  # noqa: E731
        self._bytes_s = bytes_s
        self._join: Callable[[float, float], float] = max if calibrated.overlaps else _sum
        self._reached = tuple(  # of each entry, the share of the memory's rate and the operations a second
            (
                entry.cost,
                calibrated.memory.get(entry.kind, 1.0),
                self._operations_s[entry.rate] * calibrated.arithmetic.get(entry.kind, 1.0),
            )
            for entry in self._entries
        )

    @property
    def limits(self) -> Limits:
        """What bounds how much of a context the model's queries look at."""
        return limits_of(self.deployment.model, self.deployment.drafter)

    def seconds(self, work: Work) -> float:
        """Of a step; the same as of `time`, without the parts: simulations ask often."""
        costs = [cost(work) for cost, _, _ in self._reached]
        bytes_s, join = self._bytes_s(sum([num_bytes for _, num_bytes in costs])), self._join
        parts_s = 0.0
        for (operations, num_bytes), (_, share, operations_s) in zip(costs, self._reached, strict=True):
            if num_bytes or operations:
                parts_s += join(num_bytes / (bytes_s * share), operations / operations_s)
        _, link_s, constant_s, hidden_s = self._beside(work, parts_s)
        return parts_s + link_s - hidden_s + constant_s

    def time(self, work: Work) -> StepTime:
        """A step, part by part.

        Args:
            work: of one replica; the parts are those of one of its ranks.
        """
        costs = [entry.cost(work) for entry in self._entries]
        bytes_s = self._bytes_s(sum([num_bytes for _, num_bytes in costs]))
        parts = tuple(
            Part(
                name=entry.name,
                kind=entry.kind,
                rate=entry.rate,
                operations=operations,
                num_bytes=num_bytes,
                seconds=self._join(num_bytes / (bytes_s * share), operations / operations_s),
            )
            for entry, (operations, num_bytes), (_, share, operations_s) in zip(
                self._entries, costs, self._reached, strict=True
            )
            if num_bytes or operations
        )
        link_bytes, link_s, constant_s, hidden_s = self._beside(work, sum(part.seconds for part in parts))
        return StepTime(parts=parts, link_bytes=link_bytes, link_s=link_s, constant_s=constant_s, hidden_s=hidden_s)

    def _beside(self, work: Work, parts_s: float) -> tuple[float, float, float, float]:
        """Of a step whose parts take so long: bytes on the link, seconds there, those of any step, those hidden."""
        calibrated = self.calibrated
        link_bytes, link_s, num_messages = self._sent(work)
        link_s = link_s / calibrated.link + num_messages * calibrated.message_s
        is_dual = 0 < self.deployment.dual_batch_tokens <= work.num_tokens
        constant_s = calibrated.step_s
        if work.num_tokens > work.num_logits:
            constant_s += calibrated.prompt_s
        if work.num_drafting:
            constant_s += calibrated.draft_s
        return link_bytes, link_s, constant_s, min(link_s, parts_s) if is_dual else 0.0

    # -- what the parts cost ------------------------------------------------------------------------------------

    def _all_entries(self) -> Iterator[_Entry]:
        of, model = self.deployment, self.deployment.model
        converted = {"routed expert": of.experts_format} if of.experts_format else {}
        held = size.weights_on_rank(model, self._ranks, converted)  # type: ignore[arg-type]
        products = [one for one in held if one.kind in _NAME_BY_KIND]
        if model.tie_word_embeddings:
            products += [_as_head(one) for one in held if one.kind == "embedding"]
        for name in _NAME_BY_KIND.values():
            own = [one for one in products if _NAME_BY_KIND[one.kind] == name]
            for rate in dict.fromkeys(self._rate(one.format) for one in own):
                field = "num_logits" if name == "head" else "num_tokens"
                yield self._products(name, rate, [one for one in own if self._rate(one.format) == rate], field)
        yield from self._experts([one for one in held if one.kind == "routed expert"])
        yield from self._attention(model)
        yield from self._activations(model)
        if of.drafter is not None:
            yield from self._drafter([one for one in products if one.kind == "head"])

    def _rate(self, form: str) -> str:
        words = _EXACT if self.deployment.device.kind == "cpu" else (*_RATES_BY_FORMAT.get(form, ()), *_EXACT)
        return next(word for word in words if word in self._operations_s)

    def _products(self, name: str, rate: str, held: Iterable[Held], field: str, times: int = 1) -> _Entry:
        """Products with weights: so many rows of them as a field of the work says, times a number."""
        fixed, each = _affine(held)
        count = attrgetter(field)

        def cost(work: Work) -> Cost:
            rows = count(work) * times
            return (rows * each[0], fixed + rows * each[1]) if rows else (0.0, 0.0)

        return _Entry(name, "weights", rate, cost)

    def _experts(self, held: list[Held]) -> Iterator[_Entry]:
        if not held:
            return
        model, ep, dp = self.deployment.model, self._ranks.ep, self.deployment.config.parallel.data_parallel_size
        inner, width = next(one.shape for one in held if one.name.endswith("w1"))
        num_layers = sum(model.is_moe)
        num_here = held[0].count / num_layers
        expert_bytes = sum(one.num_bytes for one in held)
        each, share = model.num_experts_per_tok, model.num_experts_per_tok / model.num_local_experts

        def cost(work: Work) -> Cost:
            tokens = work.expert_tokens or work.num_tokens * (dp if ep > 1 else 1)
            read = num_here * (1 - (1 - share) ** tokens)
            operations, num_bytes = experts.OP.cost(
                T=tokens * each / ep, D=width, F=inner, A=1, num_read=read or None, weight_bytes=expert_bytes,
                itemsize=_ITEM_BYTES,
            )  # fmt: skip
            return (operations * num_layers, num_bytes * num_layers) if tokens else (0.0, 0.0)

        yield _Entry("routed experts", "weights", self._rate(held[0].format), cost)

        def gates(work: Work) -> Cost:
            operations, num_bytes = route.OP.cost(T=work.num_tokens, D=width, E=model.num_local_experts)
            return operations * num_layers, num_bytes * num_layers

        yield _Entry("router", "weights", self._rate("bf16"), gates)

    def _attention(self, model: ModelConfig) -> Iterator[_Entry]:
        kv, index, tp = self._groups["kv"], self._groups.get("index"), self._ranks.tp
        heads, groups = model.num_attention_heads // tp, kv.num_heads
        key_bytes = kv.format.num_bytes(kv.head_dim) / kv.head_dim
        num_sparse = sum(model.sparse.is_sparse)
        num_dense = model.num_hidden_layers - num_sparse
        rate = self._rate("fp8" if kv.format.bits <= 8 else "bf16")  # queries are rounded to meet such keys
        if index is not None:
            yield from self._index(index, num_sparse, rate)

            def sparse(work: Work) -> Cost:
                return _both(
                    lambda keys: sparse_attention.OP.cost(
                        T=1, N=heads, G=groups, H=kv.head_dim, num_keys=keys, key_bytes=key_bytes
                    ),
                    work.chosen_pairs,
                    work.chosen_tokens,
                    num_sparse,
                )

            yield _Entry("chosen blocks", "attention", rate, sparse)
        if num_dense:

            def dense(work: Work) -> Cost:
                return _both(
                    lambda keys: dense_attention.OP.cost(
                        T=1, N=heads, G=groups, H=kv.head_dim, context_tokens=keys, key_bytes=key_bytes
                    ),
                    work.context_pairs,
                    work.context_tokens,
                    num_dense,
                )

            yield _Entry("dense attention", "attention", rate, dense)

    def _index(self, index: PageGroup, num_layers: int, rate: str) -> Iterator[_Entry]:
        sparse, width = self.deployment.model.sparse, index.head_dim
        key_bytes = index.format.num_bytes(width) / width
        heads = sparse.num_index_heads / min(self._ranks.tp, sparse.num_index_heads)
        parts = self._index_ranks
        if parts > 1:  # every head, over a part of the keys
            heads = sparse.num_index_heads / parts

        def scan(work: Work) -> Cost:
            operations, num_bytes = _both(
                lambda keys: index_score.OP.cost(T=1, I=heads, J=width, context_tokens=keys, key_bytes=key_bytes),
                work.context_pairs,
                work.context_tokens,
                num_layers,
            )
            return operations, num_bytes / parts

        def choose(work: Work) -> Cost:
            operations, num_bytes = block_topk.OP.cost(
                T=1, I=heads, M=work.context_pairs / sparse.block_size, K=sparse.num_blocks
            )
            return operations * num_layers, num_bytes * num_layers

        yield _Entry("index scan", "attention", rate, scan)
        yield _Entry("choice of blocks", "activations", self._rate("bf16"), choose)

    def _activations(self, model: ModelConfig) -> Iterator[_Entry]:
        kv, layers, tp = self._groups["kv"], model.num_hidden_layers, self._ranks.tp
        heads = model.num_attention_heads // tp + kv.num_heads
        written = kv.format.num_bytes(kv.head_dim) / kv.head_dim

        def cost(work: Work) -> Cost:
            tokens, rows = work.num_tokens, work.num_logits
            found = (
                (1, embed.OP.cost(T=tokens, D=model.hidden_size)),
                (2 * layers + 1, norm.OP.cost(T=tokens, D=model.hidden_size)),
                (layers, qk_norm_rope.OP.cost(T=tokens, N=heads, H=kv.head_dim)),
                (2 * layers, kv_write.OP.cost(T=tokens, G=kv.num_heads, H=kv.head_dim, cache_bytes=written)),
                (1, probabilities.OP.cost(S=rows, V=model.vocab_size)),
            )
            return sum(n * operations for n, (operations, _) in found), sum(n * b for n, (_, b) in found)

        yield _Entry("norms, rotary, sampling", "activations", self._rate("f32"), cost)

    def _drafter(self, head: list[Held]) -> Iterator[_Entry]:
        of = self.deployment
        assert of.drafter is not None
        held, drafts = size.drafter_on_rank(of.drafter, self._ranks), of.num_drafts
        matrices = [one for one in held if len(one.shape) == 2 and "markov_w1" not in one.name]
        taken = [one for one in matrices if ".fc" in one.name or "k_proj" in one.name or "v_proj" in one.name]
        markov = [one for one in matrices if "markov" in one.name or "confidence" in one.name]
        layers = [one for one in matrices if one not in taken and one not in markov]
        rate = self._rate(layers[0].format)
        yield self._products("drafter's context", rate, taken, "num_tokens")
        yield self._products("drafter's layers", rate, layers, "num_drafting", drafts)
        yield self._products("drafter's head", self._rate(head[0].format), head, "num_drafting", drafts)
        fixed, each = _affine(markov)
        group = self._groups["draft"]

        def chain(work: Work) -> Cost:  # one draft after the other, each reads its weights anew
            rows = work.num_drafting
            return (drafts * rows * each[0], drafts * (fixed + rows * each[1])) if rows else (0.0, 0.0)

        def look(work: Work) -> Cost:
            backbone = of.drafter.backbone  # type: ignore[union-attr]
            operations, num_bytes = dense_attention.OP.cost(
                T=drafts, N=backbone.num_attention_heads // self._ranks.tp, G=group.num_heads, H=group.head_dim,
                context_tokens=work.window_tokens, key_bytes=group.format.num_bytes(group.head_dim) / group.head_dim,
            )  # fmt: skip
            return operations * group.num_layers, num_bytes * group.num_layers

        yield _Entry("drafter's chain", "weights", self._rate("bf16"), chain)
        yield _Entry("drafter's keys", "attention", self._rate("bf16"), look)

    def _sent(self, work: Work) -> tuple[float, float, int]:
        """Bytes that a rank sends in a step, the seconds at the full rates of the links, and messages."""
        sent_bytes, seconds, messages = 0.0, 0.0, 0
        for (num_bytes, count), bytes_s in zip(
            (self._of_tensors(work), self._of_experts(work)), self._links, strict=True
        ):
            if num_bytes:
                sent_bytes, seconds, messages = sent_bytes + num_bytes, seconds + num_bytes / bytes_s, messages + count
        return sent_bytes, seconds, messages

    def _of_tensors(self, work: Work) -> tuple[float, int]:
        """Sums after attention and feed-forward, of drafts too; parts of logits; candidates of index scans."""
        of, model, tp = self.deployment, self.deployment.model, self._ranks.tp
        if tp == 1:
            return 0.0, 0
        share, layers = (tp - 1) / tp, model.num_hidden_layers
        num_drafts = of.num_drafts if work.num_drafting else 0
        drafted = work.num_drafting * num_drafts
        summed, messages = work.num_tokens * layers, 2 * layers + bool(work.num_logits) + num_drafts
        if of.drafter is not None and drafted:
            summed += drafted * of.drafter.backbone.num_hidden_layers
            messages += 2 * of.drafter.backbone.num_hidden_layers
        sent = 2 * 2 * share * summed * model.hidden_size * _ITEM_BYTES  # each value goes out and comes back
        sent += (work.num_logits + drafted) * model.vocab_size / tp * (tp - 1) * _LOGIT_BYTES
        if self._index_ranks > 1:
            sparse, num_sparse = model.sparse, sum(model.sparse.is_sparse)
            chosen = work.num_tokens * sparse.num_index_heads * sparse.num_blocks * _CANDIDATE_BYTES
            sent, messages = sent + num_sparse * chosen * (tp - 1), messages + num_sparse
        return sent, messages

    def _of_experts(self, work: Work) -> tuple[float, int]:
        """Tokens on their way to experts of other replicas, and back."""
        model, tp, ep = self.deployment.model, self._ranks.tp, self._ranks.ep
        if ep <= tp:
            return 0.0, 0
        pairs = work.num_tokens * model.num_experts_per_tok / tp * (ep - 1) / ep
        sent = sum(model.is_moe) * pairs * model.hidden_size * (_DISPATCHED_BYTES + _ITEM_BYTES)
        return sent, 2 * sum(model.is_moe)


def figure(deployment: Deployment, name: str) -> float:
    """A rate of the deployment's device.

    Raises:
        ConfigError: its sheet does not have it.
    """
    device = deployment.device
    if name not in device.figures:
        raise ConfigError(f"the sheet of {device.name} has no [{name}]; {_way_out(deployment)}")
    return device.figures[name].value


def _way_out(deployment: Deployment) -> str:
    if deployment.device.kind == "cpu":
        return "minnow bench limits --sheet FILE.toml measures a machine and writes one that has"
    return "name one that does, or write a .toml of your own"


def _operations_s(deployment: Deployment) -> dict[str, float]:
    found = {name: one.value for name, one in deployment.device.figures.items() if name in ("fp4", "fp8", *_EXACT)}
    if not any(name in found for name in _EXACT):
        # The least that a device with faster formats must have is not known; nothing is made up.
        for name in ("fp8", "fp4"):
            if name in found:
                return {name: found[name], "bf16": found[name]}
        raise ConfigError(f"the sheet of {deployment.device.name} has no [bf16]; {_way_out(deployment)}")
    return found


def link_of(deployment: Deployment, num_group_ranks: int = 0) -> tuple[Figure, str]:
    """The rate of what joins neighbouring ranks; and what that is, where it is only assumed.

    Beyond what scales up, and between machines where nothing does, it is one network card a rank: an assumption.

    Args:
        num_group_ranks: that talk to each other; 0 takes the largest group there is.

    Raises:
        ConfigError: the device's sheet does not have its rate.
    """
    device, ranks = deployment.device, budget.ranks_of(deployment.mesh)
    has_domain = device.scale_up_devices > device.devices_per_node
    reach = device.scale_up_devices if has_domain else deployment.num_ranks // deployment.num_nodes
    if (num_group_ranks or max(ranks.tp, ranks.ep)) > reach:
        network = hardware.read(_NETWORK)
        return network.figures["rate"], f"a {network.title} each"
    figure(deployment, "scale_up")  # or says what is lacking
    return device.figures["scale_up"], ""


def _link_bytes_s(deployment: Deployment, num_group_ranks: int) -> float:
    """Of a rank to the others of its group, one way; 0 where there are none."""
    if num_group_ranks == 1:
        return 0.0
    device, (rate, assumed) = deployment.device, link_of(deployment, num_group_ranks)
    # In a full mesh each pair has its own links, so few devices reach few of them.
    is_part = device.is_mesh and not assumed
    return rate.value * ((num_group_ranks - 1) / (device.devices_per_node - 1) if is_part else 1)


def _affine(held: Iterable[Held]) -> tuple[float, Cost]:
    """Of products with weights: bytes however many rows there are, and what each row costs."""
    fixed = operations = num_bytes = 0.0
    for one in held:
        rows, width = one.shape
        none = linear.OP.cost(T=0, D=width, O=rows, weight_bytes=one.num_bytes, itemsize=_ITEM_BYTES)
        single = linear.OP.cost(T=1, D=width, O=rows, weight_bytes=one.num_bytes, itemsize=_ITEM_BYTES)
        fixed += one.count * none[1]
        operations += one.count * (single[0] - none[0])
        num_bytes += one.count * (single[1] - none[1])
    return fixed, (operations, num_bytes)


def _as_head(embedding: Held) -> Held:
    return Held(
        kind="head", format=embedding.format, name="lm_head", shape=embedding.shape, count=1,
        num_bytes=embedding.num_bytes, num_tensors=0,
    )  # fmt: skip


def _sum(first: float, second: float) -> float:
    return first + second


def _both(cost: Callable[[float], Cost], pairs: float, tokens: int, num_layers: int) -> Cost:
    """Of layers of attention: arithmetic of so many pairs of query and key, bytes of so many keys."""
    return cost(pairs)[0] * num_layers, cost(tokens)[1] * num_layers
