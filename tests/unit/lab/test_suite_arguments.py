"""How `tests/run.sh` reads its arguments."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import tests.lab.suite.__main__ as suite
from tests.lab.suite.exercised import ROOT


def run(*arguments: str) -> tuple[int, str]:
    """Exit code and output of the suite without what installs packages: `unit` needs nothing more than runs this test."""
    command = (sys.executable, "-m", "tests.lab.suite", *arguments)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("options", [("-k", "localdb"), ("--ignore", "tests/unit/kubevirt")], ids=" ".join)
def test_an_option_that_is_also_a_path_names_no_tests(options: Sequence[str]) -> None:
    """If no test file is named, the whole kind runs, even when an option's value is also the name of a directory."""
    _, output = run("unit", "--collect-only", "-qq", *options)
    kinds = {line.split("/")[1] for line in output.splitlines() if line.startswith("tests/")}
    assert kinds <= {"unit"}, output[-2000:]


def test_a_file_that_is_named_runs_alone() -> None:
    """As pytest would have it."""
    code, output = run("unit", "--collect-only", "-qq", "tests/unit/lab/test_seconds.py")
    assert code == 0
    assert [line.partition(":")[0] for line in output.splitlines() if line] == ["tests/unit/lab/test_seconds.py"]


@pytest.mark.parametrize("arguments", [("",), ("unit", ""), ("changed", ""), ("quick", "more"), ("check", "-k"), ("nothing",)])
def test_what_makes_no_sense_is_refused(arguments: Sequence[str]) -> None:
    """An empty argument, which pytest takes for everything, surplus arguments, and an unknown kind: exit code 2."""
    code, output = run(*arguments)
    assert (code, "tests/run.sh: " in output) == (2, True)


@pytest.mark.parametrize("what", ["all", "quick"])
@pytest.mark.parametrize(
    ("options", "code"),
    [("-k name", 2), ("--deselect=tests/unit -p no:randomly", 2), ("-x", 2), ("", 0), ("-p no:hypothesispytest -pplugin", 0)],
)
def test_options_that_leave_tests_out(monkeypatch: pytest.MonkeyPatch, what: str, options: str, code: int) -> None:
    """In the environment they are refused for what runs all tests; plugins are no such options."""
    monkeypatch.setenv("PYTEST_ADDOPTS", options)
    runs: list[Sequence[str]] = []

    def run_all(tests: Sequence[str], *, with_lanes: bool = False) -> bool:
        assert with_lanes == (what == "all")
        runs.append(tests)
        return True

    monkeypatch.setattr(suite, "run", run_all)
    assert (suite.main([what]), len(runs)) == (code, 0 if code else 1)


@pytest.mark.parametrize("script", ["tests/run.sh", "deploy/prepare.sh"])
def test_a_script_works_in_its_own_tree(script: str, tmp_path: Path) -> None:
    """By a link from elsewhere, and where CDPATH has another tree with directories of these names."""
    (tmp_path / script).parent.mkdir()
    (tmp_path / "link").symlink_to(ROOT / script)
    for called in (script, str(tmp_path / "link")):
        done = subprocess.run(
            ("bash", called, "nothing"),
            cwd=ROOT,
            env=os.environ | {"CDPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, "there is no" in done.stderr) == (2, True), done.stderr
