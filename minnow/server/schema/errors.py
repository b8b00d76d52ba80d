"""the OpenAI error shape, and bodies decoded so that what is wrong with them is said in it"""

import json
import re
from math import isfinite
from typing import Any, TypeVar

import msgspec

from minnow.core.errors import RequestError
from minnow.server.schema.unsupported import check_supported

T = TypeVar("T")

_MAX_WORDS = 1_000  # characters
_KEY = re.compile(r"^.* at `key` in `\$\.?(.*)`$")
_PATH = re.compile(r"^(.*) - at `\$\.?(.*)`$")
_MISSING = re.compile(r"missing required field `([^`]*)`")


class ErrorDetail(msgspec.Struct, kw_only=True):
    """What went wrong, as the official clients read it."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct, kw_only=True):
    """The body of every answer that is no success."""

    error: ErrorDetail


def to_body(error: RequestError) -> ErrorBody:
    """The wire form of an error."""
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    words = str(error)
    if len(words) > _MAX_WORDS:  # it repeats what the client sent
        words = f"{words[: _MAX_WORDS // 2]} ... {words[-_MAX_WORDS // 2 :]}"
    return ErrorBody(error=ErrorDetail(message=words, type=kind, param=error.param, code=error.code))


def decode(body: bytes, wire_type: type[T]) -> T:
    """Read a JSON body into a wire type.

    Raises:
        RequestError: no UTF-8, no JSON, a field that is missing or has the wrong type, or a field that
            this server knows but cannot honour; `param` names it.
    """
    try:
        body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(f"the body is not UTF-8: byte {error.start} is 0x{body[error.start]:02x}") from None
    if not body.strip():
        raise RequestError("the body is empty; send JSON")
    try:
        raw = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        check_supported(raw)
        return msgspec.json.decode(body, type=wire_type)
    except msgspec.ValidationError as error:
        raise _wrong_field(str(error)) from None
    except msgspec.DecodeError as error:
        number = _number_beyond_json(body)
        if number is not None:
            raise RequestError(f"{number} is NaN or infinite; numbers must be finite", param=number) from None
        raise RequestError(f"the body is no JSON: {error}") from None
    except RecursionError:
        raise RequestError("the body is nested too deeply") from None


def _wrong_field(message: str) -> RequestError:
    """Turn a validation message into one that names the field in the client's words."""
    match = _KEY.match(message) or _PATH.match(message)
    path = match[match.lastindex or 0].replace("[...]", "") if match else ""
    words = match[1] if match and match.lastindex == 2 else message
    missing = _MISSING.search(message)
    if missing:
        path = f"{path}.{missing[1]}" if path else missing[1]
        return RequestError(f"{path} is missing", param=path)
    if not path:
        return RequestError(f"the body does not fit: {words}")
    return RequestError(f"{path} does not fit: {words[:1].lower()}{words[1:]}", param=path)


def _number_beyond_json(body: bytes) -> str | None:
    """Where Python's JSON would see a NaN or an infinity, which JSON itself does not have."""
    try:
        return _first_not_finite(json.loads(body), "")
    except (ValueError, RecursionError):
        return None


def _first_not_finite(value: Any, path: str) -> str | None:
    if isinstance(value, float):
        return None if isfinite(value) else path
    pairs: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        pairs = [(f"{path}.{key}" if path else str(key), item) for key, item in value.items()]
    elif isinstance(value, list):
        pairs = [(f"{path}[{i}]", item) for i, item in enumerate(value)]
    return next((found for where, item in pairs if (found := _first_not_finite(item, where)) is not None), None)
