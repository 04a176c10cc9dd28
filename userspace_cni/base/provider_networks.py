"""Provider networks: a bridge of the node with an uplink, as settings and objects describe them for this node. Pure.

These values become names of kernel links, or arguments of DPDK in root's ovs-vswitchd. So `require_possible` checks every
value, whatever its source. It allows only virtual devices of DPDK that neither run programs, as net_failsafe does, nor open
files, as net_pcap and xdp_prog do, and only arguments that are known to be harmless.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NoReturn, get_args

from userspace_cni.base.errors import InvalidConfig, quote, shorten
from userspace_cni.base.misspelt import meant_or_known
from userspace_cni.base.vlans import VLAN_MAX, vlan_ranges, vlans_of

BondMode = Literal["active-backup", "balance-slb", "balance-tcp"]
"""Port.bond_mode of ovs-vswitchd.conf.db(5)."""
Lacp = Literal["", "active", "passive"]
MoveAddresses = Literal["no", "yes", "primary"]
"""Whether the NIC's addresses move to the bridge. "primary": also those of the NIC that has the node's default route."""
NicPort = Literal["system", "afxdp"]
"""How OVS opens a kernel NIC."""
VlansBy = Literal["itself", "objects", "some objects"]
"""Who says which VLANs an uplink carries: its spec, for which none is all; or objects beside it, all of them or some."""

_BRIDGE_PREFIX: Final = "br-"
NAME_MAX: Final = 12
"""Characters of a name: `br-<name>` is a kernel link, too."""
NAME_MAX_WITH_VLANS: Final = 10
"""The same where VLAN sub-interfaces become internal ports `<name>.<VLAN>`."""
PCI: Final = "pci:"
VDEV: Final = "vdev:"
"""What an interface begins with that DPDK opens; any other is a kernel NIC's name."""

_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_LINK: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,14}")
_PCI: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]")
_VDEV: Final = re.compile(r"(net_[a-z_]+)([0-9]{1,4})((?:,[a-z_\-]+=[A-Za-z0-9_.:\-]+)*)")
_VDEVS: Final[Mapping[str, tuple[str, ...]]] = {
    "net_null": ("size", "copy", "no-rx"),
    "net_af_packet": ("iface", "qpairs", "qdisc_bypass", "blocksz", "framesz", "framecnt", "fanout_mode"),
    "net_af_xdp": ("iface", "start_queue", "queue_count", "force_copy", "busy_budget"),
    "net_tap": ("iface", "mac"),
}
"""The virtual devices that an uplink can be, each with the arguments that it may have."""
_MTU_MIN: Final = 1280
"""IPv6's (RFC 8200): below it a bridge carries no IPv6."""
_MTU_MAX: Final = 9702
"""DPDK's frames in OVS (NETDEV_DPDK_MAX_PKT_LEN) without their headers."""
_QUEUES_MAX: Final = 64
_GIVE_BACK_MAX_S: Final = 3600.0
_UPDELAY_MAX_MS: Final = 600_000


@dataclass(frozen=True)
class Bond:
    """Several interfaces as one uplink, bonded by OVS. `updelay_ms` as Port.bond_updelay."""

    members: tuple[str, ...]
    mode: BondMode = "active-backup"
    lacp: Lacp = ""
    updelay_ms: int = 0


@dataclass(frozen=True)
class ProviderNetwork:
    """What this node is to have: a bridge with an uplink. `bridge`: its name, `br-<name>` unless another one is given.

    `interface`: a kernel NIC's name, `pci:ADDRESS`, or `vdev:DEVARGS`; "" where there is a `bond`. `port`: how a kernel NIC is
    opened. `give_back_after_s`: moved addresses go back to the NIC when ovs-vswitchd is gone for so long. `vlans`: what the
    uplink carries beside untagged frames, as said by `vlans_by`; () for all. `vlan_interfaces`: sub-interfaces of the NIC, as
    eth0.10, that become internal ports of the bridge. `mtu`, `rx_queues`: 0 for what the NIC has, and one. `said_by`: where the
    spec stands, for messages.
    """

    name: str
    interface: str = ""
    bond: Bond | None = None
    port: NicPort = "system"
    move_addresses: MoveAddresses = "no"
    give_back_after_s: float = 10.0
    vlans: tuple[int, ...] = ()
    vlan_interfaces: tuple[str, ...] = ()
    mtu: int = 0
    rx_queues: int = 0
    vlans_by: VlansBy = "itself"
    bridge: str = ""
    said_by: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if not self.bridge:
            object.__setattr__(self, "bridge", usual_bridge(self.name))

    @property
    def interfaces(self) -> tuple[str, ...]:
        """The uplink's interfaces: one, or the bond's members."""
        return self.bond.members if self.bond else (self.interface,)

    @property
    def nics(self) -> tuple[str, ...]:
        return tuple(each for each in self.interfaces if not each.startswith((PCI, VDEV)))

    @property
    def pci_devices(self) -> tuple[str, ...]:
        return tuple(each.removeprefix(PCI) for each in self.interfaces if each.startswith(PCI))

    @property
    def links(self) -> tuple[str, ...]:
        """The kernel links that its uplink takes: its NICs, and those that virtual devices of DPDK open."""
        found = (link_of(each) for each in self.interfaces)
        return tuple(each for each in found if each)

    @property
    def claims(self) -> frozenset[str]:
        """What no other network can have beside it: kernel links, PCI devices, and virtual devices by driver and number."""
        return frozenset((*self.links, *(each.partition(",")[0] for each in self.interfaces)))


def usual_bridge(name: str) -> str:
    """The bridge of the provider network of that name, where it names none. Objects of the API name none."""
    return f"{_BRIDGE_PREFIX}{name}"


def read_provider_networks(raw: object, where: str) -> tuple[ProviderNetwork, ...]:
    """Read the tables `[[provider_network]]` of the file `where`. Raises InvalidConfig naming file, number, key and value."""
    if not isinstance(raw, list) or not all(isinstance(table, dict) for table in raw):
        raise InvalidConfig(
            f"{where}: 'provider_network' is {quote(raw)}",
            "write provider networks as tables, each below a line [[provider_network]]",
        )
    found = [_read_one(table, f"{where}, [[provider_network]] number {number}") for number, table in enumerate(raw, 1)]
    users: dict[tuple[str, str], ProviderNetwork] = {}
    for each in found:
        for kind, thing in (("name", each.name), *(("link", link) for link in (each.bridge, *sorted(each.claims)))):
            former = users.setdefault((kind, thing), each)
            if former is not each:
                raise InvalidConfig(f"{each.said_by}: {thing!r} is {former.name!r}'s already", "one NIC is in one network, once")
    return tuple(found)


def require_possible(network: ProviderNetwork) -> ProviderNetwork:
    """Return the network if each of its values can be. Raises InvalidConfig naming `said_by`, the key and the value."""

    def refuse(key: str, value: object, reason: str) -> NoReturn:
        raise InvalidConfig(f"{network.said_by}: '{key}' is {quote(value)}", reason)

    _require_uplink(network, refuse)
    for key, most, least in (("mtu", _MTU_MAX, _MTU_MIN), ("rx_queues", _QUEUES_MAX, 1)):
        value = getattr(network, key)
        if value and not least <= value <= most:
            refuse(key, value, f"it must be 0, or from {least} to {most}")
    if network.rx_queues and network.nics and network.port == "system":
        refuse("rx_queues", network.rx_queues, "a port of type system has one queue to read from; 'port' can be afxdp")
    if not 1 <= network.give_back_after_s <= _GIVE_BACK_MAX_S:
        refuse("give_back_after_s", network.give_back_after_s, f"it must be from 1 to {_GIVE_BACK_MAX_S:g}")
    if not all(0 <= vlan <= VLAN_MAX for vlan in network.vlans):
        refuse("vlans", list(network.vlans), f"VLAN ids are from 0 to {VLAN_MAX}")
    if network.move_addresses != "no" and (network.bond or not network.nics):
        reason = "addresses move from one kernel NIC, which can be a bond of the kernel; a device of DPDK has none"
        refuse("move_addresses", network.move_addresses, reason)
    _require_vlan_interfaces(network, refuse)
    return network


def _require_uplink(network: ProviderNetwork, refuse: Callable[[str, object, str], NoReturn]) -> None:
    longest = NAME_MAX_WITH_VLANS if network.vlan_interfaces else NAME_MAX
    if not _NAME.fullmatch(network.name) or len(network.name) > longest:
        refuse("name", network.name, f"it must be of a-z, 0-9 and -, with {longest} characters at most: 'br-' and it name a link")
    if bool(network.interface) == bool(network.bond):
        refuse("interface", network.interface, "a network has either an 'interface' or a 'bond'")
    for each in network.interfaces:
        reason = unusable(each)
        if reason:
            refuse("bond.members" if network.bond else "interface", each, reason)
    if not _LINK.fullmatch(network.bridge):
        refuse("bridge", network.bridge, "it must be a name that a kernel link can have, with 15 characters at most")
    if network.bridge in network.links:
        refuse("interface", network.bridge, "it is the bridge itself")
    if network.bond:
        _require_bond(network.bond, refuse)


def unusable(interface: str) -> str:
    """Why an uplink cannot be such an interface; "" if it can, so far as its name shows."""
    if interface.startswith(PCI):
        return "" if _PCI.fullmatch(interface[len(PCI) :]) else "a PCI device is as pci:0000:3b:00.0, in small letters"
    if not interface.startswith(VDEV):
        return "" if _LINK.fullmatch(interface) else "it must be a kernel NIC's name, pci:ADDRESS, or vdev:DEVARGS"
    match = _VDEV.fullmatch(interface[len(VDEV) :])
    if not match or match[1] not in _VDEVS:
        shown = f"it can be one of {', '.join(_VDEVS)}: others run programs or open files"
        return f"a virtual device is as vdev:net_af_packet0,iface=eth1, and {shown}"
    keys = [argument.partition("=")[0] for argument in match[3].split(",")[1:]]
    wrong = [key for key in keys if key not in _VDEVS[match[1]]]
    return f"{match[1]} cannot be given {wrong[0]!r} here; it can have {', '.join(_VDEVS[match[1]])}" if wrong else ""


def link_of(interface: str) -> str:
    """The kernel link of an uplink's interface: the NIC itself, or the one that a virtual device opens; "" for none."""
    if not interface.startswith((PCI, VDEV)):
        return interface
    arguments = (argument.partition("=") for argument in interface.split(",")[1:])
    return next((value for key, _, value in arguments if key == "iface" and not interface.startswith(f"{VDEV}net_tap")), "")


def _require_bond(bond: Bond, refuse: Callable[[str, object, str], NoReturn]) -> None:
    if len(bond.members) < 2 or len(set(bond.members)) < len(bond.members):
        refuse("bond.members", list(bond.members), "a bond has two members or more, each of them once")
    if bond.mode not in get_args(BondMode):
        refuse("bond.mode", bond.mode, f"it can be {', '.join(get_args(BondMode))}")
    if bond.lacp not in get_args(Lacp):
        refuse("bond.lacp", bond.lacp, "it can be active or passive")
    if bond.mode == "balance-tcp" and not bond.lacp:
        refuse("bond.mode", bond.mode, "it needs 'lacp': without an agreement with the other side it carries nothing")
    if not 0 <= bond.updelay_ms <= _UPDELAY_MAX_MS:
        refuse("bond.updelay_ms", bond.updelay_ms, f"it must be from 0 to {_UPDELAY_MAX_MS}")


def _require_vlan_interfaces(network: ProviderNetwork, refuse: Callable[[str, object, str], NoReturn]) -> None:
    names = list(network.vlan_interfaces)
    if not names:
        return
    if not all(_LINK.fullmatch(each) for each in names) or len(set(names)) < len(names):
        refuse("vlan_interfaces", names, "they are names of kernel links, as eth0.10, each of them once")
    if network.move_addresses == "no":
        refuse("vlan_interfaces", names, "their addresses move with those of one kernel NIC: 'move_addresses' says whether")
    taken = set(names) & {network.interface, network.bridge}
    if taken:
        refuse("vlan_interfaces", names, f"{taken.pop()!r} is the NIC or the bridge itself")


# -- settings -----------------------------------------------------------------------------------------------------------------


def _read_one(table: Mapping[str, Any], where: str) -> ProviderNetwork:
    values = _read_keys(table, READERS, where)
    if "name" not in values:
        raise InvalidConfig(f"{where}: 'name' is missing", "the bridge is 'br-' and the name, unless 'bridge' names it")
    return require_possible(ProviderNetwork(**values, said_by=where))


def _read_keys(table: Mapping[str, Any], readers: Mapping[str, Callable[[Any, str], Any]], where: str) -> dict[str, Any]:
    for key, value in table.items():
        if key not in readers:
            raise InvalidConfig(f"{where}: unknown key '{shorten(key)}' = {quote(value)}", meant_or_known(key, readers))
    return {key: readers[key](value, f"{where}: '{key}'") for key, value in table.items()}


def _text(value: object, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidConfig(f"{where} is {quote(value)}", "it must be a string that is not empty")
    return value


def _texts(value: object, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise InvalidConfig(f"{where} is {quote(value)}", "it must be a list of strings")
    return tuple(value)


def _whole(value: object, where: str) -> int:
    if type(value) is not int:
        raise InvalidConfig(f"{where} is {quote(value)}", "it must be a whole number")
    return value


def _seconds(value: object, where: str) -> float:
    if type(value) not in (int, float):
        raise InvalidConfig(f"{where} is {quote(value)}", "it must be a number of seconds")
    return float(value)  # type: ignore[arg-type]


def _choice(*choices: str) -> Callable[[object, str], str]:
    def read(value: object, where: str) -> str:
        if value not in choices:
            raise InvalidConfig(f"{where} is {quote(value)}", f"it can be {' or '.join(choices)}")
        return str(value)

    return read


def read_move_addresses(value: object, where: str) -> MoveAddresses:
    """Read false, true or "primary". Raises InvalidConfig naming `where` and the value."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value != "primary":
        raise InvalidConfig(f"{where} is {quote(value)}", 'it can be false, true, or "primary" for the NIC of the default route')
    return "primary"


def _vlans(value: object, where: str) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise InvalidConfig(f"{where} is {quote(value)}", "it must be a list of VLAN ids, or of ranges as '100-110'")
    if not value:
        raise InvalidConfig(f"{where} is []", "without the key all VLANs pass; [0] is for frames without a tag alone")
    return vlans_of(each for item in value for each in vlan_ranges(item, where))


def _bond(value: object, where: str) -> Bond:
    if not isinstance(value, dict):
        raise InvalidConfig(
            f"{where} is {quote(value)}", 'it must be a table, such as {mode = "active-backup", members = ["eth1", "eth2"]}'
        )
    readers: Mapping[str, Callable[[Any, str], Any]] = {
        "members": _texts,
        "mode": _choice(*get_args(BondMode)),
        "lacp": _choice(*get_args(Lacp)[1:]),
        "updelay_ms": _whole,
    }
    values = _read_keys(value, readers, where)
    return Bond(**{"members": (), **values})


READERS: Final[Mapping[str, Callable[[Any, str], Any]]] = {
    "name": _text,
    "bridge": _text,
    "interface": _text,
    "bond": _bond,
    "port": _choice(*get_args(NicPort)),
    "move_addresses": read_move_addresses,
    "give_back_after_s": _seconds,
    "vlans": _vlans,
    "vlan_interfaces": _texts,
    "mtu": _whole,
    "rx_queues": _whole,
}
