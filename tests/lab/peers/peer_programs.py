"""Programs of newer Debian releases that speak vhost-user and are not ours: passt, DPDK's testpmd, QEMU.

They are unpacked beside this machine's own, made once and kept; nothing is installed. `python -m tests.lab.peers.peer_programs`
makes them. Tests take the release that the environment variable PEERS names, a lane (`trixie` by default), or this machine's own
programs.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from tests.lab.guests.roots import LEFT_OUT, kept, load_from, print_made, unpack_release
from tests.lab.lanes.table import lane

NEWER: Final = os.environ.get("PEERS", "trixie")
"""The release of which tests take the newer programs."""
PACKAGES: Final = ("dpdk-dev", "ipxe-qemu", "libc-bin", "passt", "patchelf", "qemu-system-x86")
FORMAT: Final = 1
"""Raise it when `_make` makes something different of the same packages."""
_PROGRAMS: Final = ("dpdk-testpmd", "passt", "qemu-system-x86_64")
_COPIES: Final = "copies"
_DRIVERS: Final = "usr/lib/x86_64-linux-gnu/dpdk/pmds-*"
_FIRMWARE: Final = ("usr/share/qemu", "usr/share/seabios", "usr/lib/ipxe/qemu")


@dataclass(frozen=True)
class PeerPrograms:
    """The beginnings of commands of one release."""

    testpmd: tuple[str, ...]
    """With it the arguments of EAL begin."""
    qemu: tuple[str, ...]
    passt: tuple[str, ...] = ()


OWN: Final = PeerPrograms(("dpdk-testpmd",), ("qemu-system-x86_64",))
"""Those of this machine; Debian 12's passt has no vhost-user."""


@cache
def peers(name: str = NEWER) -> PeerPrograms:
    """The programs of a lane's release, made now if there are none. RuntimeError says why that fails. Needs root."""
    of = lane(name)
    root = kept(
        f"peers-{name}", (of.suites, PACKAGES, LEFT_OUT, FORMAT), lambda part: unpack_release(PACKAGES, of.suites, part), 1
    )
    copies = kept(f"peers-{name}-programs", (str(root), FORMAT), lambda part: _copy(root, part), 1)
    [drivers] = root.glob(_DRIVERS)
    firmware = (word for each in _FIRMWARE for word in ("-L", str(root / each)))
    testpmd, passt, qemu = (str(copies / program) for program in _PROGRAMS)
    return PeerPrograms((testpmd, "-d", str(drivers)), (qemu, *firmware), (passt,))


def _copy(root: Path, part: Path) -> None:
    """Copy the programs side by side; the copies load the release's libraries."""
    load_from(root, [Path(shutil.copy2(root / "usr/bin" / program, part)) for program in _PROGRAMS])


if __name__ == "__main__":
    print_made(f"peers of {NEWER}", lambda: Path(peers().passt[0]).parent)
