"""A VM's QEMU as the consumer of an interface, in its virt-launcher pod, whose layout is known.

A network that contradicts that layout is refused: its VM would not start, or would lose its network with OVS's next restart.
Names, path and MAC are those of `pod.launcher`, which the sidecar in the pod derives as well. So no note is needed, and QEMU
finds its sockets at the same path in every launcher pod of the VM, on every node. The path that a device plugin allocated is not
used, and there is no other directory to fall back to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

from userspace_cni.attachment.facts import Allocation, Pod, SocketPlace
from userspace_cni.base.errors import BadEnvironment, DirectoryRefused, InvalidConfig
from userspace_cni.base.root import HostRoot
from userspace_cni.base.settings import Settings
from userspace_cni.cni.json_values import read_typed
from userspace_cni.cni.options import Access, Role, Warn
from userspace_cni.cni.request import Request
from userspace_cni.consumers import pod_volumes
from userspace_cni.pod import claimed, launcher

_WITH_CONSUMER: Final = "with consumer 'kubevirt'"
_DIRECTORY_MODE: Final = 0o755
"""The mode of QEMU's directory: only QEMU makes sockets in it, and OVS may run as any user."""


@dataclass(frozen=True)
class KubevirtConsumer:
    """The consumer in launcher pods. It needs only the socket's path: a note is a convenience for people.

    `claimed`: for a device of a claim, what tells it apart in its pod, and is the same in every pod of the VM; "" for a network,
    whose interface has such a name.
    """

    claimed: str = ""
    default_role: ClassVar[Role] = "client"
    reads_note: ClassVar[bool] = False
    needs_hugepages: ClassVar[bool] = False  # the VM's definition says what its memory is, and `kubevirt lint` looks at that
    naming_remedy: ClassVar[str] = "KubeVirt's are pod… or net…"

    def check(self, top: Mapping[str, Any], vhost: Mapping[str, Any], warn: Warn) -> None:
        """Refuse keys that contradict the sidecar in the VM's pod, which derives the socket's name and role."""
        if read_typed(vhost, "mode", str, "", path="host.vhost.") not in ("", "client"):
            raise InvalidConfig(
                f"key 'host.vhost.mode' is {vhost['mode']!r} {_WITH_CONSUMER}",
                "it can be 'client' or left out: QEMU makes the socket, or a restart of OVS would end the network of every VM",
            )
        if vhost.get("socketfile"):
            raise InvalidConfig(
                f"key 'host.vhost.socketfile' is {vhost['socketfile']!r} {_WITH_CONSUMER}",
                "remove it: a VM's sockets are named after its interfaces, so that its sidecar finds them",
            )
        if vhost.get("socketmode"):
            warn(f"key 'host.vhost.socketmode' is ignored {_WITH_CONSUMER}: QEMU makes the socket")
        if top.get("sharedDir"):
            warn(f"key 'sharedDir' is ignored {_WITH_CONSUMER}: the socket is in the launcher pod's emptyDir '{launcher.VOLUME}'")

    def access(self, access: Access) -> Access:
        """Give the directory to QEMU, unless the network names another user, group or mode."""
        mode = _DIRECTORY_MODE if access.directory_mode is None else access.directory_mode
        owner = str(launcher.QEMU_ID)
        return replace(access, user=access.user or owner, group=access.group or owner, directory_mode=mode)

    def find_place(self, pod: Pod, container_id: str, shared_dir: str, settings: Settings, root: HostRoot) -> SocketPlace:  # noqa: ARG002
        """Our directory in the emptyDir that every launcher pod has, found by the pod's UID.

        Raises BadEnvironment for a pod whose UID is not known, DirectoryRefused for one that is no virt-launcher.
        """
        if not pod.uid:
            raise BadEnvironment(
                "CNI_ARGS holds no K8S_POD_UID, and consumer 'kubevirt' needs the pod's UID",
                "a runtime that does not send it needs a 'kubeconfig' in the network; this network is for virt-launcher pods",
            )
        volume = pod_volumes.empty_dir(settings, pod.uid, launcher.VOLUME)
        if not root.is_directory(volume):
            raise DirectoryRefused(
                f"the pod's emptyDir '{launcher.VOLUME}' is not at {volume}",
                "every virt-launcher pod has it, and consumer 'kubevirt' is for no other pods; is the setting kubelet_dir right?",
            )
        return SocketPlace(f"{volume}/{launcher.DIRECTORY}", trusted=settings.kubelet_dir, create=True, own=True)

    def takes_device(self, pod: Pod, settings: Settings, root: HostRoot) -> bool:  # noqa: ARG002
        """Never: QEMU's directory is in the launcher pod's volume, and a device only says where the VM is scheduled."""
        return False

    def mapped_dir(self, pod: Pod, settings: Settings) -> str:  # noqa: ARG002
        """The directory as every launcher pod mounts it."""
        return launcher.MAPPED_DIR

    def check_allocation(self, allocation: Allocation) -> None:
        """Refuse a role that would make OVS the server."""
        if allocation.mode != "server":
            remedy = "configure the device plugin for mode 'server', or give the network no resourceName"
            raise InvalidConfig(
                f"the device plugin allocated mode {allocation.mode!r} {_WITH_CONSUMER}",
                f"a VM's QEMU makes the socket: {remedy}",
            )

    def socket_file(self, ifname: str) -> str:
        """The name that the sidecar derives too; a device of a claim has a directory of its own."""
        return claimed.SOCKET if self.claimed else launcher.socket_file(ifname)

    def derive_mac(self, request: Request, pod: Pod) -> str:
        """A MAC of the VM and its interface: the same in every pod of the VM."""
        machine = launcher.machine_of_pod(pod.name) or pod.name or pod.uid
        return launcher.derive_mac(pod.namespace, machine, self.claimed or request.environment.ifname)

    def logical_owner(self, pod: Pod) -> tuple[str, str]:
        """The VM: both pods of a migration have one logical port, which OVN gives from one node to the other."""
        return launcher.machine_name(pod.name, pod.annotations.get(launcher.DOMAIN, "")), pod.machine_uid

    def marks(self, pod: Pod) -> Mapping[str, str]:
        return {"vm-name": launcher.machine_name(pod.name, pod.annotations.get(launcher.DOMAIN, ""))}
