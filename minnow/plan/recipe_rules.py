"""rules of a recipe: sizes, sums and addresses that follow from a choice, each with its reason"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from minnow.config import model as model_config
from minnow.core.errors import ConfigError
from minnow.core.units import parse_bytes
from minnow.plan import hardware, recipe_table
from minnow.plan.recipe import Choice

PORT_BY_ROLE = {"prefill": "8100", "decode": "8200"}
PROXY_PORT = "8000"  # also an engine's own, where no --port says otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """One engine's process while it is put together.

    Attributes:
        node: of the engine, from 0.
        parallel: tp, tep or dep.
        devices: of the engine, on all its nodes.
        flags, env: what the layers have set.
        connector: keys of the connectors, "nixl", "host", "policy" and "host_memory", as the layers have set them.
    """

    choice: Choice
    role: str
    node: int
    parallel: str
    devices: int
    flags: Mapping[str, Any]
    env: Mapping[str, Any]
    connector: Mapping[str, Any]

    @property
    def host_bytes(self) -> int:
        """Host memory of a rank for cache. A decode engine has none: its cache comes from prefill."""
        if self.role == "decode":
            return 0
        return self.choice.host_memory_bytes or parse_bytes(self.connector.get("host_memory", "0"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What follows from a choice: `flags` gives settings that are merged like a layer's."""

    reason: str
    flags: Callable[[Draft], Mapping[str, Any]]


def devices_of(choice: Choice, role: str) -> tuple[str, int]:
    """The way an engine's devices share the work, and their number on all its nodes.

    Raises:
        ConfigError: a node has not so many, or they do not divide the attention heads or the experts.
    """
    table = recipe_table.read()
    strategy = table.strategies[choice.strategy]
    parallel, on_node = strategy.parallel, choice.devices
    if len(strategy.roles) > 1:
        split = table.splits[choice.platform]
        parallel, on_node = split.parallel, split.prefill if role == "prefill" else split.decode
    most = hardware.read(choice.hardware).devices_per_node
    if on_node > most:
        raise ConfigError(f"{choice.strategy} takes {on_node} devices, but a node of {choice.hardware} has {most}")
    devices = on_node * choice.nodes
    model = model_config.known(table.model)
    assert model is not None
    shared = {"attention heads": model.num_attention_heads} if parallel != "dep" else {}
    shared |= {"experts": model.num_local_experts} if parallel != "tp" else {}
    for what, count in shared.items():
        if count % devices:
            words = f"nodes={choice.nodes} makes {devices} devices, which" if choice.nodes > 1 else f"{devices} devices"
            raise ConfigError(f"{words} do not divide the {count} {what}; take a divisor")
    return parallel, devices


def _share_devices(of: Draft) -> Mapping[str, Any]:
    experts = {"--enable-expert-parallel": True} if of.parallel != "tp" else {}
    flag = "--data-parallel-size" if of.parallel == "dep" else "--tensor-parallel-size"
    return {flag: str(of.devices), **experts}


def _find_each_other(of: Draft) -> Mapping[str, Any]:
    nodes, head = of.choice.nodes, of.choice.hosts.get("head", "")
    if nodes == 1:
        return {}
    follows = {"--headless": True} if of.node else {}
    if of.parallel == "dep":
        local = of.devices // nodes
        start = {"--data-parallel-start-rank": str(of.node * local)} if of.node else {}
        return {"--data-parallel-size-local": str(local), "--data-parallel-address": head, **start, **follows}
    return {"--nnodes": str(nodes), "--node-rank": str(of.node), "--master-addr": head, **follows}


def _capture_whole_steps(of: Draft) -> Mapping[str, Any]:
    graphs, sequences = of.flags.get("--compilation-config", {}), of.flags.get("--max-num-seqs")
    if graphs.get("cudagraph_mode") != "FULL_DECODE_ONLY" or sequences is None:
        return {}
    drafts = of.flags.get("--speculative-config", {}).get("num_speculative_tokens", 0)
    return {"--compilation-config": {"max_cudagraph_capture_size": int(sequences) * (1 + drafts)}}


def _listen(of: Draft) -> Mapping[str, Any]:
    return {"--port": PORT_BY_ROLE[of.role]} if of.role in PORT_BY_ROLE else {}


def _connect(of: Draft) -> Mapping[str, Any]:
    parts = tuple(_connectors(of))
    if not parts:
        return {}
    policy = {"kv_load_failure_policy": of.connector["policy"]} if "policy" in of.connector else {}
    many = ("MultiConnector", "kv_both", {"connectors": [_connector(*part) for part in parts]})
    name, role, extra = parts[0] if len(parts) == 1 else many
    return {"--kv-transfer-config": _connector(name, role, extra, policy)}


def _connectors(of: Draft) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Name, role and own keys of each."""
    if of.role in PORT_BY_ROLE:
        yield "NixlConnector", "kv_producer" if of.role == "prefill" else "kv_consumer", of.connector["nixl"]
    if of.host_bytes:
        extra = {**of.connector["host"], "cpu_bytes_to_use_per_rank": of.host_bytes}
        yield "SimpleCPUOffloadConnector", "kv_both", extra


def _connector(
    name: str, role: str, extra: Mapping[str, Any], policy: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Any]:
    return {"kv_connector": name, "kv_role": role, **policy, "kv_connector_extra_config": dict(extra)}


RULES = (
    Rule(
        reason="an engine takes its nodes whole, unless the recipe names fewer devices; tep and dep spread experts",
        flags=_share_devices,
    ),
    Rule(reason="each node is told of the first one; all but that one serve no requests", flags=_find_each_other),
    Rule(reason="a graph for every sequence's own token and its drafts", flags=_capture_whole_steps),
    Rule(reason="prefill on 8100, decode on 8200, a proxy on 8000 before them", flags=_listen),
    Rule(reason="prefill sends blocks, decode takes them; host memory keeps those of prefill", flags=_connect),
)


def own_address(of: Draft) -> Mapping[str, str]:
    """The variable with the address that the other node of a prefill/decode pair reaches this one at."""
    return {"VLLM_NIXL_SIDE_CHANNEL_HOST": of.choice.hosts.get(of.role, "")} if of.role in PORT_BY_ROLE else {}


def check_addresses(choice: Choice) -> None:
    """Refuse a choice whose commands lack an address.

    Raises:
        ConfigError: names what to give.
    """
    needed = recipe_table.read().strategies[choice.strategy].hosts
    missing = [f"{name}_host=ADDRESS" for name in needed if name not in choice.hosts]
    if missing:
        raise ConfigError(f"{choice.strategy} needs {' and '.join(missing)}: an address that the other nodes reach")
