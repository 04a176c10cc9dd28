"""The pods of a storm: sandboxes and volumes as a runtime and a kubelet make them, and the parts of each attachment.

The parts of an attachment are described in sentences, from what the documents promise and never from the code under
test; `storm_look` describes the node in the same words.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import socket
import subprocess
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.agent.living import LiveNode
from tests.crash.storm_model import Belongings, Name

IFNAMES: Final = ("net1", "net2")
ADMINS_BRIDGE: Final = "br-admin"
UNHURT: Final = "cni-unhurt"
"""A namespace that never vanishes: an absent one counts as gone only beside one that is there."""


@dataclass(frozen=True)
class Network:
    """A network of the storm. `mode`: OVS's, or "veth" for kernel links, which have limits and are sources of a mirror."""

    name: str
    mode: str
    bridge: str
    leased: bool = False
    device_info: bool = False
    vlan: int = 0
    aside: bool = False
    """Whether its pods' directories are below a `sharedDir` of its own."""

    @property
    def version(self) -> str:
        """Debian's host-local knows nothing later."""
        return "1.0.0" if self.leased else "1.1.0"


NETWORKS: Final = (
    Network("plain", "client", "br-a"),
    Network("leased", "client", "br-a", leased=True, device_info=True),
    Network("served", "server", "br-b"),
    Network("served-leased", "server", "br-a", leased=True),
    Network("tagged", "client", ADMINS_BRIDGE, vlan=7),
    Network("aside", "server", ADMINS_BRIDGE, device_info=True, aside=True),
    Network("linked", "veth", "br-a"),
    Network("linked-leased", "veth", ADMINS_BRIDGE, leased=True, vlan=8),
)


_SUBNETS: Final = {"client": "10.56.0.0/22", "server": "10.57.0.0/22", "veth": "10.58.0.0/22"}


@dataclass(frozen=True)
class Pod:
    """A pod: one or two sandboxes of it, with one volume. `volume`: "" for none, "disk" or "memory" for an emptyDir."""

    uid: str
    volume: str
    sandboxes: tuple[str, ...]


@dataclass(frozen=True)
class Attachment:
    """An interface of a sandbox in a network."""

    name: Name
    pod: Pod
    network: Network

    @property
    def port(self) -> str:
        """The name of its port and of its socket, or of its port and of its host end."""
        if self.network.mode == "veth":
            return f"uc{hashlib.sha256(self.key.encode()).hexdigest()[:12]}"
        return str(self.name)

    @property
    def key(self) -> str:
        """Container and interface, as records and leases name it."""
        return f"{self.name.container}@{self.name.ifname}"


@dataclass
class Pods:
    """All pods, present and past, on a node whose directories they use. `number` is part of the IDs of their containers."""

    node: LiveNode
    number: int = 0
    attachments: dict[Name, Attachment] = field(default_factory=dict)
    """Of every pod there ever was."""
    living: list[Pod] = field(default_factory=list)
    _made: int = 0
    _ending: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.namespaces.mkdir()
        self.devices.mkdir()
        self._make_namespace(UNHURT)

    @property
    def namespaces(self) -> Path:
        return self.node.directory / "netns"

    @property
    def devices(self) -> Path:
        return self.node.directory / "devinfo"

    @property
    def aside(self) -> Path:
        """The `sharedDir` of the network that has one."""
        return self.node.directory / "aside"

    @property
    def volumes_in_memory(self) -> set[str]:
        """Mount points of the kubelet."""
        uids = {attachment.pod.uid for attachment in self.attachments.values() if attachment.pod.volume == "memory"}
        return {str(self.volume_of(uid)) for uid in uids}

    def volume_of(self, uid: str) -> Path:
        return self.node.kubelet / "pods" / uid / "volumes" / "kubernetes.io~empty-dir" / "shared-dir"

    def namespace(self, container: str) -> Path:
        return self.namespaces / f"cni-{container[:12]}"

    def make(self, volume: str, sandboxes: int, networks: tuple[Network, ...]) -> Pod:
        """A pod as runtime and kubelet make it, with two interfaces in each sandbox, in these networks by turns."""
        containers = []
        for _ in range(sandboxes):
            self._made += 1
            containers.append(f"{self.number % 256:02x}{self._made:04x}c0ffee" + "e" * 52)
        uid = f"{self._made:08x}-0000-4000-8000-000000000000"
        pod = Pod(uid, volume, tuple(containers))
        if volume:
            path = self.node.empty_dir(uid)
            if volume == "memory":
                subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=777", "none", str(path)], check=True)
        for container in containers:
            self._make_namespace(self.namespace(container).name)
            for ifname in IFNAMES:
                name = Name(container, ifname)
                self.attachments[name] = Attachment(name, pod, networks[len(self.attachments) % len(networks)])
        self.living.append(pod)
        return pod

    def end(self, pod: Pod) -> None:
        """Remove its sandboxes, and let the kubelet begin to remove the pod."""
        self.living.remove(pod)
        for container in pod.sandboxes:
            path = self.namespace(container)
            subprocess.run(["umount", "--lazy", str(path)], check=True)
            path.unlink()
        self._ending.add(pod.uid)
        self.tidy()

    def tidy(self) -> list[str]:
        """Let the kubelet try once more to remove the volumes of pods that have gone; return those that are still busy."""
        for uid in sorted(self._ending):
            volume = self.volume_of(uid)
            if volume.is_mount():
                subprocess.run(["umount", str(volume)], check=False, capture_output=True)
            if not volume.is_mount():
                with suppress(OSError):
                    if (self.node.kubelet / "pods" / uid).exists():
                        shutil.rmtree(self.node.kubelet / "pods" / uid)
                    self._ending.discard(uid)
        return sorted(self._ending)

    def close(self) -> None:
        """Remove the namespaces, which are mounts."""
        for path in self.namespaces.iterdir():
            subprocess.run(["umount", "--lazy", str(path)], check=False, capture_output=True)

    def of(self, pod: Pod) -> list[Attachment]:
        return [self.attachments[Name(container, ifname)] for container in pod.sandboxes for ifname in IFNAMES]

    def place(self, attachment: Attachment) -> Path:
        if attachment.pod.volume:
            return self.volume_of(attachment.pod.uid)
        return (self.aside if attachment.network.aside else self.node.shared) / attachment.name.container[:12]

    def configuration(self, network: Network, attachment: Attachment | None = None, **keys: Any) -> bytes:
        """The runtime's stdin; of the network alone, or for an attachment."""
        extra: dict[str, Any] = {"name": network.name, **keys}
        if network.leased:
            extra["ipam"] = self.node.host_local(_SUBNETS[network.mode])
        if network.aside:
            extra["sharedDir"] = str(self.aside)
        if network.device_info and attachment:
            extra["runtimeConfig"] = {"CNIDeviceInfoFile": self._device_file(attachment)}
        if network.mode == "veth":
            extra |= {"bandwidth": {"ingressRate": 8_000_000, "egressRate": 4_000_000}, "mirrors": [{"name": "ids"}]}
        made = self.node.network(network.version, **extra)
        if network.mode == "veth":
            del made["host"]["vhost"]
            made["host"]["iftype"] = "veth"
        else:
            made["host"]["vhost"]["mode"] = network.mode
        made["host"]["bridge"] = {"bridgeName": network.bridge} | ({"vlanId": network.vlan} if network.vlan else {})
        return json.dumps(made).encode()

    def arguments(self, attachment: Attachment) -> str:
        """CNI_ARGS: the UID, where a kubelet has a directory of the pod."""
        return f"IgnoreUnknown=1;K8S_POD_UID={attachment.pod.uid}" if attachment.pod.volume else ""

    def listen(self, attachment: Attachment) -> None:
        """Make the application's socket, as in client mode, and let the application die."""
        path = self.place(attachment) / attachment.port
        with suppress(OSError), socket.socket(socket.AF_UNIX) as application:
            # a path of a pod's directory is longer than a socket may have
            link = self.node.directory / f"app-{attachment.port}"
            link.symlink_to(path.parent)
            try:
                application.bind(f"{link}/{path.name}")
            finally:
                link.unlink()

    def belongings(self, attachment: Attachment) -> Belongings:
        """The parts of an attachment while it is attached."""
        network, place = attachment.network, self.place(attachment)
        key, port, sock = attachment.key, attachment.port, f"{place}/{attachment.port}"
        required = {f"port {port} on {network.bridge}", f"open port {port}", f"record {key} ready"}
        optional = set()
        if network.bridge != ADMINS_BRIDGE:
            required.add(f"bridge {network.bridge}")
        if network.leased:
            required.add(f"lease of {key}")
        if network.mode == "veth":
            required |= {f"host end {port}", f"guard of {port}", f"QoS row of {key}", f"Queue row of {key}"}
            return Belongings(frozenset(required))
        required |= {f"holder {key} of {place}", f"file {place}/configData-{port}.json"}
        if not attachment.pod.volume:
            required.add(f"directory {place}")
        if network.device_info:
            required.add(f"file {self._device_file(attachment)}")
        if network.mode == "client":
            required |= {f"mount {self._target(attachment)}", f"directory {self._target(attachment)}"}
            optional.add(f"socket {sock}")
        else:
            required |= {f"socket {sock}", f"the switch listens at {sock}"}
            if attachment.pod.volume == "memory":
                required.add(f"mount {sock}")
        return Belongings(frozenset(required), frozenset(optional))

    def _target(self, attachment: Attachment) -> str:
        if attachment.pod.volume:
            return f"{self.node.short}/{attachment.pod.uid}"
        return f"{self.node.short}/{hashlib.sha256(str(self.place(attachment)).encode()).hexdigest()[:16]}"

    def _device_file(self, attachment: Attachment) -> str:
        return f"{self.devices}/{attachment.port}.json"

    def _make_namespace(self, name: str) -> None:
        path = self.namespaces / name
        path.touch()
        subprocess.run(["unshare", f"--net={path}", "true"], check=True)
