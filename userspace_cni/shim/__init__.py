"""The static binary that a container runtime executes (`shim.c`), and the settings that it carries in itself.

The binary reads no file of settings: `install` writes those in force into the copy that it installs, and which build of the
program it is of. This module knows where packaging puts the binary, and how those two blocks are laid out. It must import nothing
from the rest of the program.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

BUILT: Final = Path(__file__).with_name("userspace")
"""Where the package build puts the binary."""

_BLOCK: Final = b"userspace-cni/shim/settings/"
"""The beginning of the block in a binary of any version."""
_MAGIC: Final = (_BLOCK + b"2").ljust(32, b"\0")
_SOCKET, _DIRECTORY, _NUMBER = 108, 250, 16  # bytes with a NUL, as in `installed` of shim.c

_BUILD_MAGIC: Final = b"userspace-cni/shim/build/1".ljust(32, b"\0")
_BUILD: Final = 96  # bytes with a NUL, as in `built` of shim.c


@dataclass(frozen=True)
class BinarySettings:
    """The settings in a binary, by their keys; `socket` is "" for the one in `run_dir`."""

    socket: str
    run_dir: str
    state_dir: str
    spool_max: str

    @property
    def agent_socket(self) -> str:
        """Path of the agent's socket that the binary calls, unless the runtime's environment names another."""
        return self.socket or f"{self.run_dir}/agent.sock"


def read_settings(binary: bytes) -> BinarySettings | None:
    """Read the settings that an installed binary carries; None for a file that is no such binary.

    Raises ValueError for a binary of another version, whose settings cannot be read.
    """
    start = binary.find(_MAGIC)
    if start < 0:
        if _BLOCK in binary:
            raise ValueError("a binary of another version")
        return None
    texts, at = [], start + len(_MAGIC)
    for size in (_SOCKET, _DIRECTORY, _DIRECTORY, _NUMBER):
        texts.append(os.fsdecode(binary[at : at + size].partition(b"\0")[0]))
        at += size
    return BinarySettings(*texts)


def read_build(binary: bytes) -> str:
    """The summary of the build that an installed binary is of; "" where the binary does not say it."""
    start = binary.find(_BUILD_MAGIC)
    text = b"" if start < 0 else binary[start + len(_BUILD_MAGIC) :][:_BUILD].partition(b"\0")[0]
    return text.decode("ascii", errors="replace")


def fill_build(binary: bytes, summary: str) -> bytes:
    """Return `binary` with the summary of the build that it is of. Raises ValueError as `fill` does."""
    return _replace(binary, "build", _BUILD_MAGIC, _field("build", summary, _BUILD))


def fill(binary: bytes, *, socket: str, run_dir: str, state_dir: str, spool_max: int) -> bytes:
    """Return `binary` with these settings (docs/settings.md); `socket` is "" for the one in `run_dir`.

    Raises ValueError, saying which value does not fit, or that `binary` is no shim of this version.
    """
    _field("socket", socket or f"{run_dir}/agent.sock", _SOCKET)
    fields = (("socket", socket, _SOCKET), ("run_dir", run_dir, _DIRECTORY), ("state_dir", state_dir, _DIRECTORY))
    return _replace(
        binary, "settings", _MAGIC, b"".join(_field(*each) for each in fields) + _field("spool_max", str(spool_max), _NUMBER)
    )


def _replace(binary: bytes, what: str, magic: bytes, content: bytes) -> bytes:
    """`binary` with this content of the block that begins with `magic`."""
    start = binary.find(magic)
    if start < 0 or binary.find(magic, start + 1) >= 0:
        raise ValueError(f"its block of {what} is missing or there twice")
    at = start + len(magic)
    return binary[:at] + content + binary[at + len(content) :]


def _field(name: str, text: str, size: int) -> bytes:
    value = os.fsencode(text)
    if len(value) >= size or b"\0" in value:
        raise ValueError(f"{name} {text!r} has to fit {size - 1} bytes, without a NUL")
    return value.ljust(size, b"\0")
