"""The switch's bridges as their rows say them: every port, also of other programs, with its interfaces and mirrors. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from userspace_cni.base.vlans import Vlan


@dataclass(frozen=True)
class SwitchInterface:
    """A row of Interface. `link_state`: `up`, `down`, or "" while ovs-vswitchd has not said. `options`: those that name the other
    end: a patch's peer, a tunnel's remote_ip, the arguments of a DPDK device. `mtu` 0: not known. `driver`: the kernel's."""

    name: str
    type: str
    link_state: str = ""
    error: str = ""
    mtu: int = 0
    mac: str = ""
    speed: str = ""
    driver: str = ""
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SwitchBridgePort:
    """A row of Port. `owner`: `pod`, `node` or `run` of a port that we made, "" of another program's; `spec`: the node's
    spec that it is of. `logical`: the logical port that it is for OVN, `installed` whether OVN has said that it has it here."""

    name: str
    vlan: Vlan
    interfaces: tuple[SwitchInterface, ...]
    owner: str = ""
    spec: str = ""
    bond: str = ""
    logical: str = ""
    installed: bool = False


@dataclass(frozen=True)
class SwitchMirror:
    """A row of Mirror: the names of its output port, "" for none, and of the ports whose frames it shows. `everything`: all."""

    name: str
    output: str
    sources: tuple[str, ...]
    everything: bool
    ours: bool


@dataclass(frozen=True)
class SwitchBridge:
    """A row of Bridge. `made_by`: `pods` and `node` as of `BridgeMaker`, else `another`."""

    name: str
    datapath: str
    made_by: str
    ports: tuple[SwitchBridgePort, ...] = ()
    mirrors: tuple[SwitchMirror, ...] = ()


@dataclass(frozen=True)
class FrameCounts:
    """What the switch has counted at an interface by the time `at`, in seconds of a clock that only goes on. `statistics`: by the
    names of Interface.statistics in ovs-vswitchd.conf.db(5); rx is what the switch received."""

    at: float
    statistics: Mapping[str, int]
