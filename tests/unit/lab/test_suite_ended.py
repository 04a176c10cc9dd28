"""A run that is ended cleans up what its tests made, by whichever signal and however often it is ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.suite.exercised import ROOT
from tests.lab.switch.switch import wait_until

TEST = """
import time
from pathlib import Path

import pytest

@pytest.fixture(scope="session")
def made():
    Path("made").touch()
    yield
    Path("ending").touch()
    while not Path("go").exists():
        time.sleep(0.01)
    Path("made").unlink()

def test_is_long(made):
    Path("running").touch()
    while True:
        time.sleep(0.01)
"""
RUNNER = """
from pathlib import Path
from tests.lab.suite.__main__ import heed
from tests.lab.suite.calls import Call

heed()
Call(("test_long.py",), place=Path.cwd()).result()
"""
RUNS = {"the suite": ("-c", RUNNER), "pytest": ("-m", "pytest", "-q", "-p", "tests.conftest", "test_long.py")}


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_it_is_ended(run: tuple[str, ...], number: signal.Signals, tmp_path: Path) -> None:
    """A terminal, which signals all processes in its foreground, or another process ends it, also twice.

    It fails, and cleans up.
    """
    with start(run, tmp_path) as process:
        os.killpg(process.pid, number)
        wait_until((tmp_path / "ending").exists)
        for again in (number, signal.SIGINT):
            os.killpg(process.pid, again)
        (tmp_path / "go").touch()
        assert process.wait() in (2, 128 + number)
    assert not (tmp_path / "made").exists()


def test_the_runner_is_killed(tmp_path: Path) -> None:
    """The pytest that it had started ends, too."""
    (tmp_path / "go").touch()
    with start(RUNS["the suite"], tmp_path) as process:
        process.kill()
    wait_until(lambda: not (tmp_path / "made").exists())


def start(run: tuple[str, ...], place: Path) -> subprocess.Popen[bytes]:
    """Run the test above as one job of a terminal; its fixture is made."""
    (place / "test_long.py").write_text(TEST)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": "-p no:hypothesispytest", "TMPDIR": str(place)}
    process = subprocess.Popen(
        ("env", "--default-signal", sys.executable, *run), cwd=place, env=environment, start_new_session=True
    )
    wait_until((place / "running").exists)
    return process
