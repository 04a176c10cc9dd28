"""The OVN demo, as a stranger runs it: what it shows, and that nothing of it stays, also when it is interrupted."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEMO = ("bash", "deploy/demo-ovn.sh")
DEMO_S = 400.0
LINES = (
    r"n1 \(192\.0\.2\.11\) and n2 \(192\.0\.2\.12\) reach each other by their bridges",
    r"\+ Logical_Router ovn_cluster_router",
    r"\+ Logical_Switch n2",
    r"nodeName: n2",
    r"pod-a, by vhostuser: ADD answered after \d+ ms with 10\.244\.1\.3/24",
    r"demo_pod-a\n.*\n +\"true\"",
    r"pod-b, by veth: ADD answered after \d+ ms with 10\.244\.2\.3/24",
    r"demo_pod-b\n.*\n +\"true\"",
    r"pod-a +10\.244\.1\.3/24",
    r"\$ ping -c 3 10\.244\.2\.3 +in n1, to pod-b",
    r"3 packets transmitted, 3 received, 0% packet loss",
    r'output to "demo_pod-b"',
    r"tnl_push\(",
    r"n1 +10\.244\.1\.0/24 +2 +2",
    r"userspace-cni ovn check +on n2\n +nothing is found",
    r"pod-b: DEL answered after \d+ ms",
    r"Done in \d+ s\. Both switches are stopped, their huge pages are given back\.",
)


@pytest.fixture
def environ() -> Iterator[dict[str, str]]:
    """An environment in which the demo makes its directory in one of the test's; neither a file, a mount nor a process stays."""
    with TemporaryDirectory(prefix="d-") as directory:
        yield os.environ | {"TMPDIR": directory}
        assert list(Path(directory).iterdir()) == []
        assert directory not in Path("/proc/self/mountinfo").read_text()
        assert processes_of(directory) == []


def processes_of(directory: str) -> list[str]:
    """Those that have the demo's directory in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"DEMO_DIRECTORY={directory}".encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_text())
        except OSError:
            continue  # it has ended
    return found


def test_the_whole_walk(environ: dict[str, str]) -> None:
    """It ends with 0, and its main lines are there in this order."""
    done = subprocess.run(DEMO, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=DEMO_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    at, said = 0, "\n".join(line.rstrip() for line in done.stdout.splitlines())
    for line in LINES:
        match = re.compile(line).search(said, at)
        assert match, f"{line} is not in: {said[at:]}"
        at = match.end()


def test_an_interrupted_walk(environ: dict[str, str]) -> None:
    """SIGINT amid its switches and agents ends it with 130."""
    out, err = subprocess.PIPE, subprocess.STDOUT
    with subprocess.Popen(DEMO, cwd=ROOT, env=environ, text=True, stdout=out, stderr=err) as process:
        assert process.stdout
        for line in process.stdout:
            if " The master: " in line:
                break
        process.send_signal(signal.SIGINT)
        said = process.stdout.read()
    assert process.returncode == 128 + signal.SIGINT, said
    assert "stopped by a signal" in said
