"""Installs the file that a container runtime executes.

It must never leave a half-written file, nor one that does not work: the interpreter is tried first, as a runtime would run it.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
from pathlib import Path

NAME = "userspace"
"""The CNI type: a network's `type` names the file."""


class InstallError(Exception):
    """The plugin could not be installed; the text says what was tried and what to look at."""


def install_launcher(bin_dir: str) -> Path:
    """Write the launcher as `bin_dir`/userspace, mode 0755, by rename; its absolute path. Raises InstallError."""
    command = [sys.executable, "-I", "-m", "userspace_cni"]
    _try(command)
    directory = Path(bin_dir).absolute()
    target = directory / NAME
    script = f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n'
    temporary = directory / f".{NAME}.{os.getpid()}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("w", encoding="utf-8") as file:
                file.write(script)
                os.fchmod(file.fileno(), 0o755)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
        finally:
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()
    except OSError as error:
        raise InstallError(f"writing {target}: {error.strerror}; is {directory} a directory that root can write?") from error
    return target


def _try(command: list[str]) -> None:
    """Ask the interpreter for VERSION as a runtime does: without our environment, from another directory."""
    environment = {"CNI_COMMAND": "VERSION", "PATH": os.defpath}
    try:
        done = subprocess.run(command, env=environment, input=b"{}", capture_output=True, cwd="/", timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InstallError(f"trying {shlex.join(command)}: {error}") from error
    if done.returncode or b"supportedVersions" not in done.stdout:
        reason = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise InstallError(
            f"trying {shlex.join(command)} without this shell's environment: {reason or 'it did not answer VERSION'}; "
            "install the package into this interpreter first (pip install)"
        )
