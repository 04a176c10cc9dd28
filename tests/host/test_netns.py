"""A sandbox's namespace is distinguished from other files, and inspected while the caller stays in its own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE

import pytest

from tests.host.places import descriptors
from userspace_cni.base.errors import BadEnvironment
from userspace_cni.host.netlink.netns import NetnsFacts, is_own, link_exists, namespace
from userspace_cni.linux import paths

SCRIPT = "ip tuntap add tap0 mode tap && ip link property add dev tap0 altname another && echo ready && exec cat"


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Path]:
    """The namespace of a process, with a link tap0 in it."""
    with subprocess.Popen(["unshare", "-n", "sh", "-c", SCRIPT], stdin=PIPE, stdout=PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == b"ready\n"
        yield Path(f"/proc/{process.pid}/ns/net")


@pytest.fixture
def named(sandbox: Path, room: Path) -> Path:
    """The namespace bind-mounted on a file, as container runtimes and ip-netns(8) do."""
    place = room / "netns"
    place.touch()
    fds = [os.open(sandbox, os.O_RDONLY), os.open(place, os.O_PATH)]
    fds.append(paths.open_tree(fds[0]))
    paths.move_mount(fds[2], fds[1])
    for fd in fds:
        os.close(fd)
    return place


def test_facts(sandbox: Path, named: Path) -> None:
    """Device and inode are the namespace's, by any path to it."""
    facts = sandbox.stat()
    assert namespace(str(sandbox)) == NetnsFacts(facts.st_dev, facts.st_ino)
    assert namespace(str(named)) == namespace(str(sandbox))
    assert namespace("/proc/self/ns/net") != namespace(str(sandbox))


@pytest.mark.parametrize(
    "path", ["", "netns/x", "./x", "/nowhere/netns", "/proc/self/ns/mnt", "/etc/passwd", "/etc", "/dev/null"]
)
def test_no_network_namespace(path: str) -> None:
    """A relative, absent or other path is refused with code 4, naming CNI_NETNS and the path."""
    with pytest.raises(BadEnvironment, match="CNI_NETNS") as caught:
        namespace(path)
    assert caught.value.code == 4
    assert repr(path) in str(caught.value)
    assert "no such file" not in str(caught.value).lower()


def test_fifo_is_not_waited_for(room: Path) -> None:
    """A FIFO at the path is refused at once."""
    os.mkfifo(room / "fifo")
    with pytest.raises(BadEnvironment, match="not a namespace"):
        namespace(str(room / "fifo"))


def test_own(sandbox: Path) -> None:
    """Our own namespace is recognised by any path to it; another one and a missing one are not."""
    assert is_own("/proc/self/ns/net")
    assert is_own(f"/proc/{os.getpid()}/ns/net")
    assert not is_own(str(sandbox))
    assert not is_own("/nowhere/netns")


@pytest.mark.parametrize(
    ("name", "there"), [("lo", True), ("tap0", True), ("another", True), ("tap1", False), ("", False), ("x" * 16, False)]
)
def test_link_exists(named: Path, name: str, there: bool) -> None:
    """A link is found by name or alternative name in its own namespace."""
    assert link_exists(str(named), name) is there


def test_caller_does_not_move(named: Path) -> None:
    """The calling thread stays in its namespace, and no descriptor is left open."""
    before, where = descriptors(), Path("/proc/thread-self/ns/net").stat()
    assert link_exists(str(named), "tap0")
    assert not link_exists("/proc/self/ns/net", "tap0")
    assert os.path.samestat(where, Path("/proc/thread-self/ns/net").stat())
    assert descriptors() <= before


def test_looking_into_no_namespace() -> None:
    """A path that is no namespace is refused with code 4."""
    with pytest.raises(BadEnvironment, match="/etc/passwd"):
        link_exists("/etc/passwd", "lo")
