"""Prefixes of addresses as whole numbers, and the longest of some that covers another. Pure.

`ipaddress` compares and hashes networks in microseconds. A node has some hundred pods with some hundred routes each, and each of
these is looked up several times in a pass.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_network
from typing import Final, Generic, NamedTuple, TypeVar

from userspace_cni.base.routing import Address, Network

IPV4: Final = 4
IPV6: Final = 6
_WIDTHS: Final = {IPV4: 32, IPV6: 128}

Value = TypeVar("Value")


class Prefix(NamedTuple):
    """A network. `version`: 4 or 6; `network`: its first address as a number; `length`: bits that all its addresses share."""

    version: int
    network: int
    length: int

    @property
    def is_default(self) -> bool:
        return self.length == 0

    def covers(self, other: Prefix) -> bool:
        if self.version != other.version or self.length > other.length:
            return False
        rest = _WIDTHS[self.version] - self.length
        return self.network >> rest == other.network >> rest

    def overlaps(self, other: Prefix) -> bool:
        return self.covers(other) or other.covers(self)

    def shorten(self, length: int) -> Prefix:
        """The prefix of that length, not longer than this one, that covers it."""
        rest = _WIDTHS[self.version] - length
        return Prefix(self.version, self.network >> rest << rest, length)

    def __str__(self) -> str:
        address = IPv4Address(self.network) if self.version == IPV4 else IPv6Address(self.network)
        return f"{address}/{self.length}"


def host(address: Address) -> Prefix:
    """The prefix that has this one address: /32 or /128."""
    return Prefix(address.version, int(address), address.max_prefixlen)


def prefix(network: Network) -> Prefix:
    return Prefix(network.version, int(network.network_address), network.prefixlen)


def alone(address: Address) -> Network:
    return ip_network(int(address).to_bytes(address.max_prefixlen // 8, "big"))


class PrefixTable(Generic[Value]):
    """Values by prefixes; of two with one prefix the first counts, as the first of equal routes does in the kernel."""

    def __init__(self, entries: Iterable[tuple[Prefix, Value]] = ()) -> None:
        self._entries: dict[Prefix, Value] = {}
        self._lengths: dict[int, list[int]] = {IPV4: [], IPV6: []}
        for key, value in entries:
            self.add(key, value)

    def add(self, key: Prefix, value: Value) -> None:
        """Take the value if its prefix has none."""
        if key not in self._entries:
            self.put(key, value)

    def put(self, key: Prefix, value: Value) -> None:
        """Take the value, in the place of one that its prefix may have."""
        self._entries[key] = value
        lengths = self._lengths[key.version]
        if key.length not in lengths:
            lengths.append(key.length)
            lengths.sort(reverse=True)

    def best(self, target: Prefix) -> tuple[Prefix, Value] | None:
        """The longest prefix that covers the target, with its value; None where none does."""
        for length in self._lengths[target.version]:
            if length <= target.length:
                key = target.shorten(length)
                if key in self._entries:
                    return key, self._entries[key]
        return None
