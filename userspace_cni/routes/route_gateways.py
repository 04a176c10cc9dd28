"""Decides which of a pod's routes by gateways can be there together: none may lead to another one's gateway.

Pure. The kernel refuses an IPv6 route whose gateway is reached by another gateway, and packets for a gateway itself would leave
by the other one. If one route leads to the other's gateway, only one of them can be made, whichever comes first.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from typing import Literal, NamedTuple

from userspace_cni.base.routing import Address, Network

Gateway = tuple[Address, str]
"""An address, and the device by which it is reached."""


class RouteLoss(NamedTuple):
    """Why a route cannot be made.

    `kind`: it leads to its own `gateway`, or to that of the route `other`; or `other` leads to its own.
    """

    kind: Literal["itself", "hides", "hidden"]
    gateway: Gateway
    other: int

    def why(self, other: Network) -> str:
        """In words. `other`: the destination of the other route."""
        via, dev = self.gateway
        if self.kind == "itself":
            return f"it would hide {via}, its own gateway by {dev}"
        if self.kind == "hides":
            return f"it would hide {via}, the gateway of other routes by {dev}"
        return f"its gateway {via} would not be on-link at {dev}: the route to {other} would lead to it"


def decide(needs: Sequence[Gateway | None], hiders: Mapping[Gateway, Collection[int]]) -> Mapping[int, RouteLoss]:
    """Which routes cannot be, each with the reason; all others can be together, and none of those that are lost beside them.

    `needs`: the gateway of each route, None for one that no route can hide. `hiders`: which routes would take a gateway off its
    link. A route that hides gives way to those that need the gateway, if they can be. Where each of several hides the gateway of
    the next one, the first of `needs` stays. The cost grows with the number of routes and hiders.
    """
    return _Choice(needs, hiders).made()


class _Choice:
    def __init__(self, needs: Sequence[Gateway | None], hiders: Mapping[Gateway, Collection[int]]) -> None:
        self._needs = needs
        self._hiders = hiders
        self._needing: dict[Gateway, list[int]] = {}
        self._hidden: list[list[Gateway]] = [[] for _ in needs]
        for number, gateway in enumerate(needs):
            if gateway is not None:
                self._needing.setdefault(gateway, []).append(number)
        for gateway in self._needing:
            for number in hiders.get(gateway, ()):
                self._hidden[number].append(gateway)
        self._alive = Counter({gateway: len(numbers) for gateway, numbers in self._needing.items()})
        """Of each gateway the routes by it that are not lost."""
        self._obstacles = [len(each) for each in self._hidden]
        """Of each route the gateways that it hides and that are needed."""
        self._held: set[int] = set()
        self._lost: dict[int, RouteLoss] = {}
        self._ready = deque(number for number, count in enumerate(self._obstacles) if not count)

    def made(self) -> Mapping[int, RouteLoss]:
        for number, gateway in enumerate(self._needs):
            if gateway is not None and gateway in self._hidden[number]:
                self._lose(number, RouteLoss("itself", gateway, number))
        for number in range(len(self._needs)):
            self._settle()
            if self._is_open(number):  # each of some hides the gateway of the next one
                self._hold(number)
                for gateway in self._hidden[number]:
                    for each in self._needing[gateway] if self._alive[gateway] else ():
                        self._lose(each, RouteLoss("hidden", gateway, number))
        return self._lost

    def _settle(self) -> None:
        """Hold what hides nothing that is needed, until there is no more of it."""
        while self._ready:
            self._hold(self._ready.popleft())

    def _is_open(self, number: int) -> bool:
        return number not in self._held and number not in self._lost

    def _hold(self, number: int) -> None:
        if not self._is_open(number):
            return
        self._held.add(number)
        gateway = self._needs[number]
        if gateway is not None:
            for each in self._hiders.get(gateway, ()):
                self._lose(each, RouteLoss("hides", gateway, number))

    def _lose(self, number: int, why: RouteLoss) -> None:
        if not self._is_open(number):
            return
        self._lost[number] = why
        gateway = self._needs[number]
        if gateway is None:
            return
        self._alive[gateway] -= 1
        if not self._alive[gateway]:
            for each in self._hiders.get(gateway, ()):
                self._obstacles[each] -= 1
                if not self._obstacles[each]:
                    self._ready.append(each)
