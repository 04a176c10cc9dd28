"""Says what a device of a claim consists of, beside the port that a network's plan makes, and derives every name in it. Pure.

    ClaimDirectory, SocketFile, PodMount, OvsPort, ConfigFile, ClaimFile (metadata), ClaimFile (CDI)

The container gets the directory of the socket, a variable that names those of its request, and with the request's first device a
file about all of them, in the form of Kubernetes' device metadata (KEP-5304). All this is said in a file for the runtime, in the
form of the Container Device Interface (CDI), version 0.5.0, which containerd 1.7 and later read. That file is made last.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from userspace_cni.attachment.planned import Attachment
from userspace_cni.attachment.steps import ClaimDirectory, ClaimFile, PodMount, PortRef, Step
from userspace_cni.pod import claimed
from userspace_cni.pod.document import DEFAULT_MAPPED_DIR

CDI_VERSION: Final = "0.5.0"
CDI_CLASS: Final = "claim"
METADATA_DIR: Final = "/var/run/kubernetes.io/dra-device-attributes"
METADATA_VERSIONS: Final = ("metadata.resource.k8s.io/v1beta1", "metadata.resource.k8s.io/v1alpha1")
"""The newest first: a reader takes the first that it knows."""
UID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,62}")
"""What a UID may be to become a part of names: the API server's are UUIDs."""


@dataclass(frozen=True)
class LeftDevice:
    """What there may be of a device: its ports, by their marks, and what else has its name."""

    ports: tuple[PortRef, ...]
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class ClaimPlaces:
    """Where a driver's claims have their things: `directories` and `cdi` as the host calls them, and the mounts for OVS."""

    driver: str
    directories: str
    cdi: str
    short_dir: str

    def device_directory(self, uid: str, number: int) -> str:
        return f"{self.directories}/{device_part(uid, number)}"

    def mount_name(self, uid: str, number: int) -> str:
        """The mount's name in `short_dir`."""
        return hashlib.sha256(self.device_directory(uid, number).encode()).hexdigest()[:16]

    def cdi_file(self, uid: str, number: int) -> str:
        return f"{self.driver}-{CDI_CLASS}_{device_part(uid, number)}.json"

    def cdi_id(self, uid: str, number: int) -> str:
        """How the kubelet names the device to the runtime."""
        return f"{self.driver}/{CDI_CLASS}={device_part(uid, number)}"

    def metadata_file(self, uid: str, number: int) -> str:
        return f"{device_part(uid, number)}.json"

    def left_of(self, uid: str, number: int, ports: Sequence[PortRef]) -> LeftDevice:
        """What there may be of a device of which nothing is recorded."""
        path = self.device_directory(uid, number)
        steps = (
            ClaimDirectory(path, self.directories),
            PodMount(path, self.directories, f"{self.short_dir}/{self.mount_name(uid, number)}"),
            ClaimFile(self.directories, self.metadata_file(uid, number), ""),
            ClaimFile(self.cdi, self.cdi_file(uid, number), ""),
        )
        return LeftDevice(tuple(ports), steps)


@dataclass(frozen=True)
class DeviceOfRequest:
    """A device as its container is told of it. `mac` and `mtu` are the interface's, "" and None where it is not told."""

    pool: str
    device: str
    number: int
    ifname: str
    socket: str
    mac: str = ""
    mtu: int | None = None


@dataclass(frozen=True)
class ClaimRequest:
    """A request of a claim, with all its devices of ours, by number. `name`: with its subrequest, as "request/subrequest".

    `pod_claim`: how the pod calls a claim that was made of a template; "" for one that it names itself. `of_vm`: a VM's QEMU uses
    it. A VM that migrates takes its definition, with the socket's path, to a pod that has another claim of the same template: so
    there a device's directory in the container is called after what both claims have in common.
    """

    namespace: str
    claim: str
    uid: str
    pod_claim: str
    name: str
    numbers: tuple[int, ...]
    of_vm: bool = False

    @property
    def base(self) -> str:
        return self.name.partition("/")[0]

    def is_first(self, number: int) -> bool:
        """Whether it is the device that brings the file about all of them."""
        return number == self.numbers[0]

    def name_in_pod(self, number: int) -> str:
        """What tells the device apart from all others of its pod, the same in every pod of a VM."""
        return claimed.name_in_pod(self._called, self.base, self.numbers.index(number))

    def directory_name(self, number: int) -> str:
        """The name of the device's directory in containers."""
        if not self.of_vm:
            return device_part(self.uid, number)
        return f"vm-{hashlib.sha256(self.name_in_pod(number).encode()).hexdigest()[:16]}"

    def mapped_directory(self, number: int) -> str:
        """The directory of the device's socket in containers."""
        return DEFAULT_MAPPED_DIR + self.directory_name(number)

    def metadata_path(self, driver: str) -> str:
        """Where the container finds the file about the request's devices."""
        return f"{METADATA_DIR}/{self._called}/{self.base}/{driver}-metadata.json"

    @property
    def _called(self) -> str:
        return claimed.called(self.pod_claim, self.claim)

    @property
    def variable(self) -> str:
        """The environment variable with the directories of the request's sockets."""
        return claimed.variable(self.pod_claim or self.claim, self.base)


def device_part(uid: str, number: int) -> str:
    return f"{uid}-{number}"


def with_files(
    attachment: Attachment, request: ClaimRequest, number: int, devices: Sequence[DeviceOfRequest], places: ClaimPlaces
) -> tuple[Step, ...]:
    """The steps of the device of that number: those of its interface, in a directory of its own, and its files. `devices`: all of
    the request, for its first; the others do not tell of them."""
    plain = attachment.directory
    steps: list[Step] = [
        ClaimDirectory(
            plain.path, plain.trusted, user=plain.user, group=plain.group, mode=plain.mode, selinux_label=plain.selinux_label
        )
        if plain is not None and step is plain
        else step
        for step in attachment.steps
    ]
    if request.is_first(number):
        content = _render_metadata(request, devices, places.driver)
        steps.append(ClaimFile(places.directories, places.metadata_file(request.uid, number), content))
    return (
        *steps,
        ClaimFile(places.cdi, places.cdi_file(request.uid, number), _render_cdi(request, number, places), flushed=True),
    )


def network_data(device: DeviceOfRequest) -> dict[str, Any]:
    """The device as a claim's status and metadata tell it."""
    return {"interfaceName": device.ifname, **({"hardwareAddress": device.mac} if device.mac else {})}


def _render_cdi(request: ClaimRequest, number: int, places: ClaimPlaces) -> str:
    uid = request.uid
    directories = ":".join(request.mapped_directory(each) for each in request.numbers)
    mounts = [_mount(places.device_directory(uid, number), request.mapped_directory(number), "rw")]
    if request.is_first(number):
        path = f"{places.directories}/{places.metadata_file(uid, number)}"
        mounts.append(_mount(path, request.metadata_path(places.driver), "ro"))
    edits = {"env": [f"{request.variable}={directories}"], "mounts": mounts}
    devices = [{"name": device_part(uid, number), "containerEdits": edits}]
    return _text({"cdiVersion": CDI_VERSION, "kind": f"{places.driver}/{CDI_CLASS}", "devices": devices})


def find_mapped(files: Iterable[ClaimFile], directory: str) -> str:
    """Where containers have the directory of the device that has these files; "" where no file says it."""
    for content in (each.content for each in files if each.flushed):
        for mount in (each for device in json.loads(content)["devices"] for each in device["containerEdits"]["mounts"]):
            if mount["hostPath"] == directory:
                return str(mount["containerPath"])
    return ""


def _mount(source: str, target: str, access: str) -> dict[str, Any]:
    return {"hostPath": source, "containerPath": target, "options": [access, "rbind", "nosuid", "nodev", "noexec"]}


def _render_metadata(request: ClaimRequest, devices: Sequence[DeviceOfRequest], driver: str) -> str:
    told = [
        {
            "driver": driver,
            "pool": each.pool,
            "name": each.device,
            "attributes": {
                "vhost-user-path": {"string": each.socket},
                **({} if each.mtu is None else {"mtu": {"int": each.mtu}}),
            },
            "networkData": network_data(each),
        }
        for each in devices
    ]
    body: Mapping[str, Any] = {
        "kind": "DeviceMetadata",
        "metadata": {"name": request.claim, "namespace": request.namespace, "uid": request.uid, "generation": 1},
        **({"podClaimName": request.pod_claim} if request.pod_claim else {}),
        "requests": [{"name": request.name, "devices": told}],
    }
    return "".join(_text({"apiVersion": version, **body}) for version in METADATA_VERSIONS)


def _text(value: Mapping[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":")) + "\n"
