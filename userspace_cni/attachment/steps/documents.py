"""The documents that are written for the runtime and the application."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from userspace_cni.attachment.steps.step import SharedResource, Step


@dataclass(frozen=True)
class DeviceInfo(Step):
    """The device-info file (device-info-spec 1.1.0) that the runtime asked for.

    `content` is the whole JSON text. `existed`: a device plugin had put a file there, so we must not remove it, and `before` is
    the JSON text of what it said of the socket. `trusted` is the setting `device_info_dir` at ADD, below which `path` is.
    """

    kind: ClassVar[str] = "device-info"
    path: str
    trusted: str
    content: str
    existed: bool = False
    before: str = ""

    @property
    def summary(self) -> str:
        return self.path


@dataclass(frozen=True)
class ConfigFile(Step):
    """The file in the pod's directory that describes the interface to the application, where no API server is used."""

    kind: ClassVar[str] = "config-file"
    directory: str
    trusted: str
    name: str
    content: str

    @cached_property
    def resource(self) -> SharedResource:
        """A file with one owner: two containers whose IDs begin alike share a directory, and must not share the file."""
        return SharedResource(self.directory, f"file:{self.directory}/{self.name}", exclusive=True)

    @property
    def summary(self) -> str:
        return f"{self.directory}/{self.name}"


@dataclass(frozen=True)
class PodNote(Step):
    """This attachment's entry in the pod's annotations.

    `entry` is the JSON text of one element of userspace/configuration-data, `mapped_dir` the value of userspace/mapped-dir.
    `kubeconfig`: path of the network's credentials, "" for our own. `optional`: the attachment is usable without the note.
    """

    kind: ClassVar[str] = "pod-note"
    namespace: str
    pod: str
    uid: str
    container_id: str
    ifname: str
    entry: str
    mapped_dir: str
    kubeconfig: str = ""
    optional: bool = False

    @property
    def summary(self) -> str:
        return f"annotations of {self.namespace}/{self.pod}" + (", may fail" if self.optional else "")
