"""MAC addresses: the one form in which they are compared, and those of interfaces for which none is given. Pure."""

from __future__ import annotations

import hashlib
import re

_OCTETS = re.compile(r"[0-9A-Fa-f]{2}(?:(?::[0-9A-Fa-f]{2}){5}|(?:-[0-9A-Fa-f]{2}){5})|[0-9A-Fa-f]{4}(?:\.[0-9A-Fa-f]{4}){2}")
"""Six octets as Go's net.ParseMAC takes them, by which the CNI plugins, Multus, kube-ovn and KubeVirt read a MAC."""


def derive_mac(*names: str) -> str:
    """Derive a locally administered unicast MAC, lower case with colons, from the names."""
    digest = bytearray(hashlib.sha256("\0".join(names).encode("utf-8", "surrogateescape")).digest()[:6])
    digest[0] = digest[0] & 0xFC | 0x02
    return digest.hex(":")


def six_octets(mac: str) -> str:
    """A MAC address in small letters with colons, also where it is written 02-00-00-00-00-01 or 0200.0000.0001; "" for none."""
    return bytes.fromhex(re.sub("[:.-]", "", mac)).hex(":") if _OCTETS.fullmatch(mac) else ""


def is_unicast(mac: str) -> bool:
    """Whether an interface can have this MAC, of the form that `six_octets` gives: no group's, and not all zero."""
    return bool(mac.strip("0:")) and not int(mac[:2], 16) & 1
