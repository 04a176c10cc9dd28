"""The directory in which a vhost-user socket appears, and how OVS is shown it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from userspace_cni.attachment.steps.step import Resource, Step


@dataclass(frozen=True)
class Directory(Step):
    """The host directory in which the vhost-user socket appears and which the pod mounts.

    `trusted` is the prefix of `path` that no pod can write; what is below it is opened without following links.
    `create`: make it when missing (and then remove it with its last holder); an emptyDir or hostPath is never ours to make.
    `parents`: make what is missing between `trusted` and it, too; what is between an emptyDir and the kubelet's root is not ours.
    Owner, mode and label are set on what we made; with `own` also on what was there, where only we have a use for that name.
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

    @property
    def resource(self) -> Resource:
        """One directory, however many attachments have sockets in it."""
        return Resource(self.path, f"directory:{self.path}")

    @property
    def makes_place(self) -> bool:
        """An emptyDir or hostPath is there before."""
        return self.create

    @property
    def summary(self) -> str:
        """Its path, and whose it is."""
        return self.path + (", made when missing" if self.create else ", the pod's own")


@dataclass(frozen=True)
class PodMount(Step):
    """The pod's directory seen through a nosymfollow mount of ours: the only way in which OVS is given it."""

    kind: ClassVar[str] = "pod-mount"
    source: str
    trusted: str
    target: str

    @property
    def resource(self) -> Resource:
        """One mount for all attachments whose sockets are in the same directory."""
        return Resource(self.source, f"mount:{self.target}")

    @property
    def summary(self) -> str:
        """Where it is, and of what."""
        return f"{self.target} shows {self.source}"
