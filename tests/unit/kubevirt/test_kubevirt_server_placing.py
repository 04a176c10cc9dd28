"""How the socket gets to its place: it is served first, has a unique name, and only our own files are removed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from kubevirt.kubevirt_traps import TRAPS
from kubevirt.placing import SidecarSocket, socket_file
from kubevirt.sidecar_errors import DefinitionRefused
from tests.lab.guests.hooks import START_S, HookManager, Sidecar, dialled, vmi
from tests.lab.switch.switch import wait_until
from userspace_cni.pod.socket_path import SUN_PATH_MAX

KILLED = """
import os, socket, sys
from pathlib import Path
from kubevirt.placing import SidecarSocket
placed = SidecarSocket(Path(sys.argv[1]))
placed.prepare()
if sys.argv[2] != "prepared":
    socket.socket(socket.AF_UNIX).bind(str(placed.address))
if sys.argv[2] == "placed":
    placed.publish()
os._exit(0)
"""
"""A process that ends amid placing a socket."""


@pytest.fixture
def volume() -> Iterator[Path]:
    """A directory with a short path."""
    with TemporaryDirectory(prefix="uk-") as directory:
        yield Path(directory)


def bound(path: Path) -> socket.socket:
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen()
    return server


def served(path: Path) -> tuple[SidecarSocket, socket.socket]:
    placed = SidecarSocket(path)
    placed.prepare()
    server = bound(placed.address)
    placed.publish()
    return placed, server


def test_names_tell_sidecars_apart() -> None:
    """A socket's name has the names of binding and container, as far as a file name can hold them."""
    assert socket_file("vhostuser", "hook-sidecar-0") == "vhostuser-hook-sidecar-0.sock"
    assert socket_file("a/b c", "hook-sidecar-1") == "a_b_c-hook-sidecar-1.sock"


def test_placing(volume: Path) -> None:
    """Only a directory is visible until the socket is served. Then only the socket is visible, and at the end nothing."""
    path = volume / "x.sock"
    placed = SidecarSocket(path)
    placed.prepare()
    assert all(entry.is_dir() for entry in volume.iterdir())
    with bound(placed.address), socket.socket(socket.AF_UNIX) as peer:
        placed.publish()
        assert list(volume.iterdir()) == [path]
        peer.connect(str(path))
        placed.withdraw()
        placed.withdraw()
        assert list(volume.iterdir()) == []


@pytest.mark.parametrize("until", ["prepared", "bound", "placed"])
def test_what_a_killed_process_left(volume: Path, until: str) -> None:
    """Everything that an earlier process of the same name left, wherever it ended, is replaced."""
    path = volume / "x.sock"
    SidecarSocket(path).withdraw()
    subprocess.run([sys.executable, "-c", KILLED, str(path), until], check=True, timeout=60)
    assert len(list(volume.iterdir())) == 1
    placed, server = served(path)
    with server, socket.socket(socket.AF_UNIX) as peer:
        peer.connect(str(path))
        assert list(volume.iterdir()) == [path]
        placed.withdraw()
    assert list(volume.iterdir()) == []


@pytest.mark.parametrize("other", ["socket", "file", "link", "directory"])
def test_another_ones_is_not_removed(volume: Path, other: str) -> None:
    """A file that another process put in our place meanwhile stays."""
    path = volume / "x.sock"
    placed, server = served(path)
    path.unlink()
    with server:
        if other == "socket":
            bound(path).close()
        elif other == "file":
            path.write_text("")
        elif other == "link":
            path.symlink_to("elsewhere")
        else:
            path.mkdir()
        placed.withdraw()
    assert os.path.lexists(path)


def test_two_that_start_at_once(volume: Path) -> None:
    """Neither of two sidecars removes the other's socket: the last one is visible and answers, the other ends quietly."""
    path = volume / "x.sock"
    first, second = SidecarSocket(path), SidecarSocket(path)
    first.prepare()
    with bound(first.address):
        second.prepare()
        with bound(second.address) as server, socket.socket(socket.AF_UNIX) as peer:
            first.publish()
            second.publish()
            first.withdraw()
            assert list(volume.iterdir()) == [path]
            peer.connect(str(path))
            server.accept()[0].close()
            second.withdraw()
    assert list(volume.iterdir()) == []


def test_sidecars_of_one_name_at_once(volume: Path) -> None:
    """Sidecars that start at the same time under one name all serve, and the visible socket answers."""
    sidecars = [Sidecar(volume) for _ in range(4)]
    with ExitStack() as started:
        for sidecar in sidecars:
            started.enter_context(sidecar.start(wait=False))
        wait_until(lambda: all("msg=serving" in sidecar.log for sidecar in sidecars), START_S, "all to serve")
        assert HookManager(volume).collect().callbacks[0].path == sidecars[0].socket
        assert list(sidecars[0].hooks.iterdir()) == [sidecars[0].socket]
        assert [sidecar.end() for sidecar in sidecars] == [0] * len(sidecars)
        assert list(sidecars[0].hooks.iterdir()) == []


def test_what_stands_in_the_way(volume: Path) -> None:
    """A directory with our name is not removed, and the message has path, user and remedy. Files of others stay."""
    path = volume / "x.sock"
    subprocess.run([sys.executable, "-c", KILLED, str(path), "prepared"], check=True, timeout=60)
    (left,) = volume.iterdir()
    (left / "theirs").write_text("")
    path.mkdir()
    placed = SidecarSocket(path)
    placed.prepare()
    with (
        bound(placed.address),
        pytest.raises(DefinitionRefused, match=r"x\.sock: .* \(as uid \d+, gid \d+\) \(no-hook-directory\); "),
    ):
        placed.publish()
    placed.withdraw()
    assert {entry.name for entry in volume.iterdir()} == {left.name, path.name}
    assert (left / "theirs").exists()


@pytest.mark.parametrize(("over", "fits"), [(0, True), (1, False)])
@pytest.mark.parametrize("whose", ["path", "seen"])
def test_length_of_a_path(volume: Path, over: int, fits: bool, whose: str) -> None:
    """A path of 107 bytes is served. One of 108 is refused, also when only virt-launcher's path to it is that long."""
    path = volume / ("ü" + "x" * (SUN_PATH_MAX + over - len(os.fsencode(volume)) - len("/ü.sock".encode())) + ".sock")
    assert len(os.fsencode(path)) == SUN_PATH_MAX + over
    placed = SidecarSocket(path) if whose == "path" else SidecarSocket(volume / "x.sock", seen=path)
    if fits:
        placed.prepare()
        with bound(placed.address):
            placed.publish()
    else:
        with pytest.raises(DefinitionRefused, match=r"108 bytes where 107 are possible \(path-too-long\)"):
            placed.prepare()
        assert list(volume.iterdir()) == []
    assert {"path-too-long", "no-hook-directory"} <= TRAPS.keys()


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({}, "there is nowhere to serve: no directory /var/run/kubevirt-hooks"),
        ({"USERSPACE_CNI_KUBEVIRT_PLUGIN_SOCKET": "/nonexistent/x.sock"}, "nor /nonexistent"),
        ({"USERSPACE_CNI_KUBEVIRT_HOOKS_DIRECTORY": "/proc"}, "making a directory for the sidecar's socket /proc/"),
        (
            {"USERSPACE_CNI_KUBEVIRT_HOOKS_DIRECTORY": "/tmp", "NETWORK_BINDING_PLUGIN_NAME": "x" * 120},
            "bytes where 107 are possible",
        ),
    ],
)
def test_nowhere_to_serve(environment: dict[str, str], told: str) -> None:
    """Without a place for its socket the sidecar ends with 1 and one line with the places it tried and a remedy."""
    done = subprocess.run(
        [sys.executable, "-m", "kubevirt"], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert told in done.stderr
    assert "remedy=" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_scan_never_meets_a_socket_that_is_not_served(volume: Path) -> None:
    """While sidecars start, are killed and start again, each connection to a visible socket is answered."""
    with Sidecar(volume) as first:
        met: list[str] = []
        over = threading.Event()

        def scan() -> None:
            """Connect to each socket that is seen for the first time. The inode identifies the socket of a killed process."""
            dead: set[int] = set()
            while not over.is_set():
                for entry in os.scandir(first.hooks):
                    if entry.is_dir(follow_symlinks=False) or entry.inode() in dead:
                        continue
                    with socket.socket(socket.AF_UNIX) as peer:
                        try:
                            peer.connect(entry.path)
                        except FileNotFoundError:
                            continue
                        except ConnectionRefusedError:
                            met.append(entry.path) if entry.inode() not in killed else dead.add(entry.inode())

        killed: set[int] = set()
        scanner = threading.Thread(target=scan)
        scanner.start()
        try:
            for _ in range(4):
                killed.add(first.socket.stat().st_ino)
                first.end(signal.SIGKILL)
                first.start()
        finally:
            over.set()
            scanner.join(60)
    assert met == []


def test_a_manager_that_was_there_first(volume: Path) -> None:
    """A manager that scans before there is a sidecar finds the sidecar when it serves, in each of several rounds."""
    for number in range(3):
        container = f"hook-sidecar-{number}"
        with Sidecar(volume, container).start(wait=False) as sidecar:
            manager = HookManager(volume).collect()
            assert [callback.path for callback in manager.callbacks] == [sidecar.socket]
            assert sidecar.end() == 0


def test_a_killed_sidecar_comes_back(volume: Path) -> None:
    """A container that is killed and started again serves at the same path. What virt-launcher has collected stays valid."""
    domain = "<domain><name>x</name><memoryBacking><hugepages/></memoryBacking><devices/></domain>"
    with Sidecar(volume) as sidecar:
        manager = HookManager(volume).collect()
        before = manager.on_define_domain(domain, vmi(net1="vhostuser"))
        assert sidecar.end(signal.SIGKILL) == -signal.SIGKILL
        assert sidecar.socket.is_socket()
        sidecar.start()
        assert manager.on_define_domain(domain, vmi(net1="vhostuser")) == before
        assert [entry.name for entry in sidecar.hooks.iterdir()] == [sidecar.socket.name]


def test_a_sidecar_in_anothers_place(volume: Path) -> None:
    """A sidecar that ends after another took its place leaves the other's socket, which still answers."""
    first, second = Sidecar(volume).start(), Sidecar(volume)
    with first, second:
        assert first.end() == 0
        wait_until(second.socket.is_socket, what="the second one's socket")
        with dialled(second.socket):
            assert second.end() == 0
    assert list(first.hooks.iterdir()) == []
