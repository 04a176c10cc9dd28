"""A shell completes the command line of the installed program, and a call of a runtime never answers a shell."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMPLETES = """
eval "$(_USERSPACE_CNI_COMPLETE=bash_source userspace-cni)"
read -ra COMP_WORDS <<< "$1"
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_userspace_cni_completion userspace-cni
printf '%s\\n' "${COMPREPLY[@]}"
"""
ENVIRON = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
PLUGIN = [sys.executable, "-m", "userspace_cni"]


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("userspace-cni stat", {"status"}),
        ("userspace-cni routes e", {"explain"}),
        ("userspace-cni list --j", {"--json"}),
        ("userspace-cni uplink", {"uplink"}),
    ],
)
def test_bash(typed: str, expected: set[str]) -> None:
    """Commands, those of groups, and options are completed, with the script that the program prints."""
    done = subprocess.run(["bash", "-c", COMPLETES, "bash", typed], env=ENVIRON, capture_output=True, text=True, check=True)
    assert (set(done.stdout.split()), done.stderr) == (expected, "")


@pytest.mark.parametrize("asked", ["bash_source", "bash_complete", "", "nothing"])
def test_a_runtimes_call(asked: str) -> None:
    """With CNI_COMMAND it is a call of the plugin, whatever a shell's variable says."""
    environ = {**ENVIRON, "CNI_COMMAND": "VERSION", "COMP_WORDS": "userspace-cni st", "COMP_CWORD": "1"}
    calls = [
        subprocess.run(PLUGIN, env={**environ, **more}, input=b'{"cniVersion": "1.0.0"}', capture_output=True, check=False)
        for more in ({}, {"_USERSPACE_CNI_COMPLETE": asked})
    ]
    assert calls[0].returncode == calls[1].returncode == 0
    assert calls[0].stdout == calls[1].stdout
    assert b"supportedVersions" in calls[1].stdout


def test_without_arguments() -> None:
    """Unless a shell asks, the program prints what it is."""
    done = subprocess.run(PLUGIN, env=ENVIRON, capture_output=True, text=True, check=True)
    assert "for people: userspace-cni --help" in done.stderr
