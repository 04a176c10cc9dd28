"""What black-box tests share beside a node and a sandbox."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab.apiserver import ApiServer


@pytest.fixture
def api() -> Iterator[ApiServer]:
    """An API server without pods."""
    with ApiServer() as started:
        yield started
