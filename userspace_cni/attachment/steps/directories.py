"""The directory in which a vhost-user socket appears, and how OVS is shown it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from userspace_cni.attachment.steps.step import SharedResource, Step


@dataclass(frozen=True)
class Directory(Step):
    """The host directory in which the vhost-user socket appears and which the pod mounts.

    `trusted` is the prefix of `path` that no pod can write; what is below it is opened without following links.
    `create`: make it when missing (and then remove it with its last holder); we never make an emptyDir or hostPath.
    `parents`: also make missing directories between `trusted` and `path`; none between the kubelet's root and an emptyDir.
    Owner, mode and label are set on a directory that we made; with `own`, for a name that only we use, also on an existing one.
    """

    kind: ClassVar[str] = "directory"
    holds_others: ClassVar[bool] = True
    path: str
    trusted: str
    create: bool = False
    own: bool = False
    user: str = ""
    group: str = ""
    mode: int | None = None
    selinux_label: str = ""
    parents: bool = False

    @cached_property
    def resource(self) -> SharedResource:
        """One directory for all attachments whose sockets are in it."""
        return SharedResource(self.path, f"directory:{self.path}")

    @property
    def makes_place(self) -> bool:
        """Whether we make the directory; an emptyDir or hostPath exists before."""
        return self.create

    @property
    def summary(self) -> str:
        return self.path + (", made when missing" if self.create else ", the pod's own")


@dataclass(frozen=True)
class PodMount(Step):
    """A nosymfollow mount of ours that shows the pod's directory: OVS sees the directory only through it."""

    kind: ClassVar[str] = "pod-mount"
    source: str
    trusted: str
    target: str

    @cached_property
    def resource(self) -> SharedResource:
        """One mount for all attachments whose sockets are in the same directory."""
        return SharedResource(self.source, f"mount:{self.target}")

    @property
    def summary(self) -> str:
        return f"{self.target} shows {self.source}"
