"""OVS sees a pod's directory only through a mount that refuses links; nothing of it is left after the last attachment."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.host.places import (
    UNUSED_ID,
    bind,
    connects,
    descriptors,
    drop_privileges,
    in_child,
    listening,
    mode,
    mounts_at,
    soon,
    tree,
)
from tests.lab.switch.switch import wait_until
from userspace_cni.attachment.drift import Drift, Other
from userspace_cni.attachment.steps import PodMount, SharedReads
from userspace_cni.base.errors import DirectoryRefused
from userspace_cni.host.files import mountinfo
from userspace_cni.host.files.mounts import PodMountDriver
from userspace_cni.linux import paths

MS_SHARED = 1 << 20
FLAGS = {"nosymfollow", "nosuid", "nodev", "noexec"}


@pytest.fixture
def driver(room: Path) -> PodMountDriver:
    """The driver, with an OVS that runs as another user."""
    (room / "ovs").mkdir()
    os.chown(room / "ovs", UNUSED_ID, UNUSED_ID)
    return PodMountDriver(str(room / "ovs"))


@pytest.fixture
def step(room: Path) -> PodMount:
    """A pod's directory, and the place of its mount."""
    (room / "pods" / "uid" / "shared-dir").mkdir(parents=True)
    return PodMount(source=f"{room}/pods/uid/shared-dir", trusted=f"{room}/pods", target=f"{room}/short/uid")


@pytest.fixture
def target(step: PodMount) -> Path:
    return Path(step.target)


def test_mount_refuses_links(driver: PodMountDriver, step: PodMount, target: Path) -> None:
    """The application's socket can be reached through the mount, a socket behind a link cannot."""
    driver.apply(step, soon())
    assert [options >= FLAGS for options in mounts_at(target)] == [True]
    with listening(Path(step.source) / "real"):
        (Path(step.source) / "link").symlink_to("real")
        assert connects(target / "real")
        with pytest.raises(OSError, match="symbolic links") as caught:
            connects(target / "link")
    assert caught.value.errno == errno.ELOOP
    assert driver.check(step, soon()) == []


def test_ovs_user_gets_in(driver: PodMountDriver, step: PodMount, target: Path) -> None:
    """OVS as another user can use the mount; other users of the node cannot, though the emptyDir is 0777."""
    Path(step.source).chmod(0o777)
    driver.apply(step, soon())

    def look(ident: int) -> None:
        drop_privileges(ident)
        (target / ".").stat()

    assert mode(target.parent) == 0o750
    assert in_child(lambda: look(UNUSED_ID)) == 0
    assert in_child(lambda: look(UNUSED_ID + 1)) != 0


def test_group_is_handed_over_later(driver: PodMountDriver, step: PodMount, target: Path) -> None:
    """A short_dir made before OVS's run directory gets OVS's group when that exists; an administrator's short_dir does not."""
    PodMountDriver("/nowhere").apply(step, soon())
    assert target.parent.stat().st_gid == 0
    driver.apply(step, soon())
    assert target.parent.stat().st_gid == UNUSED_ID
    os.chown(target.parent, -1, 1)
    driver.apply(step, soon())
    assert target.parent.stat().st_gid == 1


def test_apply_twice(driver: PodMountDriver, step: PodMount, target: Path) -> None:
    """An existing mount is used and not covered by a second one."""
    assert not driver.is_present(step)
    driver.apply(step, soon())
    driver.apply(step, soon())
    assert len(mounts_at(target)) == 1
    assert driver.is_present(step)


def test_undo(driver: PodMountDriver, step: PodMount, target: Path) -> None:
    """Undo leaves neither mount nor directory, keeps the pod's files, and may be repeated."""
    driver.apply(step, soon())
    (Path(step.source) / "file").touch()
    driver.undo(step, soon())
    driver.undo(step, soon())
    assert mounts_at(target) == []
    assert tree(target.parent) == set()
    assert tree(Path(step.source)) == {"file"}


def test_undo_without_short_dir(driver: PodMountDriver, step: PodMount) -> None:
    """Undo without a short_dir succeeds."""
    driver.undo(step, soon())


def test_undo_after_the_pods_directory_is_gone(driver: PodMountDriver, step: PodMount, target: Path) -> None:
    """The mount is removed even when the pod's directory was removed before."""
    driver.apply(step, soon())
    Path(step.source).rmdir()
    driver.undo(step, soon())
    assert tree(target.parent) == set()


def test_undo_of_a_busy_mount(driver: PodMountDriver, step: PodMount, target: Path) -> None:
    """A process whose working directory is in the mount does not make DEL fail."""
    driver.apply(step, soon())
    inside = os.open(target, os.O_RDONLY)
    driver.undo(step, soon())
    os.close(inside)
    assert tree(target.parent) == set()


def test_stale_directory(driver: PodMountDriver, step: PodMount, target: Path) -> None:
    """A directory without a mount, left by a crash or reboot, is used for the mount and removed at the end."""
    target.mkdir(parents=True)
    assert not driver.is_present(step)
    driver.apply(step, soon())
    assert len(mounts_at(target)) == 1
    driver.undo(step, soon())
    assert tree(target.parent) == set()


def test_stale_directory_with_files(driver: PodMountDriver, step: PodMount, target: Path) -> None:
    """Files below the mount are not ours: they stay with their directory."""
    target.mkdir(parents=True)
    (target / "file").touch()
    driver.apply(step, soon())
    assert tree(target) == set()
    driver.undo(step, soon())
    assert tree(target) == {"file"}


def test_mount_of_something_else(driver: PodMountDriver, step: PodMount, target: Path, room: Path) -> None:
    """A mount of another directory is refused, named with the expected one, and stays."""
    (room / "other").mkdir()
    bind(room / "other", target)
    with pytest.raises(DirectoryRefused, match="shows another directory") as caught:
        driver.apply(step, soon())
    assert step.target in str(caught.value)
    assert step.source in str(caught.value)
    assert len(mounts_at(target)) == 1
    drift = driver.check(step, soon())[0]
    assert (drift.subject, drift.found) == (f"mount {target}", Other("another directory"))


def test_mount_of_a_removed_directory(driver: PodMountDriver, step: PodMount) -> None:
    """A mount of a directory that was removed and made anew shows the dead one, and is refused."""
    driver.apply(step, soon())
    Path(step.source).rmdir()
    Path(step.source).mkdir()
    with pytest.raises(DirectoryRefused, match="shows another directory"):
        driver.apply(step, soon())


def test_plain_mount_of_the_same(driver: PodMountDriver, step: PodMount, target: Path) -> None:
    """A mount made by the plugin that we replace is used, and protected from then on."""
    bind(Path(step.source), target)
    assert Drift(f"mount {target}", "", "nosymfollow", "a mount without it") in driver.check(step, soon())
    assert driver.is_present(step)
    driver.apply(step, soon())
    assert [options >= FLAGS for options in mounts_at(target)] == [True]
    assert driver.check(step, soon()) == []


def test_stacked_mounts(driver: PodMountDriver, step: PodMount, target: Path) -> None:
    """Mounts on top of each other are used as one and all undone."""
    driver.apply(step, soon())
    bind(Path(step.source), target)
    bind(Path(step.source), target)
    driver.apply(step, soon())
    assert len(mounts_at(target)) == 3
    driver.undo(step, soon())
    assert mounts_at(target) == []
    assert tree(target.parent) == set()


def test_shared_mounts(driver: PodMountDriver, room: Path) -> None:
    """Where mounts propagate, as under systemd, a later mount in the pod's directory is not visible through our mount.

    Without our flags it would be. Nothing of ours stays in either place.
    """
    node, other = room / "node", room / "other"
    source, target = node / "pods" / "uid", node / "short" / "uid"
    other.mkdir()
    (other / "file").touch()
    source.mkdir(parents=True)
    bind(node, node)
    fd = os.open(node, os.O_PATH)
    paths.mount_setattr(fd, 0, MS_SHARED)
    os.close(fd)
    step = PodMount(str(source), f"{node}/pods", str(target))
    driver.apply(step, soon())
    bind(other, source / "inner")
    assert tree(source / "inner") == {"file"}
    assert tree(target / "inner") == set()
    driver.undo(step, soon())
    assert tree(target.parent) == set()
    assert tree(source / "inner") == {"file"}


def test_target_is_a_link(driver: PodMountDriver, step: PodMount, target: Path, room: Path) -> None:
    """Nothing is mounted through a link at the target."""
    (room / "victim").mkdir()
    target.parent.mkdir()
    target.symlink_to(room / "victim")
    with pytest.raises(DirectoryRefused):
        driver.apply(step, soon())
    assert mounts_at(room / "victim") == []


def test_source_is_a_link(driver: PodMountDriver, step: PodMount, room: Path) -> None:
    """A pod's directory replaced by a link is refused, and no mount is made."""
    (room / "victim").mkdir()
    Path(step.source).rmdir()
    Path(step.source).symlink_to(room / "victim")
    with pytest.raises(DirectoryRefused, match="shared-dir is a symbolic link"):
        driver.apply(step, soon())
    assert not (room / "short").exists()


def test_check_without_mount(driver: PodMountDriver, step: PodMount, target: Path) -> None:
    """A missing mount is reported, whether or not its directory is there."""
    assert len(driver.check(step, soon())) == 1
    target.mkdir(parents=True)
    assert len(driver.check(step, soon())) == 1


def test_the_mount_table_is_read_when_it_has_changed(
    driver: PodMountDriver, step: PodMount, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mount that came or went is seen by the next look, and nothing is read while the kernel tells of no change."""
    reads: list[Mapping[int, mountinfo.Mount]] = []
    real = mountinfo.read

    def read() -> Mapping[int, mountinfo.Mount]:
        reads.append(real())
        return reads[-1]

    monkeypatch.setattr(mountinfo, "read", read)

    def sign() -> object:
        return driver.signs(step, SharedReads(), None)

    assert sign() is None
    driver.apply(step, soon())
    assert sign()

    def reads_nothing() -> bool:
        before = len(reads)
        return bool(sign()) and len(reads) == before

    wait_until(reads_nothing, what="a look without a change")
    paths.umount2(str(target), paths.DETACH)
    assert sign() is None
    driver.undo(step, soon())


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EINVAL])
def test_old_kernel(
    driver: PodMountDriver,
    step: PodMount,
    target: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    number: int,
) -> None:
    """On a kernel that cannot refuse links the mount is a plain one, with a warning."""

    def absent(fd: int, attributes: int, propagation: int = 0) -> None:
        del fd, attributes, propagation
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(paths, "mount_setattr", absent)
    driver.apply(step, soon())
    driver.apply(step, soon())
    assert [options & FLAGS for options in mounts_at(target)] == [set()]
    assert "symbolic links" in capsys.readouterr().err


def test_memory_backed_directory(driver: PodMountDriver, step: PodMount, target: Path, shm: Path) -> None:
    """An emptyDir in memory is a mount itself, and OVS sees it."""
    (shm / "file").touch()
    bind(shm, Path(step.source))
    driver.apply(step, soon())
    assert tree(target) == {"file"}
    driver.undo(step, soon())
    assert tree(Path(step.source)) == {"file"}


def test_no_descriptor_is_left_open(driver: PodMountDriver, step: PodMount, target: Path, room: Path) -> None:
    """Success and refusal both close all descriptors."""
    before = descriptors()
    driver.apply(step, soon())
    driver.apply(step, soon())
    driver.check(step, soon())
    driver.is_present(step)
    (room / "other").mkdir()
    bind(room / "other", target)
    with pytest.raises(DirectoryRefused):
        driver.apply(step, soon())
    driver.undo(step, soon())
    assert descriptors() <= before
