"""How the lab lists a directory from which other processes remove things."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab.node.below import all_below, files_below

LISTS = [files_below, all_below]


@pytest.mark.parametrize("listed", LISTS)
def test_a_directory_that_goes_after_it_was_listed(
    listed: Callable[[Path], list[Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is left out, and its neighbours are found."""
    gone, kept = tmp_path / "gone", tmp_path / "kept" / "file"
    gone.mkdir()
    kept.parent.mkdir()
    kept.touch()
    scan = os.scandir

    def late(path: str) -> object:
        if Path(path) == gone and gone.exists():
            gone.rmdir()
        return scan(path)

    monkeypatch.setattr(os, "scandir", late)
    assert kept in listed(tmp_path)
    assert not gone.exists()


@pytest.mark.parametrize("listed", LISTS)
def test_no_directory_and_one_that_cannot_be_read(listed: Callable[[Path], list[Path]], tmp_path: Path) -> None:
    """A missing directory and a file have nothing below them; an unreadable directory is an error."""
    assert listed(tmp_path / "none") == []
    (tmp_path / "file").touch()
    assert listed(tmp_path / "file") == []
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="Too many levels"):
        listed(tmp_path / "loop")


def test_what_counts_as_a_file(tmp_path: Path) -> None:
    """Files, and links to anything but a directory; the other list has directories and links to them. Links are not followed."""
    (tmp_path / "b").mkdir()
    for name in ("b/two", "b/one"):
        (tmp_path / name).touch()
    (tmp_path / "a").symlink_to("nowhere")
    (tmp_path / "c").symlink_to("b")
    assert files_below(tmp_path) == [tmp_path / name for name in ("a", "b/one", "b/two")]
    assert all_below(tmp_path) == [tmp_path / name for name in ("a", "b", "b/one", "b/two", "c")]
