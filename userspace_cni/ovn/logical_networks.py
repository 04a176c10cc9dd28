"""The logical networks to which ports belong: switches, and the routers that join them. Pure: `logical_reads` reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class LogicalSwitch:
    """A switch of OVN. `router`: one that it is connected to, "" for none; `subnets`: those that this router has there."""

    name: str
    subnets: tuple[str, ...] = ()
    router: str = ""


@dataclass(frozen=True)
class LogicalRouter:
    """A router of OVN. `next_hops`: those of its default routes, () for none."""

    name: str
    next_hops: tuple[str, ...] = ()


@dataclass(frozen=True)
class LogicalNetworks:
    """Switches and routers, by name. `switch_of`: of each logical port that was asked for its switch."""

    switches: tuple[LogicalSwitch, ...] = ()
    routers: tuple[LogicalRouter, ...] = ()
    switch_of: Mapping[str, str] = field(default_factory=dict)
