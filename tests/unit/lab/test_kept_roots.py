"""Directories that are made once per machine and kept: which leftovers the next maker removes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.guests import roots
from tests.lab.guests.roots import kept


def make(part: Path) -> None:
    (part / "made").touch()


def test_what_a_killed_maker_left_goes_and_what_another_makes_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That holds even if one name begins with the other."""
    monkeypatch.setattr(roots, "CACHE", tmp_path)

    def fail(_: Path) -> None:
        raise RuntimeError("the archive is away")

    def make_both(part: Path) -> None:
        kept("lane", 1, make)
        make(part)

    with pytest.raises(RuntimeError, match="archive"):
        kept("lane", 1, fail)
    programs = kept("lane-programs", 1, make_both)
    assert (programs / "made").exists()
    assert sorted(path for path in tmp_path.iterdir() if path.is_dir()) == sorted([programs, kept("lane", 1, make)])
