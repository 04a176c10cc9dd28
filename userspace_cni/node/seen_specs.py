"""What the node itself has at a bridge, when a person asks why a pod there has no network: its uplinks and gateways."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from userspace_cni.attachment.specs import key_of
from userspace_cni.attachment.steps import Step, Steps
from userspace_cni.host.node_net import nics

if TYPE_CHECKING:
    from userspace_cni.attachment.records import Record
    from userspace_cni.host.node_net.nics import Nic
    from userspace_cni.node.installation import Installation

LinkState = Literal["up", "down", "without a link", "missing"]
_BRIDGE: Final = "bridge"


@dataclass(frozen=True)
class SeenSpec:
    """A provider network or gateway of the node at the bridge. `links`: the state of each kernel link of its uplink; `problem`:
    why the node does not have what is desired, "" where it does, or no agent says; `concerns`: what keeps a gateway from being
    of use."""

    kind: str
    name: str
    links: Mapping[str, LinkState] = field(default_factory=dict)
    problem: str = ""
    concerns: tuple[str, ...] = ()


def see_specs(bridge: str, records: Iterable[Record], here: Installation) -> tuple[SeenSpec, ...]:
    """What the records of the node have at the bridge, and what the settings ask for there. Raises UserspaceError."""
    found = {key_of(each): _links(each.steps, here) for each in records if bridge in _bridges(each.steps)}
    settings = here.settings
    asked = [("provider-network", each.name) for each in settings.provider_networks if each.bridge == bridge]
    asked += [("gateway", each.port) for each in settings.gateways if each.bridge == bridge]
    return tuple(SeenSpec(kind, name, found.get((kind, name), {})) for kind, name in dict.fromkeys((*found, *asked)))


def _bridges(steps: Iterable[Step]) -> set[object]:
    return {value for step in steps for value in (step.reported.get(_BRIDGE), getattr(step, _BRIDGE, None)) if value}


def _links(steps: Sequence[Step], here: Installation) -> dict[str, LinkState]:
    opened = (each for step in Steps(steps).uplinks for each in step.present)
    names = [each.name for each in opened if not each.devargs]
    found = nics.look_at_all(names, here.settings.switch_netns, here.root) if names else {}
    return {name: _state(found.get(name)) for name in names}


def _state(nic: Nic | None) -> LinkState:
    if nic is None:
        return "missing"
    if not nic.up:
        return "down"
    return "up" if nic.carrier else "without a link"
