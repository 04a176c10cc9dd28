"""Debian 13's QEMU 10 and libvirt 11.3 beside this machine's own programs: a directory with their packages unpacked.

Debian 12's QEMU crashes under software emulation with MSI-X, and its libvirt ignores a vhost-user NIC's memory; clusters run
newer ones. `python -m tests.lab.guests.trixie` makes the directory once and keeps it; a process that needs it meanwhile waits.
Nothing is installed on this machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.lab.guests.roots import LEFT_OUT, kept, print_made, unpack_release

ENTER = Path(__file__).with_name("enter-root")
SUITE = "trixie"
PACKAGES = (
    *("qemu-system-x86", "libvirt-daemon", "libvirt-daemon-driver-qemu", "libvirt-clients"),
    *("bash", "coreutils", "dash", "libc-bin", "util-linux"),  # essential packages, which no package names as dependencies
)
FORMAT = 2
"""Raise it when `_make` makes something different of the same packages."""


def root() -> Path:
    """The directory, made now if there is none; RuntimeError says why when that fails. Needs root."""
    return kept(SUITE, (SUITE, PACKAGES, LEFT_OUT, FORMAT), _make)


def command(argv: Sequence[str], binds: Iterable[Path] = ()) -> list[str]:
    """The command that runs `argv` on the programs in `root()` in a mount namespace of its own; `binds` keep their paths.

    The process started is that of `argv` itself. /dev/hugepages is there.
    """
    return ["unshare", "--mount", "--propagation", "private", *entered(root(), argv, [str(bind) for bind in binds])]


def entered(tree: Path, argv: Sequence[str], binds: Sequence[str]) -> list[str]:
    """The same with the programs in `tree`, for a process in its own mount namespace. `binds`: PATH or SOURCE=PATH."""
    return [str(ENTER), str(tree), *binds, "--", *argv]


def _make(part: Path) -> None:
    unpack_release(PACKAGES, [SUITE], part)


if __name__ == "__main__":
    print_made("trixie", root)
