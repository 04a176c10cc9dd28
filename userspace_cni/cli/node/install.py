"""Installs the file that a container runtime executes: the static binary, or the launcher of the in-process plugin.

It must never leave a half-written file, nor one that does not work: the file is tried first, as a runtime would run it.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from userspace_cni import shim
from userspace_cni.base.errors import UserspaceError
from userspace_cni.base.settings import Settings, load
from userspace_cni.cli.command_line import code_of
from userspace_cni.cli.exit_codes import FOUND, UNREACHABLE
from userspace_cni.cli.site import ROOT_ONLY, CommandRefused, is_root
from userspace_cni.cni import former_network
from userspace_cni.cni.mirror_chain import TYPES
from userspace_cni.pod.program_build import recorded_build

NAME = "userspace"
"""The CNI type: a network's `type` names the file."""
NAMES: Final = (NAME, *TYPES, former_network.TYPE)
"""Every name that the file may have: by the network's `type` it knows what it is to be."""
_MODULE: Final = b"userspace_cni"
_PACKAGES: Final = str(Path(__file__).resolve().parents[3])


class InstallError(CommandRefused):
    """The plugin could not be installed; the text says what was tried and what to look at."""

    def __init__(self, text: str, code: int = FOUND) -> None:
        super().__init__(text, code)


def install_shim(bin_dir: str, names: Iterable[str] = (NAME,)) -> tuple[Path, Settings]:
    """Put the static binary, which carries the settings in force, as `bin_dir`/userspace, mode 0755, by rename.

    `names`: those of NAMES under which it is put there. Returns the absolute path of `userspace`, and those settings. Their paths
    are the host's; `bin_dir` is a path of this process, which may run in a container. Raises InstallError.
    """
    try:
        settings = load(os.environ)
    except UserspaceError as error:
        raise InstallError(f"reading the settings that the binary is to carry: {error}", code_of(error)) from error
    try:
        binary = shim.BUILT.read_bytes()
    except OSError as error:
        raise InstallError(
            f"reading the static binary {shim.BUILT}: {error.strerror}; building the package makes it (pip install), "
            "and --standalone does without it"
        ) from error
    try:
        binary = shim.fill(
            binary,
            socket=settings.socket,
            run_dir=settings.run_dir,
            state_dir=settings.state_dir,
            spool_max=settings.spool_max,
        )
        binary = shim.fill_build(binary, recorded_build().summary)
    except ValueError as error:
        raise InstallError(f"writing the settings into {shim.BUILT}: {error}") from error
    return _place(bin_dir, binary, names), settings


def install_launcher(bin_dir: str, names: Iterable[str] = (NAME,)) -> Path:
    """Write the launcher as `bin_dir`/userspace, mode 0755, by rename; its absolute path. Raises InstallError.

    It starts the interpreter without `site` and `runpy`, which a call that is handed to an agent does not need; so it names the
    directory of the package.
    """
    program = (
        f"import sys; sys.path.append({_PACKAGES!r}); sys.argv[0] = 'userspace-cni'; "
        "from userspace_cni.__main__ import main; sys.exit(main())"
    )
    command = [sys.executable, "-I", "-S", "-c", program]
    _try(command, "install the package into this interpreter first (pip install)")
    return _place(bin_dir, f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n'.encode(), names)


def is_plugin(content: bytes) -> bool:
    """Whether the file is the static binary, of any version, or the launcher."""
    try:
        carried = shim.read_settings(content)
    except ValueError:
        return True
    return carried is not None or (content.startswith(b"#!") and _MODULE in content)


def _place(bin_dir: str, content: bytes, names: Iterable[str]) -> Path:
    """Make `content` the plugin of these names in `bin_dir`, which is made when missing; the path of `userspace`.

    Each file is one of its own: a program that writes over a link of ours would write over the plugin. ovs-cni has files of
    some of these names, which are not replaced.
    """
    directory = Path(bin_dir).absolute()
    require_ours(directory, names)
    hint = f"is {directory} mounted noexec, or the binary for another machine?"
    for name in names:
        place_file(directory / name, content, 0o755, lambda temporary: _try([str(temporary)], hint))
    return directory / NAME


def require_ours(directory: Path, names: Iterable[str]) -> None:
    """Raise InstallError where another program has a file of these names."""
    for path in (directory / name for name in names):
        try:
            if path.name != NAME and not is_plugin(path.read_bytes()):
                raise InstallError(
                    f"writing {path}: another program has this file, as ovs-cni does: its pods need it until they are gone"
                )
        except FileNotFoundError:
            continue
        except OSError as error:
            raise InstallError(f"looking at {path}: {error.strerror}") from error


def place_file(target: Path, content: bytes, mode: int, check: Callable[[Path], None] = lambda _: None) -> None:
    """Make `content` the file `target`, by rename; its directory is made when missing. Raises InstallError.

    It is durable, complete, and by its temporary name has passed `check` before the rename.
    """
    directory, name = target.parent, target.name
    temporary = directory / f".{name}.{os.getpid()}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("wb") as file:
                file.write(content)
                os.fchmod(file.fileno(), mode)
                file.flush()
                os.fsync(file.fileno())
            check(temporary)
            temporary.replace(target)
            _flush(directory)
        finally:
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()
    except OSError as error:
        if isinstance(error, PermissionError) and not is_root():
            raise InstallError(f"writing {target}: {ROOT_ONLY}", UNREACHABLE) from error
        raise InstallError(f"writing {target}: {error.strerror}; is {directory} a directory that root can write?") from error


def _flush(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _try(command: list[str], hint: str) -> None:
    """Call VERSION as a runtime does: without our environment, from another directory. `hint` says what to look at."""
    environment = {"CNI_COMMAND": "VERSION", "PATH": os.defpath}
    try:
        done = subprocess.run(command, env=environment, input=b"{}", capture_output=True, cwd="/", timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InstallError(f"trying {shlex.join(command)}: {error}; {hint}") from error
    if done.returncode or b"supportedVersions" not in done.stdout:
        reason = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise InstallError(
            f"trying {shlex.join(command)} without this shell's environment: {reason or 'it did not answer VERSION'}; {hint}"
        )
