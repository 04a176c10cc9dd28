"""A virt-launcher pod: what KubeVirt and Multus made of the VM. Pure."""

from __future__ import annotations

import re
from typing import Any, Final

from kubevirt.lint.reading import DocumentValue
from kubevirt.lint.registration import sidecar_memory
from kubevirt.sidecar_errors import KubevirtError
from kubevirt.taken_sockets import CLUSTER_ROOTS, check_path
from userspace_cni.pod import launcher

_LABEL: Final = "kubevirt.io"
_STATUS: Final = "k8s.v1.cni.cncf.io/network-status"
_INFO: Final = "kubevirt.io/network-info"
_SIDECAR: Final = re.compile(r"hook-sidecar-[0-9]+")
_BINDING: Final = "NETWORK_BINDING_PLUGIN_NAME"
_VHOST_IMAGE: Final = re.compile(r"userspace-cni|kubevirt-sidecar|vhost-?user", re.IGNORECASE)
_OUR_IMAGE: Final = re.compile(r"userspace-cni|kubevirt-sidecar", re.IGNORECASE)


def is_launcher(pod: DocumentValue) -> bool:
    metadata = pod.child("metadata")
    labelled = metadata.child("labels").get(_LABEL) == "virt-launcher"
    return labelled or bool(launcher.machine_of_pod(metadata.text("name")))


def judge_pod(pod: DocumentValue) -> None:
    """Everything of a launcher pod that has to do with vhost-user interfaces."""
    containers = pod.child("spec").items("containers")
    sidecars = [each for each in containers if _SIDECAR.fullmatch(each.text("name"))]
    ours = [each for each in containers if _is_vhost_user(each)]
    _judge_devices(pod)
    if not ours:
        return
    _judge_sidecars(sidecars, ours)
    _judge_claims(pod, ours)
    volumes = pod.child("spec").items("volumes")
    if not any(volume.text("name") == launcher.VOLUME and volume.has("emptyDir") for volume in volumes):
        DocumentValue(None, "spec.volumes", pod.report).find(
            "no-vhost-directory",
            "error",
            f"the pod has no emptyDir '{launcher.VOLUME}', in which the plugin makes the directory of the sockets",
            "this KubeVirt has another layout: give the socket's path by a device plugin, or by annotation userspace/vhostuser",
        )
    compute = next((each for each in containers if each.text("name") == "compute"), None)
    limits = compute.child("resources", "limits").value if compute else None
    if not any(isinstance(name, str) and name.startswith("hugepages-") for name in limits or ()):
        pod.find(
            "no-hugepages",
            "note",
            "the VM has no huge pages",
            "add `memory: {hugepages: {pageSize: 2Mi}}` where nodes have free ones",
        )


def _is_vhost_user(sidecar: DocumentValue) -> bool:
    """By its image, or by the binding whose it is."""
    bindings = [each.text("value") for each in sidecar.items("env") if each.text("name") == _BINDING]
    return bool(_VHOST_IMAGE.search(sidecar.text("image"))) or any("vhost" in binding.lower() for binding in bindings)


def _judge_sidecars(sidecars: list[DocumentValue], ours: list[DocumentValue]) -> None:
    images: dict[str, DocumentValue] = {}
    paths = {each.path for each in ours}
    for each in sidecars:
        if each.path not in paths:
            each.find(
                "lossy-sidecar",
                "warning",
                f"container '{each.text('name')}' is another hook sidecar: most drop a vhost-user socket",
                "leave it out for VMs with vhost-user interfaces, unless its image is known to keep what it does not know",
            )
    for each in ours:
        name, image = each.text("name"), each.text("image")
        limits = each.child("resources", "limits")
        sidecar_memory(limits, limits.amount("memory"))
        other = images.setdefault(image, each)
        if other is not each and not _OUR_IMAGE.search(image):
            each.find(
                "socket-name-collision",
                "error",
                f"containers '{other.text('name')}' and '{name}' are of one image, whose sockets have one name",
                "use one binding for all vhost-user interfaces of the VM",
            )


def _judge_claims(pod: DocumentValue, ours: list[DocumentValue]) -> None:
    claimed = [each.text("name") for each in pod.child("spec").items("resourceClaims")]
    for each in ours if claimed else ():
        if not each.child("resources").items("claims") and not _mounts_claims(each):
            each.find(
                "dra-not-mounted",
                "warning",
                f"the pod has the claims {', '.join(claimed)}, and container '{each.text('name')}' has none of them",
                "use a KubeVirt that gives claims to binding sidecars, or a webhook that mounts /var/run/kubernetes.io/"
                "dra-device-attributes in it",
            )


def _mounts_claims(container: DocumentValue) -> bool:
    return any(each.text("mountPath").startswith("/var/run/kubernetes.io") for each in container.items("volumeMounts"))


def _judge_devices(pod: DocumentValue) -> None:
    """What Multus and KubeVirt say of the interfaces' sockets and MACs."""
    annotations = pod.child("metadata", "annotations")
    told, macs = annotations.json(_INFO), {}
    status = annotations.json(_STATUS)
    for entry in _entries(status.value if status else None):
        name = entry.get("interface")
        macs[name if isinstance(name, str) else ""] = entry.get("mac")
        _judge_device(entry.get("device-info"), DocumentValue(None, annotations.at(_STATUS), pod.report))
    for entry in _entries(told.value.get("interfaces") if told and isinstance(told.value, dict) else None):
        _judge_device(entry.get("deviceInfo"), DocumentValue(None, annotations.at(_INFO), pod.report))
        network, mac = entry.get("network"), entry.get("mac")
        other = macs.get(launcher.interface_name(network)) if isinstance(network, str) and network.isascii() else None
        if isinstance(mac, str) and isinstance(other, str) and mac and other and mac.lower() != other.lower():
            DocumentValue(None, annotations.at(_INFO), pod.report).find(
                "mac-mismatch",
                "error",
                f"network '{network}' has MAC {mac} here, and {other} in {_STATUS}",
                "delete the pod: KubeVirt writes both again",
            )


def _judge_device(device: Any, spot: DocumentValue) -> None:
    if not isinstance(device, dict) or device.get("type") != "vhost-user":
        return
    socket = device.get("vhost-user")
    mode, path = (socket.get("mode"), socket.get("path")) if isinstance(socket, dict) else (None, None)
    if mode == "client":
        spot.find(
            "server-mode",
            "error",
            "device-info says that QEMU is the client: it waits for a socket of the switch, and its network ends with the switch",
            "configure the device plugin, or the network, for mode server",
        )
    try:
        check_path(path if isinstance(path, str) else "", CLUSTER_ROOTS, "device-info")
    except KubevirtError as error:
        spot.find(error.name, "error", error.message, error.remedy)


def _entries(value: Any) -> list[dict[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []
