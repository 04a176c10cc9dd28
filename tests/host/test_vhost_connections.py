"""The connections to a socket, from the kernel: accepted or not, under any name, from this network namespace."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.lab.frames.taps import entered, socket_in
from tests.lab.runtimes.runtime import netns
from userspace_cni.linux import unix_sockets
from userspace_cni.linux.unix_sockets import connections_here


@pytest.fixture(scope="module")
def pod() -> Iterator[str]:
    """A network namespace without any other connection."""
    with netns() as path:
        yield path


@pytest.fixture
def listener(place: Path) -> Iterator[socket.socket]:
    """A listener in another namespace at `s`, like the switch."""
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(place / "s"))
        made.listen(500)
        yield made


def connected(pod: str, path: Path) -> socket.socket:
    made = socket_in(pod, socket.AF_UNIX)
    made.connect(str(path))
    return made


def seen(pod: str, path: Path) -> int:
    return entered(pod, lambda: connections_here(str(path)))


def test_accepted_or_not(pod: str, place: Path, listener: socket.socket) -> None:
    """A connection counts from connect until this end has gone, whether the listener has noticed or not."""
    path = place / "s"
    assert seen(pod, path) == 0
    with connected(pod, path):
        assert seen(pod, path) == 1
        with listener.accept()[0]:
            assert seen(pod, path) == 1
            with connected(pod, path):
                assert seen(pod, path) == 2
            assert seen(pod, path) == 1
    assert seen(pod, path) == 0
    with listener.accept()[0]:
        assert seen(pod, path) == 0


def test_a_socket_of_another_name(pod: str, place: Path, listener: socket.socket) -> None:
    """An accepted connection belongs to its socket file, under any name, and not to another file of that name."""
    with connected(pod, place / "s"), listener.accept()[0]:
        (place / "pod").mkdir()
        (place / "s").rename(place / "pod" / "other")
        (place / "link").symlink_to("pod/other")
        for path in ("pod/other", "link"):
            assert seen(pod, place / path) == 1
        with socket.socket(socket.AF_UNIX) as namesake:
            namesake.bind(str(place / "s"))
            namesake.listen()
            assert seen(pod, place / "s") == 0


def test_another_namespace(pod: str, place: Path, listener: socket.socket) -> None:
    """A connection from this namespace is not seen from another one."""
    with connected(pod, place / "s"), listener.accept()[0]:
        assert connections_here(str(place / "s")) == 0
        with netns() as other:
            assert seen(other, place / "s") == 0


@pytest.mark.parametrize("path", ["", "/nowhere/s", "/dev/null", "/tmp", "a\0b"])
def test_where_no_socket_is(path: str) -> None:
    """A path without a socket has no connections."""
    assert connections_here(path) == 0


def test_many_connections(pod: str, place: Path, listener: socket.socket) -> None:
    """An answer of the kernel in many parts is read to its end."""
    with ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(connected(pod, place / "s"))
        for _ in range(200):
            stack.enter_context(listener.accept()[0])
        assert seen(pod, place / "s") == 300
    assert seen(pod, place / "s") == 0


def test_a_kernel_that_can_not_be_asked(pod: str, place: Path, listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without sock_diag the list of names is used."""
    monkeypatch.setattr(unix_sockets, "_BY_FAMILY", 4711)
    with connected(pod, place / "s"), connected(pod, place / "s"), listener.accept()[0]:
        assert seen(pod, place / "s") == 2
