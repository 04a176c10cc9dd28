"""The configuration of two chained plugin types of ovs-cni, by which a port takes part in mirrors. Pure.

They come after a plugin that has made a port: `{"type": "ovs-mirror-producer", "bridge": B, "mirrors": [{"name": M, "ingress":
true, "egress": true}]}` makes it a source, `{"type": "ovs-mirror-consumer", "bridge": B, "mirrors": [{"name": M}]}` the output.
"ingress" and "egress" are the switch's there: what comes into it is what the pod sends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from userspace_cni.base.errors import InvalidConfig
from userspace_cni.base.mirrors import MirrorSource
from userspace_cni.cni import keys
from userspace_cni.cni.json_values import read_typed
from userspace_cni.cni.mirror_keys import read_mirrors
from userspace_cni.cni.request import Network

PRODUCER: Final = "ovs-mirror-producer"
CONSUMER: Final = "ovs-mirror-consumer"
TYPES: Final = (PRODUCER, CONSUMER)


@dataclass(frozen=True)
class ChainedPart:
    """Of which mirrors the port becomes a source, or the output. `bridge`: where it must be, "" for any."""

    bridge: str
    sources: tuple[MirrorSource, ...] = ()
    outputs: tuple[str, ...] = ()


def is_chained(network: Network) -> bool:
    """Whether the network is of one of these types, and so has no attachment of its own."""
    return network.raw.get("type") in TYPES


def read_part(network: Network) -> ChainedPart:
    """The part that the network describes. Raises InvalidConfig and Undecodable naming the key."""
    raw, kind = keys.normalize_keys(network.raw, ("bridge", "mirrors"), ""), network.raw.get("type")
    bridge = read_typed(raw, "bridge", str, "")
    sources = read_mirrors(raw, lambda _: None)
    if kind == PRODUCER:
        _require_directions(read_typed(raw, "mirrors", list, []))
    if not sources:
        raise InvalidConfig(f"plugin {kind}: key 'mirrors' is missing or empty", 'it must be a list as [{"name": "ids"}]')
    if kind == PRODUCER:
        return ChainedPart(bridge, sources)
    return ChainedPart(bridge, outputs=tuple(each.name for each in sources))


def _require_directions(entries: list[Any]) -> None:
    """Raise InvalidConfig for a source of which no direction is said: for ovs-cni that is none, in our `mirrors` it is both."""
    for entry in entries:
        said = keys.normalize_keys(entry, keys.PLACES["mirrors"], "mirrors") if isinstance(entry, dict) else {}
        if said.get("ingress") is not True and said.get("egress") is not True:
            raise InvalidConfig(
                f"plugin {PRODUCER}: key 'mirrors' holds {entry!r}, no direction",
                "'ingress' (what the pod sends) or 'egress' must be true",
            )
