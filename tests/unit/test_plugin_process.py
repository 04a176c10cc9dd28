"""The plugin as a process of one call: what a signal does before and after the verb."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

STOPPED = """
import os, signal, sys
from userspace_cni import __main__
from userspace_cni.cni import call
def answer(*_):
    os.kill(os.getpid(), signal.{name})
call.answer = answer
sys.exit(__main__.plugin())
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
@pytest.mark.parametrize("verb", ["ADD", "DEL", "VERSION"])
def test_a_signal_beside_the_verb(name: str, verb: str) -> None:
    """Before a verb begins, or when it ends, the answer to a signal is JSON with code 11, exit code 1, and no traceback."""
    done = subprocess.run(
        [sys.executable, "-c", STOPPED.format(name=name)],
        env={"CNI_COMMAND": verb},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, "")
    error = json.loads(done.stdout)
    assert (error["code"], error["msg"]) == (11, f"stopped by {name}")


def test_a_person_who_gives_no_arguments() -> None:
    """Without arguments and without CNI_COMMAND stderr says how to list the commands; stdout is empty."""
    command = [sys.executable, "-m", "userspace_cni"]
    told = subprocess.run(command, env={}, capture_output=True, text=True, timeout=60, check=True)
    assert told.stdout == ""
    assert "userspace-cni --help" in told.stderr
    helped = subprocess.run([*command, "--help"], env={}, capture_output=True, text=True, timeout=60, check=True)
    assert "See what is there:\n  list " in helped.stdout
