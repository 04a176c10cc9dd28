"""The name of an application's socket is free before ADD answers and gone after DEL; only sockets are ever removed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.host.places import UNUSED_ID, listening, soon, tree
from tests.lab.switch.switch import wait_until
from userspace_cni.attachment.drift import Dead, Other
from userspace_cni.attachment.steps import Directory, SharedReads, SocketFile
from userspace_cni.base.errors import DirectoryRefused
from userspace_cni.host.files.vhost_sockets import DirectoryDriver, SocketFileDriver

driver = SocketFileDriver()


@pytest.fixture
def pod(room: Path) -> Path:
    path = room / "pods" / "uid"
    path.mkdir(parents=True)
    return path


@pytest.fixture
def step(room: Path, pod: Path) -> SocketFile:
    return SocketFile(directory=str(pod), trusted=f"{room}/pods", name="c0ffee-net1")


def test_free_name(step: SocketFile, pod: Path) -> None:
    """With a free name nothing is made, and there is no drift."""
    driver.apply(step, soon())
    assert tree(pod) == set()
    assert driver.check(step, soon()) == []
    assert not driver.is_present(step)


def test_stale_socket_is_removed(step: SocketFile, pod: Path) -> None:
    """A socket that a former application left would stop bind(2), and is removed."""
    with listening(pod / step.name):
        pass
    assert not driver.is_present(step)
    driver.apply(step, soon())
    assert tree(pod) == set()


def test_a_dead_socket_is_reported(step: SocketFile, pod: Path) -> None:
    """The dead socket of a killed application is a drift, with what to do, until its name is free again."""
    with listening(pod / step.name):
        assert driver.check(step, soon()) == []
        assert not driver.is_lost(step, SharedReads(), soon())
    [drift] = driver.check(step, soon())
    assert isinstance(drift.found, Dead)
    assert "started again" in drift.details
    assert driver.is_lost(step, SharedReads(), soon())
    driver.apply(step, soon())
    assert driver.check(step, soon()) == []


def test_one_that_lives_is_never_removed(step: SocketFile, pod: Path) -> None:
    """A living socket is never removed, even if an application of another namespace listens, or begins to listen later."""
    script = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); print(flush=True); sys.stdin.read()"
    argv = ["unshare", "--net", sys.executable, "-c", script, str(pod / step.name)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as application:
        assert application.stdout
        application.stdout.readline()
        driver.apply(step, soon())
        assert driver.check(step, soon()) == []
        assert tree(pod) == {step.name}
        application.kill()
    assert driver.is_lost(step, SharedReads(), soon())


def test_nothing_connects(step: SocketFile, pod: Path) -> None:
    """The driver never connects, not even to find a listener: the application would take it for its switch."""
    with listening(pod / step.name) as server:
        driver.check(step, soon())
        driver.apply(step, soon())
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()


@pytest.mark.parametrize("found", ["a regular file", "a directory", "a FIFO", "a symbolic link"])
def test_other_objects_are_refused_and_kept(step: SocketFile, pod: Path, room: Path, found: str) -> None:
    """Any other file with the name is refused by ADD, reported by CHECK, and left by DEL."""
    place = pod / step.name
    with listening(room / "elsewhere"):
        if found == "a regular file":
            place.touch()
        elif found == "a directory":
            place.mkdir()
        elif found == "a FIFO":
            os.mkfifo(place)
        else:
            place.symlink_to(room / "elsewhere")
        with pytest.raises(DirectoryRefused, match=f"{place}: {found}"):
            driver.apply(step, soon())
        assert driver.check(step, soon())[0].found == Other(found)
        driver.undo(step, soon())
    assert tree(pod) == {step.name}
    assert (room / "elsewhere").is_socket()


def test_undo_removes_the_exact_name(step: SocketFile, pod: Path) -> None:
    """The application's socket is removed, its neighbours are not, and a second time does nothing."""
    with listening(pod / step.name), listening(pod / f"{step.name}0"):
        driver.undo(step, soon())
        driver.undo(step, soon())
        assert tree(pod) == {f"{step.name}0"}


def test_gone_directory(step: SocketFile, pod: Path) -> None:
    """Without the pod's directory ADD is refused, and DEL has nothing to do."""
    pod.rmdir()
    with pytest.raises(DirectoryRefused, match="does not exist"):
        driver.apply(step, soon())
    driver.undo(step, soon())
    pod.touch()
    driver.undo(step, soon())


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\0b"])
def test_names_that_lead_elsewhere(step: SocketFile, name: str) -> None:
    """A name of more than one component is refused, though no caller should pass one."""
    bad = SocketFile(directory=step.directory, trusted=step.trusted, name=name)
    for work in (driver.apply, driver.undo, driver.check):
        with pytest.raises(DirectoryRefused, match="not the name of a file"):
            work(bad, soon())


# What a pass of reconciliation compares before it looks


def settled(sign: Callable[[], object]) -> object:
    """The sign, once the last change is old enough for one."""
    found: object = wait_until(sign, what="a sign")
    return found


def test_signs_of_a_socket(step: SocketFile, pod: Path) -> None:
    """They change when a socket appears, and there is none for a dead one, nor right after a change or without a directory."""

    def sign(before: object = None) -> object:
        return driver.signs(step, SharedReads(), before)

    free = settled(sign)
    assert sign(free) == free
    with listening(pod / step.name):
        assert sign(free) is None
        alive = settled(lambda: sign(free))
        assert alive != free
        assert sign(alive) == alive
    assert [sign(alive), sign()] == [None, None]
    (pod / step.name).unlink()
    assert settled(lambda: sign(free)) != free
    pod.rmdir()
    assert sign(free) is None


def replace(path: Path) -> None:
    path.rename(path.with_name("moved"))
    path.mkdir()


def put_a_file(path: Path) -> None:
    path.rmdir()
    path.touch()


def put_a_link(path: Path) -> None:
    path.rename(path.with_name("moved"))
    path.symlink_to("moved")


CHANGED: dict[str, Callable[[Path], None]] = {
    "mode": lambda path: path.chmod(0o777),
    "owner": lambda path: os.chown(path, UNUSED_ID, -1),
    "group": lambda path: os.chown(path, -1, UNUSED_ID),
    "another directory": replace,
    "a file in its place": put_a_file,
    "a link in its place": put_a_link,
}


@pytest.mark.parametrize("what", CHANGED)
def test_signs_of_a_directory(room: Path, pod: Path, what: str) -> None:
    """They change with everything that can be found of it."""
    of, directory = DirectoryDriver(), Directory(str(pod), f"{room}/pods", create=True, mode=0o750, own=True)
    of.apply(directory, soon())
    before = settled(lambda: of.signs(directory, SharedReads(), None))
    assert of.signs(directory, SharedReads(), before) == before
    CHANGED[what](pod)
    assert of.signs(directory, SharedReads(), before) != before
