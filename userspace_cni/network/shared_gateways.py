"""The bridge that this node shares with OVN's gateway router: what the node gets for it, and what keeps it from that.

Both have one MAC and one address. The node gets a patch pair between the bridge and OVN's, with the router's logical port, unless
another program's patch port is named; and flows (`gateway_helper` keeps them).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from userspace_cni.attachment.specs import Spec
from userspace_cni.attachment.steps import GatewayFlows, LogicalPort, OvsPort, Patch, Step, node_marks
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import Unavailable, UnsupportedField
from userspace_cni.network.spec_list import SHARED_GATEWAY

if TYPE_CHECKING:
    from userspace_cni.attachment.records import Record
    from userspace_cni.base.settings import Settings
    from userspace_cni.node.local_node import LocalNode

_LOOK_S: Final = 5.0


@dataclass(frozen=True)
class SharedGateway:
    """What is asked for. `interface`: the bridge's NIC, "" for its only one; `patch`: another program's patch port on the bridge,
    "" for a pair of our own."""

    bridge: str
    interface: str = ""
    patch: str = ""


def gateway_of(settings: Settings) -> SharedGateway | None:
    """What the settings ask for."""
    bridge = settings.ovn_gateway_bridge
    return SharedGateway(bridge, settings.ovn_gateway_interface, settings.ovn_gateway_patch) if bridge else None


def specs(settings: Settings, node: LocalNode) -> Iterator[Spec]:
    """The spec, if there is one. A bridge that comes, or goes, makes another spec: it is tried at once."""
    asked = gateway_of(settings)
    if asked:
        there = tuple(node.switch.ports.has_bridge(each) for each in (asked.bridge, settings.ovn_bridge))

        def plan(_: Record | None) -> tuple[Step, ...]:
            from userspace_cni.switch.gateway_flows import number_of

            store = node.store.journal.identity()
            return plan_steps(asked, node, node_marks(SHARED_GATEWAY, asked.bridge, store), number_of(store, asked.bridge))

        yield Spec(SHARED_GATEWAY, asked.bridge, SHARED_GATEWAY, "setting ovn_gateway_bridge", plan, content=(asked, there))


def plan_steps(asked: SharedGateway, node: LocalNode, marks: Mapping[str, str], number: int) -> tuple[Step, ...]:
    """The steps, after a look at the bridges. `number`: in the cookies of the flows.

    Raises Unavailable for what is not there, UnsupportedField for what cannot be.
    """
    from userspace_cni.switch.ovsdb.switch_reads import look_at_bridge
    from userspace_cni.switch.shared_bridges import find_uplink_interface

    settings, bridge, deadline = node.installation.settings, asked.bridge, Deadline.after(_LOOK_S)
    ports, what = node.switch.ports, f"bridge {asked.bridge}: looking at it"
    ports.look(partial(find_uplink_interface, bridge=bridge, interface=asked.interface), {}, what, deadline)
    near, far = f"k8s-patch-{bridge}-{settings.ovn_bridge}", f"k8s-patch-{settings.ovn_bridge}-{bridge}"
    flows = GatewayFlows(bridge, asked.interface, asked.patch or near, settings.ovn_conntrack_zone, number)
    if asked.patch:
        return (flows,)
    here, there = (ports.look(partial(look_at_bridge, name=each), {}, what, deadline) for each in (bridge, settings.ovn_bridge))
    if not there.maker:
        raise Unavailable(
            f"bridge {settings.ovn_bridge}, OVN's integration bridge, is not there",
            "ovn-controller makes it; is the node a chassis?",
        )
    if here.datapath != there.datapath:
        raise UnsupportedField(
            f"bridge {bridge} has datapath {here.datapath}, and {settings.ovn_bridge} {there.datapath}: a patch between them "
            "carries nothing",
            "external_ids:ovn-bridge-datapath-type of Open_vSwitch, and datapath_type of the bridge",
        )
    end = partial(OvsPort, marks=marks, foreign_bridge=True, datapath=here.datapath)
    logical = LogicalPort(logical_port(bridge, node.installation.name), waits=False)
    return (
        end(bridge=bridge, name=near, interface=Patch(far)),
        end(bridge=settings.ovn_bridge, name=far, interface=Patch(near), logical=logical),
        flows,
    )


def logical_port(bridge: str, node: str) -> str:
    """The gateway's logical port on the switch to the outside, as ovn-kubernetes' first tools called it."""
    return f"{bridge}_{node.lower()}"
