"""What an attachment asks of the consumer of its interface: a pod's application, a VM's QEMU. This module names none of them.

A consumer decides and makes nothing: it may read the host's directories, and must never write to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from userspace_cni.cni.options import ConsumerRules

if TYPE_CHECKING:  # VERSION and refusals need none of it
    from userspace_cni.attachment.facts import Allocation, Pod, SocketPlace
    from userspace_cni.base.root import HostRoot
    from userspace_cni.base.settings import Settings
    from userspace_cni.cni.request import Request


class Consumer(ConsumerRules, Protocol):
    """The user of an interface: its terms for a network's keys, and what else follows from its kind."""

    @property
    def reads_note(self) -> bool:
        """Whether the consumer learns of its interface from a note: then the pod must be known, and a note or file is written."""
        ...

    @property
    def needs_hugepages(self) -> bool:
        """Whether the containers of the pod usually need hugepages, so that the pod is told when its spec has none."""
        ...

    @property
    def naming_remedy(self) -> str:
        """What to do about an interface whose name cannot be part of its socket's."""
        ...

    def find_place(self, pod: Pod, container_id: str, shared_dir: str, settings: Settings, root: HostRoot) -> SocketPlace:
        """Where the socket is on the host. `shared_dir`: the network's key `sharedDir`, "" for none.

        Raises BadEnvironment, DirectoryRefused or InvalidConfig when there is no place for it.
        """
        ...

    def takes_device(self, pod: Pod, settings: Settings, root: HostRoot) -> bool:
        """Whether a device's directory is the place of its socket where the pod has one: the pod brings no directory itself."""
        ...

    def mapped_dir(self, pod: Pod, settings: Settings) -> str:
        """That directory's path in the container, with a trailing slash. Raises InvalidConfig for a path unfit for a note."""
        ...

    def check_allocation(self, allocation: Allocation) -> None:
        """Raise InvalidConfig for an allocation of a device plugin that the consumer cannot use."""
        ...

    def socket_file(self, ifname: str) -> str:
        """The socket's name where both sides derive it; "" where a device plugin or the network gives it, or it is the port's.

        A derived name is in `mapped_dir`: the path that a device plugin allocated is not used.
        """
        ...

    def derive_mac(self, request: Request, pod: Pod) -> str:
        """A locally administered unicast MAC for an interface without a given one: always the same for the same attachment."""
        ...

    def logical_owner(self, pod: Pod) -> tuple[str, str]:
        """Name and UID after which OVN's logical port of the interface is called, "" for what is not known: the pod's, or a VM's,
        which stays the same where the VM migrates."""
        ...

    def marks(self, pod: Pod) -> Mapping[str, str]:
        """The port's marks beside those of its attachment and its pod."""
        ...
