"""The agent's socket is complete or absent, belongs to one agent, and a dead agent's is replaced at the next start."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.lab.node.front import SECONDS, Front, answer_on
from tests.lab.switch.switch import wait_until
from userspace_cni.agent.agent_server import Server
from userspace_cni.agent.listener import Listener
from userspace_cni.base.errors import InvalidConfig, Unavailable

ROOT = Path(__file__).resolve().parents[3]
AGENT = """
import subprocess, sys, threading
from userspace_cni.agent.listener import Listener
from userspace_cni.agent.agent_server import Server
Server(Listener(sys.argv[1]), lambda exchange: exchange.answer(200, b"well\\n")).start()
child = subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, close_fds=False)
print(child.pid, flush=True)
threading.Event().wait()
"""
"""An agent with a delegate of its own, which outlives it."""


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the server look at its socket ten times as often."""
    monkeypatch.setattr(Listener, "watch_s", 0.1)


@pytest.fixture
def path() -> Iterator[str]:
    """Where a socket may be made; its directory does not exist yet."""
    with TemporaryDirectory(prefix="uc-") as directory:
        yield str(Path(directory) / "run" / "agent.sock")


def made(path: str) -> list[str]:
    """The names in the socket's directory."""
    return sorted(entry.name for entry in Path(path).parent.iterdir())


def connects(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(SECONDS)
        try:
            client.connect(path)
        except OSError:
            return False
        return True


def open_listener(path: str) -> Listener:
    listener = Listener(path)
    listener.claim()
    listener.listen()
    return listener


def released(listener: Listener) -> None:
    """Close it twice: the second time has no effect."""
    listener.release()
    listener.release()


def test_the_socket_is_for_its_user_alone(path: str) -> None:
    """0600 in a directory made 0700, and nothing but the lock beside it."""
    listener = open_listener(path)
    assert stat.S_IMODE(Path(path).stat().st_mode) == 0o600
    assert stat.S_IMODE(Path(path).parent.stat().st_mode) == 0o700
    assert made(path) == ["agent.sock", "agent.sock.lock"]
    assert connects(path)
    released(listener)
    assert made(path) == ["agent.sock.lock"]


def test_a_second_agent_is_refused(path: str) -> None:
    """The second agent is told which process serves, and the first one's socket stays."""
    listener = open_listener(path)
    with pytest.raises(Unavailable, match=rf"another one serves {path} \(process {os.getpid()}\)"):
        open_listener(path)
    assert connects(path)
    released(listener)


def test_the_place_is_kept_until_the_end(path: str) -> None:
    """An agent that no longer listens but finishes its work keeps the place; the next agent waits for it."""
    listener = open_listener(path)
    listener.close()
    with pytest.raises(Unavailable):
        open_listener(path)
    listener.release()
    released(open_listener(path))


def test_a_place_can_be_claimed_before_it_listens(path: str) -> None:
    """What two agents must not do at once is done between claiming and listening, when no caller connects."""
    first = Server(Listener(path), lambda exchange: None)
    first.claim()
    assert not connects(path)
    second = Server(Listener(path), lambda exchange: None)
    with pytest.raises(Unavailable, match="another one serves"):
        second.claim()
    second.stop()
    first.start()
    assert connects(path)
    first.stop()


def test_a_killed_agent_leaves_its_place_free(path: str) -> None:
    """After kill -9 the stale socket is replaced, even while a child of the dead agent lives on."""
    argv = [sys.executable, "-c", AGENT, path]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdout is not None
        child = int(agent.stdout.readline())
        try:
            with pytest.raises(Unavailable, match=f"process {agent.pid}"):
                open_listener(path)
            agent.kill()
            agent.wait(SECONDS)
            assert "agent.sock" in made(path)
            assert not connects(path)
            listener = open_listener(path)
            assert connects(path)
            released(listener)
        finally:
            agent.kill()
            os.kill(child, signal.SIGKILL)


def test_a_start_that_died_halfway_is_cleaned_up(path: str) -> None:
    """A socket that was bound and never renamed does not stop the next start."""
    Path(path).parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as half:
        half.bind(path + ".new")
    listener = open_listener(path)
    assert made(path) == ["agent.sock", "agent.sock.lock"]
    released(listener)


def test_connecting_never_meets_half_a_socket(path: str) -> None:
    """While agents replace one another, the path is a listening socket or nothing that accepts, never a live one that refuses."""
    first = open_listener(path)
    before = Path(path).stat().st_ino
    first._lock, lock = -1, first._lock  # as after kill -9: the file stays, the lock goes
    os.close(lock)
    second = open_listener(path)
    assert Path(path).stat().st_ino != before
    first.release()
    assert connects(path)
    released(second)


def test_another_agents_socket_is_not_removed(path: str) -> None:
    """An agent whose file was replaced removes nothing at its end."""
    listener = open_listener(path)
    Path(path).unlink()
    Path(path).write_text("another program's")
    released(listener)
    assert Path(path).read_text() == "another program's"


@pytest.mark.parametrize("kind", ["file", "directory", "link"])
def test_what_is_no_socket_is_not_replaced(path: str, kind: str) -> None:
    """Something else in the socket's place is an error of the settings, and stays."""
    place = Path(path)
    place.parent.mkdir(mode=0o700)
    if kind == "file":
        place.write_text("precious")
    elif kind == "directory":
        place.mkdir()
    else:
        place.symlink_to("elsewhere")
    with pytest.raises(InvalidConfig, match="something else is in its place"):
        open_listener(path)
    assert place.is_symlink() or place.exists()


@pytest.mark.parametrize("mode", [0o770, 0o777, 0o1777])
def test_a_directory_that_others_can_write_is_refused(path: str, mode: int) -> None:
    """If another user could put a socket there, the shim would talk to that."""
    Path(path).parent.mkdir()
    Path(path).parent.chmod(mode)
    with pytest.raises(InvalidConfig, match="other users may write there"):
        open_listener(path)


def test_a_path_that_no_socket_can_have(path: str) -> None:
    """A path that is too long for the kernel, or below a file, is refused by name."""
    with pytest.raises(InvalidConfig, match="too long"):
        open_listener(path + "x" * 100)
    Path(path).parent.write_text("a file")
    with pytest.raises(Unavailable, match="making the agent's socket"):
        open_listener(path)


def test_a_server_that_can_not_start_lets_go(path: str) -> None:
    """A refused start leaves nothing running and can be closed."""
    with Front() as front:
        second = Server(Listener(front.path), lambda exchange: None)
        with pytest.raises(Unavailable):
            second.start()
        second.stop()
        assert not second.alive
        assert front.well()


def test_one_agent_after_another(path: str) -> None:
    """A server can be replaced by the next one on the same path at once."""
    for _ in range(3):
        server = Server(Listener(path), lambda exchange: None)
        server.start()
        wait_until(lambda: connects(path), SECONDS)
        server.stop()


# -- a socket that is removed under a living agent ------------------------------------------------------------------------------


def kept(front: Front) -> bool:
    """Whether peers find the server, tried once."""
    with suppress(OSError):
        return front.well()
    return False


def wait_until_kept(front: Front) -> None:
    """Wait until peers find it again."""
    wait_until(lambda: kept(front), SECONDS, "the socket to be there again")


def test_a_socket_that_is_removed_is_made_again(capfd: pytest.CaptureFixture[str]) -> None:
    """When /run is cleaned, peers find the same agent again within seconds, and one that waited gets its answer.

    The log says so, and no second agent can take the place meanwhile.
    """
    with Front() as front, front.send() as waiting:
        held = front.next()
        Path(front.path).unlink()
        wait_until_kept(front)
        assert stat.S_IMODE(Path(front.path).stat().st_mode) == 0o600
        held.answer(200, b"done")
        assert answer_on(waiting).body == b"done"
        with pytest.raises(Unavailable, match="another one serves"):
            Listener(front.path).claim()
    assert capfd.readouterr().err.count("the agent's socket was gone") == 1


def test_a_directory_that_is_removed_is_made_again() -> None:
    """With the whole directory the lock's file is gone, too: it is locked again, so that a second agent is still refused."""
    with Front() as front:
        directory = Path(front.path).parent
        shutil.rmtree(directory)
        wait_until_kept(front)
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        assert made(front.path) == ["agent.sock", "agent.sock.lock"]
        with pytest.raises(Unavailable, match="another one serves"):
            Listener(front.path).claim()


def test_a_lock_that_is_removed_is_taken_again() -> None:
    """A missing lock's file is noticed, too: without it a second agent would replace the socket."""
    with Front() as front:
        lock = Path(f"{front.path}.lock")
        lock.unlink()
        wait_until(lock.exists, SECONDS, "the lock's file")
        with pytest.raises(Unavailable, match="another one serves"):
            Listener(front.path).claim()
        assert front.well()


def test_what_is_in_the_place_of_the_lock_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    """Another object at the path of the lock or of the socket's temporary name is left there, and the log names the path."""
    said: list[str] = []

    def tells(path: str) -> bool:
        said.append(capfd.readouterr().err)
        return f"Is a directory at {path};" in "".join(said)

    with Front() as front:
        for name in (f"{front.path}.lock", f"{front.path}.new"):
            Path(name).unlink(missing_ok=True)
            Path(name).mkdir()
            Path(front.path).unlink(missing_ok=True)
            wait_until(partial(tells, name), SECONDS, f"the log to name {name}")
            Path(name).rmdir()
            wait_until_kept(front)


def test_another_socket_in_its_place_is_replaced() -> None:
    """A process that put a socket there does not have the lock: the agent replaces it."""
    with Front() as front, socket.socket(socket.AF_UNIX) as other:
        Path(front.path).unlink()
        other.bind(front.path)
        wait_until_kept(front)


def test_what_is_no_socket_is_left_in_its_place(capfd: pytest.CaptureFixture[str]) -> None:
    """A file in the socket's place stays; the log says so once, and once it is gone the socket is back."""
    told = "something else is in its place"
    said: list[str] = []

    def tells() -> bool:
        said.append(capfd.readouterr().err)
        return told in "".join(said)

    with Front() as front:
        path = Path(front.path)
        path.unlink()
        path.write_text("mine")
        wait_until(tells, SECONDS, "the log to say so")
        assert path.read_text() == "mine"
        path.unlink()
        wait_until_kept(front)
    tells()
    assert "".join(said).count(told) == 1


def test_an_agent_that_has_taken_the_place_keeps_it(capfd: pytest.CaptureFixture[str]) -> None:
    """When the lock's file was removed and a second agent was first, that one serves; the first one says so and waits."""
    with Front() as front:
        lock = Path(f"{front.path}.lock")
        second = Listener(front.path)

        def claimed() -> bool:
            lock.unlink(missing_ok=True)
            with suppress(Unavailable):  # the first one looked in between
                second.claim()
                return True
            return False

        wait_until(claimed, SECONDS, "the second agent to come first")
        second.listen()
        theirs = Path(front.path).stat().st_ino
        said: list[str] = []

        def tells() -> bool:
            said.append(capfd.readouterr().err)
            return "another one serves" in "".join(said)

        wait_until(tells, SECONDS, "the log to say so")
        assert Path(front.path).stat().st_ino == theirs
        second.release()
        wait_until_kept(front)
