"""The ports of claims' devices that interfaces of networks join: which of them an interface takes, and their driver.

Multus gives a network the ID of a device that a claim of the pod was allocated, and so the interface is that device. The ID
names a bridge, or one of its devices, and not a claim: so what was prepared for the pod decides. Only the kubelet and the
scheduler say which pod has a claim; the ID in a network may be a tenant's, and never leads to another pod's claim.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from userspace_cni.attachment.claim_plan import find_mapped
from userspace_cni.attachment.claims import number_in
from userspace_cni.attachment.drift import Absent, Drift, Other
from userspace_cni.attachment.facts import JoinableDevice
from userspace_cni.attachment.joined_plan import find_differences
from userspace_cni.attachment.steps import Driver, JoinedPort, Steps
from userspace_cni.base.errors import InvalidConfig, StepFailed, Unavailable
from userspace_cni.host.files.device_directories import number_of
from userspace_cni.pod.document import parse_entry

if TYPE_CHECKING:
    from collections.abc import Mapping

    from userspace_cni.attachment.journal import Journal
    from userspace_cni.attachment.records import Record
    from userspace_cni.base.deadline import Deadline
    from userspace_cni.cni.options import Options
    from userspace_cni.cni.request import Environment
    from userspace_cni.switch.ports import PortDriver

_LOOK: Final = (
    "kubectl describe resourceclaim shows for which pod it was reserved and prepared; the agent's setting 'dra' has to be on; "
    "Multus sets 'deviceID' from the resourceName of the NetworkAttachmentDefinition: write none into a network"
)


def find_joinable(
    environment: Environment, options: Options, journal: Journal, boot_id: str, *, plugin_has_devices: bool = False
) -> JoinableDevice | None:
    """The claim's device that `deviceID` means for this interface; None where no claim of the pod has one of that name.

    Of several the first, by name of the claim and number, that no other interface of the container has joined; one that is as
    the network asks comes first. Raises InvalidConfig where all are joined, and Unavailable for one that is not prepared yet.
    `plugin_has_devices`: where all are joined, the ID is that of a device plugin's device, which may be called the same.
    """
    named = [each for each in journal.records() if _is_named(each, options.asked.device_id, environment)]
    if not named:
        return None
    if len({each.pod_uid for each in named}) > 1:
        raise InvalidConfig(
            f"'deviceID' is {options.asked.device_id!r}, and claims of several pods that are called "
            f"{environment.pod_namespace}/{environment.pod_name} have such a device",
            "CNI_ARGS holds no K8S_POD_UID that says which of them this is: see the runtime",
        )
    if late := [each for each in named if each.state != "ready" or each.boot_id != boot_id]:
        raise Unavailable(
            f"the device {options.asked.device_id} of claim {late[0].pod_namespace}/{late[0].network} is not ready",
            "the kubelet prepares it before the pod's sandbox, and the agent makes it again after a reboot: the agent's log",
        )
    devices = [device for each in sorted(named, key=_order) if (device := _device(each))]
    free = [each for each in devices if not _is_taken(each, environment, journal)]
    if not free and plugin_has_devices:
        return None
    if not free:
        raise InvalidConfig(
            f"'deviceID' is {options.asked.device_id!r}, and other interfaces of pod {environment.pod_namespace}/"
            f"{environment.pod_name} have joined all {len(devices)} devices of that name that its claims have",
            "ask for one device per interface: 'count' in the claim's request",
        )
    return next((each for each in free if not any(find_differences(options, each))), free[0])


def require_elsewhere(environment: Environment, options: Options, *, claims_are_served: bool) -> None:
    """Raise InvalidConfig for a `deviceID` that only a claim's device can have, and no claim of the pod has."""
    asked = options.asked.device_id
    if claims_are_served or asked == options.bridge or number_of(options.bridge, asked) is not None:
        raise InvalidConfig(
            f"'deviceID' is {asked!r}, and no claim of pod {environment.pod_namespace}/{environment.pod_name} has a prepared "
            "device of that name on this node",
            _LOOK,
        )


def _is_named(record: Record, device: str, environment: Environment) -> bool:
    """Whether it is a device of that name, of a claim of the call's pod."""
    if record.owner != "claim" or record.state == "deleting" or (record.result or {}).get("device") != device:
        return False
    if record.pod_namespace != environment.pod_namespace or not record.pod_namespace:
        return False
    if environment.pod_uid:
        return record.pod_uid == environment.pod_uid
    return bool(environment.pod_name) and record.pod_name == environment.pod_name


def _order(record: Record) -> tuple[str, int]:
    return record.network, number_in(record.ifname)


def _device(record: Record) -> JoinableDevice | None:
    port, directory = record.port, record.directory
    if port is None or directory is None or not port.server_path:
        return None
    claim = f"{record.pod_namespace}/{record.network}"
    mapped = find_mapped(record.claim_files, directory.path)
    return JoinableDevice(record.container_id, record.ifname, claim, directory, mapped, port, _told(record))


def _told(record: Record) -> Mapping[str, int]:
    """What the application is told of its rings, by the file that the device has for it; a VM's has none."""
    file = record.config_file
    vhost: Mapping[str, int] = parse_entry(file.content)["config"]["vhost"] if file else {}
    return {key: vhost[key] for key in ("queues", "queueSize") if key in vhost}


def _is_taken(device: JoinableDevice, environment: Environment, journal: Journal) -> bool:
    """Whether another interface of the container has joined it. One ADD of a container chooses at a time."""
    shared = journal.read_shared(device.directory.path)
    holders = shared.holders if shared else {}
    mine = f"{environment.container_id}@"
    return any(key.startswith(mine) and Steps(steps).joined for key, steps in holders.items())


class JoinedPortDriver(Driver[JoinedPort]):
    """Looks at ports of claims, and never changes one. What is lost of them is made again for the claim."""

    def __init__(self, journal: Journal, ports: PortDriver) -> None:
        self._journal = journal
        self._ports = ports

    def apply(self, step: JoinedPort, deadline: Deadline) -> None:
        """Raise StepFailed unless the claim has the port still: an unprepare may have begun meanwhile."""
        deadline.require(f"joining port {step.port}")
        if self._record(step) is None:
            raise StepFailed(
                f"port {step.port} of claim {step.claim} cannot be joined: the claim is not prepared any more",
                "the kubelet unprepares a claim when its pod has ended: the agent's log",
            )

    def undo(self, step: JoinedPort, deadline: Deadline) -> None:
        """Leave the port to the claim."""

    def check(self, step: JoinedPort, deadline: Deadline) -> list[Drift]:
        """What differs of the claim's port; that the claim has gone."""
        record = self._record(step)
        if record is None or record.port is None:
            return [Drift(f"port {step.port}", "", f"the port of claim {step.claim}", Absent("no prepared device of the claim"))]
        if record.port.name != step.port or record.port.bridge != step.bridge:
            return [Drift(f"port {step.port}", "", f"the port of claim {step.claim}", Other(f"port {record.port.name}"))]
        return self._ports.check(record.port, deadline)

    def _record(self, step: JoinedPort) -> Record | None:
        """The device's record, if the device is prepared."""
        record = self._journal.read(step.holder, step.device)
        return record if record is not None and record.state == "ready" else None
