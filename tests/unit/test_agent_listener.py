"""The agent's socket file is whole or not there, belongs to one agent, and outlives no agent's death by more than a start."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.lab.front import SECONDS, Front
from tests.lab.switch import wait_until
from userspace_cni.agent.listener import Listener
from userspace_cni.agent.server import Server
from userspace_cni.errors import InvalidConfig, Unavailable

ROOT = Path(__file__).resolve().parents[2]
AGENT = """
import subprocess, sys, threading
from userspace_cni.agent.server import Server
Server(sys.argv[1], lambda exchange: exchange.answer(200, b"well\\n")).start()
child = subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, close_fds=False)
print(child.pid, flush=True)
threading.Event().wait()
"""
"""An agent with a delegate of its own, which outlives it."""


@pytest.fixture
def path() -> Iterator[str]:
    """Where a socket may be made; its directory does not exist yet."""
    with TemporaryDirectory(prefix="uc-") as directory:
        yield str(Path(directory) / "run" / "agent.sock")


def made(path: str) -> list[str]:
    """What is in the socket's directory."""
    return sorted(entry.name for entry in Path(path).parent.iterdir())


def connects(path: str) -> bool:
    """Whether somebody listens there."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(SECONDS)
        try:
            client.connect(path)
        except OSError:
            return False
        return True


def open_listener(path: str) -> Listener:
    """A listener that listens."""
    listener = Listener(path)
    listener.claim()
    listener.listen()
    return listener


def released(listener: Listener) -> None:
    """Close it twice: the second time does nothing."""
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
    """Whoever comes second is told which process serves, and the first one's socket stays."""
    listener = open_listener(path)
    with pytest.raises(Unavailable, match=rf"another one serves {path} \(process {os.getpid()}\)"):
        open_listener(path)
    assert connects(path)
    released(listener)


def test_the_place_is_kept_until_the_end(path: str) -> None:
    """An agent that has stopped listening and still finishes its work is the agent; the next one comes after it."""
    listener = open_listener(path)
    listener.close()
    with pytest.raises(Unavailable):
        open_listener(path)
    listener.release()
    released(open_listener(path))


def test_a_place_can_be_claimed_before_it_listens(path: str) -> None:
    """What must not be done by two agents is done between claiming and listening; nobody connects meanwhile."""
    first = Server(path, lambda exchange: None)
    first.claim()
    assert not connects(path)
    second = Server(path, lambda exchange: None)
    with pytest.raises(Unavailable, match="another one serves"):
        second.claim()
    second.close()
    first.start()
    assert connects(path)
    first.close()


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
    """While agents replace one another, the path is a listening socket or nothing that accepts: never a refused live one."""
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
    Path(path).write_text("somebody else's")
    released(listener)
    assert Path(path).read_text() == "somebody else's"


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
    """Where another user could put a socket, the shim would talk to him."""
    Path(path).parent.mkdir()
    Path(path).parent.chmod(mode)
    with pytest.raises(InvalidConfig, match="other users may write there"):
        open_listener(path)


def test_a_path_that_no_socket_can_have(path: str) -> None:
    """A path beyond what the kernel takes, or below a file, is refused by name."""
    with pytest.raises(InvalidConfig, match="too long"):
        open_listener(path + "x" * 100)
    Path(path).parent.write_text("a file")
    with pytest.raises(Unavailable, match="making the agent's socket"):
        open_listener(path)


def test_a_server_that_can_not_start_lets_go(path: str) -> None:
    """A refused start leaves nothing running and can be closed."""
    with Front() as front:
        second = Server(front.path, lambda exchange: None)
        with pytest.raises(Unavailable):
            second.start()
        second.close()
        assert not second.alive
        assert front.well()


def test_one_agent_after_another(path: str) -> None:
    """A server can be replaced by the next one on the same path at once."""
    for _ in range(3):
        server = Server(path, lambda exchange: None)
        server.start()
        wait_until(lambda: connects(path), SECONDS)
        server.close()
