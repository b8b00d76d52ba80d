"""the browser of the page's tests"""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.system.visit import chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened
