"""How many ADDs wait for OVN on a node: the others of its threads are for other networks."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.lab.switch.switch import Switch, wait_until
from tests.ovs.conftest import attach, soon
from userspace_cni.attachment.steps import LogicalPort, OvsPort
from userspace_cni.base.errors import Unavailable
from userspace_cni.switch.ovn_installation import LogicalPorts
from userspace_cni.switch.ports import PortDriver


def test_one_more_than_may_wait(switch: Switch, driver: PortDriver, port: Callable[..., OvsPort], tmp_path: Path) -> None:
    """It is answered while the other one waits, with what is the matter; when that one is installed, there is room for it."""
    switch.vsctl("add-br", "br-test", "--", "set", "Bridge", "br-test", "datapath_type=netdev")
    driver._logical = LogicalPorts(driver.client, driver.daemon, str(tmp_path), most=1)
    first, second = (port(number, foreign_bridge=True, logical=LogicalPort(f"blue_p{number}")) for number in (1, 2))

    def install(step: OvsPort) -> None:
        wait_until(lambda: switch.rows("Interface", f"name={step.name}"), what="its row")
        switch.vsctl("set", "Interface", step.name, "external_ids:ovn-installed=true")

    with ThreadPoolExecutor(2) as threads:
        waiting = threads.submit(attach, driver, first, soon())
        wait_until(lambda: waiting.done() or not driver._logical._waiting._value, what="the first one waits")
        with pytest.raises(Unavailable, match="blue_p2 within 1 s, and 1 other ADDs"):
            attach(driver, second, soon())
        assert not waiting.done()
        install(first)
        waiting.result()
        again = threads.submit(attach, driver, second, soon())
        install(second)
        again.result()
