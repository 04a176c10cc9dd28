"""The packet by which `ovn trace` follows the way from one logical port to another, as ovn-trace takes it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ipaddress import ip_address

from userspace_cni.base.errors import NotAttached, UnsupportedField
from userspace_cni.ovn.ovn_facts import PortFact
from userspace_cni.ovn.topology import Address

_TTL = 64


def find_port(ports: Sequence[PortFact], name: str) -> PortFact:
    """The port of that name, or of that pod: NAMESPACE/POD, NAMESPACE_POD, POD.NAMESPACE or POD. Raises NotAttached."""
    namespace, slash, pod = name.partition("/")
    names = {name, f"{namespace}_{pod}", f"{pod}.{namespace}"} if slash else {name}
    found = [each for each in ports if each.name in names]
    if not found and not slash:
        found = [each for each in ports if each.name.endswith(f"_{name}") or each.name.startswith(f"{name}.")]
    if len(found) != 1:
        said = f"there is no logical port {name}" if not found else f"several logical ports are called {name}"
        raise NotAttached(said, ", ".join(each.name for each in found[:5]) or "userspace-cni ovn status lists them")
    return found[0]


def write_packet(
    source: PortFact, target: PortFact, routers: Mapping[str, str], protocol: str = "", port: int | None = None
) -> str:
    """The packet from one to the other. `routers`: the MAC of the router's port by the switch; `protocol`: "tcp", "udp" or
    "sctp", "" for none; `port`: that it is to.

    Raises UnsupportedField for ports without known addresses.
    """
    mac, own = _known(source)
    other_mac, theirs = _known(target)
    both = [(mine, other) for mine in own for other in theirs if mine.version == other.version]
    if not both:
        raise UnsupportedField(f"{source.name} and {target.name} have no address of one version of IP")
    mine, other = both[0]
    ip = f"ip{mine.version}"
    near = other_mac if source.switch == target.switch else routers.get(source.switch, "")
    if not near:
        raise UnsupportedField(f"switch {source.switch} of {source.name} has no port to a router", "userspace-cni ovn check")
    fields = (
        f'inport == "{source.name}"',
        f"eth.src == {mac}",
        f"eth.dst == {near}",
        f"{ip}.src == {mine}",
        f"{ip}.dst == {other}",
        f"ip.ttl == {_TTL}",
        *([f"{protocol}.dst == {port}" if port else protocol] if protocol else []),
    )
    return " && ".join(fields)


def _known(port: PortFact) -> tuple[str, list[Address]]:
    for text in port.addresses:
        mac, *addresses = text.split()
        if ":" in mac and addresses:
            return mac, [ip_address(each.partition("/")[0]) for each in addresses]
    raise UnsupportedField(
        f"the addresses of {port.name} are {' '.join(port.addresses) or 'none'}", "a trace needs a port with MAC and IP address"
    )
