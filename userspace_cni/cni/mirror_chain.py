"""The configuration of two chained plugin types of ovs-cni, by which a port takes part in mirrors. Pure.

They come after a plugin that has made a port: `{"type": "ovs-mirror-producer", "bridge": B, "mirrors": [{"name": M, "ingress":
true, "egress": true}]}` makes it a source, `{"type": "ovs-mirror-consumer", "bridge": B, "mirrors": [{"name": M}]}` the output.
"ingress" and "egress" are the switch's there: what comes into it is what the pod sends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from userspace_cni.base.errors import InvalidConfig
from userspace_cni.base.mirrors import NAME_MAX, MirrorSource, is_mirror_name
from userspace_cni.cni.request import Network, typed

PRODUCER: Final = "ovs-mirror-producer"
CONSUMER: Final = "ovs-mirror-consumer"
TYPES: Final = (PRODUCER, CONSUMER)


@dataclass(frozen=True)
class ChainedPart:
    """What such a plugin gives the port: its sources or its output. `bridge`: where the port must be, "" for any."""

    bridge: str
    sources: tuple[MirrorSource, ...] = ()
    output: str = ""


def is_chained(network: Network) -> bool:
    """Whether the network is of one of these types, and so has no attachment of its own."""
    return network.raw.get("type") in TYPES


def read_part(network: Network) -> ChainedPart:
    """The part that the network describes. Raises InvalidConfig and Undecodable naming the key."""
    raw, kind = network.raw, network.raw.get("type")
    bridge = typed(raw, "bridge", str, "")
    entries = typed(raw, "mirrors", list, [])
    if not entries:
        raise InvalidConfig(f"plugin {kind}: key 'mirrors' is missing or empty", "it must be a list of {name}")
    if kind == PRODUCER:
        sources = tuple(_source(entry, f"mirrors[{index}]") for index, entry in enumerate(entries))
        return ChainedPart(bridge, sources)
    if len(entries) > 1:
        raise InvalidConfig(f"plugin {kind}: key 'mirrors' has {len(entries)} entries", "a port is the output of one mirror")
    return ChainedPart(bridge, output=_name(entries[0], "mirrors[0]"))


def _source(entry: Any, key: str) -> MirrorSource:
    name = _name(entry, key)
    ingress, egress = (typed(entry, each, bool, default=False, path=f"{key}.") for each in ("ingress", "egress"))
    if not ingress and not egress:
        raise InvalidConfig(f"key '{key}' is a source of no frames", "'ingress' (what the pod sends) or 'egress' must be true")
    return MirrorSource(name, from_pod=ingress, to_pod=egress)


def _name(entry: Any, key: str) -> str:
    name = typed(entry, "name", str, "", path=f"{key}.") if isinstance(entry, dict) else ""
    if not is_mirror_name(name):
        raise InvalidConfig(
            f"key '{key}.name' is {name!r}, which names no mirror", f"1 to {NAME_MAX} letters, digits, '_', '.' or '-' do"
        )
    return str(name)
