"""What an attachment asks of who uses its interface: a pod's application, a VM's QEMU. It names none of them.

A consumer decides and makes nothing: it may look at the host's directories, and never writes to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from userspace_cni.cni.options import Terms

if TYPE_CHECKING:  # VERSION and refusals need none of it
    from userspace_cni.attachment.facts import Allocation, Place, Pod
    from userspace_cni.base.root import HostRoot
    from userspace_cni.base.settings import Settings
    from userspace_cni.cni.request import Request


class Consumer(Terms, Protocol):
    """Who uses an interface, and what follows from that beside its terms for a network's keys."""

    @property
    def reads_note(self) -> bool:
        """Whether it learns of its interface from a note: then the pod has to be known, and the note or a file be written."""
        ...

    @property
    def naming_remedy(self) -> str:
        """What to do about an interface whose name cannot be part of its socket's."""
        ...

    def find_place(self, pod: Pod, container_id: str, shared_dir: str, settings: Settings, root: HostRoot) -> Place:
        """Where the socket is on the host. `shared_dir`: the network's key `sharedDir`, "" for none.

        Raises BadEnvironment, DirectoryRefused or InvalidConfig when it cannot be there.
        """
        ...

    def mapped_dir(self, pod: Pod, settings: Settings) -> str:
        """What its container calls that directory, with a trailing slash. Raises InvalidConfig for what a note cannot hold."""
        ...

    def check_allocation(self, allocation: Allocation) -> None:
        """Raise InvalidConfig for what a device plugin decided and the consumer cannot have."""
        ...

    def socket_file(self, ifname: str) -> str:
        """The socket's name where both sides derive it, "" where it is told: by a device plugin, the network, or else the port's.

        A derived name goes with `mapped_dir`: the path that a device plugin allocated is not used.
        """
        ...

    def derived_mac(self, request: Request, pod: Pod) -> str:
        """A locally administered unicast MAC for an interface that is given none: for the same attachment always the same."""
        ...

    def marks(self, pod: Pod) -> Mapping[str, str]:
        """What the port is marked with beside its attachment and its pod."""
        ...
