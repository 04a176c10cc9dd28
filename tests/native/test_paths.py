"""Facts about the kernel for which directories, mounts and sockets are handled as they are."""

from __future__ import annotations

import errno
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE

import pytest

from tests.host.places import connects, listening
from userspace_cni.linux import paths

PROTECTED = paths.MOUNT_NOSYMFOLLOW | paths.MOUNT_NOSUID | paths.MOUNT_NODEV | paths.MOUNT_NOEXEC


@pytest.fixture
def here(tmp_path: Path) -> Iterator[int]:
    """A descriptor of an empty directory."""
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """A directory, and a protected mount of it."""
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    fds = [os.open(source, os.O_PATH), os.open(target, os.O_PATH)]
    tree = paths.open_tree(fds[0])
    paths.mount_setattr(tree, PROTECTED, paths.PRIVATE)
    paths.move_mount(tree, fds[1])
    for fd in (*fds, tree):
        os.close(fd)
    yield source, target
    with suppress(OSError):
        paths.umount2(str(target), paths.DETACH)


def test_openat2_opens_what_is_below(tmp_path: Path, here: int) -> None:
    """A plain path below the directory is opened, close-on-exec."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    fd = paths.openat2(here, "a/b", os.O_RDONLY | os.O_DIRECTORY)
    assert os.path.samestat(os.fstat(fd), (tmp_path / "a" / "b").stat())
    assert not os.get_inheritable(fd)
    os.close(fd)


@pytest.mark.parametrize("where", ["link", "link/b", "a/link"])
def test_openat2_refuses_links(tmp_path: Path, here: int, where: str) -> None:
    """A link anywhere in the path is ELOOP, even one that stays inside."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "link").symlink_to("a")
    (tmp_path / "a" / "link").symlink_to("b")
    with pytest.raises(OSError, match="symbolic links") as caught:
        paths.openat2(here, where, os.O_RDONLY | os.O_DIRECTORY)
    assert (caught.value.errno, caught.value.filename) == (errno.ELOOP, where)


@pytest.mark.parametrize("where", ["..", "/", "a/../..", "/etc"])
def test_openat2_refuses_to_leave(tmp_path: Path, here: int, where: str) -> None:
    """An absolute path and one that climbs out are EXDEV."""
    (tmp_path / "a").mkdir()
    with pytest.raises(OSError, match="cross-device") as caught:
        paths.openat2(here, where, os.O_RDONLY)
    assert caught.value.errno == errno.EXDEV


def test_openat2_refuses_magic_links() -> None:
    """The links of /proc, which lead anywhere, are refused like any other."""
    proc = os.open("/proc/self", os.O_RDONLY | os.O_DIRECTORY)
    with pytest.raises(OSError, match="symbolic links"):
        paths.openat2(proc, "root/etc", os.O_RDONLY)
    os.close(proc)


def test_openat2_creates_with_mode(tmp_path: Path, here: int) -> None:
    """With O_CREAT the mode is the file's."""
    os.close(paths.openat2(here, "file", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600


def test_nul_byte_is_not_cut_off(here: int) -> None:
    """A NUL in a path is an error; C would take the part before it."""
    with pytest.raises(OSError, match="NUL") as caught:
        paths.openat2(here, "a\0b", os.O_RDONLY)
    assert caught.value.errno == errno.EINVAL


def test_mount_has_its_flags(mount: tuple[Path, Path]) -> None:
    """The flags set on the detached clone are those of the mount that becomes visible."""
    line = next(line for line in Path("/proc/self/mountinfo").read_text().splitlines() if line.split()[4] == str(mount[1]))
    assert {"nosymfollow", "nosuid", "nodev", "noexec"} <= set(line.split()[5].split(","))


def test_connect_through_link_below_plain_directory(tmp_path: Path) -> None:
    """connect(2) follows a link in a plain directory: a pod could lead OVS elsewhere by it."""
    with listening(tmp_path / "real"):
        (tmp_path / "link").symlink_to(tmp_path / "real")
        assert connects(tmp_path / "link")


def test_connect_through_link_below_mount(mount: tuple[Path, Path]) -> None:
    """connect(2) below our mount ends in ELOOP at a link, and works without one."""
    source, target = mount
    with listening(source / "real"):
        (source / "link").symlink_to("real")
        assert connects(target / "real")
        with pytest.raises(OSError, match="symbolic links") as caught:
            connects(target / "link")
        assert caught.value.errno == errno.ELOOP


def test_connect_through_linked_directory_below_mount(mount: tuple[Path, Path]) -> None:
    """A link in the middle of the path ends in ELOOP as well."""
    source, target = mount
    (source / "dir").mkdir()
    (source / "away").symlink_to("dir")
    with listening(source / "dir" / "real"), pytest.raises(OSError, match="symbolic links"):
        connects(target / "away" / "real")


def test_unlinked_socket_accepts_through_its_mount(tmp_path: Path) -> None:
    """A bind-mounted socket goes on accepting after its own name is gone, and that name is free to bind again."""
    target = tmp_path / "target"
    target.touch()
    here, place = os.open(tmp_path, os.O_PATH), os.open(target, os.O_PATH)
    with listening(tmp_path / "real"):
        tree = paths.open_tree(here, "real")
        paths.move_mount(tree, place)
        (tmp_path / "real").unlink()
        assert connects(target)
        with listening(tmp_path / "real"):
            assert connects(target)
    for fd in (here, place, tree):
        os.close(fd)
    paths.umount2(str(target), paths.DETACH)


def test_unmount_by_descriptor(mount: tuple[Path, Path]) -> None:
    """A mount is named by a descriptor of its root, whatever its path is; the descriptor itself does not keep it busy."""
    source, target = mount
    root = os.open(target, os.O_PATH)
    paths.umount2(f"/proc/self/fd/{root}", paths.DETACH)
    assert not os.path.samestat(source.stat(), target.stat())
    os.close(root)


def test_umount2_of_no_mount(tmp_path: Path) -> None:
    """Unmounting a plain directory is EINVAL, with the path in the error."""
    with pytest.raises(OSError, match="Invalid argument") as caught:
        paths.umount2(str(tmp_path), 0)
    assert (caught.value.errno, caught.value.filename) == (errno.EINVAL, str(tmp_path))


def test_move_mount_onto_unlinked(tmp_path: Path) -> None:
    """An unlinked target is ENOENT: nothing is mounted anywhere else."""
    (tmp_path / "source").mkdir()
    (tmp_path / "target").mkdir()
    source, target = os.open(tmp_path / "source", os.O_PATH), os.open(tmp_path / "target", os.O_PATH)
    (tmp_path / "target").rmdir()
    tree = paths.open_tree(source)
    with pytest.raises(OSError, match="No such") as caught:
        paths.move_mount(tree, target)
    assert caught.value.errno == errno.ENOENT
    for fd in (source, target, tree):
        os.close(fd)


def test_setns_moves_the_thread_alone() -> None:
    """setns(2) in one thread leaves the others where they are."""
    before = Path("/proc/thread-self/ns/net").stat()
    seen: list[os.stat_result] = []
    with subprocess.Popen(["unshare", "-n", "sh", "-c", "echo; exec cat"], stdin=PIPE, stdout=PIPE) as other:
        assert other.stdout
        assert other.stdout.read(1)  # it is in a namespace of its own now
        there = os.open(f"/proc/{other.pid}/ns/net", os.O_RDONLY)

        def enter() -> None:
            paths.setns(there, paths.NETWORK)
            seen.append(Path("/proc/thread-self/ns/net").stat())

        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
        assert os.path.samestat(seen[0], os.fstat(there))
        os.close(there)
    assert not os.path.samestat(seen[0], before)
    assert os.path.samestat(before, Path("/proc/thread-self/ns/net").stat())


def test_setns_wants_the_type() -> None:
    """A namespace of another type is refused."""
    mount_ns = os.open("/proc/self/ns/mnt", os.O_RDONLY)
    with pytest.raises(OSError, match="Invalid argument"):
        paths.setns(mount_ns, paths.NETWORK)
    os.close(mount_ns)
