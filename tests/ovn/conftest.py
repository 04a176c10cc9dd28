"""What tests of OVN share beside a switch, and the gaps in traffic that they have measured."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.lab.ovn.central import Ovn, version
from tests.lab.ovn.database import Authority, NorthboundDatabase
from tests.lab.ovn.two_chassis import LAST_USE, LONGEST_GAP
from tests.lab.switch.switch import Switch
from userspace_cni.base.deadline import Deadline


def soon() -> Deadline:
    """A deadline that leaves enough time for one call."""
    return Deadline.after(60)


@pytest.fixture(scope="module")
def authority() -> Iterator[Authority]:
    """The certificate authority of a database's server and clients."""
    with TemporaryDirectory(prefix="ca-") as directory:
        yield Authority(Path(directory) / "ca")


@pytest.fixture
def database(authority: Authority) -> Iterator[NorthboundDatabase]:
    """OVN's northbound database, served without OVN."""
    with TemporaryDirectory(prefix="nb-") as directory, NorthboundDatabase(Path(directory), authority) as served:
        yield served


@pytest.fixture(scope="module")
def ovn(switch: Switch) -> Iterator[Ovn]:
    """OVN with the run's switch as its chassis."""
    with TemporaryDirectory(prefix="ovn-") as directory, Ovn(switch, Path(directory)) as started:
        yield started
    for bridge in switch.bridges():
        switch.vsctl("--no-wait", "del-br", bridge)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the gaps, with the version of OVN that had them."""
    passed = terminalreporter.getreports("passed")
    gaps = [(name, value) for each in passed for name, value in each.user_properties if name.endswith((LONGEST_GAP, LAST_USE))]
    if gaps:
        terminalreporter.section(f"OVN {version()}")
        for name, value in gaps:
            terminalreporter.line(f"{name}: {value}")
