"""An attachment whose calls are killed, and the two ways in which the rest is cleaned up."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.lab.guests.vm_pods import LauncherPod
from tests.lab.node.inside import Trip, answer, killed_at
from tests.lab.node.node import Node, mounts_below
from tests.lab.switch.switch import FOR_EVER_S
from userspace_cni.attachment import cleanup
from userspace_cni.attachment.reconcile import Reconciliation
from userspace_cni.base.settings import load
from userspace_cni.cni.call import CniAnswer
from userspace_cni.node.local_node import LocalNode

ANOTHER = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
CALLS = 10
"""How many calls of another container, 200 ms each, may be needed to finish what a killed one left."""


def around(*names: str) -> list[str]:
    """Each point, with "before" and "after"."""
    return [f"{when} {name}" for name in names for when in ("before", "after")]


def apart(points: Sequence[str]) -> list[str]:
    """Of points between which nothing happens, the first: what dies after one thing dies before the next one, too.

    `Stillness` looks whether that is so.
    """
    return [
        point
        for number, point in enumerate(points)
        if not (number and point.startswith("before ") and points[number - 1].startswith("after "))
    ]


@dataclass(frozen=True)
class Victim:
    """A pod on a node, in a network that asks for an address, a directory of its own and a device-info file.

    `mode`: OVS's, "client" or "server"; "kubevirt" for a VM's launcher pod; or "veth" for an ordinary pod, whose kernel link has
    limits in both directions and is a source of a mirror.
    """

    node: Node
    netns: str
    mode: str = "client"
    launcher: LauncherPod = field(default_factory=LauncherPod)

    def __post_init__(self) -> None:
        if self.mode == "kubevirt":
            self.launcher.public(self.node)

    @property
    def network(self) -> bytes:
        device_info = {"CNIDeviceInfoFile": f"{self.node.directory}/devinfo/net1"}
        network = self.node.network("1.0.0", ipam=self.node.host_local(), runtimeConfig=device_info)
        if self.mode == "veth":
            del network["host"]["vhost"], network["runtimeConfig"]
            network["host"]["iftype"] = self.mode
            network |= {"bandwidth": {"ingressRate": 8_000_000, "egressRate": 4_000_000}, "mirrors": [{"name": "ids"}]}
        elif self.mode == "kubevirt":
            network["consumer"] = self.mode
        else:
            network["host"]["vhost"]["mode"] = self.mode
        return json.dumps(network).encode()

    @property
    def args(self) -> str:
        """CNI_ARGS; it names a pod only for a VM."""
        return self.launcher.args if self.mode == "kubevirt" else ""

    def variables(self, verb: str) -> dict[str, str]:
        """The environment of a call for it."""
        return self.node.variables(verb, self.netns, CNI_ARGS=self.args)

    def call(self, verb: str, watch: Callable[[str], None] | None = None) -> CniAnswer:
        """Make one call for it, in this process."""
        return answer(self.variables(verb), self.network, watch or Trip())

    def kill(self, verb: str, point: str) -> None:
        """Make one call for it in a process that dies at `point`, which it must reach."""
        assert killed_at(self.variables(verb), self.network, point)

    def leftovers(self) -> dict[str, Any]:
        """What is left, with device-info files."""
        found: dict[str, Any] = dict(self.node.leftovers())
        files = [str(path) for path in self.node.directory.glob("devinfo/*")]
        return found | ({"device info": files} if files else {})

    def delete(self) -> None:
        """Make the runtime's DEL, which must succeed without output and leave nothing."""
        assert self.call("DEL") == CniAnswer(0, b"")
        assert self.leftovers() == {}

    def collect(self) -> None:
        """Send no DEL: a GC whose list lacks the attachment must leave nothing."""
        network = {**self.node.network(), "cni.dev/valid-attachments": []}
        assert answer(self.node.variables("GC"), json.dumps(network).encode(), Trip()) == CniAnswer(0, b"")
        assert self.leftovers() == {}

    def reconcile(self) -> None:
        """Send no DEL: one pass of the agent's reconciliation must leave nothing, for the record says that a call has died."""
        environ = self.node.environ
        node = LocalNode(load(environ), environ)
        try:
            with _with_time():
                Reconciliation(node, lambda _: None, 0).run()
        finally:
            node.switch.close()
        assert self.leftovers() == {}

    def forget(self) -> None:
        """Send no DEL: an ADD of another container and its DELs must leave nothing of either."""
        network = json.dumps(self.node.network()).encode()
        added = answer(self.node.variables("ADD", self.netns, ANOTHER, "net2"), network, Trip())
        assert added.code == 0, added.output
        for _ in range(CALLS):
            with _with_time():
                assert answer(self.node.variables("DEL", self.netns, ANOTHER, "net2"), network, Trip()) == CniAnswer(0, b"")
            if not self.leftovers():
                return
        assert self.leftovers() == {}


@dataclass
class Stillness:
    """Watches a call's points: `broken` lists each "before" point at which files,
    mounts or rows differ from the "after" point passed just before.
    """

    node: Node
    passed: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    _seen: object = None

    def __call__(self, point: str) -> None:
        seen = self._look()
        if point.startswith("before ") and self.passed and self.passed[-1].startswith("after ") and seen != self._seen:
            self.broken.append(point)
        self.passed.append(point)
        self._seen = seen

    def _look(self) -> object:
        assert self.node.switch
        files = {str(path): path.lstat() for path in self.node.directory.rglob("*")}
        facts = {path: (each.st_ino, each.st_mode, each.st_size, each.st_mtime_ns) for path, each in files.items()}
        rows = [
            word for table in ("Bridge", "Port", "Interface") for word in ("--columns=name,external_ids", "list", table, "--")
        ]
        return facts, mounts_below(self.node.directory), self.node.switch.vsctl("--no-wait", *rows[:-1])


@contextmanager
def _with_time() -> Iterator[None]:
    """Finishing for others takes the time that it takes on any machine: what does
    not end within 2 s is left for the next pass or call.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cleanup, "TURN_S", FOR_EVER_S)
        yield
