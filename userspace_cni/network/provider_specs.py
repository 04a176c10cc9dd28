"""What a provider network needs on this node: the plan of its spec.

The plan looks at the node each time. It refuses an impossible spec by name, before any effect: a NIC that is missing, that
others use, or whose addresses cannot move without cutting the node off. Only addresses that the kernel shows in this boot are
moved. When ovs-vswitchd has been gone for long, or has long served no bridge because it has no ovsdb-server, the plan moves
addresses back to the NIC, whether anything else answers or not.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Final

from userspace_cni.attachment.specs import KeepsLess, plan_as_recorded
from userspace_cni.attachment.steps import (
    AddressMove,
    Internal,
    NodeBridge,
    OvsPort,
    PolledUplink,
    Step,
    Steps,
    UplinkInterface,
    UplinkPort,
    node_marks,
)
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import InvalidConfig, NameTaken, StepFailed, Unavailable, UnsupportedField
from userspace_cni.base.log import say
from userspace_cni.base.provider_networks import PCI, VDEV, ProviderNetwork, link_of
from userspace_cni.base.vlans import Vlan
from userspace_cni.host.node_net.mtu import USUAL
from userspace_cni.network.spec_list import PROVIDER_NETWORK
from userspace_cni.node.uplink_look import LOOK_S, UplinkLook, internal_ports, look

if TYPE_CHECKING:
    from userspace_cni.attachment.records import Record
    from userspace_cni.attachment.specs import Plan
    from userspace_cni.host.node_net.nics import Nic
    from userspace_cni.node.local_node import LocalNode

GIVE_BACK_S: Final = 10.0
"""As ProviderNetwork.give_back_after_s, of networks whose spec is not known now."""
SYSTEM: Final = "system"
AFXDP: Final = "afxdp"
_AFXDP_QUEUES_MAX: Final = 16
"""MAX_XSKQ of OVS's lib/netdev-afxdp.c."""
_NO_MAC: Final = ("", "00:00:00:00:00:00")
_OTHER_MACS: Final = ("balance-alb", "balance-tlb")
"""Modes of the kernel's bonds in which the source MAC of a frame becomes that of the NIC by which it leaves."""


@dataclass(frozen=True)
class ProviderSite:
    """Where provider networks are planned. `switch_gone_s`: for how many seconds ovs-vswitchd has been gone, 0 while it lives.

    `node_addresses`: those by which the cluster knows the node, None while they are not known yet. `unserved_s`: for how many
    seconds the bridges' own links have carried nothing, also while ovs-vswitchd lives.
    """

    node: LocalNode
    switch_gone_s: Callable[[], float] = lambda: 0.0
    node_addresses: Callable[[], Collection[str] | None] = tuple
    unserved_s: Callable[[], float] = lambda: 0.0

    def cut_off_s(self, former: Record | None) -> float:
        """For how many seconds addresses on the bridge have reached nothing that they would reach on the NIC.

        The frames of a NIC that is polled stay ovs-vswitchd's as long as it lives, without ovsdb-server, too.
        """
        polled = former is not None and any(step.takes_nic for step in former.steps)
        return self.switch_gone_s() if polled else max(self.switch_gone_s(), self.unserved_s())


def plan(network: ProviderNetwork, site: ProviderSite) -> Plan:
    """The plan of the spec for this network.

    It raises Unavailable if the spec may be met later (a NIC is absent, a device is not ready, the switch is gone), NameTaken
    if others use the NIC, and InvalidConfig if the spec cannot be met on this node.
    """

    def steps(record: Record | None) -> tuple[Step, ...]:
        if network.bridge == site.node.installation.settings.ovn_bridge:
            raise UnsupportedField(
                f"bridge {network.bridge} is OVN's integration bridge: ovn-controller makes it, and its flows lead to no NIC",
                "name another bridge; OVN is led to that by external_ids:ovn-bridge-mappings of Open_vSwitch",
            )
        former = record if record and record.boot_id == site.node.store.boot_id() else None
        if former and former.node_bridge and former.node_bridge.name != network.bridge:
            raise UnsupportedField(
                f"provider network {network.name} is on bridge {former.node_bridge.name}, and is desired on {network.bridge}",
                "a NIC in use changes no bridge: have the node without this network first, or boot it",
            )
        gone = site.cut_off_s(former) >= network.give_back_after_s
        if gone and former and _has_to_leave(former):
            return _given_back(former)
        if gone and network.move_addresses != "no":
            raise Unavailable(
                f"ovs-vswitchd has been gone, or without ovsdb-server, for more than {network.give_back_after_s:g} s",
                f"the addresses of {', '.join(network.nics)} are there, and move to {network.bridge} when both live again",
            )
        had = former.steps if former else ()
        before = record.steps if record else ()
        asked = replace(network, vlans=choose_vlans(network, before))
        seen = replace(look(asked, had, site.node, site.node_addresses()), earlier=() if former else before)
        site.node.switch.ports.require_free((asked.bridge, *internal_ports(asked, seen.links).values()), Deadline.after(LOOK_S))
        wanted = steps_of(asked, seen, site.node.store.journal.identity())
        for why in seen.away.values():
            say("warning", f"the uplink of {network.bridge} is made of its other devices: {why}")
        return wanted if may_move(wanted, seen) else tuple(step for step in wanted if not step.leaves_dead_switch)

    return steps


def keep(site: ProviderSite) -> Plan:
    """The plan of an attachment whose spec is not known now: what it has, without moved addresses while they reach nothing."""

    def steps(record: Record | None) -> tuple[Step, ...]:
        boot_id = site.node.store.boot_id()
        gone = site.cut_off_s(record) >= GIVE_BACK_S
        if gone and record and record.boot_id == boot_id and _has_to_leave(record):
            return _given_back(record)
        return plan_as_recorded(record, boot_id)

    return steps


def refuse(why: str, site: ProviderSite) -> Plan:
    """The plan of a spec that is refused before any look: what it has stays, but no address on the bridge of a dead switch."""

    def steps(record: Record | None) -> tuple[Step, ...]:
        former = record if record and record.boot_id == site.node.store.boot_id() else None
        if former and _has_to_leave(former) and site.cut_off_s(former) >= GIVE_BACK_S:
            return _given_back(former)
        raise InvalidConfig(why)

    return steps


def _has_to_leave(record: Record) -> bool:
    """Whether it has something that must not be there while the switch carries nothing."""
    return any(step.leaves_dead_switch for step in record.steps)


def _given_back(record: Record) -> tuple[Step, ...]:
    """What the attachment had, but for moved addresses, without a look: neither OVSDB nor ovs-vswitchd need answer for it.

    A port that is polled comes next: the daemon that is started must not take the frames from the NIC, and OVSDB has to be asked.

    Raises StepFailed for one that never was complete: all of it is undone then.
    """
    if record.complete is None:
        raise StepFailed(
            "ovs-vswitchd or ovsdb-server went while the uplink was being made",
            "all of it is undone, and made when both live again",
        )
    leaving = [step for step in record.steps if step.leaves_dead_switch]
    first = [step for step in leaving if step.stage != "ovs"] or leaving
    return tuple(step for step in record.complete if step not in first)


def may_move(wanted: Sequence[Step], seen: UplinkLook) -> bool:
    """Whether addresses may move now that have not moved yet: only to a bridge that carries frames, or is made before them.

    Where the port was made before and is not open, the steps without the move have it made again, and the next look decides anew.
    Raises Unavailable while ovs-vswitchd does not answer, or does not serve the bridge.
    """
    things = {step.thing for step in seen.had.moves}
    begun = [step for step in Steps(wanted).moves if step.thing not in things]
    if not begun:
        return True
    if not seen.switch_lives:
        raise Unavailable(
            "ovs-vswitchd does not answer", f"{begun[0].nic} keeps its addresses: a dead bridge would carry nothing"
        )
    if not seen.is_served:
        raise Unavailable(
            f"ovs-vswitchd lives and does not serve {begun[0].bridge}",
            f"{begun[0].nic} keeps its addresses: has it ovsdb-server?",
        )
    return seen.is_open or not seen.had.uplinks


def choose_vlans(network: ProviderNetwork, before: Sequence[Step]) -> tuple[int, ...]:
    """The VLANs that the uplink is to carry beside untagged frames, () for all. `before`: the steps of its record, of any boot.

    The absence of objects never makes that more: an uplink that carried some carries untagged frames alone without any; while
    there may be more objects, it keeps what it has; and one that is new waits for them. Raises Unavailable. Pure.
    """
    if network.vlans_by == "itself":
        return network.vlans
    ports = [step.trunks for step in Steps(before).uplinks]
    had = {vlan for trunks in ports for vlan in trunks}
    if network.vlans_by == "objects":
        return network.vlans or ((0,) if had else ())
    if not network.vlans and not ports:
        raise Unavailable(
            f"which VLANs provider network {network.name} carries is not known yet: Vlans were listed once, and none names it",
            f"without any it carries all, so the agent waits for another list; {network.said_by}",
        )
    return tuple(sorted({*network.vlans, *had}))


# -- the steps, by what was seen; pure -------------------------------------------------------------------------------------------


def steps_of(network: ProviderNetwork, seen: UplinkLook, store: str) -> tuple[Step, ...]:
    """The steps of the uplink. Raises as the plan does. Pure."""
    _require_nics(network, seen)
    _require_devices(network, seen)
    marks = node_marks(PROVIDER_NETWORK, network.name, store)
    ports = internal_ports(network, seen.links)
    tags = {name: int(port.rpartition(".")[2]) for name, port in ports.items()}
    there = [seen.links[name] for name in network.nics if name in seen.links]
    mac = there[0].mac if there else ""
    # a spec without an MTU gives back what the NICs had before
    asked_mtu = network.mtu or min(_former_mtus(seen).values(), default=0)
    # without an MTU of their own, bridge and sub-interfaces would get the smallest of the pods' ports
    mtu = asked_mtu or min((nic.mtu for nic in there), default=USUAL)
    bond = network.bond
    polls, queues = _polls_later(network, seen), _queues(network, there)
    uplink = UplinkPort(
        bridge=network.bridge,
        name=network.interface if network.nics and not bond else f"up-{network.name}",
        interfaces=tuple(_interface(network, number, seen) for number in range(len(network.interfaces))),
        trunks=_trunks(network, seen, tags.values()),
        bond_mode=bond.mode if bond else "",
        lacp=bond.lacp if bond else "",
        updelay_ms=bond.updelay_ms if bond else 0,
        mtu=asked_mtu,
        rx_queues=0 if polls else queues,
        switch_netns=seen.switch_netns,
        marks=marks,
    )
    internal = tuple(
        OvsPort(
            network.bridge,
            port,
            Internal(seen.links[name].mac, mtu),
            Vlan(tags[name]),
            marks=marks,
            foreign_bridge=True,
        )
        for name, port in ports.items()
    )
    # the NIC's own move comes last: it cuts the node's stack off, which sub-interfaces hear by, too
    moves = tuple(seen.moves[name] for name in (*ports, *network.nics) if name in seen.moves)
    steps = NodeBridge(network.bridge, mac, mtu, marks=marks), uplink, *internal, *moves
    return (*steps, _polled(uplink, queues)) if polls else steps


def _trunks(network: ProviderNetwork, seen: UplinkLook, tags: Collection[int]) -> tuple[int, ...]:
    """What the uplink carries, () for everything. By a VLAN's link frames without a tag alone: it puts its own tag on them.

    Raises InvalidConfig for VLANs by such a link: their frames would have two tags.
    """
    asked = {*network.vlans, *tags} - {0}
    tagging = next((seen.links[name] for name in network.links if name in seen.links and seen.links[name].tag), None)
    if tagging and asked:
        raise InvalidConfig(
            f"{tagging.name} is the link of VLAN {tagging.tag}, and is to carry VLANs {', '.join(map(str, sorted(asked)))}: "
            "their frames would be tagged twice",
            f"take the NIC below it as the interface, or let {network.name} carry frames without a tag alone; {network.said_by}",
        )
    if tagging:
        return (0,)
    return tuple(sorted({0, *network.vlans, *tags})) if network.vlans else ()


def _polls_later(network: ProviderNetwork, seen: UplinkLook) -> bool:
    """Whether the NIC is opened as afxdp only once its addresses have left it: that takes its frames from the node's stack."""
    return network.port == AFXDP and any(name in seen.moves for name in network.nics)


def _queues(network: ProviderNetwork, nics: Sequence[Nic]) -> int:
    """How many queues OVS polls, 0 for one. By afxdp those that the NIC receives by, neither more nor fewer.

    Of more, ovs-vswitchd cannot bind the last ones: it loses the port, says so in its log alone, and has died of it. What arrives
    in a queue that is not polled goes to the node's stack, where nothing has the address.

    Raises InvalidConfig.
    """
    if network.port != AFXDP:
        return network.rx_queues
    asked = network.rx_queues
    for nic in (each for each in nics if each.rx_queues):
        if nic.rx_queues > _AFXDP_QUEUES_MAX:
            raise InvalidConfig(
                f"NIC {nic.name} receives by {nic.rx_queues} queues, OVS polls {_AFXDP_QUEUES_MAX} of afxdp at most",
                f"ethtool -L {nic.name} combined {_AFXDP_QUEUES_MAX}; what arrives in the others would be lost",
            )
        if asked and asked != nic.rx_queues:
            raise InvalidConfig(
                f"NIC {nic.name} receives by {nic.rx_queues}, and {asked} would be polled: all of them must be, and no more",
                f"ethtool -L {nic.name} combined {asked}, or leave out 'rx_queues'; those of a bond must have equally many",
            )
        asked = nic.rx_queues
    return network.rx_queues or (asked if asked > 1 else 0)


def _polled(uplink: UplinkPort, rx_queues: int) -> PolledUplink:
    interfaces = tuple(UplinkInterface(each.name, AFXDP, polled="now", index=each.index) for each in uplink.interfaces)
    had = {item.name: getattr(uplink, item.name) for item in fields(uplink)}
    return PolledUplink(**(had | {"interfaces": interfaces, "rx_queues": rx_queues}))


def _former_mtus(seen: UplinkLook) -> Mapping[str, int]:
    """The MTU that each NIC had before OVS was asked for another; without those of which none was asked.

    After a reboot ovs-vswitchd gives a NIC the MTU that its row asks for before the first look. So of a NIC that has this MTU the
    record of the earlier boot knows the former one; a NIC with another MTU has its own.
    """
    earlier = {
        each.name: each.mtu
        for step in Steps(seen.earlier).uplinks
        for each in step.interfaces
        if each.mtu is not None and each.name in seen.links and seen.links[each.name].mtu == step.mtu
    }
    had = {each.name: each.mtu for step in seen.had.uplinks for each in step.interfaces if each.mtu is not None}
    return earlier | had


def _interface(network: ProviderNetwork, number: int, seen: UplinkLook) -> UplinkInterface:
    """One of UplinkPort.interfaces. What the NIC had before OVS changed it is known from the first look of this boot."""
    said = network.interfaces[number]
    nic = seen.links.get(link_of(said))
    index = nic.index if nic else None  # of a NIC that is made anew the port is another step
    if said.startswith((PCI, VDEV)):
        name = f"up-{network.name}" + (f"-{number}" if network.bond else "")
        away = said in seen.away
        return UplinkInterface(name, "dpdk", said.removeprefix(PCI).removeprefix(VDEV), index=index, away=away)
    later = _polls_later(network, seen)
    found = (
        UplinkInterface(said, SYSTEM, polled="later", index=index) if later else UplinkInterface(said, network.port, index=index)
    )
    if nic and found.type == SYSTEM:
        found = replace(found, offloads=nic.offloads)
    had = [each.offloads for step in seen.had.uplinks for each in step.interfaces if each.name == said]
    offloads = next((each for each in reversed(had) if each is not None), found.offloads)
    mtu = _former_mtus(seen).get(said, nic.mtu if nic and network.mtu else None)
    return replace(found, offloads=offloads, mtu=mtu, moves=said in seen.moves)


# -- what is refused -------------------------------------------------------------------------------------------------------------


def _require_nics(network: ProviderNetwork, seen: UplinkLook) -> None:
    missing = [name for name in (*network.links, *network.vlan_interfaces) if name not in seen.links]
    if missing and not (network.bond and len(missing) < len(network.interfaces)):
        raise Unavailable(f"there is no NIC {', '.join(missing)} on this node", f"ip link lists the NICs; {network.said_by}")
    own = {name for step in seen.had.uplinks for name in (step.name, *step.links)}
    for name in network.links:
        nic = seen.links.get(name)
        if nic is None:
            continue
        if nic.mac in _NO_MAC:
            raise InvalidConfig(f"{name} has no hardware address", f"an uplink carries Ethernet frames; {network.said_by}")
        _require_macs_kept(network, nic)
        if nic.master:
            raise NameTaken(f"NIC {name} is enslaved to {nic.master}", f"take {nic.master} as the interface, or {name} out of it")
        bridge = seen.on_bridge.get(name)
        if bridge and bridge != network.bridge and name not in own:
            raise NameTaken(f"NIC {name} is a port of bridge {bridge} already", "ovs-vsctl show; it is not changed here")
    for name in (*network.links, *seen.device_links):
        _require_free(network, name, seen)
    if network.vlan_interfaces:
        _require_sub_interfaces(network, seen)


def _require_devices(network: ProviderNetwork, seen: UplinkLook) -> None:
    """Raise Unavailable unless the devices can be opened; of a bond those that are away are left out while another interface is
    there.

    Who pulls a device out, or gives it to another driver, waits until DPDK has let it go: where nothing is left, KeepsLess has
    the port closed.
    """
    missing = [f"there is no NIC {name} on this node" for name in network.links if name not in seen.links]
    away = seen.away if len(seen.away) + len(missing) == len(network.interfaces) else {}
    lacking = (*(missing if away else ()), *away.values(), *seen.lacking)
    if not lacking:
        return
    why = f"{', '.join(network.interfaces)} cannot be opened yet: {'; '.join(lacking)}"
    had = {f"{PCI}{device}" for port in seen.had.uplinks for device in port.devices}
    if had and away.keys() >= had:
        raise KeepsLess(why, network.said_by, tuple(step for step in seen.former if step not in seen.had.uplinks))
    raise Unavailable(why, network.said_by)


def _require_macs_kept(network: ProviderNetwork, nic: Nic) -> None:
    """Raise InvalidConfig for a bond that would replace the source MACs of pods' frames by its own."""
    bond = nic.bond
    if bond and bond.mode in _OTHER_MACS:
        which = f"NIC {nic.name} is" if nic.name == bond.name else f"NIC {nic.name} is made upon {bond.name},"
        raise InvalidConfig(
            f"{which} a bond of the kernel in mode {bond.mode}: it would send pods' frames with the MACs of its own NICs",
            f"give {bond.name} another mode, or name its NICs as 'bond' of the network: OVS bonds them then; {network.said_by}",
        )


def _require_free(network: ProviderNetwork, name: str, seen: UplinkLook) -> None:
    """Raise unless the link can carry the uplink with the addresses that it has, or can let go of them."""
    nic, move = seen.links.get(name), seen.moves.get(name)
    if nic is None:
        return
    addresses = {each.address for each in (*nic.addresses, *(move.addresses if move else ()))}
    with_moved = replace(nic, routes=(*nic.routes, *(move.routes if move else ())))
    why = ""
    if with_moved.has_default_route:
        why = "has a default route"
    elif addresses & (seen.node_addresses or frozenset()):
        why = "has the address by which the cluster knows the node"
    if why and network.move_addresses != "primary":
        remedy = (
            "'move_addresses = \"primary\"' (nic-to-bridge --move-addresses primary) moves them to the bridge; "
            "another NIC does not need this"
        )
        raise InvalidConfig(f"NIC {name} {why}", remedy)
    if move is not None:
        _require_known(network, move, seen)
        _require_movable(network, nic, seen)
    elif addresses or nic.passing:
        held = ", ".join((*nic.shown_addresses, *nic.passing))
        if name not in network.nics or network.port != "system":
            raise InvalidConfig(
                f"NIC {name} has addresses ({held}), which nothing would reach: OVS takes its frames away from the node's stack",
                "remove them; those of a kernel NIC can move to the bridge: 'move_addresses', of nic-to-bridge --move-addresses",
            )


def _require_known(network: ProviderNetwork, move: AddressMove, seen: UplinkLook) -> None:
    """Raise Unavailable unless it is known that a move which begins now takes no address by which the cluster knows the node."""
    has_moved = any(step.thing == move.thing for step in seen.had.moves)
    if seen.node_addresses is None and network.move_addresses != "primary" and not has_moved:
        raise Unavailable(
            "the addresses by which the cluster knows the node are not known yet",
            f"{move.nic} keeps its addresses until the API server has told them",
        )


def _require_movable(network: ProviderNetwork, nic: Nic, seen: UplinkLook) -> None:
    """Raise unless all that the NIC has can move and come back, and no program configures it meanwhile."""
    for found, what, remedy in (
        (nic.passing, "addresses that expire", "DHCP or a router renews them at the NIC; give the NIC static ones"),
        (nic.learned, "routes that a router has announced", "net.ipv6.conf.<NIC>.accept_ra=0, and static routes in their place"),
        (nic.stuck, "routes that cannot be moved", "remove them, or make them without the named attributes"),
    ):
        if found:
            raise InvalidConfig(f"NIC {nic.name} has {what}: {', '.join(found)}", remedy)
    managers = seen.managers.get(nic.name, ())
    if managers:
        raise InvalidConfig(
            f"NIC {nic.name} is configured by {', '.join(each.name for each in managers)}, which would undo the move",
            "; ".join(each.what_to_do for each in managers),
        )
    if nic.name not in network.nics:
        return
    left = [upper.name for upper in nic.uppers if upper.name not in network.vlan_interfaces]
    if left:
        raise InvalidConfig(
            f"{', '.join(left)} {'is' if len(left) == 1 else 'are'} made upon NIC {nic.name}, and would receive nothing",
            "name VLAN sub-interfaces in 'vlan_interfaces', and remove others",
        )


def _require_sub_interfaces(network: ProviderNetwork, seen: UplinkLook) -> None:
    ports = internal_ports(network, seen.links)
    for name in network.vlan_interfaces:
        if name not in ports:
            raise InvalidConfig(f"{name} is not a VLAN sub-interface of {', '.join(network.nics)}", "ip -d link shows what it is")
        tag = int(ports[name].rpartition(".")[2])
        others = [other for other, port in ports.items() if other != name and port == ports[name]]
        if others:
            raise InvalidConfig(
                f"{name} and {others[0]} are of one VLAN, {tag}", "one internal port can replace only one of them"
            )
        if name in seen.moves:
            _require_movable(network, seen.links[name], seen)
