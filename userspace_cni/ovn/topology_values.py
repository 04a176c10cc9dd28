"""What people say of a cluster's logical network and of a node in it, judged before anything is written. Pure.

A subnet that is taken or lies elsewhere is refused with both subnets by name: what overlaps is found out by packets otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from ipaddress import ip_address, ip_network
from typing import Final

from userspace_cni.base.addresses import why_no_machines
from userspace_cni.base.errors import InvalidConfig, quote
from userspace_cni.ovn.topology import NODE_LENGTH_LEFT, Subnet

JOIN_DEFAULTS: Final[Mapping[int, str]] = {4: "100.64.0.0/16", 6: "fd98::/64"}
"""By version of IP."""
ENCAP_TYPES: Final = ("geneve", "vxlan")
_LENGTH_LEFT: Final = 2
"""Bits that a subnet has to have for machines: a smaller one has no room for a router and a node."""
_ROUTER: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,252}")
_TARGET: Final = re.compile(
    r"p(tcp|ssl):\d{1,5}(:[0-9A-Fa-f.:\[\]]+)?|(tcp|ssl):[^\s:]+:\d{1,5}|(tcp|ssl):\[[0-9A-Fa-f:.]+\]:\d{1,5}"
)
_NAME: Final = re.compile(r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def subnets_of(text: str, what: str) -> tuple[Subnet, ...]:
    """One subnet for each version of IP at most, between which is a comma; IPv4 first. Raises InvalidConfig naming `what`."""
    found = tuple(sorted((_subnet(each.strip(), what) for each in text.split(",")), key=lambda each: each.version))
    if len({each.version for each in found}) < len(found):
        raise InvalidConfig(f"{what} is {quote(text)}", "it can have one subnet of IPv4 and one of IPv6")
    return found


def joins_for(subnets: Sequence[Subnet], text: str) -> tuple[Subnet, ...]:
    """The subnets of the switch `join`, one for each of the cluster's versions. Raises InvalidConfig naming what is wrong."""
    given = {each.version: each for each in (subnets_of(text, "--join-subnet") if text else ())}
    versions = [each.version for each in subnets]
    if more := next((each for version, each in given.items() if version not in versions), None):
        raise InvalidConfig(f"--join-subnet has {more}, and the cluster has no subnet of IPv{more.version}")
    return tuple(given.get(version) or _subnet(JOIN_DEFAULTS[version], "--join-subnet") for version in versions)


def require_apart(subnets: Sequence[Subnet], what: str, taken: Mapping[str, Sequence[Subnet]]) -> None:
    """Raise InvalidConfig where one of the subnets overlaps one that is taken; `taken` has them by whose they are."""
    for mine in subnets:
        for whose, others in taken.items():
            for other in others:
                if mine.version == other.version and mine.overlaps(other):
                    raise InvalidConfig(f"{what} is {mine}, which overlaps {other} of {whose}", "give it another subnet")


def require_within(subnets: Sequence[Subnet], cluster: Sequence[Subnet]) -> None:
    """Raise InvalidConfig unless the node has a subnet of each version that the cluster has, as a part of the cluster's."""
    if [each.version for each in subnets] != [each.version for each in cluster]:
        raise InvalidConfig(f"--subnet is {_listed(subnets)}, and the cluster has {_listed(cluster)}", "give one of each")
    for mine in subnets:
        if not any(mine.version == each.version and mine.subnet_of(each) and mine != each for each in cluster):  # type: ignore[arg-type]
            raise InvalidConfig(f"--subnet is {mine}, which is no part of the cluster's {_listed(cluster)}")


def require_room(subnets: Sequence[Subnet], what: str) -> None:
    """Raise InvalidConfig for a subnet of a node that leaves no address for a pod."""
    for each in subnets:
        if each.max_prefixlen - each.prefixlen < NODE_LENGTH_LEFT:
            most = each.max_prefixlen - NODE_LENGTH_LEFT
            raise InvalidConfig(
                f"{what} is {each}, which leaves no address for a pod: router and node have two of it", f"give at most /{most}"
            )


def node_name_of(text: str) -> str:
    """The name that a node's rows have: in small letters. Raises InvalidConfig for what no node can be called."""
    name = text.lower()
    if not (text.isascii() and _NAME.fullmatch(name)):  # some signs beyond ASCII become letters of it
        raise InvalidConfig(f"the node's name is {quote(text)}", "it must be a name of a Node (RFC 1123 subdomain)")
    return name


def require_router_name(name: str) -> str:
    """The name, if a router can have it here. Raises InvalidConfig."""
    if not _ROUTER.fullmatch(name):
        raise InvalidConfig(f"--router is {quote(name)}", "it must be of letters, digits and _.:-, as ovn_cluster_router")
    return name


def require_targets(targets: Sequence[str]) -> tuple[str, ...]:
    """Where a database may listen, or connect to. Raises InvalidConfig for what its server would only write into its log."""
    for each in targets:
        if not _TARGET.fullmatch(each):
            raise InvalidConfig(
                f"--set-connection is {quote(each)}", "it must be as ptcp:6641, pssl:6641:192.0.2.1, or tcp:IP:PORT"
            )
    return tuple(targets)


def machine_address(text: str, what: str) -> str:
    """The address of one machine. Raises InvalidConfig naming `what`."""
    try:
        address = ip_address(text)
        if "%" in text:  # neither OVN nor Open vSwitch reads a scope
            raise ValueError
    except ValueError:
        raise InvalidConfig(f"{what} is {quote(text)}", "it must be an IP address, such as 192.0.2.1") from None
    if why := why_no_machines(address):
        raise InvalidConfig(f"{what} is {quote(text)}: {why}")
    return str(address)


def _subnet(text: str, what: str) -> Subnet:
    try:
        found = ip_network(text, strict=False)
        if "/" not in text:
            raise ValueError
    except ValueError:
        raise InvalidConfig(f"{what} has {quote(text)}", "it must be a subnet, such as 10.244.0.0/16") from None
    if found.network_address != ip_address(text.partition("/")[0]):
        raise InvalidConfig(f"{what} has {text}, which is an address in the subnet {found}", "give the subnet")
    if why := why_no_machines(found.network_address + 1):
        raise InvalidConfig(f"{what} has {text}: {why}")
    if found.max_prefixlen - found.prefixlen < _LENGTH_LEFT:
        raise InvalidConfig(
            f"{what} has {text}", f"it has no room for a router and a node: give at most /{found.max_prefixlen - 2}"
        )
    return found


def _listed(subnets: Sequence[Subnet]) -> str:
    return " and ".join(map(str, subnets))
