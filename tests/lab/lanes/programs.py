"""A release's programs in the place of this machine's own, for what is started through `inside`; nothing is installed.

They are copies that load the release's libraries, and a mount namespace has them at this machine's own paths. So process names,
arguments and control sockets are those of an installed switch, which starting them by the release's loader would change.
`Programs.tree` also has, below `usr`, programs that this machine lacks, such as OVN's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.lab.guests.roots import LEFT_OUT, kept, load_from, print_made, unpack_release
from tests.lab.lanes.callers import callers
from tests.lab.lanes.table import Lane, lane

ENTER: Final = Path(__file__).with_name("enter-lane")
PACKAGES: Final = (
    *("openvswitch-switch-dpdk", "ovn-central", "ovn-host", "libc-bin", "patchelf"),
    *("librte-meta-bus", "^librte-mempool-ring[0-9]*$"),  # newer switches do not start, or open no port, without these
    *(f"^librte-net-{driver}-?[0-9]*$" for driver in ("af-packet", "af-xdp", "bond", "e1000", "null", "tap")),
)
FORMAT: Final = 1
"""Raise it when `unpack` or `_copy` makes something different of the same packages."""
_PROGRAMS: Final = ("usr/bin/ov[ns]*", "usr/sbin/ovsdb-server", "usr/lib/openvswitch-switch*/*")
_ELF: Final = b"\x7fELF"


class NotMade(Exception):
    """Why a lane's packages cannot be fetched or unpacked."""


@dataclass(frozen=True)
class Programs:
    """What was made of a release: `root` has its packages, `tree` copies of its
    programs, `callers` those that are searched in PATH.
    """

    root: Path
    tree: Path
    callers: Path

    @property
    def inside(self) -> tuple[str, ...]:
        """The prefix of a command that has the release's programs in the place of this machine's. Needs root."""
        path = f"PATH={self.callers}:{os.environ['PATH']}"
        return ("env", path, "unshare", "--mount", "--propagation=private", str(ENTER), str(self.root), str(self.tree))


def programs(of: Lane) -> Programs:
    """The programs, made now if they do not exist; NotMade says why that is impossible. Needs root."""
    try:
        root = kept(f"lane-{of.name}", (of.suites, PACKAGES, LEFT_OUT, FORMAT), lambda part: _unpack(of, part), former=1)
        tree = kept(f"lane-{of.name}-programs", (str(root), FORMAT), lambda part: _copy(root, part), former=1)
        return Programs(root, tree, callers(of))
    except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
        raise NotMade(" ".join(str(error).split())) from error


def _unpack(of: Lane, part: Path) -> None:
    unpack_release(PACKAGES, of.suites, part)


def _copy(root: Path, part: Path) -> None:
    """Copy each compiled program of Open vSwitch and OVN to its path below `part`; the copies load the release's libraries."""
    copies = []
    for program in (path for pattern in _PROGRAMS for path in sorted(root.glob(pattern))):
        with program.open("rb") as file:
            compiled = file.read(len(_ELF)) == _ELF
        if compiled:
            copies.append(part / program.relative_to(root))
            copies[-1].parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(program, copies[-1])
    load_from(root, copies)


def main() -> None:
    """Make a lane by its name."""
    of = lane(sys.argv[1])
    try:
        print_made(f"lane {of.name}", lambda: programs(of).tree)
    except NotMade as error:
        sys.exit(f"lane {of.name}: not made: {error}")


if __name__ == "__main__":
    main()
