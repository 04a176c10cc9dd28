"""The switch's own name is read from a real OVSDB."""

from __future__ import annotations

from tests.lab.switch.switch import Switch
from tests.ovs.conftest import soon
from userspace_cni.switch.chassis import read_chassis
from userspace_cni.switch.ports import PortDriver


def test_the_switchs_name_is_its_system_id(switch: Switch, driver: PortDriver) -> None:
    """The name is read each time, because it may be set later; without a system-id it is empty."""
    switch.vsctl("remove", "Open_vSwitch", ".", "external_ids", "system-id")
    assert read_chassis(driver.client, soon()) == ""
    switch.vsctl("set", "Open_vSwitch", ".", "external_ids:system-id=chassis-1")
    assert read_chassis(driver.client, soon()) == "chassis-1"
