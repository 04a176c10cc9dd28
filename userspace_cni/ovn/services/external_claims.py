"""Which Service has which external address. Pure.

An external address is its author's choice. What one Service has, no other gets, until it lets it go: who came first keeps it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from userspace_cni.base.subnets import Address
from userspace_cni.ovn.services.balancer_rows import Claim


class ExternalClaims:
    """`held`: who has which at the beginning."""

    def __init__(self, held: Mapping[Claim, str]) -> None:
        self._holders = dict(held)
        self._held: dict[str, set[Claim]] = {}
        for claim, key in held.items():
            self._held.setdefault(key, set()).add(claim)
        self._asked: dict[str, Collection[Address]] = {}
        self._asking: dict[Address, set[str]] = {}

    def ask(self, key: str, addresses: Collection[Address]) -> None:
        """Note that the Service asks for these addresses, and for no others any more."""
        for address in self._asked.pop(key, ()):
            self._asking[address].discard(key)
            if not self._asking[address]:
                del self._asking[address]
        if addresses:
            self._asked[key] = addresses
        for address in addresses:
            self._asking.setdefault(address, set()).add(key)

    def list_asking(self, addresses: Iterable[Address]) -> set[str]:
        """The Services that ask for one of these."""
        return {key for address in addresses for key in self._asking.get(address, ())}

    def take(self, key: str, wanted: Iterable[Claim]) -> tuple[list[Claim], dict[Claim, str], set[Address]]:
        """What the Service gets of what it wants, who has the rest, and the addresses of what it had and let go."""
        got, refused = [], {}
        for claim in dict.fromkeys(wanted):
            holder = self._holders.setdefault(claim, key)
            if holder == key:
                got.append(claim)
            else:
                refused[claim] = holder
        left = self._held.pop(key, set()).difference(got)
        for claim in left:
            del self._holders[claim]
        if got:
            self._held[key] = set(got)
        return got, refused, {claim[0] for claim in left}
