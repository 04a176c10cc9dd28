"""What tests make of Debian's packages: once per machine, kept in CACHE, from where apt has its own."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import mkdtemp

CACHE = Path("/var/cache/userspace-cni")
_PART = ".part"


def kept(name: str, recipe: object, make: Callable[[Path], None]) -> Path:
    """The directory that `make` fills, made now unless one of this name and recipe is there. Others wait meanwhile."""
    made = CACHE / f"{name}-{hashlib.sha256(repr(recipe).encode()).hexdigest()[:12]}"
    CACHE.mkdir(mode=0o755, parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            for stale in CACHE.glob(f"{name}-*{_PART}"):
                shutil.rmtree(stale)
            part = Path(mkdtemp(prefix=f"{name}-", suffix=_PART, dir=CACHE))
            make(part)
            part.chmod(0o755)
            part.rename(made)
    return made


def debootstrap(options: Sequence[str], suite: str, root: Path, log: Path) -> None:
    """Find, verify and fetch the packages of a minimal root, and install them unless `options` have --foreign.

    RuntimeError with the end of the log when that fails. Needs root.
    """
    # in a mount namespace of its own: what it mounts in the root goes with it, also when it is killed
    argv = ["unshare", "--mount", "debootstrap", "--variant=minbase", *options, suite, str(root), _mirror()]
    with log.open("wb") as told:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=told, stderr=told, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)}: exit {done.returncode}:\n{log.read_text()[-2000:]}")
    log.unlink()


def _mirror() -> str:
    """Where apt has this machine's own Debian from."""
    codename = next(line for line in Path("/etc/os-release").read_text().splitlines() if line.startswith("VERSION_CODENAME="))
    own = (codename.partition("=")[2], "stable", "oldstable")
    argv = ["apt-get", "indextargets", "--format", "$(RELEASE) $(REPO_URI)", "Created-By: Packages", "Component: main"]
    told = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()
    found = [uri for release, _, uri in (line.partition(" ") for line in told) if release in own]
    if not found:
        raise RuntimeError(f"apt has no source of {' or '.join(own)}, component main: see apt-get indextargets")
    return found[0]
