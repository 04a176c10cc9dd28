"""Counters of a real switch: of our ports and nobody else's, over either kind of connection, from a server that may hang."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cni.spec import paused_ovsdb
from tests.lab.switch import Switch
from tests.lab.vhost_ports import CLIENT, add_bridge, add_port
from userspace_cni.dataplane.ovs import PortDriver
from userspace_cni.deadline import Deadline
from userspace_cni.errors import SwitchRefused, Unavailable

OURS = "external_ids:owner=userspace-cni"
SECONDS = 20.0


def driver_of(switch: Switch, remote: str) -> PortDriver:
    """A driver that has no session yet."""
    return PortDriver(remote, switch.rundir, lambda: "5707e")


@pytest.mark.parametrize("remote_of", [lambda switch: switch.ovsdb, Switch.listen_tcp], ids=["unix", "tcp"])
def test_our_ports_alone(switch: Switch, remote_of: Callable[[Switch], str]) -> None:
    """Ports with our mark are there with their marks; an administrator's and another program's are not."""
    add_bridge(switch)
    add_port(switch, "ours", CLIENT, OURS, "external_ids:container-id=c0ffee", 'external_ids:pod-name="a\\"b{é"')
    add_port(switch, "unmarked", CLIENT)
    add_port(switch, "theirs", CLIENT, "external_ids:owner=another")
    driver = driver_of(switch, remote_of(switch))
    [counted] = driver.counters(Deadline.after(SECONDS))
    assert counted.name == "ours"
    assert counted.marks == {"owner": "userspace-cni", "container-id": "c0ffee", "pod-name": 'a"b{é'}
    assert all(isinstance(number, int) for number in counted.statistics.values())
    assert not driver.connected
    switch.vsctl("del-br", "br-fast")
    assert driver.counters(Deadline.after(SECONDS)) == []


def test_a_database_that_hangs(switch: Switch) -> None:
    """It is given up at the deadline, and answers again when it runs again; no descriptor is left of either."""
    driver = driver_of(switch, switch.ovsdb)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with paused_ovsdb(switch), pytest.raises(Unavailable, match="no answer in time"):
        driver.counters(Deadline.after(0.2))
    assert driver.counters(Deadline.after(SECONDS)) == []
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_database_of_something_else(switch: Switch) -> None:
    """A control socket of ovs-vswitchd, which speaks JSON-RPC too, is no database and is refused by name."""
    control = f"unix:{switch.rundir}/ovs-vswitchd.{switch.vswitchd_pid}.ctl"
    with pytest.raises(SwitchRefused, match="OVSDB at unix:"):
        driver_of(switch, control).counters(Deadline.after(SECONDS))
