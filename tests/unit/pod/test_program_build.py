"""Which build of the program runs: what packaging records, what git says of a clone, and what is not known."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from userspace_cni.pod import program_build
from userspace_cni.pod.program_build import ProgramBuild, ask_git, read_summary, recorded_build

MOMENT = "2026-11-28T03:12:11Z"
PROJECT = '[project]\nname = "x"\nversion = "1.2.3"\n\n[tool.other]\nversion = "9"\n'


def git(clone: Path, *arguments: str) -> str:
    """Run git as a person with a name, whose day is not UTC's."""
    dates = {f"GIT_{whose}_DATE": "2026-11-28T04:12:11+01:00" for whose in ("AUTHOR", "COMMITTER")}
    argv = ["git", "-c", "user.name=A", "-c", "user.email=a@b", "-C", str(clone), *arguments]
    environment = {"PATH": os.defpath, **dates}
    return subprocess.run(argv, env=environment, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone with one commit."""
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message=one")
    return tmp_path


def record(directory: Path, **environment: str) -> tuple[ProgramBuild, str]:
    """The record that packaging makes of a directory, and what is said on stderr."""
    argv = [sys.executable, "-I", program_build.__file__]
    environment = {"PATH": os.defpath, **environment}
    done = subprocess.run(argv, cwd=directory, env=environment, capture_output=True, text=True, check=True)
    return ProgramBuild(**json.loads(done.stdout)), done.stderr


def test_a_clone(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Git tells commit and date, in UTC; changed files are marked; another repository that the environment names is not asked."""
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    commit = git(clone, "rev-parse", "HEAD")[:12]
    assert ask_git(clone) == (commit, MOMENT)
    assert record(clone) == (ProgramBuild("1.2.3", commit, MOMENT), "")
    (clone / "pyproject.toml").write_text(PROJECT + "# changed\n")
    assert ask_git(clone) == (f"{commit}-dirty", MOMENT)


def test_no_clone(clone: Path) -> None:
    """A directory in a clone, as an unpacked archive may be, is not taken for it; what the image's build says is recorded."""
    below = clone / "unpacked"
    below.mkdir()
    (below / "pyproject.toml").write_text(PROJECT)
    with pytest.raises(LookupError, match=r"not recorded, and .*unpacked is no clone"):
        ask_git(below)
    build, said = record(below)
    assert build == ProgramBuild("1.2.3")
    assert "recorded as unknown" in said
    assert record(below, BUILD_COMMIT="c0ffee", BUILD_DATE=MOMENT) == (ProgramBuild("1.2.3", "c0ffee", MOMENT), "")


def test_git_refuses(tmp_path: Path) -> None:
    """What git says is the reason."""
    (tmp_path / ".git").mkdir()
    with pytest.raises(LookupError, match=r"asking git in .*: fatal: not a git repository"):
        ask_git(tmp_path)


def test_the_record_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package's record is believed; without one, or with one that is damaged, only the version of the sources is known."""
    monkeypatch.setattr(program_build, "RECORD", tmp_path / "build.json")
    monkeypatch.setattr(program_build, "_ROOT", tmp_path)
    assert recorded_build() == ProgramBuild()
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    assert recorded_build() == ProgramBuild("1.2.3")
    for damaged in ("", "[]", "\x00"):
        (tmp_path / "build.json").write_text(damaged)
        assert recorded_build() == ProgramBuild("1.2.3")
    (tmp_path / "build.json").write_text('{"version": "1.2.4", "commit": "c0ffee", "committed": "' + MOMENT + '"}')
    assert recorded_build() == ProgramBuild("1.2.4", "c0ffee", MOMENT)


@pytest.mark.parametrize(
    ("build", "summary"),
    [
        (ProgramBuild("1.2.3", "c0ffee-dirty", MOMENT), "1.2.3 (commit c0ffee-dirty of 2026-11-28)"),
        (ProgramBuild("1.2.3"), "1.2.3 (commit unknown)"),
        (ProgramBuild(), "unknown (commit unknown)"),
    ],
)
def test_the_summary_is_read_back(build: ProgramBuild, summary: str) -> None:
    """The line that logs and the installed plugin have names the build, and can be read."""
    assert build.summary == summary
    assert read_summary(summary) == ProgramBuild(build.version, build.commit)
    assert read_summary("another text") == ProgramBuild()
