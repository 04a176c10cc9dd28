"""Vhost-user ports of a private switch, for front-ends of a test."""

from __future__ import annotations

import subprocess

from tests.lab.switch.switch import Switch, wait_until
from userspace_cni.fastpath.vhost.front_end import FrontEnd
from userspace_cni.fastpath.vhost.vhost_messages import Feature

BRIDGE = "br-fast"
CLIENT, SERVER = "dpdkvhostuserclient", "dpdkvhostuser"


def add_bridge(switch: Switch) -> None:
    """Add a bridge without flows, which forwards nothing."""
    switch.vsctl("add-br", BRIDGE, "--", "set", "Bridge", BRIDGE, "datapath_type=netdev", "fail-mode=secure")


def add_port(switch: Switch, name: str, kind: str, *columns: str) -> str:
    """Add a port; the path of its socket."""
    path = f"{switch.rundir}/{name}"
    where = [f"options:vhost-server-path={path}"] if kind == CLIENT else []
    switch.vsctl("add-port", BRIDGE, name, "--", "set", "Interface", name, f"type={kind}", *where, *columns)
    return path


def join(switch: Switch, *ports: tuple[str, str]) -> None:
    """Add flows that forward every frame from the first port of a pair to the second."""
    for source, target in ports:
        numbers = [switch.interface(name)["ofport"] for name in (source, target)]
        output = "in_port" if source == target else f"output:{numbers[1]}"
        bridge = f"unix:{switch.rundir}/{BRIDGE}.mgmt"
        flow = f"in_port={numbers[0]},actions={output}"
        subprocess.run(["ovs-ofctl", "add-flow", bridge, flow], check=True, capture_output=True)


def agreed_features(switch: Switch, port: str) -> Feature:
    """What the application at a port and the switch have agreed on; ovs-vswitchd writes it some time after frames pass."""
    told = wait_until(lambda: switch.interface(port)["status"].get("features"), what=f"the features of {port}")
    return Feature(int(told, 16))


def is_up(switch: Switch, name: str) -> bool:
    """Whether OVS says that the link of a port is up."""
    return bool(switch.interface(name)["link_state"] == "up")


def cycle(front_end: FrontEnd, kind: str, times: int) -> None:
    """Attach and detach; at a server port with new memory each time."""
    for _ in range(times):
        if kind == SERVER:
            FrontEnd.connect(front_end.path).close()
        else:
            front_end.reattach()
    if kind == SERVER:
        front_end.reattach()
