"""What is reported of a pod's processes and a socket that was mounted for them; no mount of the pod can falsify it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.host.places import descriptors, listening, soon
from tests.lab.runtimes.containerd_host import shared_mounts
from tests.lab.runtimes.inhabitant import Inhabitant, inhabitant
from tests.lab.runtimes.runtime import netns
from tests.lab.switch.switch import wait_until
from userspace_cni.attachment.drift import Hidden, Unfollowed, Value
from userspace_cni.attachment.steps import PlacedSocket
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import Unavailable
from userspace_cni.base.root import HostRoot
from userspace_cni.host.files.placement import PlacedSocketDriver
from userspace_cni.host.files.pod_view import find_hidden

INSIDE = "/shared/volume"
driver = PlacedSocketDriver()


@pytest.fixture
def sandbox() -> Iterator[str]:
    with netns() as path:
        yield path


@pytest.fixture
def volume(room: Path) -> Iterator[Path]:
    """The pod's directory, on a mount whose later mounts propagate to receivers."""
    with shared_mounts(room):
        path = room / "pods" / "uid"
        path.mkdir(parents=True)
        yield path


@pytest.fixture
def step(volume: Path, shm: Path) -> Iterator[PlacedSocket]:
    """A socket of OVS that was placed across devices."""
    made = PlacedSocket(source=f"{shm}/port", directory=str(volume), trusted=str(volume.parent), name="vhost.sock")
    with listening(shm / "port"):
        driver.apply(made, soon())
        yield made
    driver.undo(made, soon())


@pytest.fixture(autouse=True)
def _nothing_is_left_open() -> Iterator[None]:
    before = descriptors()
    yield
    assert descriptors() <= before


PRIVATE = ("a mount that follows the host's", Unfollowed("a private one"))
COVERED = ("the socket on which OVS listens", Hidden("a regular file in its place"))


def differences(step: PlacedSocket, sandbox: str, root: str = "/") -> list[tuple[Value, Value]]:
    """Expected and found values, one pair per process of the pod."""
    drifts = find_hidden(step, Path(sandbox).stat().st_ino, soon(), HostRoot(root))
    assert all(drift.subject.endswith(" of the pod sees it") for drift in drifts)
    return [(drift.expected, drift.found) for drift in drifts]


def inside(pod: Inhabitant, *argv: str) -> None:
    """Run a command in the mount namespace of the pod, with the machine's programs."""
    subprocess.run(["nsenter", f"--mount=/proc/{pod.pid}/ns/mnt", *argv], check=True)


def test_no_process_is_there(step: PlacedSocket, sandbox: str) -> None:
    """Without a process in the namespace, or without a known namespace, nothing is reported."""
    assert differences(step, sandbox) == []
    assert find_hidden(step, 0, soon()) == []


def test_who_has_not_the_volume(step: PlacedSocket, sandbox: str, room: Path) -> None:
    """The pod's containers without the volume, and host processes in its network, are not reported."""
    other = room / "other"
    other.mkdir()
    with inhabitant(sandbox, other, INSIDE, "rprivate"):
        helper = subprocess.Popen(["nsenter", f"--net={sandbox}", "sleep", "1000"])
        try:
            inode = Path(sandbox).stat().st_ino
            wait_until(lambda: Path(f"/proc/{helper.pid}/ns/net").stat().st_ino == inode, what="the helper in the pod's network")
            assert differences(step, sandbox) == []
        finally:
            helper.kill()
            helper.wait()


def test_a_socket_that_is_no_mount(volume: Path, room: Path, sandbox: str) -> None:
    """On one device OVS's socket is renamed into the directory, and every mount of that shows it: no process is inspected."""
    moved = PlacedSocket(source=f"{room}/port", directory=str(volume), trusted=str(volume.parent), name="vhost.sock")
    with listening(room / "port"), inhabitant(sandbox, volume, INSIDE, "rprivate"):
        driver.apply(moved, soon())
        assert differences(moved, sandbox) == []
    driver.undo(moved, soon())


def test_a_parent_of_the_directory(step: PlacedSocket, volume: Path, sandbox: str) -> None:
    """A container that mounts a directory above, as for `sharedDir`, is inspected in the same way."""
    with inhabitant(sandbox, volume.parent, INSIDE, "rslave"):
        assert differences(step, sandbox) == []
    with inhabitant(sandbox, volume.parent, INSIDE, "rprivate"):
        assert differences(step, sandbox) == [PRIVATE]


def test_a_later_socket(step: PlacedSocket, sandbox: str, volume: Path, shm: Path) -> None:
    """A socket that is placed after the containers started is missing in those with a private mount; each is reported."""
    with (
        inhabitant(sandbox, volume, INSIDE, "rprivate"),
        inhabitant(sandbox, volume, INSIDE, "rprivate"),
        inhabitant(sandbox, volume, INSIDE, "rslave"),
        listening(shm / "port"),
    ):
        driver.apply(step, soon())
        assert differences(step, sandbox) == [COVERED] * 2


def test_a_host_seen_from_elsewhere(step: PlacedSocket, sandbox: str, volume: Path, shm: Path, room: Path) -> None:
    """An agent in a container, with the host's root mounted elsewhere, finds the same."""
    root = room.with_name(f"{room.name}-host")
    (root / "proc").mkdir(parents=True)
    try:
        with shared_mounts(root):
            for seen in (room, shm):
                there = root / seen.relative_to("/")
                there.mkdir(parents=True)
                subprocess.run(["mount", "--rbind", str(seen), str(there)], check=True)
            subprocess.run(["mount", "-t", "proc", "proc", str(root / "proc")], check=True)
            with inhabitant(sandbox, volume, INSIDE, "rslave"):
                assert differences(step, sandbox, str(root)) == []
            with inhabitant(sandbox, volume, INSIDE, "rprivate"), listening(shm / "port"):
                driver.apply(step, soon())
                assert differences(step, sandbox, str(root)) == [COVERED]
    finally:
        wait_until(lambda: not os.path.ismount(root), what=f"the end of the mount {root}")
        subprocess.run(["rm", "-rf", "--one-file-system", str(root)], check=True)


def test_a_volume_that_the_pod_has_covered(step: PlacedSocket, volume: Path, sandbox: str, room: Path) -> None:
    """When a pod has mounted another file system over its volume, nothing is reported, and no link there is followed."""
    fake = room / "fake"
    fake.mkdir()
    with inhabitant(sandbox, volume, INSIDE, "rslave") as pod, listening(fake / "victim"):
        (fake / "vhost.sock").symlink_to(fake / "victim")
        inside(pod, "mount", "--bind", str(fake), f"/proc/{pod.pid}/root{INSIDE}")
        assert differences(step, sandbox) == []
    assert differences(step, sandbox) == []


def test_a_mount_whose_name_is_two_lines(step: PlacedSocket, volume: Path, sandbox: str) -> None:
    """A mount's name with a line break does not stop a command: the kernel escapes only line feeds."""
    with inhabitant(sandbox, volume, INSIDE, "rprivate") as pod:
        point = pod.sees("/a\rb\n c")
        point.mkdir()
        inside(pod, "mount", "-t", "tmpfs", "tmpfs", str(point))
        assert differences(step, sandbox) == [PRIVATE]


def test_a_pod_with_many_mounts(step: PlacedSocket, volume: Path, sandbox: str) -> None:
    """Many mounts of the volume neither multiply the reports of a process nor exceed the caller's deadline."""
    script = 'for i in 1 2 3 4 5; do mkdir "$1$i" && mount --rbind "$1" "$1$i" || exit 1; done'
    with inhabitant(sandbox, volume, INSIDE, "rprivate") as pod:
        inside(pod, "sh", "-c", script, "sh", str(pod.sees(INSIDE)))
        assert differences(step, sandbox) == [PRIVATE]
        with pytest.raises(Unavailable, match="of the pod sees it"):
            find_hidden(step, Path(sandbox).stat().st_ino, Deadline.after(0))
