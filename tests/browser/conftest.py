"""Fixtures of the tests in a browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab.browser.chromium import Chromium


@pytest.fixture(scope="module")
def started_browser() -> Iterator[Chromium]:
    """A browser for the tests of a file, without a network."""
    with Chromium() as started:
        yield started


@pytest.fixture
def browser(started_browser: Chromium) -> Chromium:
    """It, as if it had just been started: a test opens a page of its own."""
    started_browser.prefer("light")
    started_browser.point(0, 0)
    return started_browser
