"""The file in the runtimes' directory is complete at every moment, whatever dies, and never replaces another program's."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from userspace_cni.attachment.drift import Absent
from userspace_cni.attachment.steps import RuntimeNetwork, SharedReads
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import NameTaken, Unavailable
from userspace_cni.base.root import HostRoot
from userspace_cni.cni.conflist import mark, store_of
from userspace_cni.host.files import whole_files as files
from userspace_cni.host.runtimes import runtime_networks
from userspace_cni.host.runtimes.runtime_networks import RuntimeNetworkDriver

STORE = "c0ffee"
CONFIG = {"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "userspace"}]}
EFFECTS = ("write", "fsync", "link", "unlink", "rename", "open")
READ_BY_RUNTIMES = (".conf", ".conflist", ".json")


def soon() -> Deadline:
    """A deadline that leaves enough time for a file."""
    return Deadline.after(60)


def step(directory: Path, name: str = "10-net.conflist", *instead_of: str, **keys: Any) -> RuntimeNetwork:
    """The step for the file in that directory, with these keys added."""
    return RuntimeNetwork(str(directory), name, mark({**CONFIG, **keys}, STORE), STORE, instead_of)


def seen_by_runtimes(directory: Path) -> dict[str, str]:
    there = directory.iterdir() if directory.exists() else ()
    return {path.name: path.read_text() for path in there if path.name.endswith(READ_BY_RUNTIMES)}


@contextmanager
def dying(number: int) -> Iterator[None]:
    """This process dies right after the effect of that number."""
    left = [number]

    def mortal(call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            result = call(*args, **kwargs)
            left[0] -= 1
            if not left[0]:
                os._exit(9)
            return result

        return called

    for name in EFFECTS:
        setattr(os, name, mortal(getattr(os, name)))
    yield


def dies(number: int, work: Callable[[], object]) -> bool:
    """Whether a child that does the work dies after the effect of that number; if not, it did all of the work."""
    child = os.fork()
    if not child:
        try:
            with dying(number):
                work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 9)
    return code == 9


@pytest.mark.parametrize("former", [None, "10-net.conflist", "05-old.conflist"])
def test_a_death_after_each_effect(tmp_path: Path, former: str | None) -> None:
    """A runtime sees the former file or the new one, complete; the next try leaves only the new one."""
    driver, number = RuntimeNetworkDriver(), 0
    died = True
    while died:
        number += 1
        directory = tmp_path / str(number)
        new = step(
            directory,
            "10-net.conflist",
            *([former] if former and former != "10-net.conflist" else []),
            plugins=[{"type": "userspace", "host": {}}],
        )
        wanted = {new.name: new.content}
        had = {former: step(directory, former).content} if former else {}
        if former:
            driver.apply(step(directory, former), soon())
        died = dies(number, lambda: driver.apply(new, soon()))  # noqa: B023 - called at once
        seen = seen_by_runtimes(directory)
        assert seen in (had, wanted, {**had, **wanted}), number
        driver.apply(new, soon())
        assert {path.name: path.read_text() for path in directory.iterdir()} == wanted
        assert driver.check(new, soon()) == []
    assert number > 5


def test_a_death_amid_removal(tmp_path: Path) -> None:
    """The next try removes the rest."""
    driver, number, died = RuntimeNetworkDriver(), 0, True
    while died:
        number += 1
        ours = step(tmp_path / str(number))
        driver.apply(ours, soon())
        died = dies(number, lambda: driver.undo(ours, soon()))  # noqa: B023 - called at once
        driver.undo(ours, soon())
        assert list(Path(ours.directory).iterdir()) == []
    driver.undo(step(tmp_path / "absent"), soon())


@pytest.mark.parametrize("content", ["", "{", "[]", '{"userspace-cni.io/store": 1}', mark(CONFIG, "another")])
def test_another_programs_file(tmp_path: Path, content: str) -> None:
    """It is neither replaced nor removed, and it is no drift."""
    driver, ours = RuntimeNetworkDriver(), step(tmp_path)
    place = tmp_path / ours.name
    place.write_text(content)
    with pytest.raises(NameTaken, match="another"):
        driver.apply(ours, soon())
    assert (driver.is_lost(ours, SharedReads(), soon()), driver.find_changes(ours, SharedReads(), soon())) == (False, [])
    assert len(driver.check(ours, soon())) == 1
    driver.undo(ours, soon())
    assert place.read_text() == content
    assert [path.name for path in tmp_path.iterdir()] == [ours.name]


def test_a_file_that_comes_between_look_and_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays, and ours leaves nothing."""
    ours = step(tmp_path)
    written = files.write_temporary

    @contextmanager
    def slower(*args: Any, **kwargs: Any) -> Iterator[str]:
        with written(*args, **kwargs) as beside:
            (tmp_path / ours.name).write_text("theirs")
            yield beside

    monkeypatch.setattr(runtime_networks, "write_temporary", slower)
    with pytest.raises(NameTaken):
        RuntimeNetworkDriver().apply(ours, soon())
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {ours.name: "theirs"}


def test_a_file_that_takes_the_place_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that comes while the new content of ours is written and flushed stays, and ours leaves nothing."""
    ours = step(tmp_path)
    RuntimeNetworkDriver().apply(ours, soon())
    written = files.write_temporary

    @contextmanager
    def slower(*args: Any, **kwargs: Any) -> Iterator[str]:
        with written(*args, **kwargs) as beside:
            (tmp_path / ours.name).write_text("{}")
            yield beside

    monkeypatch.setattr(runtime_networks, "write_temporary", slower)
    with pytest.raises(NameTaken):
        RuntimeNetworkDriver().apply(step(tmp_path, more=1), soon())
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {ours.name: "{}"}


def test_a_file_that_is_taken_away_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that wants the directory for itself may rename our file at once: that is no fault of ours."""
    listdir = os.listdir

    def emptied(dirfd: int) -> list[str]:
        (tmp_path / "10-net.conflist").rename(tmp_path / "10-net.conflist.bak")
        return listdir(dirfd)

    monkeypatch.setattr(os, "listdir", emptied)
    RuntimeNetworkDriver().apply(step(tmp_path), soon())
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["10-net.conflist.bak"]


def test_a_name_that_is_no_text(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The log can say that runtimes use that file before ours."""
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/00-\xff.conflist")).write_text("{}")
    RuntimeNetworkDriver().apply(step(tmp_path), soon())
    assert "00-\\udcff.conflist" in capfd.readouterr().err


def test_a_death_before_another_name_is_asked_for(tmp_path: Path) -> None:
    """What it left under the former name is removed with that."""
    (tmp_path / ".05-old.conflist.tmp").write_text("half")
    RuntimeNetworkDriver().apply(step(tmp_path, "10-net.conflist", "05-old.conflist"), soon())
    assert [path.name for path in tmp_path.iterdir()] == ["10-net.conflist"]


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The former file stays, no half-written file is left, and the error says that it may pass."""
    driver, former = RuntimeNetworkDriver(), step(tmp_path)
    driver.apply(former, soon())

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(Unavailable, match=f"file {former.path}: No space left"):
        driver.apply(step(tmp_path, extra=1), soon())
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {former.name: former.content}


def test_what_others_change(tmp_path: Path) -> None:
    """Changed content of our file is drift; a missing file is lost. The host's root may be elsewhere, with links."""
    (tmp_path / "etc" / "real").mkdir(parents=True)
    (tmp_path / "etc" / "net.d").symlink_to("/etc/real")
    driver, ours = RuntimeNetworkDriver(HostRoot(str(tmp_path))), step(Path("/etc/net.d"))
    assert driver.is_lost(ours, SharedReads(), soon())
    driver.apply(ours, soon())
    place = tmp_path / "etc" / "real" / ours.name
    assert (place.read_text(), store_of(place.read_bytes())) == (ours.content, STORE)
    place.write_text(step(Path("/"), more=1).content)
    assert len(driver.find_changes(ours, SharedReads(), soon())) == 1
    driver.put_back(ours, soon())
    assert place.read_text() == ours.content
    place.unlink()
    [drift] = driver.check(ours, soon())
    assert drift.found == Absent()


def test_which_files_of_ours_go(tmp_path: Path) -> None:
    """The file of the former name is removed.

    Another installation's, one that another program replaced, and a person's copy stay.
    """
    driver = RuntimeNetworkDriver()
    former = ("05-old.conflist", "20-other.conflist", "30-theirs.conflist", "40-absent.conflist")
    driver.apply(step(tmp_path, former[0]), soon())
    (tmp_path / "20-other.conflist").write_text(mark(CONFIG, "another"))
    (tmp_path / "30-theirs.conflist").write_text("{}")
    (tmp_path / "50-copy.conflist").write_text((tmp_path / former[0]).read_text())
    ours, left = step(tmp_path, "10-net.conflist", *former), ["20-other.conflist", "30-theirs.conflist", "50-copy.conflist"]
    driver.apply(ours, soon())
    assert sorted(seen_by_runtimes(tmp_path)) == ["10-net.conflist", *left]
    driver.apply(step(tmp_path, former[0]), soon())  # as after a death before it went
    driver.undo(ours, soon())
    assert sorted(seen_by_runtimes(tmp_path)) == left
