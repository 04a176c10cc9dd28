"""The network definition by which a pod asked for an interface, as it is now: it may have changed since the pod's ADD.

It is read once, with this process's own account, and judged by the plugin's own readers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from userspace_cni.attachment.records import Record
from userspace_cni.attachment.steps import OvsPort
from userspace_cni.base.errors import UserspaceError
from userspace_cni.base.vlans import Vlan
from userspace_cni.cni.conflist import plugins_of
from userspace_cni.cni.options import Options, read_options
from userspace_cni.cni.outline import NEW
from userspace_cni.cni.request import Environment, Request, read_network
from userspace_cni.consumers import CONSUMERS
from userspace_cni.node.pod_logical_port import place_options
from userspace_cni.node.remarks import remarks_on
from userspace_cni.node.seen_annotations import say_limits

if TYPE_CHECKING:
    from userspace_cni.node.installation import Installation

_OURS: Final = "userspace"
_SUBNET: Final = "subnet"


@dataclass(frozen=True)
class SeenDefinition:
    """The definition called `name`, as NAMESPACE/NAME. `is_there`: the API has it; `is_ours`: it is of this plugin, and of the
    attachment's network; `refused`: why ADD would refuse it now; `changed`: what it says now and what the port has, by key."""

    name: str
    is_there: bool = True
    is_ours: bool = True
    refused: str = ""
    changed: Mapping[str, tuple[str, str]] = field(default_factory=dict)


def see_definition(name: str, record: Record, here: Installation) -> SeenDefinition | None:
    """Read it; None where the text is on the nodes, in no object. Raises UserspaceError: NotAllowed, too."""
    from userspace_cni.kube.object_requests import Objects
    from userspace_cni.kube.resources import NETWORK_DEFINITIONS

    namespace, _, own = name.partition("/")
    body = Objects(here.clients.of("").session).get(NETWORK_DEFINITIONS.within(namespace), own)
    if body is None:
        return SeenDefinition(name, is_there=False)
    spec = body.get("spec")
    text = spec.get("config") if isinstance(spec, dict) else None
    if not isinstance(text, str) or not text:
        return None
    return judge_definition(name, text, record, here)


def find_undefined(names: Iterable[str], here: Installation) -> tuple[str, ...]:
    """Those of the definitions, as NAMESPACE/NAME, that the API does not have. Raises UserspaceError: NotAllowed, too."""
    from userspace_cni.kube.object_requests import Objects
    from userspace_cni.kube.resources import NETWORK_DEFINITIONS

    objects = Objects(here.clients.of("").session)
    parts = [(each, *each.partition("/")[::2]) for each in names]
    return tuple(each for each, namespace, own in parts if objects.get(NETWORK_DEFINITIONS.within(namespace), own) is None)


def judge_definition(name: str, text: str, record: Record, here: Installation) -> SeenDefinition:
    """What the text of a definition says now of the attachment. Pure."""
    try:
        written = json.loads(text) if len(text) <= NEW.octets else None
    except (ValueError, RecursionError):
        written = None
    if not isinstance(written, dict):
        return SeenDefinition(name, refused="it is no JSON object, or too large")
    inherited = {"name": written.get("name") or name.partition("/")[2]}
    listed = [each for _, each in plugins_of(written, inherited)] if "plugins" in written else [{**inherited, **written}]
    ours = next((each for each in listed if each.get("type") == _OURS), None)
    if ours is None or ours.get("name") != record.network:
        return SeenDefinition(name, is_ours=False)
    refusal = next((each for each in remarks_on(ours) if each.code), None)
    if refusal:
        return SeenDefinition(name, refused=refusal.message)
    try:
        changed = _changed(ours, record, here)
    except UserspaceError as error:
        return SeenDefinition(name, refused=str(error))
    return SeenDefinition(name, changed=changed)


def _changed(config: Mapping[str, Any], record: Record, here: Installation) -> dict[str, tuple[str, str]]:
    port = record.port
    if port is None or any(key.lower() == _SUBNET for key in config):
        return {}
    stdin = json.dumps(config).encode()
    environment = Environment("ADD", "0", "", record.ifname, {}, (), netns_override=False, variables={})
    request = Request(environment, read_network(stdin, "ADD"), stdin)
    options = place_options(read_options(request, CONSUMERS, lambda _text: None), here.settings)
    pairs = _pairs(options, port, record)
    return {key: (now, then) for key, (now, then) in pairs.items() if now != then}


def _pairs(options: Options, port: OvsPort, record: Record) -> dict[str, tuple[str, str]]:
    """What the network says now, and what the port was made with. What a pod's annotations may say instead is left out."""
    kind = "veth" if record.link else "vhostuser"
    found = {
        "host.bridge.bridgeName": (options.bridge, port.bridge),
        "host.iftype": ("veth" if options.link else "vhostuser", kind),
        "ovn": ("a logical port" if options.ovn else "no logical port", "a logical port" if port.logical else "no logical port"),
        "bandwidth": (say_limits(options.bandwidth.network), say_limits(port.terms.network)),
    }
    if not options.addresses_noted:
        found["host.bridge (VLANs)"] = (_vlan(options.vlan), _vlan(port.vlan))
    if options.mtu and port.interface.mtu:
        found["host.mtu"] = (str(options.mtu), str(port.interface.mtu))
    return found


def _vlan(vlan: Vlan) -> str:
    parts = [
        f"tag {vlan.tag}" if vlan.tag is not None else "",
        f"trunks {','.join(map(str, vlan.trunks))}" if vlan.trunks else "",
    ]
    return " ".join(filter(None, (*parts, vlan.mode))) or "none"
