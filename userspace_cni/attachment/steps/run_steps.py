"""What a command makes for a while, beside ports: a directory for its sockets, names of others' sockets, flows of its ports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from userspace_cni.attachment.steps.step import Step
from userspace_cni.base.stages import Stage


@dataclass(frozen=True)
class SocketDirectory(Step):
    """A directory of ours below `short_dir`, where no pod can write; the group of `ovs_rundir` connects to its sockets."""

    kind: ClassVar[str] = "socket-directory"
    path: str
    short_dir: str
    ovs_rundir: str

    @property
    def thing(self) -> str:
        return self.path

    @property
    def summary(self) -> str:
        return f"directory {self.path}"


@dataclass(frozen=True)
class BorrowedName(Step):
    """The name of a pod's socket at which a process of ours listens for a moment, in the place of the pod's application.

    The process makes the socket and removes it. One that was killed leaves it dead: then the application finds the name taken.
    """

    kind: ClassVar[str] = "borrowed-name"
    directory: str
    trusted: str
    name: str

    @property
    def thing(self) -> str:
        return f"{self.directory}/{self.name}"

    @property
    def summary(self) -> str:
        return self.thing


@dataclass(frozen=True)
class PortFlow(Step):
    """A flow that leads every frame from the port `source` to the port `target` of its bridge, "" for back to itself.

    A flow must not outlive its port: another one may get its number. `own_bridge`: the bridge goes with the run, with its flows.
    `source` "": all of the run's flows on the bridge, which are only undone; `cookie` is then that of its port 0.
    """

    kind: ClassVar[str] = "port-flow"
    stage: ClassVar[Stage] = "ovs"
    from_switch: ClassVar[bool] = True
    keeps_earlier: ClassVar[bool] = True
    bridge: str
    source: str
    target: str
    cookie: int
    own_bridge: bool = False

    @property
    def thing(self) -> str:
        return self.source or self.bridge

    @property
    def summary(self) -> str:
        return f"flow from {self.source} to {self.target or 'itself'}" if self.source else f"flows on bridge {self.bridge}"
