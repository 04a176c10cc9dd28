"""kubectl for building manifests: Debian's, which is the oldest that is supported, and this machine's own if it has another.

Debian's is unpacked, not installed: a machine may have its own in that place.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.lab.guests.roots import kept

_PACKAGE = "kubernetes-client"


def kubectls() -> dict[str, str]:
    """The programs by their version, Debian's first; RuntimeError says why that cannot be had. Needs root."""
    own = shutil.which("kubectl")
    found = [str(kept("kubectl", _PACKAGE, _unpack) / "usr/bin/kubectl"), *([own] if own else [])]
    return {_version(program): program for program in reversed(found)}


def build(program: str, directory: Path) -> list[dict[str, Any]]:
    """The objects of that kustomization, in the order in which they would be applied."""
    done = subprocess.run([program, "kustomize", str(directory)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def _version(program: str) -> str:
    told = subprocess.run([program, "version", "--client", "--output=yaml"], capture_output=True, text=True, check=True).stdout
    return str(yaml.safe_load(told)["clientVersion"]["gitVersion"])


def _unpack(part: Path) -> None:
    quiet = ["-o", "APT::Sandbox::User=root"]
    done = subprocess.run(["apt-get", "download", *quiet, _PACKAGE], cwd=part, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"apt-get download {_PACKAGE}: {done.stderr}")
    [package] = part.glob("*.deb")
    subprocess.run(["dpkg", "-x", str(package), str(part)], check=True)
    package.unlink()
