"""What of an attachment's bridge and its neighbours there can be the cause: VLANs, MTUs, addresses, controllers. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from ipaddress import ip_interface
from typing import Final

from userspace_cni.attachment.listing import addresses, name_of, objects
from userspace_cni.attachment.records import Record
from userspace_cni.base.seen_bridge import SeenPort
from userspace_cni.base.vlans import VLAN_MAX, Vlan, list_carried_vlans, share_one
from userspace_cni.diagnosis.why.attachment_sight import AttachmentSight, Findings, known
from userspace_cni.diagnosis.why.traffic_sight import TrafficSight

_SHOWN: Final = 3
_EVERY: Final = frozenset(range(VLAN_MAX + 1))
_UNTAGGED: Final = frozenset({0})
_LISTENING: Final = ("ptcp:", "pssl:", "punix:")
"""How the target begins of a controller for which the switch waits, as a place for ovs-ofctl: none has to be there."""
_RECREATE: Final = "and recreate the pod"


def judge_vlan_peers(sight: AttachmentSight) -> Findings:
    """Whether anyone else on the bridge has its VLAN. A pod without VLANs sends and expects frames without a tag."""
    traffic = _own_traffic(sight)
    if traffic is None or not traffic.peers:
        return
    vlan, bridge = traffic.port.vlan, traffic.bridge.name
    mine = _vlans(traffic.port)
    if mine in (_UNTAGGED, _EVERY) or any(mine & _vlans(each) for each in traffic.peers):
        return
    have = sorted({each for peer in traffic.peers for each in _vlans(peer)} - _UNTAGGED)
    held = _list(f"VLAN {each} ({_list(_called(peer) for peer in traffic.peers if each in _vlans(peer))})" for each in have)
    others = f"the other ports have {held}" if have else "the other ports have none"
    message = f"no other port of bridge {bridge} has VLAN {_list(map(str, sorted(mine)))}: {others}"
    key = "vlanId" if vlan.tag is not None else "trunks"
    remedy = (
        f"give network {sight.record.network} the VLAN of its peers (host.bridge.{key}), {_RECREATE}; or, if its peers are on "
        f"other nodes, have the bridge's uplink carry VLAN {min(mine)}; all is well if the node itself is the peer, by a link "
        f"{bridge}.{min(mine)}"
    )
    yield sight.found("vlan-alone", message, remedy, why="its frames reach no other port", severity="warning")


def judge_mtu_peers(sight: AttachmentSight) -> Findings:
    """Whether its MTU is that of the ports with which it shares a VLAN, the uplink's first."""
    traffic = _own_traffic(sight)
    if traffic is None or not traffic.port.mtu:
        return
    mine, vlans = traffic.port.mtu, _vlans(traffic.port)
    unlike = [each for each in traffic.peers if each.mtu and each.mtu != mine and vlans & _vlans(each)]
    if not unlike:
        return
    ordered = sorted(unlike, key=lambda each: (not each.outward, each.mtu))
    told = _list(f"{_called(each)} {each.mtu}" for each in ordered)
    least = min(mine, *(each.mtu for each in unlike))
    message = f"the pod's MTU is {mine}, and others in its VLAN have another: {told}"
    remedy = f"give all of them one MTU: host.mtu of network {sight.record.network}, {_RECREATE}, or that of the others"
    why = f"frames longer than {least} are dropped without a word, while small ones (ping) arrive"
    yield sight.found("mtu-unlike", message, remedy, why=why, severity="warning")


def judge_duplicates(sight: AttachmentSight) -> Findings:
    """Others on the bridge with its MAC or one of its addresses, in a VLAN that both have."""
    traffic, record = _own_traffic(sight), sight.record
    step = record.port
    if traffic is None or step is None:
        return
    mac = step.mac.lower()
    same = [each for each in traffic.peers if mac and each.mac == mac and share_one(traffic.port.vlan, each.vlan)]
    if same:
        message = f"MAC {mac} is also that of {_list(map(_called, same))}"
        remedy = "give one of the pods another MAC (leave it out of its annotations, and it gets its own), and recreate that pod"
        yield sight.found("duplicate-mac", message, remedy, why="frames to it go to the one that has sent last")
    mine = _ips(record)
    for other in _sharing(record, traffic.others):
        if taken := mine & _ips(other):
            former = (record.pod_namespace, record.pod_name, record.ifname) == (other.pod_namespace, other.pod_name, other.ifname)
            message = f"address {_list(sorted(taken))} is also that of {name_of(other)} (container {other.container_id[:12]})"
            remedy = _separate(record, other, taken)
            why = "neighbours find now the one, now the other"
            yield sight.found("duplicate-address", message, remedy, why, "note" if former and record.pod_name else "error")
    if taken := mine & (traffic.own_addresses or frozenset()):
        message = f"address {_list(sorted(taken))} is also that of the node's own link on bridge {traffic.bridge.name}"
        remedy = f"leave it out in the ipam of network {record.network} ('exclude'), {_RECREATE}"
        yield sight.found("duplicate-address", message, remedy, why="neighbours find now the one, now the other")


def judge_gateway(sight: AttachmentSight) -> Findings:
    """Whether the gateway of its routes can be on the bridge at all."""
    traffic, result = _own_traffic(sight), sight.record.result or {}
    if traffic is None or traffic.own_addresses is None or any(each.outward for each in traffic.bridge.ports):
        return
    routes = objects(result.get("routes"))
    gateways = {str(each.get("gw")) for each in routes if each.get("gw")}
    if any(not each.get("gw") for each in routes):
        gateways |= {str(each["gateway"]) for each in objects(result.get("ips")) if each.get("gateway")}
    there = traffic.own_addresses | frozenset(address for other in traffic.others for address in _ips(other)) | _ips(sight.record)
    if away := sorted(gateways - there):
        message = f"its gateway {_list(away)} is on no port of bridge {traffic.bridge.name}, which has no uplink"
        remedy = "give the bridge an uplink: `userspace-cni nic-to-bridge`; or the network a gateway that the node has"
        yield sight.found("gateway-away", message, remedy, why="the pod reaches its own subnet only", severity="warning")


def judge_spanning(sight: AttachmentSight) -> Findings:
    """Whether a spanning tree keeps the port from forwarding."""
    traffic = known(sight.traffic)
    if traffic is None or traffic.port.spanning in ("", "forwarding") or not sight.is_connected:
        return
    bridge, kind = traffic.bridge.name, traffic.bridge.spanning
    message = f"the spanning tree ({kind.upper()}) of bridge {bridge} has its port {traffic.port.spanning}"
    off = f"`ovs-vsctl set Port {shlex.quote(traffic.port.name)} other_config:{kind}-enable=false`"
    remedy = f"wait half a minute; no pod needs it: {off}"
    yield sight.found("port-spanning-tree", message, remedy, why="such a port forwards no frame", severity="warning")


def judge_learned(sight: AttachmentSight) -> Findings:
    """Where the bridge has learned its MAC, and whether it can learn more."""
    traffic, step = _own_traffic(sight), sight.record.port
    if traffic is None or step is None:
        return
    learned, bridge = traffic.bridge.learned, traffic.bridge.name
    away = {port for (_, mac), port in learned.places.items() if mac == step.mac.lower() and port not in ("", traffic.port.name)}
    if step.mac and away:
        found = [traffic.bridge.find(each) for each in sorted(away)]
        told = _list(_called(each) if each else "the bridge's own link" for each in found)
        message = f"bridge {bridge} has learned its MAC {step.mac.lower()} at {told}"
        remedy = "a pod or machine there sends with this MAC, or there is a loop: `userspace-cni capture` at that port shows it"
        yield sight.found("mac-elsewhere", message, remedy, why="frames to the pod go there")
    if learned.maximum and learned.count >= learned.maximum:
        message = f"bridge {bridge} has learned {learned.count} addresses, and can have {learned.maximum}"
        remedy = f"`ovs-vsctl set Bridge {bridge} other_config:mac-table-size={max(8192, 4 * learned.maximum)}`"
        why = "frames to other addresses are flooded to every port, which costs each of them"
        yield sight.found("mac-table-full", message, remedy, why=why, severity="warning")


def judge_controllers(sight: AttachmentSight) -> Findings:
    """OpenFlow controllers of the bridge that are not connected."""
    traffic = known(sight.traffic)
    for each in traffic.bridge.controllers if traffic else ():
        if each.connected or traffic is None or each.target.startswith(_LISTENING):
            continue
        bridge, secure = traffic.bridge.name, traffic.bridge.fail_mode == "secure"
        message = f"bridge {bridge} has the OpenFlow controller {each.target}, which is not connected"
        message += f" ({each.problem})" if each.problem else ""
        why = (
            "it has only the flows that it had (fail_mode secure)" if secure else "until it comes the bridge forwards as a switch"
        )
        remedy = f"start it, or take it out: `ovs-vsctl del-controller {bridge}`"
        yield sight.found("controller-away", message, remedy, why=why, severity="warning")


def _own_traffic(sight: AttachmentSight) -> TrafficSight | None:
    """Its traffic, where the bridge is its network: two logical ports of OVN on one bridge may be of two networks."""
    step = sight.record.port
    return known(sight.traffic) if step and step.logical is None else None


def _vlans(port: SeenPort) -> frozenset[int]:
    """The VLANs in which a port can be spoken to: of one without any, what leads outward carries all, another no tagged frame."""
    carried = list_carried_vlans(port.vlan)
    if carried is not None:
        return carried
    return _EVERY if port.outward or port.vlan != Vlan() else _UNTAGGED


def _sharing(record: Record, others: tuple[Record, ...]) -> Iterator[Record]:
    """The others on the bridge with which it shares a VLAN."""
    step = record.port
    for other in others:
        theirs = other.port
        if step and theirs and step.bridge == theirs.bridge and share_one(step.vlan, theirs.vlan):
            yield other


def _ips(record: Record) -> frozenset[str]:
    return frozenset(str(ip_interface(each).ip) for each in addresses(record))


def _separate(record: Record, other: Record, taken: frozenset[str]) -> str:
    """How two pods come to different addresses: what gave them these is one network, or two."""
    networks = {str(each.network) for each in map(ip_interface, addresses(record)) if str(each.ip) in taken}
    ranges = _list(sorted(networks))
    if record.network == other.network:
        return f"see why ipam of network {record.network} gave it twice (did a pod ask for it?), then recreate one of the pods"
    both = f"networks {record.network} and {other.network} both give out {ranges}"
    return f"{both}: give them separate ranges (ipam), then recreate one of the pods"


def _called(port: SeenPort) -> str:
    return f"pod {port.pod} (port {port.name})" if port.pod else f"{'uplink' if port.outward else 'port'} {port.name}"


def _list(words: Iterable[str]) -> str:
    found = list(words)
    more = len(found) - _SHOWN
    return ", ".join(found[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


OF_BRIDGES: Final = (
    judge_duplicates,
    judge_vlan_peers,
    judge_spanning,
    judge_learned,
    judge_controllers,
    judge_mtu_peers,
    judge_gateway,
)
"""All judges of this module, in their order (`causes.JUDGES`)."""
