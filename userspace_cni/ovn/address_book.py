"""Which address each logical port has, and which one the next gets: the first that is free in its switch. Pure.

An address is free when no logical port has it, ours or another's, no router has it, and none has had it for a while: the
neighbours and connections of an ended pod still know it. All switches of the cluster have one plan of addresses: what is taken
in one is taken in all. The caller gives the time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface, ip_interface
from typing import Final

from userspace_cni.base.subnets import Address, Cidr, Span

HELD_S: Final = 60.0
"""Seconds for which the address of an ended pod is not given again."""

Interface = IPv4Interface | IPv6Interface
_Number = tuple[int, int]
"""An address: its IP version and its number."""
_PlacedMac = tuple[str, str]
"""A switch, "" for all of them, and a MAC in it."""


@dataclass(frozen=True)
class SwitchSubnet:
    """A network of a logical switch. `gateway`: its router's address, None for none; `excluded`: is never given out."""

    network: Cidr
    gateway: Address | None = None
    excluded: tuple[Span, ...] = ()


class _Pool:
    """The addresses of one subnet. `lowest`: none below it is free."""

    def __init__(self, subnet: SwitchSubnet) -> None:
        network = subnet.network
        self.version, self._bits = network.version, network.prefixlen
        spare = 0 if network.prefixlen >= network.max_prefixlen - 1 else 1
        self._first = int(network.network_address) + spare
        self._last = int(network.broadcast_address) - (spare if network.version == 4 else 0)
        own = [(subnet.gateway, subnet.gateway)] if subnet.gateway is not None else []
        self._spans = _merged((int(first), int(last)) for first, last in (*subnet.excluded, *own))
        self._starts = [first for first, _ in self._spans]
        self._lowest = self._first

    def first_free(self, taken: Mapping[_Number, str]) -> int | None:
        """The first address that is not taken; None when there is none."""
        number = self._lowest
        while number <= self._last:
            span = self._span_of(number)
            if span is not None:
                number = span[1] + 1
            elif (self.version, number) in taken:
                number += 1
            else:
                break
        self._lowest = number
        return number if number <= self._last else None

    def freed(self, number: int) -> None:
        """An address is free again."""
        if self._first <= number < self._lowest:
            self._lowest = number

    def may_have(self, number: int) -> bool:
        """Whether a pod can have the address here, unless it is taken."""
        return self._first <= number <= self._last and self._span_of(number) is None

    def interface(self, number: int) -> Interface:
        return ip_interface(f"{_address((self.version, number))}/{self._bits}")

    def _span_of(self, number: int) -> tuple[int, int] | None:
        at = bisect_right(self._starts, number) - 1
        return self._spans[at] if at >= 0 and number <= self._spans[at][1] else None


class AddressBook:
    """The addresses of all logical ports, by port. For one thread."""

    def __init__(self, held_s: float = HELD_S) -> None:
        self._held_s = held_s
        self._taken: dict[_Number, str] = {}
        self._of: dict[str, tuple[_Number, ...]] = {}
        self._others: dict[str, tuple[_Number, ...]] = {}
        """Ports that are not ours to change: all of their addresses, also those that another port has."""
        self._sharing: dict[_Number, tuple[str, ...]] = {}
        """Of an address that a port has, those of these ports that have it, too."""
        self._macs: dict[_PlacedMac, str] = {}
        self._macs_of: dict[str, tuple[_PlacedMac, ...]] = {}
        self._held: deque[tuple[float, _Number, str]] = deque()
        self._leased: set[_Number] = set()
        """Those that a plugin has leased: while one of them is held, that plugin may give it again, and no other is given so."""
        self._subnets: Mapping[str, Sequence[SwitchSubnet]] = {}
        self._pools: dict[str, tuple[_Pool, ...]] = {}

    def set_switches(self, switches: Mapping[str, Sequence[SwitchSubnet]]) -> None:
        """These are the subnets of all switches from now on, by the switch's name."""
        former, self._subnets = self._subnets, {name: tuple(subnets) for name, subnets in switches.items()}
        for name in former.keys() - self._subnets.keys():
            del self._pools[name]
        for name, subnets in self._subnets.items():
            if former.get(name) != subnets:
                self._pools[name] = tuple(map(_Pool, subnets))

    def fits(self, switch: str, addresses: Iterable[Interface]) -> bool:
        """Whether a pod's port of this switch can have all these addresses, free or not."""
        pools = self._pools.get(switch, ())
        return all(any(pool.version == each.version and pool.may_have(int(each.ip)) for pool in pools) for each in addresses)

    def switch_of(self, addresses: Sequence[Interface]) -> str:
        """The switch in whose subnets all these addresses are; "" for none."""
        return next((name for name in self._pools if addresses and self.fits(name, addresses)), "")

    def has(self, port: str, address: Interface) -> bool:
        """Whether the address is the port's, or held for it."""
        return self._taken.get(_number(address)) == port

    def claim(
        self, port: str, addresses: Iterable[Interface | Address], *, leased: bool = False, also_others: bool = False
    ) -> str:
        """Note that the port has these addresses alone, unless another one has one of them: its name, "" when they are noted.

        An address that is held for its former port counts as that port's, unless both are `leased`: a plugin gives it again when
        it likes, but none that others have given. `also_others`: a port that lives with its addresses shares them with ports that
        are not ours to change.
        """
        wanted: tuple[_Number, ...] = tuple(dict.fromkeys(map(_number, addresses)))
        for number in wanted:
            owner = self._taken.get(number, port)
            is_free = leased and number in self._leased and number not in self._of.get(owner, ())
            is_free = is_free or (also_others and owner in self._others)
            if owner != port and not is_free:
                return owner
        self._forget_other(port)
        for number in self._of.get(port, ()):
            if number not in wanted:
                self._free(number)
        self._of[port] = wanted
        self._leased.update(wanted) if leased else self._leased.difference_update(wanted)
        for number in wanted:
            owner, self._taken[number] = self._taken.get(number, port), port
            if owner != port and owner in self._others:
                self._of[owner] = tuple(each for each in self._of[owner] if each != number)
                self._sharing[number] = (owner, *self._sharing.get(number, ()))
        return ""

    def note_other(self, port: str, addresses: Iterable[Interface | Address]) -> None:
        """Note that a port which is not ours to change has these addresses, also where another one has them.

        What another port has becomes this one's when that one ends, and no third port gets it.
        """
        wanted: tuple[_Number, ...] = tuple(dict.fromkeys(map(_number, addresses)))
        if self._others.get(port) == wanted:
            return
        self._forget_other(port)
        for number in self._of.pop(port, ()):
            if number not in wanted:
                self._free(number)
        self._others[port] = wanted
        self._of[port] = tuple(each for each in wanted if self._taken.setdefault(each, port) == port)
        for number in wanted:
            if self._taken[number] != port:
                self._sharing[number] = (*self._sharing.get(number, ()), port)

    @property
    def shared(self) -> Iterator[tuple[str, str, str]]:
        """Each address that a port of ours has and others have, too: the port, the address, and one of the others."""
        for number, others in self._sharing.items():
            yield self._taken[number], str(_address(number)), others[0]

    def claim_macs(self, port: str, switch: str, macs: Iterable[str]) -> bool:
        """Note that the port has these MACs alone in the switch, "" for all switches; False when another has one of them there.

        A frame goes to the port that has its MAC: of two ports with one, either may get what is the other's.
        """
        wanted: tuple[_PlacedMac, ...] = tuple(dict.fromkeys((switch, mac) for mac in macs))
        if any(self._macs.get(key, port) != port for each in wanted for key in (each, ("", each[1]))):
            return False
        self._free_macs(port)
        self._macs_of[port] = wanted
        self._macs.update(dict.fromkeys(wanted, port))
        return True

    def other_with_mac(self, port: str, mac: str) -> str:
        """The port which has the MAC in all switches, as a router's does; "" for none, and for the port itself."""
        owner = self._macs.get(("", mac), port)
        return owner if owner != port else ""

    def give(self, port: str, switch: str) -> tuple[Interface, ...]:
        """Give the port the first free address of each family of the switch; () when one of them has none left, or no subnet."""
        pools = self._pools.get(switch, ())
        found = [(pool, pool.first_free(self._taken)) for pool in pools]
        addresses = tuple(pool.interface(number) for pool, number in found if number is not None)
        if len(addresses) != len(pools) or not addresses:
            return ()
        self.claim(port, addresses)
        return addresses

    def release(self, port: str, now: float, *, hold: bool = True) -> None:
        """The port has no addresses any more; they are free after a while, or without `hold` at once, as its MACs always."""
        self._free_macs(port)
        self._forget_other(port)
        for number in self._of.pop(port, ()):
            if hold:
                self._held.append((now + self._held_s, number, port))
            else:
                self._free(number)

    def expire(self, now: float) -> float:
        """Free what has been held long enough; when the next is to be, infinity for none."""
        while self._held and self._held[0][0] <= now:
            _, number, port = self._held.popleft()
            if self._taken.get(number) == port and number not in self._of.get(port, ()):
                self._free(number)
        return self._held[0][0] if self._held else float("inf")

    def _free_macs(self, port: str) -> None:
        for each in self._macs_of.pop(port, ()):
            del self._macs[each]

    def _forget_other(self, port: str) -> None:
        """It shares no address any more; what it has alone it keeps."""
        for number in self._others.pop(port, ()):
            if number in self._sharing:
                if left := tuple(each for each in self._sharing[number] if each != port):
                    self._sharing[number] = left
                else:
                    del self._sharing[number]

    def _free(self, number: _Number) -> None:
        """No port has it any more, unless others share it: then it is the first one's of these."""
        self._taken.pop(number, None)
        self._leased.discard(number)
        if number in self._sharing:
            heir, *rest = self._sharing.pop(number)
            self._taken[number], self._of[heir] = heir, (*self._of.get(heir, ()), number)
            if rest:
                self._sharing[number] = tuple(rest)
            return
        for pools in self._pools_with(number):
            pools.freed(number[1])

    def _pools_with(self, number: _Number) -> Iterable[_Pool]:
        return (pool for pools in self._pools.values() for pool in pools if pool.version == number[0])


def _number(address: Interface | Address) -> _Number:
    return address.version, int(address.ip if isinstance(address, Interface) else address)


def _address(number: _Number) -> Address:
    return IPv4Address(number[1]) if number[0] == 4 else IPv6Address(number[1])


def _merged(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The spans in order, those that overlap or touch as one."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        else:
            found.append((first, last))
    return found
