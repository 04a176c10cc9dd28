"""Debian 13's QEMU 10 and libvirt 11.3 beside this machine's own programs: a directory with their packages unpacked.

Debian 12's QEMU crashes under software emulation with MSI-X, and its libvirt does not look at a vhost-user NIC's memory; clusters
run newer ones. `python -m tests.lab.guests.trixie` makes the directory once and keeps it; a process that needs it meanwhile
waits. No script of a package is run and nothing is installed: this machine stays what it is. debootstrap finds, verifies and
fetches the packages from where apt has its own; that is all it does, because dpkg would take three times as long for
nothing we use.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.lab.guests.roots import debootstrap, kept, print_made

ENTER = Path(__file__).with_name("enter-root")
SUITE = "trixie"
PACKAGES = ("qemu-system-x86", "libvirt-daemon", "libvirt-daemon-driver-qemu", "libvirt-clients")
LEFT_OUT = ("usr/share/doc", "usr/share/doc-base", "usr/share/locale", "usr/share/man", "usr/share/zoneinfo", "usr/lib/systemd")
FORMAT = 1
"""To be raised when `_make` makes something else of the same packages."""


def root() -> Path:
    """The directory, made now if there is none; RuntimeError with the end of debootstrap's log when that fails. Needs root."""
    return kept(SUITE, (SUITE, PACKAGES, LEFT_OUT, FORMAT), _make)


def command(argv: Sequence[str], binds: Iterable[Path] = ()) -> list[str]:
    """What runs `argv` on the programs in `root()` in a mount namespace of its own; `binds` are seen where they are.

    The process started is that of `argv` itself. /dev/hugepages is there.
    """
    return ["unshare", "--mount", "--propagation", "private", *entered(root(), argv, [str(bind) for bind in binds])]


def entered(tree: Path, argv: Sequence[str], binds: Sequence[str]) -> list[str]:
    """The same with the programs in `tree`, for a process in its own mount namespace. `binds`: PATH or SOURCE=PATH."""
    return [str(ENTER), str(tree), *binds, "--", *argv]


def _make(part: Path) -> None:
    """Fetch the packages with all they depend on, verified, and unpack them."""
    debootstrap(["--foreign", f"--include={','.join(PACKAGES)}"], SUITE, part, part / "debootstrap.log")
    archives = part / "var/cache/apt/archives"
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda package: _unpack(package, part), sorted(archives.glob("*.deb"))))
    for unneeded in (part / "debootstrap", archives, part / "var/lib/apt", *(part / name for name in LEFT_OUT)):
        shutil.rmtree(unneeded, ignore_errors=True)
    subprocess.run(["ldconfig", "-r", str(part)], check=True)


def _unpack(package: Path, tree: Path) -> None:
    left_out = [f"--exclude=./{name}/*" for name in LEFT_OUT]
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(package)], stdout=subprocess.PIPE) as files:
        argv = ["tar", "--extract", "--keep-directory-symlink", *left_out, f"--directory={tree}"]
        subprocess.run(argv, stdin=files.stdout, check=True)
    if files.returncode:
        raise RuntimeError(f"dpkg-deb cannot read {package}: exit {files.returncode}")


if __name__ == "__main__":
    print_made("trixie", root)
