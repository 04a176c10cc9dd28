"""The name at which an application binds: what is removed there, what stays, and what is reported."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from userspace_cni.pod.name import REMOVED, free_name

ROOT = Path(__file__).resolve().parents[3]
FREE = "import sys; from userspace_cni.pod.name import free_name; print(free_name(sys.argv[1]))"
READ_ONLY = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
ANOTHER = 65534


@pytest.fixture
def path() -> Iterator[Path]:
    """A name in a directory that every user reaches, and only root may write."""
    with TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        yield Path(directory) / "s"


def leave(path: Path, mode: int = 0o755) -> None:
    """Leave what a killed application leaves."""
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))
    path.chmod(mode)


def by_another(path: Path) -> str:
    """What a process of another user says."""
    argv = [sys.executable, "-c", FREE, str(path)]
    done = subprocess.run(
        argv, cwd=ROOT, user=ANOTHER, group=ANOTHER, extra_groups=[], capture_output=True, text=True, check=True
    )
    return done.stdout


def test_a_dead_socket(path: Path) -> None:
    """It is removed; a missing name, a missing directory and a second call report nothing."""
    assert free_name(str(path)) == ""
    assert free_name(str(path / "none")) == ""
    leave(path)
    assert free_name(str(path)) == REMOVED
    assert free_name(str(path)) == ""


def test_a_socket_that_a_process_has(path: Path) -> None:
    """One that is bound and does not listen yet, and one that listens, stay, and are nothing to tell."""
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))
        assert free_name(str(path)) == ""
        made.listen()
        assert free_name(str(path)) == ""
    assert path.is_socket()


@pytest.mark.parametrize("kind", ["a file", "a directory", "a link", "a link that leads nowhere"])
def test_what_is_no_socket(path: Path, kind: str) -> None:
    """Neither a file nor a link, even to a dead socket, is removed; it is reported, because the application cannot bind."""
    elsewhere = path.with_name("elsewhere")
    if kind == "a file":
        path.touch()
    elif kind == "a directory":
        path.mkdir()
    else:
        path.symlink_to(elsewhere)
    if kind == "a link":
        leave(elsewhere)
    assert "is not a socket, and is left alone" in free_name(str(path))
    assert path.is_symlink() or path.exists()
    assert elsewhere.is_socket() == (kind == "a link")


def test_another_users_directory(path: Path) -> None:
    """A user who may not remove the dead socket is told whose it is, and what to do."""
    leave(path, 0o777)
    said = by_another(path)
    assert "cannot be removed: Permission denied" in said
    assert f"a socket of user 0, mode 777, and this is user {ANOTHER}; its directory is user 0's, mode 755" in said
    assert "run this as user 0" in said
    assert path.is_socket()


def test_another_users_socket(path: Path) -> None:
    """A user who may not even look at the socket is told that it may be dead,
    and what to do, also in a directory of all users.
    """
    path.parent.chmod(0o777)
    leave(path)
    said = by_another(path)
    assert f"It is a socket of user 0, mode 755, and this is user {ANOTHER}, who may not look" in said
    assert "run this as user 0" in said
    assert path.is_socket()


def test_a_volume_that_is_mounted_read_only(path: Path) -> None:
    """The dead socket stays, and the message says what to do."""
    leave(path)
    argv = ["unshare", "-m", "sh", "-c", READ_ONLY, str(path.parent), sys.executable, "-c", FREE, str(path)]
    said = subprocess.run(argv, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    assert "mounted read-only here: mount it without readOnly" in said
    assert path.is_socket()


def test_a_directory_that_is_none(path: Path) -> None:
    """The obstacle is reported, without a traceback."""
    path.touch()
    assert "Not a directory" in free_name(str(path / "s"))


def test_a_path_that_no_file_can_have() -> None:
    """A NUL in an annotation is reported, not raised."""
    assert "null" in free_name("/var/lib/cni/usrspcni\0/s")
