"""After a kill between any two system calls, a second apply finishes the work and undo removes it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.host.places import UNUSED_ID, in_child, listening, soon, tree
from tests.lab.node.node import mounts_below
from userspace_cni.attachment.steps import ConfigFile, DeviceInfo, Directory, Driver, PlacedSocket, PodMount, Step
from userspace_cni.host.files.device_directories import DeviceDirectories
from userspace_cni.host.files.device_info import DeviceInfoDriver
from userspace_cni.host.files.mounts import PodMountDriver
from userspace_cni.host.files.placement import PlacedSocketDriver
from userspace_cni.host.files.vhost_sockets import DirectoryDriver
from userspace_cni.host.files.whole_files import ConfigFileDriver
from userspace_cni.linux import paths


@dataclass(frozen=True)
class Case:
    """A step, its driver, and the directory in which undo has to leave nothing."""

    driver: Driver[Any]
    step: Step
    clean: Path


CALLS: dict[str, list[tuple[ModuleType, str]]] = {
    "directory": [(os, "mkdir"), (os, "fchmod"), (os, "chown"), (os, "rmdir")],
    "mount": [
        (os, "mkdir"),
        (paths, "open_tree"),
        (paths, "mount_setattr"),
        (paths, "move_mount"),
        (paths, "umount2"),
        (os, "rmdir"),
    ],
    "placed": [(os, "chown"), (os, "rename"), (os, "unlink")],
    "placed across devices": [
        (os, "chown"),
        (os, "rename"),
        (paths, "open_tree"),
        (paths, "move_mount"),
        (os, "unlink"),
        (paths, "umount2"),
    ],
    "config file": [(os, "fchmod"), (os, "rename"), (os, "unlink")],
    "device info": [(os, "mkdir"), (os, "fchmod"), (os, "rename"), (os, "unlink")],
}
POINTS = [
    pytest.param(kind, module, call, after, id=f"{kind}, {'after' if after else 'before'} {call}")
    for kind, calls in CALLS.items()
    for module, call in calls
    for after in (False, True)
]


@pytest.fixture
def case(room: Path, shm: Path, kind: str) -> Iterator[Case]:
    pod, trusted = room / "pods" / "uid", f"{room}/pods"
    pod.mkdir(parents=True)
    if kind == "directory":
        step = Directory(f"{pod}/made", trusted, create=True, own=True, user=str(UNUSED_ID), mode=0o700)
        yield Case(DirectoryDriver(), step, pod)
    elif kind == "mount":
        (room / "short").mkdir(mode=0o750)
        yield Case(PodMountDriver("/nowhere"), PodMount(str(pod), trusted, f"{room}/short/uid"), room / "short")
    elif kind == "config file":
        yield Case(ConfigFileDriver(), ConfigFile(str(pod), trusted, "facts.json", "{}"), pod)
    elif kind == "device info":
        (room / "devinfo").mkdir()
        yield Case(
            DeviceInfoDriver(),
            DeviceInfo(f"{room}/devinfo/net1.json", f"{room}/devinfo", '{"type": "vhost-user"}'),
            room / "devinfo",
        )
    else:
        source = (room if kind == "placed" else shm) / "source"
        step_ = PlacedSocket(str(source), str(pod), trusted, "sock", user=str(UNUSED_ID))
        with listening(source):
            yield Case(PlacedSocketDriver(), step_, pod)


def killed_at(module: ModuleType, call: str, after: bool, work: Callable[[], object]) -> None:
    """Do `work` in a child that is killed just before or after its first `call`, if it makes one."""

    def patched() -> None:
        real = getattr(module, call)

        def deadly(*args: object, **kwargs: object) -> None:
            if after:
                real(*args, **kwargs)
            os.kill(os.getpid(), signal.SIGKILL)

        setattr(module, call, deadly)
        work()

    status = in_child(patched)
    assert status in {0, signal.SIGKILL}, f"the child failed before it came to {call}"


@pytest.mark.parametrize(("kind", "module", "call", "after"), POINTS)
def test_undone_after_apply_was_killed(case: Case, module: ModuleType, call: str, after: bool) -> None:
    """`undo` removes everything that a killed `apply` left."""
    killed_at(module, call, after, lambda: case.driver.apply(case.step, soon()))
    case.driver.undo(case.step, soon())
    assert tree(case.clean) == set()


@pytest.mark.parametrize(("kind", "module", "call", "after"), POINTS)
def test_applied_after_apply_was_killed(case: Case, module: ModuleType, call: str, after: bool) -> None:
    """A second `apply` finishes what a killed one left, and `check` finds no drift."""
    killed_at(module, call, after, lambda: case.driver.apply(case.step, soon()))
    case.driver.apply(case.step, soon())
    assert case.driver.check(case.step, soon()) == []
    case.driver.undo(case.step, soon())
    assert tree(case.clean) == set()


@pytest.mark.parametrize(("kind", "module", "call", "after"), POINTS)
def test_undone_after_undo_was_killed(case: Case, module: ModuleType, call: str, after: bool) -> None:
    """A second `undo` removes everything that a killed one left."""
    case.driver.apply(case.step, soon())
    killed_at(module, call, after, lambda: case.driver.undo(case.step, soon()))
    case.driver.undo(case.step, soon())
    assert tree(case.clean) == set()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("module", "call"), [(os, "mkdir"), (os, "chmod"), (paths, "umount2"), (paths, "mount_tmpfs")])
def test_an_allocation_was_killed(room: Path, module: ModuleType, call: str, after: bool) -> None:
    """After a kill during a device's first or a later allocation, the next pod gets an empty directory of its own."""
    directories = DeviceDirectories(f"{room}/run")
    for _ in ("the first allocation", "a later one"):
        killed_at(module, call, after, lambda: directories.renew("br0-1"))
        given = directories.renew("br0-1")
        assert directories.present("br0-1") == given
        assert mounts_below(room) == [given.path]
        assert list(Path(given.path).iterdir()) == []
        Path(given.path, "of the former pod").touch()
