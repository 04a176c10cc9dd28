"""A release's callers of CNI plugins, each started by its own path: containerd with runc, and cnitool.

runc cannot be put in the place of this machine's own by a mount: it starts itself anew through the directory that it lies in, and
would find the other one there. cnitool has no package: it is compiled from the release's source, with its Go and in its root.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

from tests.lab.guests import trixie
from tests.lab.guests.roots import LEFT_OUT, debian_source, kept, load_from, print_made, unpack_release
from tests.lab.lanes.table import Lane, lane

PACKAGES: Final = "containerd runc golang-go libc-bin patchelf"
SOURCE: Final = "golang-github-appc-cni"
CNITOOL: Final = "github.com/containernetworking/cni/cnitool"
FORMAT: Final = 2
"""Raise it when `_unpack` or `_copy` makes something different of the same packages."""
_PROGRAMS: Final = ("usr/bin/containerd", "usr/bin/containerd-shim-runc-v2", "usr/bin/ctr")
_RUNC: Final = "usr/sbin/runc"
_COMPILED: Final = "usr/bin/cnitool"
_VERSION: Final = "usr/share/cnitool.version"
_COMPILER: Final = ("usr/lib/go-*", "usr/share/go-*")
"""Parts that are not needed once the programs are made."""


def callers(of: Lane) -> Path:
    """The directory with these programs, made now if there is none; an error says why that cannot be. Needs root."""
    recipe = (of.suites, PACKAGES, SOURCE, CNITOOL, LEFT_OUT, FORMAT)
    root = kept(f"callers-root-{of.name}", recipe, lambda part: _unpack(of, part), former=1)
    return kept(f"callers-{of.name}", (str(root), FORMAT), lambda part: _copy(root, part), former=1)


def cnitool_version(made: Path) -> str:
    """The version of the cnitool in such a directory: that of its source, because cnitool itself cannot be asked."""
    return (made / Path(_VERSION).name).read_text().strip()


def _unpack(of: Lane, part: Path) -> None:
    """Unpack the packages, and compile cnitool among them."""
    unpack_release(PACKAGES.split(), of.suites, part)
    work = part / "work"
    module = work / "go" / "src" / Path(CNITOOL).parent
    module.parent.mkdir(parents=True)
    version = debian_source(SOURCE, (), work / "source", of.suites)
    [archive] = (work / "source").glob("*.orig.tar.*")
    shutil.unpack_archive(archive, work / "unpacked")
    [unpacked] = (work / "unpacked").iterdir()
    unpacked.rename(module)
    own = {"GOPATH": f"{work}/go", "GOCACHE": f"{work}/cache", "GO111MODULE": "off", "CGO_ENABLED": "0"}
    argv = ["/usr/bin/go", "build", "-ldflags=-s -w", "-o", f"{work}/cnitool", CNITOOL]
    inside = ["unshare", "--mount", "--propagation", "private", "nice", *trixie.entered(part, argv, [str(work)])]
    environ = own | {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    done = subprocess.run(inside, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)}: exit {done.returncode}: {done.stderr[-2000:].strip()}")
    (work / "cnitool").rename(part / _COMPILED)
    (part / _VERSION).write_text(f"{version}\n")
    for unneeded in (work, *(path for pattern in _COMPILER for path in part.glob(pattern))):
        shutil.rmtree(unneeded)


def _copy(root: Path, part: Path) -> None:
    """Copy the programs side by side, and which cnitool it is. runc needs the release's libraries; the others run as they are.

    patchelf 0.18 makes containerd's die at once: so each is tried, before it is kept.
    """
    for file in (*_PROGRAMS, _RUNC, _COMPILED, _VERSION):
        shutil.copy2(root / file, part)
    runc = part / Path(_RUNC).name
    load_from(root, [runc])
    for tried in (runc, part / "containerd", part / "ctr"):
        subprocess.run([tried, "--version"], stdout=subprocess.DEVNULL, check=True)


if __name__ == "__main__":
    print_made("callers of trixie", lambda: callers(lane("trixie")))
