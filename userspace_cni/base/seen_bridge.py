"""A bridge as the switch has it now: its ports, mirrors, learned addresses, and who rules it. Data only.

Findings judge it; `switch/seen_bridges` reads it. What could not be asked is in `unasked`, and its field has its default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from userspace_cni.base.vlans import Vlan

USUAL_MTU: Final = 1500
"""Of a port for which none is asked."""


@dataclass(frozen=True)
class SeenPort:
    """A port of a bridge, ours or another's, but not the bridge's own.

    `kind`: Interface.type. `number`: in OpenFlow, 0 while it is not open. `mtu`: what is asked for, else what the open interface
    has, 0 for a kind that has none. `mac`: of what is behind it, in small letters, "" where nothing says so. `pod`: by our
    marks, NAMESPACE/NAME. `outward`: it leads to other machines, or may. `spanning`: its state in a spanning tree, "" where none
    runs. `config`: what OpenFlow forbids it: `down`, `no-receive`, `no-flood`, `no-forward`.
    """

    name: str
    kind: str
    vlan: Vlan = field(default_factory=Vlan)
    mtu: int = 0
    mac: str = ""
    pod: str = ""
    ours: bool = False
    outward: bool = False
    spanning: str = ""
    config: frozenset[str] = frozenset()
    number: int = 0


@dataclass(frozen=True)
class SeenMirror:
    """A mirror of a bridge. `from_ports` and `to_ports`: whose frames it copies, `everything`: those of all ports. `output`: the
    port or VLAN (`VLAN 5`) that gets the copies, "" for none. `ours`: we made it, for a pod, the node or a capture."""

    name: str
    ours: bool
    from_ports: frozenset[str] = frozenset()
    to_ports: frozenset[str] = frozenset()
    everything: bool = False
    output: str = ""


@dataclass(frozen=True)
class SeenController:
    """An OpenFlow controller that is set for a bridge. `problem`: why it is not connected, "" where that is not known."""

    target: str
    connected: bool
    problem: str = ""


@dataclass(frozen=True)
class LearnedMacs:
    """The table of learned addresses. `maximum`: 0 where the switch does not say; `places`: port by VLAN and MAC."""

    count: int = 0
    maximum: int = 0
    places: Mapping[tuple[int, str], str] = field(default_factory=dict)


@dataclass(frozen=True)
class SeenBridge:
    """A bridge. `fail_mode`: `secure` or `standalone`; `spanning`: `stp` or `rstp`, "" for none. `unasked`: what could not be
    asked, with the reason."""

    name: str
    ports: tuple[SeenPort, ...] = ()
    mirrors: tuple[SeenMirror, ...] = ()
    fail_mode: str = "standalone"
    controllers: tuple[SeenController, ...] = ()
    spanning: str = ""
    learned: LearnedMacs = field(default_factory=LearnedMacs)
    unasked: tuple[tuple[str, str], ...] = ()

    def find(self, name: str) -> SeenPort | None:
        """The port of that name."""
        return next((port for port in self.ports if port.name == name), None)


@dataclass(frozen=True)
class TracedFrame:
    """What the flows of a bridge do to a frame of a port. `rule`: the flow that decides, as ovs-vswitchd shows it, "" where none
    matches; `reason`: why it drops the frame, in the words of the switch; `normal`: the flow says NORMAL."""

    dropped: bool
    rule: str = ""
    reason: str = ""
    normal: bool = False
