"""A VM's QEMU as the user of an interface, in its virt-launcher pod, of which everything is known.

What the network says otherwise is refused: such a VM would not start, or would lose its network with OVS's next restart. Names,
path and MAC are those of `pod.launcher`, which the sidecar in the pod derives as well. So nothing has to be told, and QEMU finds
its sockets at the same path in every launcher pod of the VM, on whichever node: the path that a device plugin allocated is not
used, and there is no place to fall back to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from userspace_cni.attachment.facts import Allocation, Place, Pod
from userspace_cni.base.errors import BadEnvironment, DirectoryRefused, InvalidConfig
from userspace_cni.base.root import HostRoot
from userspace_cni.base.settings import Settings
from userspace_cni.cni.options import Access, Role, Warn
from userspace_cni.cni.request import Request, typed
from userspace_cni.consumers import kubelet
from userspace_cni.pod import launcher

_SAID: Final = "with consumer 'kubevirt'"
_DIRECTORY_MODE: Final = 0o755
"""Of QEMU's directory: only QEMU makes sockets in it, and OVS may run as any user."""


class KubevirtConsumer:
    """A Consumer for VMs. It works by the socket's path alone: a note is a convenience for people."""

    default_role: Role = "client"
    reads_note = False
    naming_remedy = "KubeVirt's are pod… or net…"

    def check(self, top: Mapping[str, Any], vhost: Mapping[str, Any], warn: Warn) -> None:
        """Refuse what cannot be for a VM: its socket's name and role are agreed upon with the sidecar in its pod."""
        if typed(vhost, "mode", str, "", path="host.vhost.") not in ("", "client"):
            raise InvalidConfig(
                f"key 'host.vhost.mode' is {vhost['mode']!r} {_SAID}",
                "it can be 'client' or left out: QEMU makes the socket, or a restart of OVS would end the network of every VM",
            )
        if vhost.get("socketfile"):
            raise InvalidConfig(
                f"key 'host.vhost.socketfile' is {vhost['socketfile']!r} {_SAID}",
                "remove it: a VM's sockets are named after its interfaces, so that its sidecar finds them",
            )
        if vhost.get("socketmode"):
            warn(f"key 'host.vhost.socketmode' is ignored {_SAID}: QEMU makes the socket")
        if top.get("sharedDir"):
            warn(f"key 'sharedDir' is ignored {_SAID}: the socket is in the launcher pod's emptyDir '{launcher.VOLUME}'")

    def access(self, access: Access) -> Access:
        """The directory is QEMU's, as far as the network does not give it to another user."""
        mode = _DIRECTORY_MODE if access.directory_mode is None else access.directory_mode
        owner = str(launcher.QEMU_ID)
        return replace(access, user=access.user or owner, group=access.group or owner, directory_mode=mode)

    def find_place(self, pod: Pod, container_id: str, shared_dir: str, settings: Settings, root: HostRoot) -> Place:  # noqa: ARG002
        """The directory of ours in the emptyDir that every launcher pod has, known by the pod's UID.

        Raises BadEnvironment for a pod whose UID is not known, DirectoryRefused for one that is no virt-launcher.
        """
        if not pod.uid:
            raise BadEnvironment(
                "CNI_ARGS holds no K8S_POD_UID, and consumer 'kubevirt' needs the pod's UID",
                "a runtime that does not send it needs a 'kubeconfig' in the network; this network is for virt-launcher pods",
            )
        volume = kubelet.empty_dir(settings, pod.uid, launcher.VOLUME)
        if not root.is_directory(volume):
            raise DirectoryRefused(
                f"the pod's emptyDir '{launcher.VOLUME}' is not at {volume}",
                "every virt-launcher pod has it, and consumer 'kubevirt' is for no other pods; is the setting kubelet_dir right?",
            )
        return Place(f"{volume}/{launcher.DIRECTORY}", trusted=settings.kubelet_dir, create=True, own=True)

    def mapped_dir(self, pod: Pod, settings: Settings) -> str:  # noqa: ARG002
        """Where every launcher pod mounts that volume."""
        return launcher.MAPPED_DIR

    def check_allocation(self, allocation: Allocation) -> None:
        """Refuse a role that would make OVS the server."""
        if allocation.mode != "server":
            remedy = "configure the device plugin for mode 'server', or give the network no resourceName"
            raise InvalidConfig(
                f"the device plugin allocated mode {allocation.mode!r} {_SAID}", f"a VM's QEMU makes the socket: {remedy}"
            )

    def socket_file(self, ifname: str) -> str:
        """Named after the interface."""
        return launcher.socket_file(ifname)

    def derived_mac(self, request: Request, pod: Pod) -> str:
        """The same for the VM's interface in whichever pod it runs."""
        machine = launcher.machine_of_pod(pod.name) or pod.name or pod.uid
        return launcher.derived_mac(pod.namespace, machine, request.environment.ifname)

    def marks(self, pod: Pod) -> Mapping[str, str]:
        """The VM's name."""
        return {"vm-name": launcher.machine_name(pod.name, pod.annotations.get(launcher.DOMAIN, ""))}
