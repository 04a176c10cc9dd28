"""What tests of several kinds share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab.switch import Switch


@pytest.fixture(scope="session")
def switch() -> Iterator[Switch]:
    """A private OVS-DPDK for the whole run; a test leaves no ports or bridges in it."""
    with Switch() as started:
        yield started
