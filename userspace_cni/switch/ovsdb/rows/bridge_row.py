"""The columns of a bridge that we make, and of its local port."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from userspace_cni.attachment.drift import Absent, Drift, Value
from userspace_cni.attachment.steps import OWNER, OWNER_KIND, NodeBridge
from userspace_cni.base.port_kinds import Datapath
from userspace_cni.ovsdb.columns import Columns, wrap_optional
from userspace_cni.switch.ovsdb.rows.desired import DesiredBridge, DesiredRows

DATAPATH_TYPE: Final[Datapath] = "netdev"
"""The datapath type of bridges that can have DPDK ports."""
_OF_CHASSIS: Final = (
    "does ovn-controller run? Open_vSwitch.external_ids has to have system-id, ovn-remote, ovn-encap-type, ovn-encap-ip, and for "
    "vhost-user ports ovn-bridge-datapath-type=netdev; the setting ovn_bridge is the bridge's name"
)
HWADDR: Final = "hwaddr"
WRITTEN: Final = frozenset({f"other_config:{HWADDR}", "mtu_request"})
"""Fields of `find_bridge_differences` that are written again; not a datapath, which would take all ports down."""
LOCAL_MTU: Final = 1500
"""Interface.mtu_request of the local port of a bridge that is made for pods: what OVS gives that of a bridge without other ports.

An internal port that asks for no MTU gets the smallest of its bridge's other ports, so that a pod would change it."""


def datapath_of(datapath_type: str) -> str:
    return datapath_type or "system"


def bridge_columns(name: str, datapath_type: str) -> Columns:
    return {"name": name, "datapath_type": datapath_type, "external_ids": {"owner": OWNER, OWNER_KIND: "pod"}}


def local_columns(bridge: str) -> Columns:
    """Columns of the Interface that stands for the bridge itself, as ovs-vsctl add-br makes them, but for the MTU."""
    return {"name": bridge, "type": "internal", "mtu_request": [LOCAL_MTU]}


def missing_bridge_of_ovn(name: str) -> tuple[str, str]:
    """Message and details where OVN's integration bridge is not there: it is never made here, for ovn-controller's is secure."""
    message = f"bridge {name}, OVN's integration bridge, is not there: ovn-controller makes it, and nothing else does"
    return message, _OF_CHASSIS


def advise_on_taken_name(name: str, ports: int, *, is_nodes: bool) -> str:
    """What to do about a bridge of others that has a name which is needed: nothing that cuts off what is on it.

    `ports`: how many it has beside its own; `is_nodes`: it is the node's own, for something else.
    """
    if is_nodes:
        return "it is not changed here: another name, or take out what it is there for; userspace-cni network shows that"
    if not ports:
        return f"it is not changed here, and nothing is on it: another name, or ovs-vsctl del-br {name}"
    return f"it is not changed here, and {_carried(name, ports)}: another name, or wait until they are detached"


def advise_on_datapath(name: str, datapath: str, ports: int) -> str:
    """What to do about a bridge of another datapath: changing that makes all ports anew, which cuts off pods."""
    if not ports:
        return f"another bridge, or, as nothing is on it: ovs-vsctl set Bridge {name} datapath_type={datapath}"
    return f"another bridge: a change would cut off what is on it, for {_carried(name, ports)}"


def _carried(name: str, ports: int) -> str:
    return f"it has {ports} port{'s' if ports > 1 else ''} (ovs-vsctl list-ports {name}; userspace-cni list names the pods)"


def desired_node_bridge(step: NodeBridge, marks: Mapping[str, str]) -> DesiredRows:
    """The rows of a bridge of the node's own."""
    columns: Columns = {
        "name": step.name,
        "datapath_type": step.datapath,
        "external_ids": dict(marks),
        "other_config": {HWADDR: step.mac or None},
    }
    local: Columns = {"name": step.name, "type": "internal", "mtu_request": wrap_optional(step.mtu or None)}
    because = f"and is to have {step.datapath}"
    bridge = DesiredBridge(step.name, columns, local, own=True, datapath=step.datapath, because=because)
    return DesiredRows(marks, bridge, new_names={step.name: step.datapath == DATAPATH_TYPE})


def find_bridge_differences(step: NodeBridge, bridge: Mapping[str, Any] | None, link: Mapping[str, Any]) -> list[Drift]:
    """Every difference between the step and the rows of its Bridge, None for none, and of the Interface of its local port."""
    subject, look = f"bridge {step.name}", f"ovs-vsctl list Bridge {step.name}; ovs-vsctl list Interface {step.name}"
    if bridge is None:
        return [Drift(subject, "", f"a bridge for {step.marks.get('spec', 'the node')}", Absent("none"), look)]
    requested, error, ofport = (link.get(column) or [] for column in ("mtu_request", "error", "ofport"))
    compared: list[tuple[str, Value, Value]] = [
        ("datapath_type", step.datapath, datapath_of(bridge["datapath_type"])),
        (f"other_config:{HWADDR}", step.mac, bridge["other_config"].get(HWADDR, "")),
        ("mtu_request", step.mtu, requested[0] if requested else 0),
        *((f"external_ids:{key}", value, bridge["external_ids"].get(key, "")) for key, value in sorted(step.marks.items())),
    ]
    drifts = [Drift(subject, column, wanted, found, look, ", ") for column, wanted, found in compared if wanted != found]
    if error or not ofport or ofport[0] <= 0:
        state = error[0] if error else "not opened by ovs-vswitchd"
        drifts.append(Drift(subject, "state", "an open local port", state, look, ", "))
    return drifts
