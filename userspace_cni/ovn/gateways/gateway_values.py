"""What people say of a gateway, judged before anything is written. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from ipaddress import IPv4Interface, IPv6Interface, ip_address, ip_interface
from typing import Final

from userspace_cni.base.addresses import why_no_machines, why_not_in_subnet
from userspace_cni.base.errors import InvalidConfig, quote
from userspace_cni.ovn.topology import Address, Subnet
from userspace_cni.ovn.topology_values import subnets_of

MOST_CHASSIS: Final = 16
_NETWORK: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}")
_CHASSIS: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,252}")
_VLANS: Final = 4094
_MTUS: Final = range(1280, 65536)
"""IPv6 needs the least; no packet is larger than the most."""


def outside_addresses(text: str, what: str) -> tuple[IPv4Interface | IPv6Interface, ...]:
    """One address with its prefix length for each version of IP at most; IPv4 first. Raises InvalidConfig naming `what`."""
    found = tuple(sorted((_interface(each.strip(), what) for each in text.split(",")), key=lambda each: each.version))
    _require_one_of_each(found, text, what)
    return found


def read_next_hops(text: str, what: str, outside: Sequence[IPv4Interface | IPv6Interface]) -> tuple[Address, ...]:
    """The next router of each version of IP that the gateway has addresses of. Raises InvalidConfig naming `what`."""
    found = tuple(sorted((_address(each.strip(), what) for each in text.split(",")), key=lambda each: each.version))
    _require_one_of_each(found, text, what)
    by_version = {each.version: each for each in outside}
    if [each.version for each in found] != sorted(by_version):
        listed = " and ".join(map(str, outside))
        raise InvalidConfig(f"{what} is {quote(text)}, and the gateway has {listed}", "give one next hop for each of them")
    for each in found:
        own = by_version[each.version]
        if each == own.ip:
            raise InvalidConfig(f"{what} has {each}, which is the gateway's own address", "give the router that leads on")
        if each not in own.network and not each.is_link_local:
            raise InvalidConfig(f"{what} has {each}, which is not in {own.network}", "the gateway must reach it without a router")
    return found


def read_source_subnets(text: str, what: str) -> tuple[Subnet, ...]:
    """Subnets of pods, between which are commas; any number. Raises InvalidConfig naming `what`."""
    found = [each for part in text.split(",") for each in subnets_of(part, what)]
    return tuple(dict.fromkeys(found))


def require_network(name: str, what: str) -> str:
    """The name, if a network outside can have it. Raises InvalidConfig naming `what`."""
    if not _NETWORK.fullmatch(name):
        raise InvalidConfig(f"{what} is {quote(name)}", "it must be of letters, digits and _.-, as physnet1")
    return name


def chassis_names(text: str, what: str) -> tuple[str, ...]:
    """Names of chassis, between which are commas. Raises InvalidConfig naming `what`."""
    names = tuple(dict.fromkeys(each.strip() for each in text.split(",")))
    if wrong := next((each for each in names if not _CHASSIS.fullmatch(each)), None):
        raise InvalidConfig(f"{what} has {quote(wrong)}", "it must be names of chassis: `userspace-cni ovn status` shows them")
    if len(names) > MOST_CHASSIS:
        raise InvalidConfig(f"{what} has {len(names)} names", f"give at most {MOST_CHASSIS}")
    return names


def require_vlan(number: int, what: str) -> int:
    """The number, 0 for none. Raises InvalidConfig naming `what`."""
    if not 0 <= number <= _VLANS:
        raise InvalidConfig(f"{what} is {number}", f"it must be from 1 to {_VLANS}, or 0 for none")
    return number


def require_mtu(number: int, what: str) -> int:
    """The number, 0 for none. Raises InvalidConfig naming `what`."""
    if number and number not in _MTUS:
        raise InvalidConfig(f"{what} is {number}", f"it must be from {_MTUS.start} to {_MTUS.stop - 1}, or 0 for no bound")
    return number


def _interface(text: str, what: str) -> IPv4Interface | IPv6Interface:
    try:
        found = ip_interface(text)
        if "/" not in text or "%" in text:
            raise ValueError
    except ValueError:
        raise InvalidConfig(
            f"{what} has {quote(text)}", "it must be an address with its prefix length, as 192.0.2.10/24"
        ) from None
    if why := why_not_in_subnet(found):
        raise InvalidConfig(f"{what} has {text}: {why}")
    if found.ip.is_link_local:
        raise InvalidConfig(f"{what} has {text}, which no other network reaches", "give an address that is routed")
    return found


def _address(text: str, what: str) -> Address:
    try:
        found = ip_address(text)
        if "%" in text:
            raise ValueError
    except ValueError:
        raise InvalidConfig(f"{what} has {quote(text)}", "it must be an address, as 192.0.2.1") from None
    if why := why_no_machines(found):
        raise InvalidConfig(f"{what} has {text}: {why}")
    return found


def _require_one_of_each(found: Sequence[Address | IPv4Interface | IPv6Interface], text: str, what: str) -> None:
    if len({each.version for each in found}) < len(found):
        raise InvalidConfig(f"{what} is {quote(text)}", "it can have one address of IPv4 and one of IPv6")
