"""A NetworkAttachmentDefinition, as far as a VM on it depends on it. Pure.

Whether the plugin takes the configuration is not judged here: the plugin's own reader does, in the command line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, Final

from kubevirt.lint.reading import DocumentValue, fold_keys

OUR_TYPE: Final = "userspace"
DEFAULT_MTU: Final = 1500
"""What Open vSwitch gives a port without mtu_request."""
_RESOURCE: Final = "k8s.v1.cni.cncf.io/resourceName"
_MARKERS: Final = ("ovs-cni.network.kubevirt.io/", "bridge.network.kubevirt.io/")
"""Resources that say which nodes have a bridge: no device goes with them."""
_BRIDGE: Final = "br0"
"""The plugin's bridge for a network that names none."""
_ALIKE: Final = 0.7


@dataclass(frozen=True)
class Definition:
    """A network. `namespace` "" when the object does not say; `config`: our plugin's own configuration, its keys in lower case.

    `is_ours`: None when the configuration is not in the object, or cannot be read. `types`: of the CNI plugins that it has.
    """

    name: str
    namespace: str
    spot: DocumentValue
    config: Mapping[str, Any]
    is_ours: bool | None
    types: tuple[str, ...] = ()
    tells_device: bool = False
    """Whether it is another vhost-user plugin's, or a device plugin may go with it."""

    @property
    def for_kubevirt(self) -> bool:
        """Whether it says that its consumers are VMs."""
        return self.config.get("consumer") == "kubevirt"

    @property
    def mtu(self) -> int | None:
        mtu = fold_keys(self.config.get("host")).get("mtu")
        return mtu if isinstance(mtu, int) and not isinstance(mtu, bool) else None

    @property
    def has_odd_mtu(self) -> bool:
        """Whether it says an MTU that is none, which the plugin refuses."""
        return self.mtu is None and fold_keys(self.config.get("host")).get("mtu") is not None

    @property
    def segment(self) -> tuple[str, int | None] | None:
        """Bridge and VLAN of its ports, None for a VLAN when they carry several; None for a network that is not ours."""
        if not self.is_ours:
            return None
        bridge = fold_keys(fold_keys(self.config.get("host")).get("bridge"))
        name, tag = bridge.get("bridgename"), bridge.get("vlanid")
        tagged = isinstance(tag, int) and tag > 0 and not bridge.get("trunks")
        return name if isinstance(name, str) and name else _BRIDGE, tag if tagged else None

    @property
    def is_misspelt(self) -> bool:
        """Whether a plugin's type is nearly ours."""
        alike = (SequenceMatcher(None, each.lower()[:40], OUR_TYPE).ratio() for each in self.types if each != OUR_TYPE)
        return not self.is_ours and any(ratio >= _ALIKE for ratio in alike)

    @property
    def mode(self) -> str | None:
        """Open vSwitch's role as the configuration says it: "" when its `host` block leaves it open, None without that block."""
        if "host" not in self.config:
            return None
        mode = fold_keys(fold_keys(self.config.get("host")).get("vhost")).get("mode")
        return mode if isinstance(mode, str) else ""

    @property
    def resource(self) -> str:
        """The device plugin's resource that goes with it."""
        return self.spot.child("metadata", "annotations").text(_RESOURCE)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


def read_definition(spot: DocumentValue) -> Definition:
    metadata = spot.child("metadata")
    written = spot.child("spec").json("config")
    plugins = _plugins(written) if written else []
    ours = next((plugin for plugin in plugins if plugin.get("type") == OUR_TYPE), None)
    types = [each for each in (plugin.get("type") for plugin in plugins) if isinstance(each, str)]
    resource = metadata.child("annotations").text(_RESOURCE)
    device_info = any(fold_keys(plugin.get("capabilities")).get("cnideviceinfofile") is True for plugin in plugins)
    return Definition(
        name=metadata.text("name"),
        namespace=metadata.text("namespace"),
        spot=spot,
        config=fold_keys(ours),
        is_ours=ours is not None if plugins else None,
        types=tuple(types),
        tells_device=device_info
        or bool(resource and not resource.startswith(_MARKERS))
        or any("vhost" in each.lower() or each == "kube-ovn" for each in types),
    )


def plugins_of(config: object) -> list[Mapping[str, Any]]:
    """The plugins of a CNI configuration: of a list all, else the one. What is no object is left out."""
    if not isinstance(config, Mapping):
        return []
    listed = config.get("plugins")
    if isinstance(listed, list):
        return [plugin for plugin in listed if isinstance(plugin, Mapping)]
    return [config]


class Definitions:
    """The networks that were given, to be found by name: VMs and networks may be many."""

    def __init__(self, definitions: Iterable[Definition]) -> None:
        self._first: dict[tuple[str, str | None, str | None], tuple[int, Definition]] = {}
        """The first of each name, namespace and file, with its place among all; None is any namespace, any file."""
        for number, each in enumerate(definitions):
            for namespace in (each.namespace, None):
                for file in (each.spot.report.file, None):
                    self._first.setdefault((each.name, namespace, file), (number, each))

    def matching(self, name: str, namespace: str, file: str = "") -> tuple[Definition | None, Definition | None]:
        """The network that a VM of `namespace` in `file` means by [namespace/]name; or else one of that name elsewhere.

        A namespace that is not written may be any. Of several the one in the same file is meant.
        """
        wanted, _, short = name.rpartition("/")
        short, wanted = short or name, wanted or namespace
        fitting = (wanted, "") if wanted else (None,)
        found = self._of(short, fitting, file) or self._of(short, fitting, None)
        return found, None if found else self._of(short, (None,), None)

    def _of(self, name: str, namespaces: Iterable[str | None], file: str | None) -> Definition | None:
        found = [self._first[key] for namespace in namespaces if (key := (name, namespace, file)) in self._first]
        return min(found, key=lambda each: each[0])[1] if found else None


def judge_definition(definition: Definition, *, machines: bool, used: bool) -> None:
    """What the network itself tells. `machines`: VMs were given; `used`: one of them has it as a vhost-user network."""
    if definition.is_misspelt and not used:
        definition.spot.child("spec").find(
            "foreign-network",
            "warning",
            f"network {definition} is of CNI type {', '.join(definition.types)}: ours is '{OUR_TYPE}'",
            f'write `"type": "{OUR_TYPE}"` in spec.config, if this plugin is meant',
        )
    if not definition.is_ours:
        return
    spot = DocumentValue(definition.config, "spec.config", definition.spot.report)
    if not definition.for_kubevirt:
        _judge_consumer(definition, spot, machines=machines, used=used)
    server = definition.mode == "server" or (definition.mode == "" and not definition.for_kubevirt)
    if server and (used or definition.for_kubevirt):
        spot.find(
            "server-mode",
            "error",
            f"host.vhost.mode is {definition.mode!r}: Open vSwitch would make the socket, and QEMU makes it too"
            if definition.mode
            else "there is a host block without vhost.mode: Open vSwitch would make the socket, and QEMU makes it too",
            'add `"consumer": "kubevirt"`, and let host.vhost.mode be "client" or leave it out',
        )
    if definition.for_kubevirt or used:
        _judge_for_machines(definition, spot)


def _judge_consumer(definition: Definition, spot: DocumentValue, *, machines: bool, used: bool) -> None:
    remedy = 'add `"consumer": "kubevirt"` at the top of the configuration, in a network that is for VMs alone'
    if used:
        message = (
            f"VMs use network {definition}, which does not say that its consumer is kubevirt: sockets go where no QEMU looks"
        )
        spot.find("consumer-missing", "error", message, remedy)
    elif not machines:
        message = f"network {definition} does not say that its consumer is kubevirt: it is for pods, not for VMs"
        spot.find("consumer-missing", "note", message, remedy)


def _judge_for_machines(definition: Definition, spot: DocumentValue) -> None:
    if mac := fold_keys(definition.config.get("host")).get("mac"):
        spot.find(
            "mac-conflict",
            "warning",
            f"host.mac is {mac!r}: every VM on network {definition} has this MAC",
            "remove host.mac, and give macAddress in the VM if it has to be a certain one",
        )
    capabilities = definition.config.get("capabilities")
    if definition.resource and fold_keys(capabilities).get("cnideviceinfofile") is not True:
        spot.find(
            "no-device-info",
            "note",
            f"network {definition} has the resource {definition.resource}, and not the capability CNIDeviceInfoFile: "
            "what the device plugin allocated is not told on",
            'add `"capabilities": {"CNIDeviceInfoFile": true}`, or remove the annotation',
        )


def _plugins(written: DocumentValue) -> list[Mapping[str, Any]]:
    if not isinstance(written.value, Mapping):
        written.is_odd("a CNI configuration, which is an object")
        return []
    return plugins_of(written.value)
