"""The switch, the nodes and the pods of tests with virtual machines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.guests import trixie
from tests.lab.guests.libvirt_vm import Launched, node_for_vms
from tests.lab.switch.switch import Switch

PAGES = {"PRIVATE_SWITCH_PAGES": "384", "PRIVATE_SWITCH_APP_PAGES": "192", "PRIVATE_SWITCH_SOCKET_MEM": "128"}
"""Pages of 2 MiB, for a switch with two sizes of frames and three guests of 128 MiB."""


@pytest.fixture(scope="module")
def switch() -> Iterator[Switch]:
    """A private OVS-DPDK that leaves hugepages to guests; each module has its own, so that they are given back early."""
    with Switch(environment=PAGES) as started:
        yield started


@pytest.fixture(scope="session")
def tree() -> Path:
    """The directory of libvirt 11.3 and QEMU 10."""
    return trixie.root()


@pytest.fixture(scope="module")
def pod(switch: Switch, tree: Path) -> Iterator[Launched]:
    """A launcher pod at a port of 1500 bytes."""
    with node_for_vms(switch) as node, Launched(node, tree) as pod:
        yield pod


@pytest.fixture
def launched(pod: Launched) -> Iterator[Launched]:
    """The module's launcher pod, in which VMs run one after another; a test need not end its own."""
    yield pod
    pod.compute.clear()
