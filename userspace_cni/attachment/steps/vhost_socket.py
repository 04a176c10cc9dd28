"""The name of a vhost-user socket in the pod's directory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from userspace_cni.attachment.steps.step import SharedResource, Step


class Socket(Step):
    """A vhost-user socket in the pod's directory, whichever side makes it."""

    directory: str
    trusted: str
    name: str

    @property
    def path(self) -> str:
        """The path in the pod's directory, as the host calls it."""
        return f"{self.directory}/{self.name}"

    @property
    def switch_path(self) -> str:
        """Where the switch makes it; "" where the application does."""
        return ""

    @cached_property
    def resource(self) -> SharedResource:
        """A socket path has one owner."""
        return SharedResource(self.directory, f"socket:{self.path}", exclusive=True)

    @property
    def summary(self) -> str:
        """Its path, and the path at which the switch makes it."""
        return self.path + (f", made by OVS as {self.switch_path}" if self.switch_path else "")


@dataclass(frozen=True)
class SocketFile(Socket):
    """The name under which the pod's application will create its socket: free now, and removed with the attachment."""

    kind: ClassVar[str] = "socket-file"
    left_by_application: ClassVar[bool] = True
    directory: str
    trusted: str
    name: str


@dataclass(frozen=True)
class PlacedSocket(Socket):
    """A socket that OVS made (server mode) moved to where the pod sees it.

    `source` is the path at which OVS binds. `user`, `group`, `mode` and `selinux_label` are set on the socket itself.
    """

    kind: ClassVar[str] = "placed-socket"
    from_switch: ClassVar[bool] = True
    source: str
    directory: str
    trusted: str
    name: str
    user: str = ""
    group: str = ""
    mode: int | None = None
    selinux_label: str = ""

    @property
    def switch_path(self) -> str:
        return self.source
