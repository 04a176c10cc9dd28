"""What a claim's device has on the node beside its port: the directory of its socket, files that are about it, and the interface
of a network that has joined it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

from userspace_cni.attachment.steps.directories import Directory
from userspace_cni.attachment.steps.port import PortRef
from userspace_cni.attachment.steps.step import SharedResource, Step
from userspace_cni.base.limits import UNLIMITED, Limits
from userspace_cni.base.stages import Stage
from userspace_cni.base.vlans import Vlan


@dataclass(frozen=True)
class ClaimDirectory(Directory):
    """The directory in which the socket of one device of a claim appears: a small file system in memory, for that device alone.

    Its name is the claim's UID and a number, so no other claim ever has it. It is ours: owner, mode and label are as asked for,
    else open to all users of the container.
    """

    kind: ClassVar[str] = "claim-directory"
    create: bool = True

    @cached_property
    def resource(self) -> SharedResource:
        """One directory for one device: what is found there after a crash is removed as if this attachment had made it."""
        return SharedResource(self.path, f"directory:{self.path}", exclusive=True)

    @property
    def summary(self) -> str:
        return f"{self.path}, of this claim alone"


@dataclass(frozen=True)
class ClaimFile(Step):
    """A file about a device of a claim, in a directory that root alone can write: for the runtime, or for the container.

    Its name is the claim's alone. The directory is made when it is missing, and stays. `flushed`: a power cut must not leave a
    part of it, for a program may read it before it is made anew. A pod does not wait for the end of a file that cannot be removed
    now: no other claim has its name, and a runtime is not asked for the device of a claim that has ended.
    """

    kind: ClassVar[str] = "claim-file"
    postponable: ClassVar[bool] = True
    abridged: ClassVar[tuple[str, ...]] = ("content",)
    directory: str
    name: str
    content: str
    flushed: bool = False

    @property
    def summary(self) -> str:
        return f"{self.directory}/{self.name}"


@dataclass(frozen=True)
class JoinedPort(Step):
    """The port of a claim's device, which is the interface of a pod's network, too.

    The attachment holds it, and neither makes nor removes it: it stays as long as its claim. `holder`: the container ID in the
    device's record, `device`: the interface name there; `claim`: the claim's namespace and name. `directory`: that of the socket,
    which containers have at `mapped`. `server_path`: the socket as OVS has it. The rest is what the claim's port has, for people.
    """

    kind: ClassVar[str] = "joined-port"
    stage: ClassVar[Stage] = "ovs"
    holder: str
    device: str
    claim: str
    directory: str
    mapped: str
    port: str
    bridge: str
    server_path: str
    mac: str = ""
    vlan: Vlan = field(default_factory=Vlan)
    mtu: int | None = None
    limits: Limits = UNLIMITED

    @cached_property
    def resource(self) -> SharedResource:
        """A vhost-user socket has one peer: one interface joins the port."""
        return SharedResource(self.directory, f"joined:{self.holder}@{self.device}", exclusive=True, lent=True)

    @property
    def thing(self) -> str:
        return self.port

    @property
    def socket_name(self) -> str:
        return self.server_path.rpartition("/")[2]

    @property
    def shown(self) -> PortRef:
        """The port, for who shows it. It has the marks of the claim."""
        return PortRef(self.port, self.bridge)

    @property
    def reported(self) -> Mapping[str, Any]:
        return {"bridge": self.bridge}

    @property
    def summary(self) -> str:
        return f"{self.port} on bridge {self.bridge}, of claim {self.claim}"
