"""The unix sockets of network namespaces with their listeners and connections, and those of a node for `kubevirt doctor`."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.frames.taps import socket_in
from tests.lab.runtimes.runtime import netns
from userspace_cni.cli.node.socket_parties import UnixSockets, look
from userspace_cni.host.files.waiting_application import find_waiting_socket
from userspace_cni.linux.unix_sockets import UnixSocket, file_of, unix_sockets

OWN = "/proc/self/ns/net"


@pytest.fixture(scope="module")
def pod() -> Iterator[str]:
    """A network namespace without processes."""
    with netns() as path:
        yield path


@pytest.fixture
def path(place: Path) -> Path:
    return place / "s"


def listener(netns_path: str, path: Path) -> socket.socket:
    """A listening socket made in this namespace."""
    made = socket_in(netns_path, socket.AF_UNIX)
    made.bind(str(path))
    made.listen(1)
    return made


def listed(path: Path, *namespaces: str) -> list[UnixSocket]:
    """The sockets of these namespaces that have the file at `path`."""
    opened = [os.open(each, os.O_RDONLY | os.O_CLOEXEC) for each in namespaces]
    try:
        found, refused = unix_sockets(opened)
    finally:
        for each in opened:
            os.close(each)
    assert refused == []
    return [each for each in found if (each.inode, each.device) == file_of(path.stat())]


def test_each_end_is_in_a_namespace_of_its_own(pod: str, path: Path) -> None:
    """A listener is listed in its namespace, an accepted socket in the other end's, by its file under any name."""
    own = Path(OWN).stat().st_ino
    with listener(pod, path) as listens:
        moved = path.with_name("t")
        assert [each.listens for each in listed(path, pod)] == [True]
        assert listed(path, OWN) == []
        with socket.socket(socket.AF_UNIX) as connecting:
            connecting.connect(str(path))
            assert listed(path, OWN) == []
            with listens.accept()[0]:
                path.rename(moved)
                assert [(each.listens, each.name) for each in listed(moved, OWN)] == [(False, str(path))]
                assert sorted(each.listens for each in listed(moved, OWN, pod)) == [False, True]
        assert listed(moved, OWN) == []
    assert listed(moved, pod) == []
    assert Path(OWN).stat().st_ino == own


def test_who_waits_for_the_switch(pod: str, path: Path) -> None:
    """An application waits if it listens without a connection, accepted or not; if nothing can be seen, none waits."""

    def waits(netns_path: str = pod) -> bool:
        found = find_waiting_socket(str(path), netns_path, "")
        assert found in (0, path.stat().st_ino)
        return bool(found)

    with listener(pod, path) as listens:
        assert waits()
        assert not waits("/run/netns/none")
        assert not waits("")
        with socket.socket(socket.AF_UNIX) as connecting:
            connecting.connect(str(path))
            assert not waits()
            with listens.accept()[0]:
                assert not waits()
        assert waits()
    assert not waits()
    assert find_waiting_socket(str(path.parent), pod, "") == find_waiting_socket(f"{path}-", pod, "") == 0


def test_what_is_no_namespace_is_an_error() -> None:
    """A descriptor that is no namespace is an error of that one alone."""
    other = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _, refused = unix_sockets([other])
    finally:
        os.close(other)
    assert len(refused) == 1


def process(proc: Path, number: int, name: str, namespace: str) -> None:
    """An entry of proc(5) in a directory."""
    directory = proc / str(number)
    (directory / "ns").mkdir(parents=True)
    (directory / "comm").write_text(f"{name}\n")
    (directory / "ns" / "net").symlink_to(namespace)


def test_a_node_is_seen_whole_with_its_switch_only(pod: str, path: Path, tmp_path: Path) -> None:
    """The parties at a socket are known only if ovs-vswitchd's namespace was inspected, too; a visible connection counts."""
    with listener(pod, path) as listens:
        assert look(tmp_path / "nothing", [pod]).at(path, path.stat()) == ""
        process(tmp_path, 7, "qemu-system-x86", pod)
        assert look(tmp_path, []).at(path, path.stat()) == ""
        process(tmp_path, 8, "ovs-vswitchd", OWN)
        process(tmp_path, 9, "ended", "/proc/0/ns/net")
        assert look(tmp_path, []).at(path, path.stat()) == "listening"
        with socket.socket(socket.AF_UNIX) as connecting:
            connecting.connect(str(path))
            with listens.accept()[0]:
                assert look(tmp_path, []).at(path, path.stat()) == "connected"
        assert look(tmp_path, []).at(path, path.stat()) == "listening"
    assert look(tmp_path, [pod, "/gone"]).at(path, path.stat()) == "none"
    process(tmp_path, 10, "not-ours", "/proc/self/ns/net/no")
    assert look(tmp_path, [pod]).at(path, path.stat()) == "none"
    assert look(tmp_path, [f"{OWN}/no"]).at(path, path.stat()) == ""
    assert look(tmp_path, ["/dev/null"]).at(path, path.stat()) == ""
    assert UnixSockets().at(path, path.stat()) == ""
