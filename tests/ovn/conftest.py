"""What tests of OVN share beside a switch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.lab.ovn.central import Ovn
from tests.lab.switch.switch import Switch


@pytest.fixture(scope="module")
def ovn(switch: Switch) -> Iterator[Ovn]:
    """OVN with the run's switch as its chassis."""
    with TemporaryDirectory(prefix="ovn-") as directory, Ovn(switch, Path(directory)) as started:
        yield started
    for bridge in switch.bridges():
        switch.vsctl("--no-wait", "del-br", bridge)
