"""A fresh Debian 12 that systemd runs, with Open vSwitch, DPDK and what the package of ours depends on, and nothing of ours.

`python -m tests.lab.packages.debian_machine` makes its files once and keeps them. A machine is these files with a layer of its
own, in namespaces: it has no network but its own, and what is written to it outlives its boots.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self

from tests.lab.cluster.machine import Machine
from tests.lab.guests.roots import kept, print_made
from tests.lab.runtimes import image_base
from tests.lab.runtimes.containerd_host import remove_cgroup
from tests.lab.switch.switch import wait_until

PACKAGES: Final = (
    *("systemd", "systemd-sysv", "dbus", "openvswitch-switch-dpdk", "librte-meta-mempool", "python3", "libstdc++6", "nftables"),
    *("iproute2", "iputils-ping", "man-db", "bash-completion"),
)
FORMAT: Final = 1
"""Raise it when `_make` makes something different of the same packages."""
_BOOT: Final = Path(__file__).with_name("boot-debian")
_ROOT: Final = "root"
_PAGES: Final = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages")
_PAGES_LOCK: Final = Path("/run/private-switch.lock")
_POLICY: Final = "usr/sbin/policy-rc.d"
_INSTALL: Final = (
    "set -e; mount -t proc proc /proc; apt-get update -qq; "
    "apt-get install -y -qq --no-install-recommends -o APT::Sandbox::User=root " + " ".join(PACKAGES)
)


def files() -> Path:
    """The Debian's files, made now if there are none; RuntimeError says what failed. Needs root."""
    return kept("debian-machine", (image_base.SUITE, PACKAGES, FORMAT), _make, 1) / _ROOT


def _make(part: Path) -> None:
    root, outside = part / _ROOT, part / "outside"
    outside.mkdir()
    root.mkdir()
    subprocess.run(["tar", f"--directory={root}", f"--file={image_base.archive()}", "--extract"], check=True)
    (root / "etc/dpkg/dpkg.cfg.d/slim").unlink()  # of packages that a test installs nothing is left out
    (root / _POLICY).write_text("#!/bin/sh\nexit 101\n")
    (root / _POLICY).chmod(0o755)
    mounts = [f"/etc/resolv.conf:{root}/etc/resolv.conf"]
    for volume in image_base.way_out(outside):
        source, seen, _ = volume.partition("=")[2].split(":")
        mounts.append(f"{source}:{root}{seen}")
    added, bound = [root / _POLICY], ""
    for mount in mounts:
        source, _, target = mount.partition(":")
        if not Path(target).exists():
            added.append(Path(target))
            Path(target).touch()
        bound += f"mount --bind {source} {target}; "
    inside = f'set -e; {bound} exec chroot {root} sh -c "$1"'
    argv = ["unshare", "--mount", "--propagation=private", "bash", "-c", inside, "bash", _INSTALL]
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(argv, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"installing {' '.join(PACKAGES)}: exit {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")
    for path in added:
        path.unlink()
    for name in image_base.UNNEEDED:
        shutil.rmtree(root / name)
        (root / name).mkdir()
    shutil.rmtree(outside)


class DebianMachine:
    """A machine with a layer of its own below `top`, which boots at once, and again whenever it is told to."""

    def __init__(self, top: Path) -> None:
        self._top, self._files = top, files()
        self._machine = self._boot()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._machine.end()
        remove_cgroup(f"/{self._top.name}")

    def _boot(self) -> Machine:
        machine = Machine(str(_BOOT), str(self._files), str(self._top))
        wait_until(
            lambda: machine.attempt("systemctl", "is-system-running").stdout.strip() in ("running", "degraded"),
            what="systemd to have started all units",
        )
        return machine

    def reboot(self) -> None:
        """Shut it down in good order, and boot it."""
        self._machine.attempt("systemctl", "poweroff")
        wait_until(self._machine.has_ended, what="the machine to shut down")
        self._machine.end()
        self._machine = self._boot()

    def run(self, script: str, seconds: float = 120.0) -> str:
        """What a script of bash prints; MachineError with its stderr when a command of it fails."""
        return self._machine.run("bash", "-c", f"set -euo pipefail; {script}", seconds=seconds)

    def attempt(self, script: str, seconds: float = 120.0) -> tuple[int, str]:
        """Its exit code, and what it prints and writes to stderr."""
        done = self._machine.attempt("bash", "-c", f"exec 2>&1; {script}", seconds=seconds)
        return done.returncode, done.stdout

    def put(self, source: Path, path: str) -> None:
        """Copy a file into it."""
        shutil.copy(source, self._machine.path(path))


@contextmanager
def more_pages(count: int) -> Iterator[None]:
    """So many more hugepages of 2 MiB on this machine, for a switch: changed as deploy/private-switch does, under its lock."""

    def change(by: int) -> None:
        with _PAGES_LOCK.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            _PAGES.write_text(str(int(_PAGES.read_text()) + by))

    change(count)
    try:
        yield
    finally:
        change(-count)


if __name__ == "__main__":
    print_made("debian machine", files)
