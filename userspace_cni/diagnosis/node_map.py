"""The node's network as a picture shows it: bridges, and what is behind each of their ports, with its state. Pure.

What could not be asked is unknown here, never absent: without the switch, records alone say what there is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from userspace_cni.attachment.listing import NOT_SERVING
from userspace_cni.attachment.records import Record
from userspace_cni.base.findings import Finding
from userspace_cni.base.switch_bridges import FrameCounts, SwitchBridge, SwitchBridgePort, SwitchInterface, SwitchMirror
from userspace_cni.base.vlans import Vlan
from userspace_cni.ovn.logical_networks import LogicalNetworks

PortState = Literal["connected", "up", "waiting", "changing", "off", "down", "differs", "dead", "error", "unknown"]
"""connected: an application is at the socket; up: the link is; waiting: no application yet; changing: being attached or detached;
off: a link that nothing uses, as a mirror's output without a reader; down: the link is; differs: the switch has other values than
the record; dead: no process has the socket; error: the switch could not open it, or lacks it; unknown: it cannot be asked."""
_GRAVEST: Final[tuple[PortState, ...]] = ("error", "down", "unknown")
"""Of a port with several interfaces."""
WRONG: Final[frozenset[PortState]] = frozenset({"down", "differs", "dead", "error"})
Behind = Literal["pod", "vm", "node", "uplink", "tunnel", "patch", "test", "other"]
"""What is behind a port: a pod, a VM, the node's own stack, the outside, another node, another bridge, a test of ours, or what
another program has there."""
OUTWARD: Final[frozenset[Behind]] = frozenset({"uplink", "tunnel", "patch"})
_TUNNELS: Final = frozenset({"geneve", "vxlan", "gre", "erspan", "stt", "lisp", "bareudp", "ip6gre", "gtpu", "srv6"})
_OF_PROGRAMS: Final = frozenset({"veth", "tun", "bridge", "dummy"})
"""Drivers of kernel links that lead to another program on this node, not out of it."""
_DEAD: Final = Finding(
    "vswitchd-dead",
    "error",
    "ovs-vswitchd",
    "it is dead: no frame passes a bridge in userspace",
    "see its log, and start it again",
)
_VHOST: Final = frozenset({"dpdkvhostuser", "dpdkvhostuserclient"})


@dataclass(frozen=True)
class PortRates:
    """Bits, frames and dropped frames per second, as the switch counts them: `out` is what it sent through the port."""

    out_bits: float
    in_bits: float
    out_frames: float = 0.0
    in_frames: float = 0.0
    drops: float = 0.0


@dataclass(frozen=True)
class MapMember:
    """A NIC of a bond."""

    name: str
    state: PortState
    type: str = ""
    speed: str = ""


@dataclass(frozen=True)
class MapPort:
    """A port. `owner`: who is behind it, as NAMESPACE/POD, a VM or a NIC; `vlan` is what the switch has, what ADD wrote where it
    cannot be asked. `limits`: bit/s to and from what is behind it, None for none. `peer`: a patch's other end, `remote`: a
    tunnel's. `polled`: the cores that poll its queues, with the percent of their time that it takes, None while not known."""

    name: str
    behind: Behind
    state: PortState
    owner: str
    ifname: str = ""
    network: str = ""
    type: str = ""
    vlan: Vlan = field(default_factory=Vlan)
    problems: tuple[str, ...] = ()
    container: str = ""
    vm: str = ""
    mac: str = ""
    addresses: tuple[str, ...] = ()
    mtu: int = 0
    limits: tuple[int | None, int | None] = (None, None)
    limited_by_ovn: bool = False
    rates: PortRates | None = None
    logical: str = ""
    logical_switch: str = ""
    peer: str = ""
    remote: str = ""
    spec: str = ""
    members: tuple[MapMember, ...] = ()
    polled: tuple[tuple[int, int | None], ...] = ()


@dataclass(frozen=True)
class MapBridge:
    """A bridge. `datapath` "" and `made_by` "" where only records speak of it."""

    name: str
    datapath: str
    made_by: str
    ports: tuple[MapPort, ...] = ()
    mirrors: tuple[SwitchMirror, ...] = ()


@dataclass(frozen=True)
class MapHead:
    """What stands above the picture. `taken`: when, in UTC; `switch`: the version of Open vSwitch, or that it does not
    serve; `agent`: its version, or that there is none; `seconds`: over which rates are counted, 0 for no rates."""

    node: str
    taken: str
    version: str
    switch: str
    agent: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class NodeMap:
    """The picture's facts. `unasked`: what could not be asked, and why; `faults`: what else is wrong on the node. `vswitchd`: as
    `Liveness.state`; `asked`: whether OVSDB could be."""

    head: MapHead
    bridges: tuple[MapBridge, ...] = ()
    logical: LogicalNetworks = field(default_factory=LogicalNetworks)
    faults: tuple[Finding, ...] = ()
    unasked: tuple[str, ...] = ()
    vswitchd: str = "alive"
    asked: bool = True


@dataclass(frozen=True)
class MapFacts:
    """What was asked of the node. `attachments`: as `listing.describe_all` tells them; `bridges`: None where OVSDB could not be
    asked; `vswitchd`: as `Liveness.state`; `node_records`: of what the node itself has; `rates`: by interface; `polled`:
    as of `polling.shares_by_port`, by interface."""

    attachments: Sequence[Mapping[str, Any]]
    bridges: Sequence[SwitchBridge] | None
    vswitchd: str
    node_records: Sequence[Record] = ()
    rates: Mapping[str, PortRates] = field(default_factory=dict)
    logical: LogicalNetworks = field(default_factory=LogicalNetworks)
    polled: Mapping[str, Mapping[int, int | None]] = field(default_factory=dict)


def find_rates(before: Mapping[str, FrameCounts], after: Mapping[str, FrameCounts]) -> dict[str, PortRates]:
    """The rates of each interface that both looks have counted. There is none of one that was made anew in between, and of one
    that has no counters yet, as a vhost-user port that no application has used."""
    found = {}
    for name, later in after.items():
        earlier = before.get(name)
        if earlier is not None and later.at > earlier.at and "tx_bytes" in later.statistics:
            grown = {key: value - earlier.statistics.get(key, 0) for key, value in later.statistics.items()}
            if min(grown.values(), default=0) >= 0:
                found[name] = _rates(grown, later.at - earlier.at)
    return found


def _rates(grown: Mapping[str, int], seconds: float) -> PortRates:
    drops = grown.get("rx_dropped", 0) + grown.get("tx_dropped", 0)
    counted = (8 * grown.get("tx_bytes", 0), 8 * grown.get("rx_bytes", 0), grown.get("tx_packets", 0), grown.get("rx_packets", 0))
    return PortRates(*(each / seconds for each in (*counted, drops)))


def make_map(head: MapHead, facts: MapFacts, faults: Iterable[Finding] = (), unasked: Iterable[str] = ()) -> NodeMap:
    """The picture of these facts."""
    bridges, asked = tuple(_Mapping(facts).bridges()), facts.bridges is not None
    found = [_DEAD, *faults] if facts.vswitchd == "dead" else faults
    return NodeMap(head, bridges, facts.logical, tuple(found), tuple(unasked), facts.vswitchd, asked)


class _Mapping:
    """Brings together what records and switch say of each port."""

    def __init__(self, facts: MapFacts) -> None:
        self._facts = facts
        self._serves = facts.vswitchd not in NOT_SERVING
        self._attached = {each["port"]: each for each in facts.attachments if each["port"]}
        links = (record.node_link for record in facts.node_records)
        self._own = {link.name: link.addresses for link in links if link is not None}
        moves = (step for record in facts.node_records for step in record.moves)
        self._own |= {step.bridge: tuple(each.shown for each in step.addresses) for step in moves}

    def bridges(self) -> list[MapBridge]:
        found = {each.name: each for each in map(self._bridge, self._facts.bridges or ())}
        for name, ports in self._only_recorded().items():
            known = found.get(name, MapBridge(name, "", ""))
            found[name] = replace(known, ports=(*known.ports, *ports))
        return [found[name] for name in sorted(found)]

    def _only_recorded(self) -> dict[str, list[MapPort]]:
        """The ports of which records speak, and the switch does not, by bridge."""
        there = {port.name for bridge in self._facts.bridges or () for port in bridge.ports}
        found: dict[str, list[MapPort]] = {}
        for name, each in sorted(self._attached.items()):
            if name not in there:
                found.setdefault(each["bridge"], []).append(self._pods(each, None))
        for record in self._facts.node_records:
            if record.node_bridge is not None:
                found.setdefault(record.node_bridge.name, [])
            step = record.uplink
            if step is not None and step.name not in there:
                nics = ", ".join(each.devargs or each.name for each in step.interfaces)
                problems = () if self._facts.bridges is None else (f"the switch has no port {step.name}",)
                port = MapPort(step.name, "uplink", self._absent, nics, vlan=Vlan(trunks=step.trunks), problems=problems)
                found.setdefault(step.bridge, []).append(port)
        return found

    @property
    def _absent(self) -> PortState:
        """The state of a port that the switch does not speak of."""
        return "unknown" if self._facts.bridges is None else "error"

    def _bridge(self, bridge: SwitchBridge) -> MapBridge:
        ports = [self._port(each) for each in bridge.ports if each.name != bridge.name or each.name in self._own]
        return MapBridge(bridge.name, bridge.datapath, bridge.made_by, tuple(ports), bridge.mirrors)

    def _port(self, port: SwitchBridgePort) -> MapPort:
        attached = self._attached.get(port.name)
        return self._others(port) if attached is None else self._pods(attached, port)

    def _pods(self, each: Mapping[str, Any], port: SwitchBridgePort | None) -> MapPort:
        pod, limits = each["pod"] or {}, each["limits"]
        written = Vlan(each["vlan"]["tag"], tuple(sorted(each["vlan"]["trunks"])), each["vlan"]["mode"])
        name = "/".join(filter(None, [pod.get("namespace", ""), pod.get("name", "")])) or each["container"][:12]
        logical = (each["logical_port"] or {}).get("name", "")
        return MapPort(
            each["port"],
            "vm" if each["vm"] else "pod",
            self._pods_state(each),
            name,
            ifname=each["ifname"],
            network=each["network"],
            type=each["interface_type"],
            vlan=port.vlan if port else written,
            problems=tuple(each["problems"]),
            container=each["container"],
            vm=each["vm"],
            mac=each["mac"],
            addresses=tuple(each["addresses"]),
            mtu=_mtu(port) or each["mtu"] or 0,
            limits=(_rate(limits["to_pod"]), _rate(limits["from_pod"])),
            limited_by_ovn=each["limits_by"] == "ovn",
            rates=self._facts.rates.get(each["port"]),
            polled=self._polled(each["port"]),
            logical=logical,
            logical_switch=self._facts.logical.switch_of.get(logical, ""),
        )

    def _polled(self, interface: str) -> tuple[tuple[int, int | None], ...]:
        return tuple(sorted(self._facts.polled.get(interface, {}).items()))

    def _pods_state(self, each: Mapping[str, Any]) -> PortState:
        if each["socket_dead"]:
            return "dead"
        if each["state"] != "ready":
            return "changing"
        wrong = {found["name"] for found in each["findings"] if found["severity"] == "error"}
        if wrong:
            return "differs" if wrong == {"port-changed"} else "error"
        if not self._serves or self._facts.bridges is None:
            return "unknown"
        vhost, link = each["vhost"]["state"], each["link_state"]
        if each["role"]:
            return "connected" if link == "up" or vhost == "connected" else "waiting"
        return "up" if link == "up" else "down" if link == "down" else "unknown"

    def _others(self, port: SwitchBridgePort) -> MapPort:
        """A port of the node itself, of a test of ours, or of another program."""
        first = port.interfaces[0] if port.interfaces else SwitchInterface(port.name, "")
        behind, own = find_behind(port, first), self._own.get(port.name, ())
        states = [self._state(each) for each in port.interfaces]
        if behind in ("node", "other") and port.name not in self._own:
            states = ["off" if each == "down" else each for each in states]
        gravest = next((each for each in _GRAVEST if each in states), states[0] if states else "unknown")
        problems = [f"the switch says: {each.error}" for each in port.interfaces if each.error]
        members = tuple(
            MapMember(each.options.get("dpdk-devargs") or each.name, state, each.type, each.speed)
            for each, state in zip(port.interfaces, states, strict=True)
        )
        if port.bond:
            problems += [f"the link of {each.name} is down" for each in members if each.state == "down"]
        return MapPort(
            port.name,
            behind,
            gravest,
            ", ".join(each.name for each in members) if behind == "uplink" else port.name,
            type=first.type,
            vlan=port.vlan,
            problems=tuple(problems),
            mac=first.mac,
            addresses=own,
            mtu=first.mtu,
            rates=sum_rates(self._facts.rates.get(each.name) for each in port.interfaces),
            polled=tuple(core for each in port.interfaces for core in self._polled(each.name)),
            logical=port.logical,
            logical_switch=self._facts.logical.switch_of.get(port.logical, ""),
            peer=first.options.get("peer", ""),
            remote=first.options.get("remote_ip", ""),
            spec=port.spec,
            members=members if port.bond or behind == "uplink" else (),
        )

    def _state(self, interface: SwitchInterface) -> PortState:
        if interface.error:
            return "error"
        if not self._serves:
            return "unknown"
        if interface.type == "patch" or (interface.type in _TUNNELS and not interface.link_state):
            return "up"
        if interface.type in _VHOST:
            return "connected" if interface.link_state == "up" else "waiting"
        return "up" if interface.link_state == "up" else "down" if interface.link_state == "down" else "unknown"


def has_fault(found: NodeMap) -> bool:
    """Whether the picture shows something that is wrong."""
    wrong = any(port.state in WRONG for bridge in found.bridges for port in bridge.ports)
    return wrong or bool(found.faults)


def find_behind(port: SwitchBridgePort, first: SwitchInterface) -> Behind:
    """What is behind the port, of which that is the first interface."""
    if first.type in ("patch", *_TUNNELS):
        return "patch" if first.type == "patch" else "tunnel"
    if port.owner == "run":
        return "test"
    if port.owner == "node":
        return "node" if first.type == "internal" else "uplink"
    if first.type == "internal":
        return "node"
    is_program = first.type in _VHOST or first.driver in _OF_PROGRAMS or port.owner == "pod" or bool(port.logical)
    return "other" if is_program or not port.interfaces else "uplink"


def vlan_words(vlan: Vlan) -> str:
    """The port's VLANs in words: `VLAN 100`, `VLANs 1-9, 20`; `no VLAN set` of one that carries all."""
    trunks = f"VLANs {_ranges(vlan.trunks)}" if vlan.trunks else ""
    tag = f"VLAN {vlan.tag}" if vlan.tag is not None else ""
    mode = vlan.mode if vlan.mode not in ("", "access", "trunk") else ""
    return ", ".join(filter(None, [tag, trunks, mode])) or "no VLAN set"


def _ranges(numbers: Sequence[int]) -> str:
    """Numbers in order, as `1-9, 20`."""
    found: list[tuple[int, int]] = []
    for each in sorted(numbers):
        if found and found[-1][1] == each - 1:
            found[-1] = found[-1][0], each
        else:
            found.append((each, each))
    return ", ".join(f"{low}" if low == high else f"{low}-{high}" for low, high in found)


def _rate(limit: Mapping[str, Any] | None) -> int | None:
    return limit["rate"] if limit else None


def _mtu(port: SwitchBridgePort | None) -> int:
    return port.interfaces[0].mtu if port and port.interfaces else 0


def sum_rates(rates: Iterable[PortRates | None]) -> PortRates | None:
    """The rates of several interfaces together, as far as they are known; None where none is."""
    known = [each for each in rates if each is not None]
    if not known:
        return None
    return PortRates(*(sum(getattr(each, name) for each in known) for name in PortRates.__dataclass_fields__))
