"""Says what an attachment consists of whose port is that of a claim's device, and refuses what that port has not. Pure.

    Lease, JoinedPort, DeviceInfo, ConfigFile | PodNote

Directory, socket and port are the claim's: the attachment tells the pod of them, and gives the interface its addresses. What a
claim's device has, the claim's class and parameters say, and the class is an administrator's; so a network cannot change it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any, Final

from userspace_cni.attachment.facts import Facts, JoinableDevice
from userspace_cni.attachment.planned import Attachment
from userspace_cni.attachment.steps import JoinedPort, OvsPort
from userspace_cni.base.errors import InvalidConfig, UnsupportedField
from userspace_cni.base.vlans import Vlan
from userspace_cni.cni.options import DEFAULT_CONSUMER, Access, Options

_REMEDY: Final = "what a claim's device has, its parameters and its class say: leave it out of the network, or ask in the claim"


def find_differences(options: Options, device: JoinableDevice) -> Iterator[tuple[str, Any, Any]]:
    """What the network and the runtime ask for that the device's port has not: each with its key, as asked, and as it is."""
    port, directory, application = device.port, device.directory, options.application
    rings = {"queues": application.queues, "queueSize": application.queue_size}
    has = Access(directory.user, directory.group, directory.mode, None, directory.selinux_label)
    pairs = [
        ("host.bridge.bridgeName", options.bridge if options.bridge_given else "", port.bridge),
        ("host.bridge.vlanId", _said(options.vlan), _said(port.vlan) or "none"),
        ("host.mtu", options.mtu, port.interface.mtu),
        ("mac", options.asked.mac.lower(), port.mac.lower()),
        ("host.vhost.socketfile", options.socket_file, device.socket_name),
        ("mirrorOutput", options.mirror_output, ", ".join(port.mirror_outputs)),
        ("host.vhost.user", options.access.user, has.user),
        ("host.vhost.group", options.access.group, has.group),
        ("host.vhost.dirmode", options.access.directory_mode, has.directory_mode),
        ("host.vhost.selinuxLabel", options.access.selinux_label, has.selinux_label),
        # what the claim leaves open the network may say: it is the application's own matter
        *((f"container.vhost.{key}", asked, device.told.get(key, asked)) for key, asked in rings.items()),
    ]
    yield from ((key, asked, found) for key, asked, found in pairs if asked not in ("", None) and asked != found)


def require_joinable(options: Options, device: JoinableDevice) -> None:
    """Raise UnsupportedField for a kind of interface that cannot be a claim's."""
    kinds = {
        "'host.iftype' 'veth', a kernel link": options.link is not None,
        "'ovn', a logical port": options.ovn is not None,
        f"'consumer' {options.consumer!r}": options.consumer != DEFAULT_CONSUMER,
    }
    for kind in (kind for kind, asked in kinds.items() if asked):
        raise UnsupportedField(
            f"the network has {kind}, and 'deviceID' is a device of claim {device.claim}, a pod's vhost-user port",
            "take the key out of the network, or the annotation k8s.v1.cni.cncf.io/resourceName off it",
        )


def as_claimed(options: Options, device: JoinableDevice) -> Options:
    """The options with what the device has, by which the rules and the plan judge the interface, and the application is told."""
    port, block = device.port, options.application.block
    asked = {key: value for key, value in (block.get("vhost") or {}).items() if value is not None}
    application = replace(options.application, block={**block, "vhost": {**device.told, **asked}})
    options = replace(options, application=application)
    return replace(options, bridge=port.bridge, vlan=port.vlan, mtu=port.interface.mtu, socket_file=device.socket_name)


def require_same(options: Options, facts: Facts, device: JoinableDevice) -> None:
    """Raise InvalidConfig for what network, runtime or pod ask for and the device's port has not."""
    asked = [*find_differences(options, device), *_noted(facts, device.port)]
    for key, said, has in asked:
        raise InvalidConfig(
            f"{key!r} is asked for as {said!r}, and the port of claim {device.claim}, which the interface joins, has "
            f"{has or 'none'!r}",
            _REMEDY,
        )


def with_joined(attachment: Attachment, device: JoinableDevice) -> Attachment:
    """The attachment with the claim's port in the place of one of its own, and of what that would need."""
    port = device.port
    joined = JoinedPort(
        device.holder,
        device.ifname,
        device.claim,
        device.directory.path,
        device.mapped,
        port.name,
        port.bridge,
        port.server_path,
        port.mac,
        port.vlan,
        port.interface.mtu,
        port.limits,
    )
    own = next(number for number, step in enumerate(attachment.steps) if step is attachment.port)
    return replace(attachment, steps=(joined, *attachment.steps[own + 1 :]))


def _noted(facts: Facts, port: OvsPort) -> Iterator[tuple[str, Any, Any]]:
    """As `find_differences`, of what the pod's annotations may say, too."""
    if facts.vlan != port.vlan:
        yield "vlan_id", _said(facts.vlan), _said(port.vlan)
    if facts.mac and facts.mac.lower() != port.mac.lower():
        yield "mac", facts.mac, port.mac
    if facts.limits and facts.limits != port.limits:
        yield "bandwidth", asdict(facts.limits), asdict(port.limits) if port.limits else ""
    if facts.mirrors and set(facts.mirrors) != set(port.mirrors):
        yield "mirrors", [each.name for each in facts.mirrors], [each.name for each in port.mirrors]


def _said(vlan: Vlan) -> str:
    """As people write it; "" for none."""
    parts = (str(vlan.tag or ""), f"trunks {','.join(map(str, vlan.trunks))}" if vlan.trunks else "", vlan.mode)
    return " ".join(filter(None, parts))
