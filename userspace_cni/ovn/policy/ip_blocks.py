"""Blocks of addresses without some parts, and ranges of ports, as few masks. Pure.

OVN can be told "in this block, and not in those". It makes flows of it by their product: ten exceptions take all memory of every
node. What is left of a block after its exceptions is a sum.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from ipaddress import IPv4Network, IPv6Network, collapse_addresses, ip_address, ip_network
from typing import TypeVar

Network = IPv4Network | IPv6Network
N = TypeVar("N", IPv4Network, IPv6Network)


def subtract(block: N, excepted: Sequence[N]) -> Iterator[N]:
    """What is left of a block, as blocks, in order. It takes as many steps as there are bits in the exceptions."""
    yield from _split(block, [each for each in collapse_addresses(excepted) if each.overlaps(block)])


def _split(block: N, excepted: Sequence[N]) -> Iterator[N]:
    if not excepted:
        yield block
    elif not any(each.prefixlen <= block.prefixlen for each in excepted):
        for half in block.subnets():
            yield from _split(half, [each for each in excepted if each.overlaps(half)])


def count_masks(first: int, last: int) -> int:
    """How many masks a range of ports takes."""
    count = 0
    while first <= last:
        size = first & -first or 1 << 16
        while size > last - first + 1:
            size >>= 1
        first += size
        count += 1
    return count


class AddressRanges:
    """Blocks of one version of IP, none of which overlaps another, to look addresses up in."""

    def __init__(self, blocks: Sequence[str]) -> None:
        networks = sorted((ip_network(each) for each in blocks), key=lambda each: int(each.network_address))
        self._version = networks[0].version if networks else 0
        self._first = [int(each.network_address) for each in networks]
        self._last = [int(each.broadcast_address) for each in networks]

    def have(self, address: str) -> bool:
        """Whether the address is in one of them."""
        found = ip_address(address)
        place = bisect_right(self._first, int(found)) - 1
        return found.version == self._version and place >= 0 and int(found) <= self._last[place]
