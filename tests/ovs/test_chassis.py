"""The switch's own name is read from a real OVSDB."""

from __future__ import annotations

from tests.lab.switch.switch import Switch
from tests.ovs.conftest import soon
from userspace_cni.switch.chassis import chassis
from userspace_cni.switch.ports import PortDriver


def test_the_switchs_name_is_its_system_id(switch: Switch, driver: PortDriver) -> None:
    """It is read each time, for it may be set later; without one it is empty."""
    switch.vsctl("remove", "Open_vSwitch", ".", "external_ids", "system-id")
    assert chassis(driver.client, soon()) == ""
    switch.vsctl("set", "Open_vSwitch", ".", "external_ids:system-id=chassis-1")
    assert chassis(driver.client, soon()) == "chassis-1"
