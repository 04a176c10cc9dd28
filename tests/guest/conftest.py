"""The guest of tests that need a full kernel, PCI devices, or two NUMA nodes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab.hardware.full_guest import FullGuest
from tests.lab.hardware.guest_node import GuestNode
from tests.lab.hardware.snapshot import restored


@pytest.fixture
def guest() -> Iterator[FullGuest]:
    """The saved guest, restored for this test alone: OVS-DPDK and the agent run, and there is no bridge."""
    with restored() as guest:
        yield guest


@pytest.fixture
def node(guest: FullGuest) -> GuestNode:
    return GuestNode(guest)
