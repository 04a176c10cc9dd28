"""Builds what is released for Python into build/dist: an archive of the sources, and from nothing but that archive the wheel.

    make dist          or: .venv/bin/python deploy/dist.py [DIRECTORY]

What is built is the commit that is checked out, in a clone of its own: changed and new files of the working tree are not in it.
The same commit gives the same bytes with the same Debian release and .venv: no file has a time, a path or an owner of this
machine. Nothing is fetched: setuptools and cffi are those of .venv.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
BACKEND: Final = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
QUIET: Final = ("--quiet", "--disable-pip-version-check", "--no-index", "--no-deps")


def build(sources: Path, target: Path, epoch: int) -> tuple[Path, Path]:
    """Build archive and wheel of the tree `sources` into the empty directory `target`; their paths.

    `epoch`: the time of each file in them. Raises CalledProcessError when a part fails, which has written why.
    """
    # -g0: debug information has the path of the build
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch), "CFLAGS": "-g0", "PYTHONHASHSEED": "0"}
    argv = [sys.executable, "-c", BACKEND, str(target)]
    subprocess.run(argv, cwd=sources, env=environment, umask=0o022, stdout=subprocess.DEVNULL, check=True)
    [archive] = target.glob("*.tar.gz")
    options = [*QUIET, "--no-build-isolation", f"--wheel-dir={target}"]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, archive], env=environment, umask=0o022, check=True)
    [wheel] = target.glob("*.whl")
    return archive, wheel


def clone_commit(clone: Path, root: Path = ROOT) -> int:
    """Clone the commit that is checked out in `root`, with modes as usual, and say what is not in it; the commit's time.

    Raises CalledProcessError when git fails, which has written why.
    """
    changed = _git(root, "status", "--porcelain")
    if changed:
        print("the working tree has changes, which are not in what is built:", changed, sep="\n", file=sys.stderr)
    _git(root, "clone", "--quiet", str(root), str(clone))
    return int(_git(clone, "log", "-1", "--format=%ct"))


def run_build(main: Callable[[], int]) -> None:
    """Run a program that builds, and end with its exit code, or with the command that failed: that has written why."""
    try:
        sys.exit(main())
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"nothing was built: {error}")


def main() -> int:
    """Build the commit that is checked out, and print what was made with its SHA-256."""
    target = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "dist")
    with TemporaryDirectory(prefix="userspace-cni-dist-") as directory:
        clone = Path(directory) / "sources"
        epoch = clone_commit(clone)
        target.mkdir(parents=True, exist_ok=True)
        for former in (*target.glob("*.tar.gz"), *target.glob("*.whl")):
            former.unlink()
        made = build(clone, target, epoch)
    for path in made:
        print(hashlib.sha256(path.read_bytes()).hexdigest(), path)
    return 0


def _git(directory: Path, *arguments: str) -> str:
    argv = ["git", "-C", str(directory), *arguments]
    return subprocess.run(argv, umask=0o022, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    run_build(main)
