"""The name of a vhost-user socket in the pod's directory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from userspace_cni.attachment.steps.step import Resource, Step


@dataclass(frozen=True)
class SocketFile(Step):
    """The name under which the pod's application will create its socket: free now, and removed with the attachment."""

    kind: ClassVar[str] = "socket-file"
    directory: str
    trusted: str
    name: str

    @property
    def resource(self) -> Resource:
        """A socket path has one owner."""
        return Resource(self.directory, f"socket:{self.directory}/{self.name}", exclusive=True)


@dataclass(frozen=True)
class PlacedSocket(Step):
    """A socket that OVS made (server mode) moved to where the pod sees it.

    `source` is the path at which OVS binds. `user`, `group`, `mode` and `selinux_label` are set on the socket itself.
    """

    kind: ClassVar[str] = "placed-socket"
    after_rest: ClassVar[bool] = True
    source: str
    directory: str
    trusted: str
    name: str
    user: str = ""
    group: str = ""
    mode: int | None = None
    selinux_label: str = ""

    @property
    def resource(self) -> Resource:
        """A socket path has one owner."""
        return Resource(self.directory, f"socket:{self.directory}/{self.name}", exclusive=True)
