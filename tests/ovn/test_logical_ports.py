"""What OVN makes of ports of the kinds that pods have, on a userspace switch."""

from __future__ import annotations

from pathlib import Path

from tests.lab.ovn.central import CHASSIS, INTEGRATION, Ovn
from tests.lab.switch.switch import Switch, wait_until


def test_the_integration_bridge_is_of_userspace(switch: Switch, ovn: Ovn) -> None:
    """The controller makes it with the datapath that the chassis asks for, and reports the chassis."""
    wait_until(lambda: switch.bridge(INTEGRATION), what="the controller has made it")
    assert switch.bridge(INTEGRATION)["datapath_type"] == "netdev"
    ovn.nbctl("--wait=sb", "sync")
    assert switch.rows("Open_vSwitch")[0]["external_ids"]["system-id"] == CHASSIS


def test_a_vhost_user_port_is_installed_before_its_application_comes(switch: Switch, ovn: Ovn, tmp_path: Path) -> None:
    """With the name of a logical port it is up while nothing is connected to it."""
    ovn.nbctl("ls-add", "s", "--", "lsp-add", "s", "p", "--", "lsp-set-addresses", "p", "02:00:00:00:00:01 10.0.0.2")
    wait_until(lambda: switch.bridge(INTEGRATION), what="the controller has made the bridge")
    row = ["type=dpdkvhostuserclient", f"options:vhost-server-path={tmp_path}/v.sock", "external_ids:iface-id=p"]
    switch.vsctl("add-port", INTEGRATION, "v", "--", "set", "Interface", "v", *row)
    wait_until(lambda: switch.interface("v")["external_ids"].get("ovn-installed") == "true", what="ovn-installed")
    assert switch.interface("v")["status"]["status"] == "disconnected"
    assert wait_until(lambda: ovn.nbctl("get", "Logical_Switch_Port", "p", "up") == "true", what="the logical port is up")
