"""What a claim's device has on the node beside its port: the directory of its socket, and files that are about it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from userspace_cni.attachment.steps.directories import Directory
from userspace_cni.attachment.steps.step import SharedResource, Step


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
    part of it, for a program may read it before it is made anew.
    """

    kind: ClassVar[str] = "claim-file"
    abridged: ClassVar[tuple[str, ...]] = ("content",)
    directory: str
    name: str
    content: str
    flushed: bool = False

    @property
    def summary(self) -> str:
        return f"{self.directory}/{self.name}"
