"""Decides which nodes are gone: those that have been absent for a while.

Pure; the caller gives the time. A kubelet may delete and recreate its node's object while the pods run on. So the node's range
and the objects about its pods are kept until the node has been absent too long for that.
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

    def list_retained(self, nodes: Collection[str], named: Iterable[str], now: float) -> frozenset[str]:
        """The nodes that are not gone: those present, and those of `named` that have been absent for less than `gone_s`.

        `now`: seconds of a clock that never goes back.
        """
        self._looked = now
        absent = {node for node in named if node and node not in nodes}
        self._since = {node: self._since.get(node, now) for node in absent}
        return frozenset(nodes) | {node for node, since in self._since.items() if now - since < self._gone_s}

    def forget(self) -> None:
        """Start all absences anew. Call it when nodes could not be watched for a while: a node may have come and gone unseen."""
        self._since = {}

    @property
    def next_due(self) -> float:
        """When the next absent node will count as gone; infinity for none."""
        due = (since + self._gone_s for since in self._since.values())
        return min((each for each in due if each > self._looked), default=float("inf"))
