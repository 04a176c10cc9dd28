"""kubectl: Debian 13's, and this machine's own if it has another.

Debian's is unpacked and not installed, because a machine may have its own in that place. Debian 12's is too old for the
manifests.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.lab.guests.roots import debian_packages, kept

_PACKAGE, _SUITE = "kubectl", "trixie"


def kubectls() -> dict[str, str]:
    """The programs by their version, Debian's first; RuntimeError says why Debian's cannot be had. Needs root."""
    own = shutil.which("kubectl")
    found = [str(debian_kubectl()), *([own] if own else [])]
    return {_version(program): program for program in reversed(found)}


def debian_kubectl() -> Path:
    """Debian's; RuntimeError says why it cannot be had. Needs root."""
    return kept("kubectl", (_PACKAGE, _SUITE), _unpack) / "kubectl"


def build(program: str, directory: Path) -> list[dict[str, Any]]:
    """The objects of that kustomization, in the order in which they would be applied."""
    done = subprocess.run([program, "kustomize", str(directory)], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")  # it warns of deprecated fields
    return list(yaml.safe_load_all(done.stdout))


def _version(program: str) -> str:
    told = subprocess.run([program, "version", "--client", "--output=yaml"], capture_output=True, text=True, check=True).stdout
    return str(yaml.safe_load(told)["clientVersion"]["gitVersion"])


def _unpack(part: Path) -> None:
    work = part / "work"
    debian_packages([_PACKAGE], _SUITE, work)
    [package] = work.glob("*.deb")
    subprocess.run(["dpkg", "-x", str(package), str(work)], check=True)
    shutil.move(work / "usr/bin/kubectl", part / "kubectl")
    shutil.rmtree(work)
