"""Directories shared with pods are made, owned and removed by the rules, whatever a pod puts in their place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.host.places import UNUSED_ID, descriptors, drop_privileges, in_child, mode, soon, tree
from userspace_cni.attachment.drift import Absent, Drift
from userspace_cni.attachment.steps import Directory, SharedResource
from userspace_cni.base.beneath import make_directory, open_directory
from userspace_cni.base.errors import DirectoryRefused, Unavailable
from userspace_cni.host.files.vhost_sockets import DirectoryDriver

LABEL = "system_u:object_r:container_file_t:s0"
driver = DirectoryDriver()


def existing(room: Path, **extra: object) -> Directory:
    """An emptyDir's step: the directory has to exist."""
    return Directory(path=f"{room}/pods/uid/shared-dir", trusted=f"{room}/pods", **extra)  # type: ignore[arg-type]


def created(room: Path, **extra: object) -> Directory:
    """A step for a network's `sharedDir`: the directory is made."""
    return Directory(path=f"{room}/shared/c0ffee", trusted=f"{room}/shared", create=True, own=True, **extra)  # type: ignore[arg-type]


def test_missing_directory_is_not_made(room: Path) -> None:
    """A directory that we may not make has to exist, and the error names the missing one."""
    (room / "pods").mkdir()
    with pytest.raises(DirectoryRefused, match=r"pods/uid/shared-dir: it does not exist") as caught:
        driver.apply(existing(room), soon())
    assert "no such file" not in str(caught.value).lower()
    assert tree(room / "pods") == set()


def test_created_directory(room: Path) -> None:
    """A directory is made with 0750, and its missing parents so that its users can pass through them but not list them."""
    driver.apply(created(room), soon())
    assert mode(room / "shared" / "c0ffee") == 0o750
    assert mode(room / "shared") == 0o711
    assert (room / "shared" / "c0ffee").stat().st_uid == 0


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_umask_does_not_matter(room: Path, umask: int) -> None:
    """The modes are the requested ones, whatever umask the runtime has."""
    before = os.umask(umask)
    try:
        driver.apply(created(room, mode=0o770), soon())
    finally:
        os.umask(before)
    assert (mode(room / "shared" / "c0ffee"), mode(room / "shared")) == (0o770, 0o711)


def test_directories_between_can_be_passed_through(room: Path) -> None:
    """With any umask, a directory's users can pass through its parents, and its mode is the requested one."""
    before = os.umask(0o077)
    try:
        fd, made = make_directory(f"{room}/shared/a/b", f"{room}/shared", 0o755, parents=True)
    finally:
        os.umask(before)
    os.close(fd)
    assert made
    assert [mode(room / "shared" / each) for each in ("", "a", "a/b")] == [0o711, 0o711, 0o755]


def test_owner_can_reach_it(room: Path) -> None:
    """The user for whom a directory was made can make a socket in it."""
    driver.apply(created(room, user=str(UNUSED_ID), group=str(UNUSED_ID)), soon())

    def work() -> None:
        drop_privileges()
        (room / "shared" / "c0ffee" / "file").touch()

    assert in_child(work) == 0
    assert (room / "shared" / "c0ffee" / "file").stat().st_uid == UNUSED_ID


def test_owner_group_mode_and_label(room: Path) -> None:
    """User, group, mode and SELinux label are set on a directory that may be owned."""
    (room / "pods" / "uid" / "shared-dir").mkdir(parents=True)
    step = existing(room, own=True, user=str(UNUSED_ID), group="daemon", mode=0o2770, selinux_label=LABEL)
    driver.apply(step, soon())
    directory = room / "pods" / "uid" / "shared-dir"
    facts = directory.stat()
    assert (facts.st_uid, directory.group(), mode(directory)) == (UNUSED_ID, "daemon", 0o2770)
    assert os.getxattr(directory, "security.selinux") == LABEL.encode() + b"\0"
    assert driver.check(step, soon()) == []


@pytest.mark.parametrize(
    ("asked", "kernels", "same"),
    [
        ("s0:c2,c1", "s0:c1,c2", True),
        ("s0:c0,c1,c2,c5", "s0:c0.c2,c5", True),
        ("s0:c0.c1", "s0:c0,c1", True),
        ("s0-s0", "s0", True),
        ("s0:c1,c2", "s0:c1,c3", False),
        ("s0:c1.c3", "s0:c1,c3", False),
        ("s0", "s0-s0:c0.c1023", False),
        ("s0:c1,d2", "s0:c1", False),
    ],
)
def test_a_label_in_the_kernels_words(room: Path, asked: str, kernels: str, *, same: bool) -> None:
    """Categories in another order, and ranges of them, are the label that was asked for; other categories are not."""
    directory = room / "pods" / "uid" / "shared-dir"
    directory.mkdir(parents=True)
    step = existing(room, own=True, selinux_label=f"system_u:object_r:container_file_t:{asked}")
    os.setxattr(directory, "security.selinux", f"system_u:object_r:container_file_t:{kernels}".encode() + b"\0")
    assert [each.field for each in driver.check(step, soon())] == ([] if same else ["SELinux label"])


def test_hostpath_is_not_owned(room: Path) -> None:
    """A directory that we may not own keeps owner and mode."""
    (room / "pods" / "uid" / "shared-dir").mkdir(parents=True, mode=0o755)
    driver.apply(existing(room, user=str(UNUSED_ID), mode=0o700), soon())
    assert (room / "pods" / "uid" / "shared-dir").stat().st_uid == 0
    assert mode(room / "pods" / "uid" / "shared-dir") == 0o755


@pytest.mark.parametrize(("key", "name"), [("user", "no-such-user"), ("group", "no-such-group"), ("user", "4294967295")])
def test_unknown_user(room: Path, key: str, name: str) -> None:
    """An unknown user or group is named in the error, and nothing is made."""
    with pytest.raises(DirectoryRefused, match=name):
        driver.apply(created(room, **{key: name}), soon())
    assert tree(room) == set()


def in_a_volume(room: Path) -> Directory:
    """A step of a VM: it is made in an emptyDir of its launcher pod."""
    return Directory(
        f"{room}/pods/uid/public/vhostuser", f"{room}/pods", create=True, own=True, user="107", group="107", mode=0o755
    )


def test_directory_in_a_volume(room: Path) -> None:
    """In the emptyDir of another group, which it inherits, a directory is made
    with the requested owner and mode; undo removes it alone.
    """
    volume = room / "pods" / "uid" / "public"
    volume.mkdir(parents=True)
    os.chown(volume, 0, UNUSED_ID)
    volume.chmod(0o2777)
    driver.apply(in_a_volume(room), soon())
    facts = (volume / "vhostuser").stat()
    assert (facts.st_uid, facts.st_gid, mode(volume / "vhostuser")) == (107, 107, 0o755)
    assert driver.check(in_a_volume(room), soon()) == []
    driver.undo(in_a_volume(room), soon())
    assert (tree(volume), mode(volume)) == (set(), 0o2777)


@pytest.mark.parametrize("there", ["pods", "pods/uid"])
def test_volume_that_is_gone(room: Path, there: str) -> None:
    """The kubelet owns everything above the directory: after it removed that, neither apply nor undo makes it again."""
    (room / there).mkdir(parents=True)
    with pytest.raises(DirectoryRefused, match=r"public/vhostuser: it does not exist"):
        driver.apply(in_a_volume(room), soon())
    driver.undo(in_a_volume(room), soon())
    assert list((room / "pods").rglob("*")) == ([] if there == "pods" else [room / there])


@pytest.mark.parametrize("place", ["pods/uid", "pods/uid/public", "pods/uid/public/vhostuser"])
def test_link_on_the_way_to_it(room: Path, place: str) -> None:
    """A link anywhere below the trusted prefix is refused by name, and behind it no directory is made or chowned."""
    target = room / "target"
    (target / "public" / "vhostuser").mkdir(parents=True)
    (room / place).parent.mkdir(parents=True)
    behind = {"pods/uid": target, "pods/uid/public": target / "public"}.get(place, target / "public" / "vhostuser")
    (room / place).symlink_to(behind)
    before = descriptors()
    with pytest.raises(DirectoryRefused, match=f"{place} is a symbolic link"):
        driver.apply(in_a_volume(room), soon())
    assert descriptors() <= before
    assert (target / "public" / "vhostuser").stat().st_uid == 0
    driver.undo(in_a_volume(room), soon())
    assert (target / "public" / "vhostuser").is_dir()


def test_undo_removes_it_alone(room: Path) -> None:
    """Undoing removes the directory and leaves its parents; a second time does nothing."""
    driver.apply(created(room), soon())
    driver.undo(created(room), soon())
    driver.undo(created(room), soon())
    assert tree(room) == {"shared"}
    assert tree(room / "shared") == set()


def test_undo_keeps_what_is_in_it(room: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A directory that holds another program's file stays, with a warning."""
    driver.apply(created(room), soon())
    (room / "shared" / "c0ffee" / "core").touch()
    driver.undo(created(room), soon())
    assert tree(room / "shared" / "c0ffee") == {"core"}
    assert "c0ffee" in capsys.readouterr().err


def test_undo_keeps_an_emptydir(room: Path) -> None:
    """A directory that we may not make is never removed."""
    (room / "pods" / "uid" / "shared-dir").mkdir(parents=True)
    driver.undo(existing(room), soon())
    assert (room / "pods" / "uid" / "shared-dir").is_dir()


def test_undo_keeps_what_took_its_place(room: Path) -> None:
    """A link or file that replaced the directory is neither followed nor removed, and DEL succeeds."""
    (room / "shared").mkdir()
    (room / "victim").mkdir()
    (room / "shared" / "c0ffee").symlink_to(room / "victim")
    driver.undo(created(room), soon())
    assert (room / "shared" / "c0ffee").is_symlink()
    assert (room / "victim").is_dir()


@pytest.mark.parametrize("at", ["uid", "uid/shared-dir"])
@pytest.mark.parametrize("found", ["a symbolic link", "a regular file", "a FIFO"])
def test_something_else_in_the_way(room: Path, at: str, found: str) -> None:
    """A link, file or FIFO anywhere below the trusted prefix is refused, and the error says what it is and where."""
    (room / "victim" / "shared-dir").mkdir(parents=True)
    place = room / "pods" / at
    place.parent.mkdir(parents=True)
    if found == "a symbolic link":
        place.symlink_to(room / "victim")
    elif found == "a FIFO":
        os.mkfifo(place)
    else:
        place.touch()
    step = existing(room, own=True, mode=0o777)
    with pytest.raises(DirectoryRefused, match=rf"pods/{at} is {found}"):
        driver.apply(step, soon())
    assert mode(room / "victim" / "shared-dir") != 0o777
    assert [f"{place} is {found}" in str(drift.found) for drift in driver.check(step, soon())] == [True]


def test_creation_does_not_follow(room: Path) -> None:
    """A link at the place of a new directory is refused; nothing is made or changed behind it."""
    (room / "shared").mkdir()
    (room / "victim").mkdir(mode=0o755)
    (room / "shared" / "c0ffee").symlink_to(room / "victim")
    with pytest.raises(DirectoryRefused, match="c0ffee is a symbolic link"):
        driver.apply(created(room, mode=0o777), soon())
    assert mode(room / "victim") == 0o755


def test_link_in_the_trusted_prefix(room: Path) -> None:
    """The trusted prefix may be reached through links: /var/run is one."""
    (room / "real" / "pods" / "uid" / "shared-dir").mkdir(parents=True)
    (room / "pods").symlink_to(room / "real" / "pods")
    driver.apply(existing(room), soon())


@pytest.mark.parametrize("path", ["/etc", "{room}/podsx/uid", "{room}/pods/../etc", "relative"])
def test_path_outside_of_its_prefix(room: Path, path: str) -> None:
    """A path that is not below its trusted prefix is refused before anything is opened."""
    with pytest.raises(DirectoryRefused, match="not below"):
        driver.apply(Directory(path=path.format(room=room), trusted=f"{room}/pods"), soon())


def test_directory_is_its_own_prefix(room: Path) -> None:
    """A directory that no pod can write, made and removed, may be the trusted prefix itself."""
    step = Directory(path=f"{room}/shared", trusted=f"{room}/shared", create=True)
    driver.apply(step, soon())
    assert mode(room / "shared") == 0o750
    driver.undo(step, soon())
    assert tree(room) == set()


def test_present(room: Path) -> None:
    """Apply recognises a directory that existed before it."""
    assert not driver.is_present(created(room))
    driver.apply(created(room), soon())
    assert driver.is_present(created(room))


def test_check_reports_each_difference(room: Path) -> None:
    """Another owner, group, mode or label is reported with expected and found; a missing directory too."""
    step = created(room, user="0", group="0", mode=0o750, selinux_label=LABEL)
    driver.apply(step, soon())
    directory = room / "shared" / "c0ffee"
    os.chown(directory, UNUSED_ID, UNUSED_ID)
    directory.chmod(0o777)
    os.removexattr(directory, "security.selinux")
    assert driver.check(step, soon()) == [
        Drift(f"directory {directory}", "uid", 0, UNUSED_ID),
        Drift(f"directory {directory}", "gid", 0, UNUSED_ID),
        Drift(f"directory {directory}", "mode", "0750", "0777"),
        Drift(f"directory {directory}", "SELinux label", LABEL, Absent("none")),
    ]
    directory.rmdir()
    assert len(driver.check(step, soon())) == 1


def test_out_of_time(room: Path) -> None:
    """After the deadline no work begins."""
    with pytest.raises(Unavailable):
        driver.apply(created(room), soon().within(-1))
    assert tree(room) == set()


def test_no_descriptor_is_left_open(room: Path) -> None:
    """Success and refusal both close all descriptors."""
    driver.apply(created(room), soon())
    before = descriptors()
    driver.apply(created(room), soon())
    driver.check(created(room), soon())
    driver.is_present(created(room))
    os.close(open_directory(f"{room}/shared/c0ffee", f"{room}/shared"))
    (room / "shared" / "c0ffee").rmdir()
    (room / "shared" / "c0ffee").touch()
    for _ in range(3):
        with pytest.raises(DirectoryRefused):
            driver.apply(created(room), soon())
        driver.undo(created(room), soon())
    assert descriptors() <= before


def levels_below(room: Path, **extra: object) -> Directory:
    """A step of a `sharedDir` that is some levels below an allowed directory."""
    path, trusted = f"{room}/shared/a/b/c0ffee", f"{room}/shared"
    return Directory(path, trusted, create=True, parents=True, **extra)  # type: ignore[arg-type]


@pytest.mark.parametrize("there", ["", "shared", "shared/a", "shared/a/b"])
def test_parents_are_made(room: Path, there: str) -> None:
    """Missing parents between the trusted prefix and the directory are made as ours, not listable by others.

    Existing ones stay.
    """
    (room / there).mkdir(mode=0o750, parents=True, exist_ok=True)
    before = {path: mode(path) for path in room.rglob("*")}
    driver.apply(levels_below(room, user=str(UNUSED_ID), mode=0o777), soon())
    expected = {room / name: 0o711 for name in ("shared", "shared/a", "shared/a/b")} | {room / "shared/a/b/c0ffee": 0o777}
    assert {path: mode(path) for path in room.rglob("*")} == expected | before
    assert {path.stat().st_uid for path in expected} == {0, UNUSED_ID}
    driver.undo(levels_below(room), soon())
    assert tree(room / "shared" / "a" / "b") == set()


@pytest.mark.parametrize("at", ["shared/a", "shared/a/b"])
@pytest.mark.parametrize("target", ["victim", "absent"])
def test_link_among_the_parents(room: Path, at: str, target: str) -> None:
    """A tenant who may write below the allowed directory puts a link there: the error names it, and nothing is made behind it."""
    (room / "victim").mkdir()
    (room / at).parent.mkdir(parents=True)
    (room / at).symlink_to(room / target)
    before = descriptors()
    with pytest.raises(DirectoryRefused, match=f"{at} is a symbolic link"):
        driver.apply(levels_below(room, mode=0o777), soon())
    assert (tree(room), tree(room / "victim")) == ({"victim", "shared"}, set())
    assert descriptors() <= before


@pytest.mark.parametrize("made", [True, False])
def test_owner_of_what_was_there(room: Path, made: bool) -> None:
    """An existing directory gets owner and mode if an attachment of ours made it.

    Otherwise it keeps its own, which is no drift.
    """
    asked: list[str] = []

    def made_before(thing: SharedResource) -> bool:
        asked.append(thing.key)
        return made

    (room / "shared" / "a" / "b" / "c0ffee").mkdir(parents=True, mode=0o700)
    step = levels_below(room, user=str(UNUSED_ID), mode=0o777)
    own = DirectoryDriver(made_before=made_before)
    own.apply(step, soon())
    facts = (room / "shared/a/b/c0ffee").stat()
    assert (facts.st_uid, facts.st_mode & 0o7777) == ((UNUSED_ID, 0o777) if made else (0, 0o700))
    assert own.check(step, soon()) == []
    os.chown(room / "shared/a/b/c0ffee", 1, 1)
    assert len(own.check(step, soon())) == made
    assert set(asked) == {f"directory:{room}/shared/a/b/c0ffee"}
