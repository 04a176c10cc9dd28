"""What leads out of a bridge: NICs, patches to other bridges, and tunnels, of which there is one for each other node. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from userspace_cni.cli.map.box_words import STATES, type_words
from userspace_cni.cli.map.drawing import Facts
from userspace_cni.cli.map.port_groups import natural
from userspace_cni.cli.view import format_count, plain
from userspace_cni.diagnosis.node_map import OUTWARD, MapBridge, MapPort, PortState, sum_rates, vlan_words

_ORDER: Final = ("uplink", "patch", "tunnel")
_GRAVEST: Final[tuple[PortState, ...]] = ("error", "down", "unknown")


@dataclass(frozen=True)
class OutsideBox:
    """A box at the left of a bridge. `port`: as it is drawn; `ports`: those that it stands for."""

    title: str
    subtitle: str
    port: MapPort
    ports: tuple[MapPort, ...]
    facts: Facts = ()


def list_outside(bridge: MapBridge, bridge_of: Mapping[str, str]) -> list[OutsideBox]:
    """The boxes of a bridge. `bridge_of`: of each port its bridge, by which a patch is known to lead to one."""
    found: dict[tuple[object, ...], list[MapPort]] = {}
    for port in bridge.ports:
        if port.behind in OUTWARD:
            own = port.type if port.behind == "tunnel" else port.name
            found.setdefault((_ORDER.index(port.behind), natural(own), own), []).append(port)
    return [_box(found[key], bridge_of) for key in sorted(found)]


def _box(ports: list[MapPort], bridge_of: Mapping[str, str]) -> OutsideBox:
    first = ports[0]
    if first.behind == "tunnel":
        return _tunnels(sorted(ports, key=lambda each: (natural(each.remote), each.name)))
    if first.behind == "patch":
        there = bridge_of.get(first.peer, "")
        if there:
            return OutsideBox(f"to bridge {there}", f"patch {first.name}", first, (first,))
        return OutsideBox(f"patch {first.name}", f"to {first.peer or 'nothing'}, which is not there", first, (first,))
    bonded = f"{format_count(len(first.members), 'NIC')} bonded" if len(first.members) > 1 else "NIC"
    speed = first.members[0].speed if len(first.members) == 1 else ""
    vlans = "all VLANs" if first.vlan.tag is None and not first.vlan.trunks else vlan_words(first.vlan)
    kind = type_words(first)
    title = first.name if len(first.members) > 1 else first.owner
    return OutsideBox(title, " · ".join(filter(None, [bonded, kind, _speed(speed), vlans])), first, (first,))


def _tunnels(ports: list[MapPort]) -> OutsideBox:
    first = ports[0]
    state = next((each for each in _GRAVEST if any(port.state == each for port in ports)), first.state)
    problems = tuple(each for port in ports for each in port.problems)
    drawn = replace(first, state=state, rates=sum_rates(port.rates for port in ports), problems=problems)
    facts = tuple(("tunnel to", f"{plain(each.remote)}: {STATES[each.state]}") for each in ports)
    title = f"{format_count(len(ports), 'tunnel')} to other nodes"
    more = f" and {len(ports) - 1} more" if len(ports) > 1 else ""
    return OutsideBox(title, f"{first.type} to {first.remote or 'wherever flows say'}{more}", drawn, tuple(ports), facts)


def _speed(text: str) -> str:
    """`10Gbps` of OVSDB as `10 Gbit/s`; another text as it is."""
    number = text.removesuffix("bps")
    return f"{number[:-1]} {number[-1]}bit/s" if number != text and number[:-1].isdigit() else text
