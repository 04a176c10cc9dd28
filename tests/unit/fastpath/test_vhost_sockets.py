"""Sockets in directories that are not ours: long paths, links, sockets of other processes, modes."""

from __future__ import annotations

import os
import socket
import stat
import threading
from pathlib import Path

import pytest

from tests.lab.node.belongings import nothing_left
from userspace_cni.fastpath.fastpath_errors import Closed, FastPathError, MemoryShort, SocketRefused, TimedOut
from userspace_cni.fastpath.vhost.socket_paths import ListeningSocket, SocketAccess, connect, is_alive
from userspace_cni.linux import paths
from userspace_cni.linux.instant import Instant

SOON = 0.01


def deep(place: Path) -> Path:
    """A directory whose path is longer than any sockaddr."""
    directory = place / ("d" * 100) / ("e" * 100)
    directory.mkdir(parents=True)
    return directory


def meet(path: Path, listening: ListeningSocket) -> None:
    """Connect, accept, and pass a byte."""
    near = connect(str(path), Instant.after(60))
    far = listening.accept(Instant.after(60))
    assert far is not None
    with near, far:
        near.sendall(b"x")
        assert far.recv(1) == b"x"


@pytest.mark.parametrize("name", ["s", "n" * 255])
@pytest.mark.parametrize("long", [False, True])
def test_paths_of_any_length(place: Path, name: str, long: bool) -> None:
    """Both sides meet at a path of any length; only the socket is in the directory meanwhile, and nothing afterwards."""
    path = (deep(place) if long else place) / name
    with nothing_left():
        with ListeningSocket(str(path)) as listening:
            assert os.listdir(path.parent) == [name]  # noqa: PTH208
            meet(path, listening)
        assert list(path.parent.iterdir()) == []


def test_a_relative_path(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name alone is in the working directory, of the time when it was made."""
    monkeypatch.chdir(place)
    with ListeningSocket("s") as listening:
        meet(Path("s"), listening)
        monkeypatch.chdir("/")
    assert not (place / "s").exists()


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666])
def test_mode_and_group(place: Path, mode: int) -> None:
    """The socket appears with the mode, owner and group that were asked for, whatever the umask."""
    before = os.umask(0o077)
    try:
        with ListeningSocket(str(place / "s"), SocketAccess(mode, os.geteuid(), os.getegid())):
            facts = (place / "s").stat()
    finally:
        os.umask(before)
    assert stat.S_IMODE(facts.st_mode) == mode
    assert (facts.st_uid, facts.st_gid) == (os.geteuid(), os.getegid())


def test_a_socket_in_use_is_not_taken(place: Path) -> None:
    """Where a process has a socket, listening is refused; that process does not notice, and its socket stays."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other, nothing_left():
        other.bind(str(place / "s"))
        other.listen()
        other.setblocking(False)
        for replace in (False, True):
            with pytest.raises(SocketRefused, match="another process"):
                ListeningSocket(str(place / "s"), replace_dead=replace)
        assert is_alive(str(place / "s"))
        with pytest.raises(BlockingIOError):
            other.accept()
        assert [entry.name for entry in place.iterdir()] == ["s"]


def test_a_dead_socket(place: Path) -> None:
    """A socket whose process has ended is removed when that is asked for, and named otherwise."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(str(place / "s"))
    assert not is_alive(str(place / "s"))
    with nothing_left():
        with pytest.raises(SocketRefused, match="dead socket"):
            ListeningSocket(str(place / "s"))
        with pytest.raises(SocketRefused, match="no process listens"):
            connect(str(place / "s"), Instant.after(60))
        with ListeningSocket(str(place / "s"), replace_dead=True) as listening:
            meet(place / "s", listening)


@pytest.mark.parametrize("kind", ["file", "directory", "link"])
def test_something_else_in_its_place(place: Path, kind: str) -> None:
    """Only a socket is ever removed, never another file or a link to a socket."""
    path = place / "s"
    if kind == "file":
        path.write_text("precious")
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to("elsewhere")
    with nothing_left(), pytest.raises(SocketRefused):
        ListeningSocket(str(path), replace_dead=True)
    assert [entry.name for entry in place.iterdir()] == ["s"]
    if kind == "file":
        with pytest.raises(SocketRefused, match="not a socket"):
            connect(str(path), Instant.after(60))


def test_a_name_taken_over_is_left_alone(place: Path) -> None:
    """Closing does not remove a file that another process put in place of our socket."""
    with ListeningSocket(str(place / "s")):
        (place / "s").unlink()
        (place / "s").write_text("precious")
    assert (place / "s").read_text() == "precious"


def test_no_link_below_the_trusted_part(place: Path) -> None:
    """Below the trusted directory a link is not followed, by either side; above it, it is."""
    (place / "real" / "pod").mkdir(parents=True)
    (place / "trusted").symlink_to("real")
    (place / "real" / "link").symlink_to("pod")
    (place / "real" / "pod" / "away").symlink_to("/tmp")
    trusted = str(place / "trusted")
    with ListeningSocket(f"{trusted}/pod/s", trusted=trusted) as listening:
        connect(f"{trusted}/pod/s", Instant.after(60), trusted=trusted).close()
        listening.accept(Instant.after(60)).close()  # type: ignore[union-attr]
        meet(place / "real" / "pod" / "s", listening)
        (place / "real" / "pod" / "alias").symlink_to("s")
        for way in ("link/s", "pod/alias"):
            with nothing_left(), pytest.raises(SocketRefused, match=r"symbolic link|not a socket"):
                connect(f"{trusted}/{way}", Instant.after(60), trusted=trusted)
    for way in ("link/new", "pod/away/new", "../new"):
        with nothing_left(), pytest.raises(SocketRefused):
            ListeningSocket(f"{trusted}/{way}", trusted=trusted)
    with pytest.raises(SocketRefused, match="leads out"):
        connect("/tmp/s", Instant.after(60), trusted=trusted)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        *((path, "this is no path of a socket") for path in ("", "/", "/tmp/", "/tmp/..", "/tmp/.", "/tmp/a\0b")),
        ("/nowhere/at/all/s", "its directory is not there"),
        ("/dev/null/s", "a part of the path is no directory"),
    ],
)
def test_paths_of_no_socket(path: str, words: str) -> None:
    """A path without a name, or below nothing, is refused with its reason by both sides."""
    with nothing_left():
        with pytest.raises(SocketRefused, match=f"listening at .*: {words}"):
            ListeningSocket(path)
        with pytest.raises(SocketRefused, match=f"connecting to .*: {words}"):
            connect(path, Instant.after(60))


def test_an_empty_path() -> None:
    """The message shows an empty path as ''."""
    with pytest.raises(SocketRefused, match="connecting to '': this is no path of a socket"):
        connect("", Instant.after(60))


def test_a_socket_that_is_not_made_yet(place: Path) -> None:
    """In a directory that is there the port is what to look at; the dead socket of a pod can be made again."""
    with pytest.raises(SocketRefused, match=r"nothing is there; the port: Interface\.status"):
        connect(str(place / "s"), Instant.after(60))
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(place / "s"))
    with pytest.raises(SocketRefused, match="userspace-cni gc"):
        connect(str(place / "s"), Instant.after(60))


def test_whether_it_is_in_place(place: Path) -> None:
    """A socket that was removed, replaced, or whose directory was, is not found at its path any more, and moved back it is."""
    path = place / "sub" / "s"
    path.parent.mkdir()
    with ListeningSocket(str(path)) as listening:
        assert listening.is_in_place()
        path.rename(place / "s")
        assert not listening.is_in_place()
        path.touch()
        assert not listening.is_in_place()
        (place / "s").rename(path)
        assert listening.is_in_place()
        path.parent.rename(place / "other")
        assert not listening.is_in_place()
    assert not listening.is_in_place()


def test_no_connection_comes(place: Path) -> None:
    """The deadline ends a wait for a connection, and the error says what to look at."""
    with ListeningSocket(str(place / "s")) as listening, pytest.raises(TimedOut, match=r"dpdkvhostuserclient.*Interface\.error"):
        listening.accept(Instant.after(SOON))


def test_a_wake_ends_a_wait_for_a_connection(place: Path) -> None:
    """A descriptor beside the socket ends the wait."""
    wake = os.eventfd(1)
    with ListeningSocket(str(place / "s")) as listening:
        assert listening.accept(Instant.after(60), wake) is None
    os.close(wake)


def test_close_ends_a_wait_in_another_thread(place: Path) -> None:
    """A wait for a connection ends with Closed when the socket is closed; so does every later wait."""
    listening = ListeningSocket(str(place / "s"))
    outcome: list[FastPathError] = []
    waits = threading.Event()

    def wait() -> None:
        waits.set()
        try:
            listening.accept(Instant.after(60))
        except FastPathError as error:
            outcome.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    waits.wait()
    listening.close()
    thread.join(60)
    assert isinstance(outcome[0], Closed)
    listening.close()
    with pytest.raises(Closed):
        listening.accept(Instant.after(60))


def test_a_full_queue(place: Path) -> None:
    """Connecting to a listener that never accepts ends with the deadline."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(str(place / "s"))
        other.listen(0)
        with (
            connect(str(place / "s"), Instant.after(60)),
            nothing_left(),
            pytest.raises(TimedOut, match="accepts no connection"),
        ):
            connect(str(place / "s"), Instant.after(SOON))


def test_a_socket_of_another_type(place: Path) -> None:
    """A datagram socket can be no vhost-user peer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(place / "s"))
        with pytest.raises(SocketRefused, match="another type"):
            connect(str(place / "s"), Instant.after(60))


def test_no_descriptors_left(place: Path) -> None:
    """Without descriptors both sides say so, and leave none behind."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open("/", os.O_RDONLY)
    os.close(lowest)
    with nothing_left():
        for spare in range(3):
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + spare, hard))
            try:
                with pytest.raises((MemoryShort, OSError)):
                    ListeningSocket(str(place / "s"))
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert list(place.iterdir()) == []


def test_a_directory_below_another(place: Path) -> None:
    """`paths.directory` opens below a trusted directory and through no link, close-on-exec."""
    (place / "a" / "b").mkdir(parents=True)
    (place / "link").symlink_to("a")
    with nothing_left():
        for below in ("", "a", "a/b"):
            fd = paths.directory(str(place), below)
            assert os.path.samestat(os.fstat(fd), (place / below).stat())
            assert not os.get_inheritable(fd)
            os.close(fd)
        for below in ("link", "link/b", "missing", "../"):
            with pytest.raises(OSError):  # noqa: PT011 - test_paths checks which one
                paths.directory(str(place), below)


def test_a_child_closes_only_its_own(place: Path) -> None:
    """A forked child that closes the socket does not disturb the parent; one that shuts it down ends the parent's accept."""
    with ListeningSocket(str(place / "s")) as listening:
        for act in (listening.close, lambda: listening._sock.shutdown(socket.SHUT_RDWR)):
            child = os.fork()
            if child == 0:
                try:
                    act()
                finally:
                    os._exit(0)
            assert os.waitpid(child, 0) == (child, 0)
            assert listening.is_in_place()
        with pytest.raises(Closed, match="closed"):
            listening.accept(Instant.after(60))


def test_deadlines_that_poll_cannot_count() -> None:
    """Months are as good as never."""
    assert Instant.after(3e6).milliseconds() is None
    assert Instant.after(1e6).milliseconds() is not None
