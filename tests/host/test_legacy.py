"""The former plugin's records and their directory: what is removed with the last record, and what stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.host.places import bind, mounts_at, tree
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import DirectoryRefused, UserspaceError
from userspace_cni.host.runtimes import former_plugin as legacy

RECORD = "local-c0ffee012345-net1.json"


@pytest.fixture
def data(room: Path) -> Path:
    directory = room / "usrspcni" / "data"
    directory.mkdir(parents=True)
    (directory / RECORD).write_text("{}")
    return directory


def test_the_directory_goes_with_the_last_record(data: Path) -> None:
    """Only the directory itself is removed, after the last interface's record; a missing one is no fault."""
    (data / "local-c0ffee012345-net2.json").write_text("{}")
    legacy.remove_record(str(data / RECORD))
    assert tree(data) == {"local-c0ffee012345-net2.json"}
    for _ in range(2):
        legacy.remove_record(str(data / "local-c0ffee012345-net2.json"))
    assert not data.exists()
    assert data.parent.is_dir()


@pytest.mark.parametrize("name", ["notes", ".hidden"])
def test_what_another_put_there_keeps_the_directory(data: Path, name: str) -> None:
    """A file that is no record stays, and so does the directory."""
    (data / name).write_text("")
    legacy.remove_record(str(data / RECORD))
    assert tree(data) == {name}


def test_a_link_in_the_directorys_place_stays(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """If the administrator replaced the directory by a link, the record is removed, and both stay, with a warning."""
    link = data.parent / "link"
    link.symlink_to(data)
    legacy.remove_record(str(link / RECORD))
    assert (tree(data), link.is_symlink()) == (set(), True)
    assert "the former plugin's directory stays" in capsys.readouterr().err


def test_a_directory_that_cannot_go_is_no_fault(data: Path) -> None:
    """A directory that is a mount point cannot be removed: the record is removed all the same, so that DEL succeeds."""
    behind = data.parent / "behind"
    behind.mkdir()
    (behind / RECORD).write_text("{}")
    bind(behind, data)
    legacy.remove_record(str(data / RECORD))
    assert (tree(behind), len(mounts_at(data))) == (set(), 1)


def test_a_record_that_cannot_be_removed_is_reported(data: Path) -> None:
    """A directory with the record's name is no record: it stays with everything else, and the error names it."""
    (data / RECORD).unlink()
    (data / RECORD).mkdir()
    with pytest.raises(UserspaceError, match=r"removing the former plugin's record .*net1\.json"):
        legacy.remove_record(str(data / RECORD))
    assert (data / RECORD).is_dir()


def test_a_directory_that_cannot_be_looked_at(tmp_path: Path) -> None:
    """An unreadable directory does not count as empty: otherwise an attachment
    would leave its port, and others lose a shared directory.
    """
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    for looking in (
        lambda: legacy.find_record(str(loop), "c0ffee012345", "net1"),
        lambda: legacy.other_port_names(f"{loop}/{RECORD}"),
        lambda: legacy.remove_socket(f"{loop}/socket", "c0ffee012345", str(tmp_path), [], Deadline.after(60)),
    ):
        with pytest.raises(DirectoryRefused, match="loop"):
            looking()
    assert legacy.find_record(str(tmp_path / "none"), "c0ffee012345", "net1") is None
