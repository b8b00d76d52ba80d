"""what is logged, and how a wrong level is said"""

import io

import pytest

from minnow.core.errors import ConfigError
from minnow.core.log import Logger


def test_lines_below_the_level_are_left_out() -> None:
    stream = io.StringIO()
    log = Logger("engine", stream=stream, level="warning")
    log.info("quiet")
    log.warning("cache full", blocks=3, share=0.5, way="wait a bit")
    assert stream.getvalue().endswith(" warning engine: cache full blocks=3 share=0.5 way='wait a bit'\n")
    assert "quiet" not in stream.getvalue()


def test_a_wrong_level_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINNOW_LOG", "trace")
    with pytest.raises(ConfigError, match=r"^MINNOW_LOG is 'trace'; it can be debug, info, warning or error$"):
        Logger("engine")
