"""What a network says of its kind of interface, and of an ordinary pod's kernel link: `host.iftype: veth` and its keys. Pure.

Keys of one kind that stand in a network of the other are refused by name: their author expects something that will not be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Any, Final, cast

from userspace_cni.base.errors import InvalidConfig, UnsupportedField, quote
from userspace_cni.base.port_kinds import AUTO, CHOICES, Datapath, KernelPort
from userspace_cni.cni.json_values import read_typed
from userspace_cni.cni.network_keys import key_at, read

SMALL_MTU: Final = 1500
"""What all kinds but "system" carry at most: the vdevs' buffers hold 1518 bytes, XDP takes a page."""

_ENGINES: Final[Mapping[str, Datapath]] = {"ovs-dpdk": "netdev", "ovs": "system"}
_FLAGS: Final = ("gatewayCheck", "duplicateCheck", "nodeRoutes")
_OF_NODE: Final = "node"
_INTERNAL: Final = "ovs-vswitchd makes a new tap when it restarts, and the pod would keep a dead one"


@dataclass(frozen=True)
class LinkOptions:
    """A veth. `opened_as`: how OVS opens the host end, "" for the node's setting; `datapath`: Bridge.datapath_type.

    `node_routes`: routes to this node's addresses by the first gateway; `service_cidrs`: to these networks, in the same way;
    `node_services`: to the network of Services that the node's file says.
    """

    opened_as: str = ""
    datapath: Datapath = "netdev"
    gateway_check: bool = False
    duplicate_check: bool = False
    node_routes: bool = False
    service_cidrs: tuple[str, ...] = ()
    node_services: bool = False

    @property
    def services_said(self) -> object:
        """What the network has as `serviceCIDRs`, for errors; falsy for nothing."""
        return _OF_NODE if self.node_services else list(self.service_cidrs)


def read_link(
    top: Mapping[str, Any], host: Mapping[str, Any], container: Mapping[str, Any], warn: Callable[[str], object]
) -> LinkOptions | None:
    """Read the keys of a kernel link; None for a vhost-user interface. All blocks are canonically spelled.

    Raises UnsupportedField and InvalidConfig for kinds that do not exist, and for keys of the other kind.
    """
    memif = {"memif": "memif is not supported"}
    iftype = _one_of(host, "host.iftype", {**memif, "internal": _INTERNAL})
    engine = _one_of(host, "host.engine", {"vpp": "VPP is not supported"})
    unbuilt = "a port is on a bridge"
    _one_of(host, "host.netType", {"interface": unbuilt, "none": unbuilt})
    _one_of(container, "container.iftype", memif, (iftype,))
    for told in ("engine", "netType"):
        read(container, f"container.{told}")
    port = read(host, "host.port") or ""
    flags = {key: bool(read(top, key)) for key in _FLAGS}
    services = () if top.get("serviceCIDRs") == _OF_NODE else _read_services(top)
    if iftype == "vhostuser":
        _require_no_link(engine, {"host.port": port, **flags, "serviceCIDRs": top.get("serviceCIDRs")})
        return None
    _require_no_socket(top, host, container, warn)
    if port and port not in CHOICES:
        raise InvalidConfig(f"key 'host.port' is {port!r}", f"it can be {_either(CHOICES)}")
    link = LinkOptions(
        opened_as=port,
        datapath=_ENGINES[engine],
        gateway_check=flags["gatewayCheck"],
        duplicate_check=flags["duplicateCheck"],
        node_routes=flags["nodeRoutes"],
        service_cidrs=services,
        node_services=top.get("serviceCIDRs") == _OF_NODE,
    )
    if port:
        require_openable(choose_kernel_port(link, port), read_typed(host, "mtu", int, None, path="host."))
    if link.datapath == "system" and port not in ("", AUTO, "system"):
        raise UnsupportedField(
            f"key 'host.port' is {port!r} with 'host.engine' 'ovs': the kernel's datapath opens links as 'system' alone",
            "remove 'host.port', or say 'host.engine': 'ovs-dpdk'",
        )
    return link


def choose_kernel_port(link: LinkOptions, setting: str) -> KernelPort:
    """How OVS is to open the host end: as the network says, else the node's setting `kernel_port`; "auto" is "system"."""
    kind = link.opened_as or setting
    return "system" if kind == AUTO or link.datapath == "system" else cast("KernelPort", kind)


def require_openable(kind: KernelPort, mtu: int | None) -> None:
    """Raise UnsupportedField for an MTU (bytes, None for the usual one) that the kind of port does not carry."""
    if mtu is not None and mtu > SMALL_MTU and kind != "system":
        raise UnsupportedField(
            f"key 'host.mtu' is {mtu}: a port of type '{kind}' carries {SMALL_MTU} at most",
            f"say 'host.port': 'system', or an MTU of {SMALL_MTU} or less",
        )


def require_no_addresses_needed(link: LinkOptions) -> None:
    """Raise InvalidConfig for what needs addresses, of an interface that gets none."""
    keys = {"gatewayCheck": link.gateway_check, "duplicateCheck": link.duplicate_check, "nodeRoutes": link.node_routes}
    for key, value in keys.items():
        if value:
            raise InvalidConfig(
                f"key '{key}' is true, and the interface gets no addresses", "remove it, or give the network an 'ipam'"
            )
    if said := link.services_said:
        raise InvalidConfig(
            f"key 'serviceCIDRs' is {said!r}, and the interface gets no addresses", "remove it, or give the network an 'ipam'"
        )


def _one_of(block: Mapping[str, Any], path: str, unbuilt: Mapping[str, str], built: tuple[str, ...] = ()) -> str:
    """One of the values that are built, by default the key's, the first where none is said.

    `unbuilt`: others that are understood, with the reason.
    """
    value: str = read(block, path) or ""
    built = built or cast("tuple[str, ...]", key_at(path).choices)
    if value in unbuilt and value not in built:
        raise UnsupportedField(f"key '{path}' is {value!r}: {unbuilt[value]}", f"it can be {_either(built)}")
    if value not in ("", *built):
        raise InvalidConfig(f"key '{path}' is {value!r}", f"it can be {_either(built)}")
    return value or built[0]


def _require_no_link(engine: str, said: Mapping[str, object]) -> None:
    """Refuse what a vhost-user interface cannot have."""
    if engine != "ovs-dpdk":
        raise UnsupportedField(
            f"key 'host.engine' is {engine!r}: the kernel's datapath has no vhost-user ports",
            "say 'host.engine': 'ovs-dpdk', or 'host.iftype': 'veth'",
        )
    for key, value in said.items():
        if value:
            raise UnsupportedField(
                f"key '{key}' is {value!r}: a vhost-user interface has no kernel link", "remove it, or say 'host.iftype': 'veth'"
            )


def _require_no_socket(
    top: Mapping[str, Any], host: Mapping[str, Any], container: Mapping[str, Any], warn: Callable[[str], object]
) -> None:
    """Refuse what a kernel link cannot have, and warn of what has no meaning for it."""
    refused = {"host.vhost": host.get("vhost"), **{f"container.{key}": container[key] for key in container if key != "iftype"}}
    for key, value in refused.items():
        if value:
            raise UnsupportedField(f"key '{key}' is {value!r}: a kernel link has no vhost-user socket", "remove it")
    for key, value in (("sharedDir", top.get("sharedDir")), ("host.memif", host.get("memif"))):
        if value:
            warn(f"key '{key}' is ignored: a kernel link has no socket")


def _read_services(top: Mapping[str, Any]) -> tuple[str, ...]:
    if isinstance(said := top.get("serviceCIDRs"), str):
        raise InvalidConfig(
            f"key 'serviceCIDRs' is {quote(said)}",
            f'it must be a list of networks, or "{_OF_NODE}" for that of the node\'s file',
        )
    items = read_typed(top, "serviceCIDRs", list, [])
    _, most = key_at("serviceCIDRs").bounds or (0, len(items))
    if len(items) > most:
        raise InvalidConfig(f"key 'serviceCIDRs' has {len(items)} items", f"it can have {most} at most")
    for item in items:
        try:
            if not isinstance(item, str) or "/" not in item:
                raise ValueError
            ip_network(item)
        except ValueError:
            raise InvalidConfig(
                f"key 'serviceCIDRs' holds {item!r}",
                "it must be networks as 10.96.0.0/12 or 2001:db8::/108, without bits of a host",
            ) from None
    return tuple(items)


def _either(values: tuple[str, ...]) -> str:
    return " or ".join(map(repr, values))
