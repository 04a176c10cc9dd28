"""The words for a port and its state, in the picture and where it is pointed at. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from userspace_cni.base.vlans import Vlan
from userspace_cni.cli.map.drawing import Facts
from userspace_cni.cli.view import format_count, plain
from userspace_cni.diagnosis.node_map import Behind, MapPort, PortRates, PortState, vlan_words

STATES: Final[Mapping[PortState, str]] = {
    "connected": "connected to an application",
    "up": "link up",
    "waiting": "waiting for an application",
    "changing": "being attached or removed",
    "off": "link down, not in use",
    "down": "link down",
    "differs": "differs from its record",
    "dead": "socket dead",
    "error": "error",
    "unknown": "state not known",
}
"""In the order in which they are told."""
BEHIND: Final[Mapping[Behind, str]] = {
    "pod": "pod",
    "vm": "VM",
    "node": "this node",
    "uplink": "NIC",
    "tunnel": "tunnel",
    "patch": "patch",
    "test": "test of ours",
    "other": "another program",
}
_TYPES: Final = {
    "dpdkvhostuser": "vhost-user",
    "dpdkvhostuserclient": "vhost-user",
    "system": "kernel",
    "af_packet": "AF_PACKET",
    "af_xdp": "AF_XDP",
    "afxdp": "AF_XDP",
    "dpdk": "DPDK",
    "internal": "kernel",
}
_UNITS: Final = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def type_words(port: MapPort) -> str:
    """How it is joined to the switch."""
    kind = _TYPES.get(port.type, port.type)
    return "veth" if port.behind == "pod" and kind != "vhost-user" else kind


def short_number(number: float) -> str:
    """With three digits and the unit's prefix, as `1.23G`."""
    for size, prefix in _UNITS:
        if number >= size * 0.9995:
            return f"{number / size:.3g}{prefix}" if number < size * 999.5 else f"{number / size:.0f}{prefix}"
    return f"{number:.0f}"


def with_unit(number: float, unit: str) -> str:
    """As `1.23 Gbit/s`."""
    text = short_number(number)
    digits = text.rstrip("TGMk")
    return f"{digits} {text[len(digits) :]}{unit}"


def rates_line(port: MapPort) -> str:
    """Rates, and limits where there are any: `↓12M/100M ↑3M`, `↓max 100M`; "" for neither."""
    parts = []
    for sign, rate, limit in zip("↓↑", _bits(port.rates), port.limits, strict=True):
        most = short_number(limit) if limit else ""
        if rate is not None:
            parts.append(f"{sign}{short_number(rate)}" + (f"/{most}" if most else ""))
        elif most:
            parts.append(f"{sign}max {most}")
    return " ".join(parts)


def figures_line(port: MapPort) -> str:
    """Rates, limits, and what is dropped where there is any: `↓12M/100M ↑3M drops 1.2k/s`."""
    drops = f"drops {short_number(port.rates.drops)}/s" if port.rates and port.rates.drops >= 0.5 else ""
    return " ".join(filter(None, [rates_line(port), drops]))


def _bits(rates: PortRates | None) -> tuple[float | None, float | None]:
    return (rates.out_bits, rates.in_bits) if rates else (None, None)


def heading(port: MapPort) -> str:
    """What it is called: a pod without its namespace, which the second line has."""
    if port.vm:
        return port.vm
    return port.owner.rpartition("/")[2] if port.behind == "pod" else port.owner


def second_line(port: MapPort, *, short: bool = False) -> str:
    """What stands below it. `short`: without how the switch has opened it."""
    namespace = port.owner.partition("/")[0] if "/" in port.owner and port.behind in ("pod", "vm") else ""
    if port.behind in ("pod", "vm"):
        return " · ".join(filter(None, [port.ifname, namespace, "" if short else type_words(port)]))
    if port.behind == "node":
        return ", ".join(port.addresses) or type_words(port)
    return " · ".join(filter(None, [BEHIND[port.behind], type_words(port)]))


def describe(port: MapPort, bridge: str, mirrors: Facts = ()) -> Facts:
    """Everything of a port, as names and values; those without a value are left out. `mirrors`: its part in them."""
    rates = port.rates
    facts = [
        ("state", STATES[port.state]),
        *(("problem", each) for each in port.problems),
        ("what", BEHIND[port.behind]),
        ("VM", port.vm),
        ("pod", port.owner if port.behind in ("pod", "vm") else ""),
        ("interface", port.ifname),
        ("network", port.network),
        ("bridge", bridge),
        ("port", port.name),
        ("type in OVS", port.type),
        ("VLAN", _vlan_fact(port)),
        ("logical port", port.logical),
        ("logical switch", port.logical_switch),
        ("MAC", port.mac),
        ("addresses", ", ".join(port.addresses)),
        ("MTU", str(port.mtu or "")),
        ("limit to it", _limit(port, 0)),
        ("limit from it", _limit(port, 1)),
        ("to it", _rate_words(rates.out_bits, rates.out_frames) if rates else ""),
        ("from it", _rate_words(rates.in_bits, rates.in_frames) if rates else ""),
        ("drops", f"{short_number(rates.drops)} frames/s" if rates and rates.drops else ""),
        ("polled by", ", ".join(map(_core, port.polled))),
        ("other end", port.peer or port.remote),
        ("spec", port.spec),
        *(("NIC", ", ".join(filter(None, [each.name, STATES[each.state], each.speed]))) for each in port.members),
        *mirrors,
        ("container", port.container),
    ]
    return tuple((name, plain(value)) for name, value in facts if value)


def _vlan_fact(port: MapPort) -> str:
    """Its VLANs; a port of OVN has none of its own."""
    return "" if port.logical else "none set, so that all pass" if port.vlan == Vlan() else vlan_words(port.vlan)


def _core(polled: tuple[int, int | None]) -> str:
    core, percent = polled
    return f"core {core}" + ("" if percent is None else f", {percent} % of its time")


def _limit(port: MapPort, way: int) -> str:
    limit = port.limits[way]
    if limit is None:
        return "by OVN" if port.limited_by_ovn else ""
    return with_unit(limit, "bit/s")


def _rate_words(bits: float, frames: float) -> str:
    return f"{with_unit(bits, 'bit/s')}, {short_number(frames)} frames/s"


def count_states(ports: list[MapPort]) -> list[tuple[PortState, str]]:
    """How many ports are in each state, for those that are in any."""
    found = []
    for state, words in STATES.items():
        if number := sum(each.state == state for each in ports):
            found.append((state, f"{number} {words}"))
    return found


def count_ports(number: int) -> str:
    return format_count(number, "port")
