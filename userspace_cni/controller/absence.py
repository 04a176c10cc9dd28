"""Which nodes are gone: what is known not to be there for a while. Pure but for the time that it is told.

A node's object may be deleted and made again by its kubelet while its pods go on: what is its own (its range, the objects about
its pods) is kept until it has been away for so long that this is not what happens.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

GONE_S: Final = 300.0
"""Seconds for which a node must have been absent."""


class Absence:
    """Remembers since when nodes are absent. A new leader begins anew: it waits longer than it had to, never shorter."""

    def __init__(self, gone_s: float = GONE_S) -> None:
        self._gone_s = gone_s
        self._since: dict[str, float] = {}
        self._looked = 0.0

    def held(self, nodes: Collection[str], named: Iterable[str], now: float) -> frozenset[str]:
        """The nodes that are not gone: those that are there, and those of `named` that have been absent for a short while.

        `now`: seconds of a clock that never goes back.
        """
        self._looked = now
        absent = {node for node in named if node and node not in nodes}
        self._since = {node: self._since.get(node, now) for node in absent}
        return frozenset(nodes) | {node for node, since in self._since.items() if now - since < self._gone_s}

    def forget(self) -> None:
        """Begin anew: for a while it was not seen who is there, and an absence that went on then may have been two."""
        self._since = {}

    @property
    def next_due(self) -> float:
        """When the next absent node will count as gone; infinity for none."""
        due = (since + self._gone_s for since in self._since.values())
        return min((each for each in due if each > self._looked), default=float("inf"))
