"""`--version`: which build of the program this is."""

from __future__ import annotations

import json
import platform

import pytest
from click.testing import CliRunner, Result

from userspace_cni.cli import shown_build
from userspace_cni.cli.main import userspace_cni
from userspace_cni.pod.program_build import ProgramBuild, ask_git, recorded_build

BUILD = ProgramBuild("1.2.3", "c0ffee", "2026-11-28T03:12:11Z")


def run(*words: str) -> Result:
    return CliRunner().invoke(userspace_cni, words, standalone_mode=False)


def test_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """A packaged program shows its record, for people and as JSON, and asks no git."""
    monkeypatch.setattr(shown_build, "recorded_build", lambda: BUILD)
    monkeypatch.setattr(shown_build, "ask_git", lambda: pytest.fail("git was asked"))
    assert run("--version").stdout.splitlines() == [
        "userspace-cni 1.2.3",
        "commit:       c0ffee",
        "committed:    2026-11-28T03:12:11Z",
        f"Python:       {platform.python_version()}",
        f"architecture: {platform.machine()}",
    ]
    told = json.loads(run("--version", "--json").stdout)
    assert told == {
        "version": "1.2.3",
        "commit": "c0ffee",
        "committed": "2026-11-28T03:12:11Z",
        "reason": "",
        "python": platform.python_version(),
        "architecture": platform.machine(),
    }


def test_a_clone() -> None:
    """In a clone, as this one is, git is asked."""
    told = json.loads(run("--version", "--json").stdout)
    assert (told["version"], (told["commit"], told["committed"])) == (recorded_build().version, ask_git())


def test_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no record is and no clone, the commit is unknown, and the reason is told."""

    def ask() -> tuple[str, str]:
        raise LookupError("asking git in /x: it is absent")

    monkeypatch.setattr(shown_build, "recorded_build", lambda: ProgramBuild("1.2.3"))
    monkeypatch.setattr(shown_build, "ask_git", ask)
    lines = run("--version").stdout.splitlines()
    assert lines[1:3] == ["commit:       unknown: asking git in /x: it is absent", "committed:    unknown"]
    assert json.loads(run("--json", "--version").stdout)["reason"] == "asking git in /x: it is absent"


def test_json_of_a_command_stands_behind_it() -> None:
    """`--json` before a command would be ignored: it is refused."""
    done = CliRunner().invoke(userspace_cni, ["--json", "list"])
    assert (done.exit_code, "write it behind the command" in done.output) == (2, True)
