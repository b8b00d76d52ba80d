"""--kv-transfer-config as a plan reads it: who gives blocks, who takes them, and what host memory keeps"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from minnow.core.errors import ConfigError
from minnow.plan import transfer

FLAG = "--kv-transfer-config"
_MANY = "MultiConnector"
_NAMES = ("NixlConnector", "SimpleCPUOffloadConnector", _MANY)
_ROLES = ("kv_producer", "kv_consumer", "kv_both")
_POLICIES = ("fail", "recompute")


@dataclass(frozen=True, slots=True, kw_only=True)
class Connector:
    """One way for blocks to come and go.

    Attributes:
        role: "kv_producer" gives, "kv_consumer" takes, "kv_both" does both.
        host_bytes: of host memory that a rank keeps blocks in; in pages of 1 GiB, reserved before, or in ordinary ones.
        ttl_s: after which an idle peer is forgotten; 0 never forgets, None is the default of an hour.
    """

    name: str
    role: str
    host_bytes: int = 0
    has_huge_pages: bool = False
    ttl_s: int | None = None


def read(text: str) -> tuple[Connector, ...]:
    """The connectors of a value of the flag; those inside a MultiConnector one by one.

    Raises:
        ConfigError: no JSON object, an unknown connector, role or policy, or pages that are not filled.
    """
    try:
        raw = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{FLAG}: {text!r} is no JSON ({error})") from None
    return tuple(_read(raw))


def _read(raw: Any) -> Iterator[Connector]:
    if not isinstance(raw, Mapping):
        raise ConfigError(f"{FLAG}: {raw!r} is no JSON object")
    name, role = _one(raw, "kv_connector", _NAMES), _one(raw, "kv_role", _ROLES)
    if "kv_load_failure_policy" in raw:
        _one(raw, "kv_load_failure_policy", _POLICIES)
    extra = raw.get("kv_connector_extra_config", {})
    if not isinstance(extra, Mapping):
        raise ConfigError(f"{FLAG}: kv_connector_extra_config is {extra!r}, no JSON object")
    if name == _MANY:
        inner = extra.get("connectors")
        if not isinstance(inner, list) or not inner:
            raise ConfigError(f"{FLAG}: a {_MANY} needs a list of connectors in kv_connector_extra_config")
        for one in inner:
            yield from _read(one)
        return
    host_bytes = _whole(extra, "cpu_bytes_to_use_per_rank") or 0
    has_huge_pages = "cpu_hugepage_block_size" in extra
    if has_huge_pages:
        transfer.huge_pages(host_bytes, 1)
    ttl_s = _whole(extra, "engine_ttl")
    yield Connector(name=name, role=role, host_bytes=host_bytes, has_huge_pages=has_huge_pages, ttl_s=ttl_s)


def _one(raw: Mapping[str, Any], key: str, known: tuple[str, ...]) -> str:
    value = raw.get(key)
    if value not in known:
        raise ConfigError(f"{FLAG}: {key} is {value!r}; it must be one of {', '.join(known)}")
    return str(value)


def _whole(raw: Mapping[str, Any], key: str) -> int | None:
    value = raw.get(key)
    if value is not None and (type(value) is not int or value < 0):
        raise ConfigError(f"{FLAG}: {key} is {value!r}; a whole number is needed")
    return value
