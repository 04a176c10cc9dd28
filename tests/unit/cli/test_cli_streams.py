"""How the command line ends with bad streams or at a bad moment: with at most one line, and never a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

INTERRUPTED = """
import atexit, builtins, os, signal, sys
real = builtins.__import__
def importing(name, *rest, **named):
    if name == "{moment}":
        os.kill(os.getpid(), signal.SIGINT)
    return real(name, *rest, **named)
builtins.__import__ = importing
if "{moment}" == "exit":
    atexit.register(os.kill, os.getpid(), signal.SIGINT)
from userspace_cni.__main__ import main
sys.exit(main())
"""


def environ(directory: Path) -> dict[str, str]:
    """A node without any of its directories and sockets."""
    named = {"USERSPACE_CNI_STATE_DIR": f"{directory}/state", "USERSPACE_CNI_RUN_DIR": f"{directory}/run"}
    named["USERSPACE_CNI_SHORT_DIR"] = "/nowhere"
    return {**os.environ, **named, "USERSPACE_CNI_OVSDB": f"unix:{directory}/none", "OVS_RUNDIR": str(directory)}


FULL = "> /dev/full"
CLOSED = (("status --json", ">&-"), ("list --json", ">&- <&- 2>/dev/stderr"))
"""One command each: a closed stdout is noticed before the command is looked up."""


@pytest.mark.parametrize(
    ("command", "stdout"), [*CLOSED, *((each, FULL) for each in ("list --json", "status", "--help", "status --json"))]
)
def test_a_stdout_that_takes_nothing(tmp_path: Path, command: str, stdout: str) -> None:
    """With stdout closed or full one line on stderr says so, and the exit code is 1."""
    script = f"exec {sys.executable} -m userspace_cni {command} {stdout}"
    done = subprocess.run(["bash", "-c", script], env=environ(tmp_path), capture_output=True, text=True, check=False)
    *notes, last = done.stderr.splitlines()
    assert done.returncode == 1, done.stderr
    assert last.startswith("Error: writing to stdout: "), done.stderr
    progress = [line for line in notes if " (for " in line and line.endswith((" s)", "Z)"))]  # where it takes over a second
    assert [line for line in notes if line not in progress and not line.startswith("the switch cannot be asked")] == []


IMPORTS = ("userspace_cni.cli.main", "userspace_cni.cli.node.attachments")
"""The command line, and the command."""


@pytest.mark.parametrize("moment", [*IMPORTS, "exit"])
def test_an_interrupt_at_a_bad_moment(tmp_path: Path, moment: str) -> None:
    """Ctrl-C while the program loads, or after its work, ends it silently."""
    argv = ["env", "--default-signal=INT", sys.executable, "-c", INTERRUPTED.format(moment=moment), "list"]
    done = subprocess.run(argv, env=environ(tmp_path), capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGINT, done.stderr
    assert ("no attachments on this node" in done.stderr) == (moment == "exit")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("moment", IMPORTS)
def test_an_interrupt_that_is_ignored(tmp_path: Path, moment: str) -> None:
    """If SIGINT is ignored, as by a shell for background jobs, it stays ignored."""
    argv = ["env", "--ignore-signal=INT", sys.executable, "-c", INTERRUPTED.format(moment=moment), "list"]
    assert subprocess.run(argv, env=environ(tmp_path), capture_output=True, check=False).returncode == 0
