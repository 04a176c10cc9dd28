"""OVS's socket is put where the pod sees it and still accepts there, on one device and across two."""

from __future__ import annotations

import os
import stat
import subprocess
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tests.host.places import (
    UNUSED_ID,
    answers,
    bind_over,
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
from tests.lab.switch.switch import FOR_EVER_S
from userspace_cni.attachment.drift import Absent, Dead, Other
from userspace_cni.attachment.steps import PlacedSocket, SharedReads
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import DirectoryRefused, Unavailable
from userspace_cni.host.files.placement import PlacedSocketDriver, free_source, is_source_dead

LABEL = "system_u:object_r:container_file_t:s0"
driver = PlacedSocketDriver()


def connects_as_nobody(path: Path) -> None:
    """In a forked child: connect as a user who is in no group of root's."""
    drop_privileges()
    assert connects(path)


@pytest.fixture
def pod(room: Path) -> Path:
    """The pod's directory, on disk."""
    path = room / "pods" / "uid"
    path.mkdir(parents=True)
    return path


@pytest.fixture(params=["same device", "two devices"])
def step(request: pytest.FixtureRequest, room: Path, shm: Path, pod: Path) -> PlacedSocket:
    """OVS's directory on the same device as the pod's, or on another."""
    ovs = room / "ovs" if request.param == "same device" else shm / "ovs"
    ovs.mkdir()
    return PlacedSocket(source=f"{ovs}/c0ffee-net1", directory=str(pod), trusted=f"{room}/pods", name="vhost.sock")


@pytest.fixture
def placed(step: PlacedSocket) -> Path:
    return Path(step.directory, step.name)


@pytest.fixture
def source(step: PlacedSocket) -> Path:
    """The path at which OVS binds the socket."""
    return Path(step.source)


def test_socket_accepts_where_the_pod_sees_it(step: PlacedSocket, source: Path, placed: Path) -> None:
    """The same socket accepts under the pod's name, OVS's own name is free for its next bind, and there is no drift."""
    with listening(source) as server:
        driver.apply(step, soon())
        assert answers(placed, server)
        assert not source.exists()
        assert driver.check(step, soon()) == []
        assert tree(placed.parent) == {step.name}


def test_across_devices_it_is_a_protected_mount(step: PlacedSocket, source: Path, placed: Path) -> None:
    """Across devices there is one mount, with the flags of all our mounts; on one device there is none."""
    with listening(source):
        driver.apply(step, soon())
    options = mounts_at(placed)
    if source.parent.stat().st_dev == placed.parent.stat().st_dev:
        assert options == []
    else:
        assert [option >= {"nosymfollow", "nosuid", "nodev", "noexec"} for option in options] == [True]


def test_apply_twice(step: PlacedSocket, source: Path, placed: Path) -> None:
    """A socket that is placed already stays."""
    with listening(source) as server:
        driver.apply(step, soon())
        driver.apply(step, soon())
        assert answers(placed, server)
    assert len(mounts_at(placed)) <= 1


def test_owner_can_connect(step: PlacedSocket, source: Path, placed: Path) -> None:
    """An application of another user may connect if the socket is given to it, else it may not."""
    with listening(source):
        driver.apply(replace(step, mode=0o600), soon())
        assert in_child(lambda: connects_as_nobody(placed)) != 0
        owned = replace(step, user=str(UNUSED_ID), group="daemon", mode=0o660, selinux_label=LABEL)
        driver.apply(owned, soon())
        assert in_child(lambda: connects_as_nobody(placed)) == 0
        assert (placed.stat().st_uid, placed.group(), mode(placed)) == (UNUSED_ID, "daemon", 0o660)
        assert os.getxattr(placed, "security.selinux") == LABEL.encode() + b"\0"
        assert driver.check(owned, soon()) == []


def test_owner_is_set_before_it_is_seen(step: PlacedSocket, source: Path, placed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Owner and mode are right from the moment at which the socket has its name."""
    seen: list[tuple[int, int]] = []
    chmod = os.chmod

    def noting(path: str, bits: int) -> None:
        chmod(path, bits)
        seen.append((source.stat().st_uid, stat.S_IMODE(source.stat().st_mode)))
        assert not placed.exists()

    monkeypatch.setattr(os, "chmod", noting)
    with listening(source):
        driver.apply(replace(step, user=str(UNUSED_ID), mode=0o600), soon())
    assert seen == [(UNUSED_ID, 0o600)]


def test_ovs_restarted(step: PlacedSocket, source: Path, placed: Path) -> None:
    """A newer socket of OVS is reported as drift, and then replaces the dead one."""
    with listening(source):
        driver.apply(step, soon())
    with listening(source) as server:
        assert not connects(placed)
        assert "newer socket" in str(driver.check(step, soon())[0].found)
        driver.apply(step, soon())
        assert answers(placed, server)
        assert driver.check(step, soon()) == []
    assert len(mounts_at(placed)) <= 1
    driver.undo(step, soon())
    assert tree(placed.parent) == set()


def test_a_dead_socket_is_never_placed(step: PlacedSocket, source: Path, placed: Path) -> None:
    """A dead socket that a killed OVS left at its own name is reported, and only a living one is placed."""
    with listening(source):
        driver.apply(step, soon())
    with listening(source):
        pass
    found = driver.check(step, soon())[0].found
    assert isinstance(found, Dead)
    assert "a dead socket of a killed OVS" in found.words
    with pytest.raises(Unavailable, match="did not make it in time"):
        driver.make_again(step, soon())
    assert is_source_dead(step.source)
    source.unlink()
    assert isinstance(driver.check(step, soon())[0].found, Dead)
    with listening(source) as server:
        driver.apply(step, soon())
        assert answers(placed, server)
        assert driver.check(step, soon()) == []


def test_the_way_of_the_next_bind_is_free(source: Path) -> None:
    """A dead socket at OVS's own name is removed; a living socket and any other file stay."""
    assert not free_source(str(source))
    with listening(source):
        assert not is_source_dead(str(source))
        assert not free_source(str(source))
        assert source.is_socket()
    assert is_source_dead(str(source))
    assert free_source(str(source))
    assert not source.exists()
    source.touch()
    assert not free_source(str(source))
    assert source.exists()
    source.unlink()
    source.parent.rmdir()
    assert not free_source(str(source))


@pytest.mark.parametrize("to", ["elsewhere.sock", "deep/er/elsewhere.sock", "a name"])
@pytest.mark.parametrize("instead", ["nothing", "a socket"])
def test_a_pod_that_moves_its_socket_keeps_no_mount(
    step: PlacedSocket, source: Path, placed: Path, to: str, instead: str
) -> None:
    """Wherever a pod renames the socket, and whatever it puts there instead, the next socket and DEL leave no mount of ours."""
    moved = placed.parent / to
    moved.parent.mkdir(parents=True, exist_ok=True)
    script = 'umount "$1" 2>/dev/null; exec mv "$1" "$2"'
    with listening(source):
        driver.apply(step, soon())
        subprocess.run(["unshare", "--mount", "sh", "-c", script, "pod", placed, moved], check=True)
    two_devices = source.parent.stat().st_dev != placed.parent.stat().st_dev
    shown = str(moved).replace(" ", "\\040")
    assert len(mounts_at(Path(shown))) == two_devices
    if instead == "a socket":
        with listening(placed):
            pass
    with listening(source) as server:
        driver.apply(step, soon())
        assert answers(placed, server)
        assert mounts_at(Path(shown)) == []
        assert len(mounts_at(placed)) == two_devices
        subprocess.run(["unshare", "--mount", "sh", "-c", script, "pod", placed, moved.with_name("again")], check=True)
    driver.undo(step, soon())
    assert not any(str(placed.parent) in line for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines())
    if two_devices:
        assert tree(moved.parent) - {"deep"} == set()


@pytest.mark.parametrize("instead", ["nothing", "a directory"])
def test_a_directory_that_was_carried_off_keeps_no_mount(step: PlacedSocket, source: Path, placed: Path, instead: str) -> None:
    """A pod that can write above its directory, as in a `sharedDir`, renames it: DEL still finds our mount in it.

    A neighbour's mount stays.
    """
    neighbour = replace(step, source=f"{step.source}0", name="neighbour.sock")
    away = placed.parent.with_name("away")
    with listening(source), listening(Path(neighbour.source)):
        driver.apply(step, soon())
        driver.apply(neighbour, soon())
        placed.parent.rename(away)
        if instead == "a directory":
            placed.parent.mkdir()
        driver.undo(step, soon())
        assert mounts_at(away / placed.name) == []
        assert len(mounts_at(away / "neighbour.sock")) == (source.parent.stat().st_dev != away.stat().st_dev)
        driver.undo(neighbour, soon())
        assert mounts_at(away / "neighbour.sock") == []


def test_mounts_of_others_stay(step: PlacedSocket, source: Path, placed: Path, room: Path) -> None:
    """Below a pod's directory only the mount of this port's own socket is removed, not a neighbour's or a directory's."""
    neighbour = replace(step, source=f"{step.source}0", name="neighbour.sock")
    (room / Path(step.source).name).mkdir()
    (placed.parent / "volume").mkdir()
    bind_over(room / Path(step.source).name, placed.parent / "volume")
    with listening(source), listening(Path(neighbour.source)) as server:
        driver.apply(step, soon())
        driver.apply(neighbour, soon())
        driver.undo(step, soon())
        assert answers(placed.with_name("neighbour.sock"), server)
        assert len(mounts_at(placed.parent / "volume")) == 1
        assert driver.check(neighbour, soon()) == []


def test_whether_there_are_mounts(step: PlacedSocket, source: Path, placed: Path) -> None:
    """The driver knows whether mounts keep the kubelet from removing the
    directory: across devices until DEL, on one device never.
    """
    with listening(source):
        assert not driver.is_mounted(step, SharedReads())
        driver.apply(step, soon())
        assert driver.is_mounted(step, SharedReads()) == (source.parent.stat().st_dev != placed.parent.stat().st_dev)
        assert not driver.is_mounted(replace(step, source=f"{step.source}0"), SharedReads())
        driver.undo(step, soon())
        assert not driver.is_mounted(step, SharedReads())
    placed.parent.rmdir()
    assert not driver.is_mounted(step, SharedReads())


def test_device_changed_between(step: PlacedSocket, source: Path, placed: Path, room: Path, shm: Path) -> None:
    """A placed socket is replaced by one from another directory, on one device and across two."""
    other = (shm if source.is_relative_to(room) else room) / "second" / "socket"
    other.parent.mkdir()
    with listening(source), listening(other) as server:
        driver.apply(step, soon())
        moved = replace(step, source=str(other))
        driver.apply(moved, soon())
        assert answers(placed, server)
        driver.undo(moved, soon())
    assert tree(placed.parent) == set()


def test_undo(step: PlacedSocket, source: Path, placed: Path) -> None:
    """Undo leaves neither socket nor mount nor placeholder, and may be repeated."""
    with listening(source):
        driver.apply(step, soon())
    driver.undo(step, soon())
    driver.undo(step, soon())
    assert mounts_at(placed) == []
    assert tree(placed.parent) == set()


def test_undo_without_directory(step: PlacedSocket, placed: Path) -> None:
    """Undoing succeeds when the pod's directory is gone."""
    placed.parent.rmdir()
    driver.undo(step, soon())


def test_waits_for_ovs(step: PlacedSocket, source: Path, placed: Path) -> None:
    """Apply waits for a socket that OVS makes a little later, even in a directory that OVS has yet to make."""
    source.parent.rmdir()
    ready, end = threading.Event(), threading.Event()

    def ovs() -> None:
        ready.wait(60)
        source.parent.mkdir()
        with listening(source):
            end.wait(60)

    thread = threading.Thread(target=ovs)
    thread.start()
    ready.set()
    driver.apply(step, soon())
    assert connects(placed)
    end.set()
    thread.join()


def test_waits_no_longer_than_it_may(step: PlacedSocket) -> None:
    """A socket that never comes is Unavailable at the deadline."""
    with pytest.raises(Unavailable, match=r"in time|out of time"):
        driver.apply(step, soon().within(0.03))


def test_placing_again_hardly_waits(step: PlacedSocket, source: Path, placed: Path) -> None:
    """With any deadline, it ends soon if OVS has made no new socket; an existing one is placed."""
    with pytest.raises(Unavailable, match="did not make it in time"):
        driver.make_again(step, Deadline.after(FOR_EVER_S))
    with listening(source) as server:
        driver.make_again(step, Deadline.after(FOR_EVER_S))
        assert answers(placed, server)


@pytest.mark.parametrize("found", ["a regular file", "a directory", "a FIFO", "a symbolic link"])
def test_other_objects_are_refused_and_kept(step: PlacedSocket, source: Path, placed: Path, room: Path, found: str) -> None:
    """Any other file that the pod has under the name is refused by ADD, reported by CHECK, and left by DEL."""
    (room / "victim").write_text("precious")
    if found == "a regular file":
        placed.write_text("the pod's")
    elif found == "a directory":
        placed.mkdir()
    elif found == "a FIFO":
        os.mkfifo(placed)
    else:
        placed.symlink_to(room / "victim")
    with listening(source):
        with pytest.raises(DirectoryRefused, match=f"{placed}: {found}"):
            driver.apply(step, soon())
        assert source.is_socket()
    assert driver.check(step, soon())[0].found == Other(found)
    driver.undo(step, soon())
    assert tree(placed.parent) == {step.name}
    assert (room / "victim").read_text() == "precious"


def test_source_that_is_no_socket(step: PlacedSocket, source: Path, placed: Path) -> None:
    """A file that is no socket where OVS binds is refused at once and not moved."""
    source.symlink_to("/etc/passwd")
    with pytest.raises(DirectoryRefused, match="a symbolic link"):
        driver.apply(step, soon())
    assert source.is_symlink()
    assert tree(placed.parent) == set()


def test_check_without_socket(step: PlacedSocket, placed: Path) -> None:
    """A missing socket is reported, and so is a missing directory."""
    assert driver.check(step, soon())[0].found == Absent()
    placed.parent.rmdir()
    assert driver.check(step, soon())[0].found == Absent()


def test_no_descriptor_is_left_open(step: PlacedSocket, source: Path, placed: Path) -> None:
    """Success and refusal both close all descriptors."""
    before = descriptors()
    with listening(source):
        driver.apply(step, soon())
        driver.apply(step, soon())
        driver.check(step, soon())
    with listening(source):
        driver.apply(step, soon())
    driver.undo(step, soon())
    placed.mkdir()
    with listening(source), pytest.raises(DirectoryRefused):
        driver.apply(step, soon())
    assert descriptors() <= before
