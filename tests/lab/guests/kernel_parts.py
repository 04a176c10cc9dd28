"""What guests are made of: packages of Debian that are unpacked and not installed, a kernel's modules, an initramfs."""

from __future__ import annotations

import lzma
import re
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

_APT_SECONDS = 300


def kernel_of(metapackage: str, directory: Path) -> str:
    """The version of the kernel on which the metapackage depends, as 6.1.0-56-amd64. RuntimeError says why none is known."""
    found = re.search(r"Depends: linux-image-(\S+)", _apt("apt-cache", "depends", metapackage, cwd=directory))
    if found is None:
        raise RuntimeError(f"{metapackage} depends on no kernel; look at `apt-cache depends {metapackage}`")
    return found[1]


def unpack(packages: Sequence[str], directory: Path, root: Path) -> None:
    """Download packages to `directory` and unpack them to `root`. RuntimeError says which command failed."""
    _apt("apt-get", "download", "-qq", *packages, cwd=directory)
    for package in directory.glob("*.deb"):
        run("dpkg", "-x", str(package), str(root), cwd=directory)


def _apt(*argv: str, cwd: Path) -> str:
    """The command's output. When it fails for the first time the package lists are updated, which some machines lack."""
    try:
        return run(*argv, cwd=cwd)
    except RuntimeError:
        run("apt-get", "update", "-qq", cwd=cwd)
        return run(*argv, cwd=cwd)


def run(*argv: str, cwd: Path) -> str:
    """The output of a command that may take five minutes. RuntimeError has the command's own words."""
    done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, timeout=_APT_SECONDS, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)}: exit {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def with_needed(modules: Path, names: Iterable[str]) -> dict[str, bytes]:
    """The modules and those they need, by name, in an order in which they can be loaded. `modules`: the directory of all."""
    files = {path.name.partition(".")[0].replace("-", "_"): path for path in modules.rglob("*.ko*")}
    order: dict[str, bytes] = {}

    def load(name: str) -> None:
        path = files.get(name)
        if name in order or path is None:  # a module without a file is built in
            return
        content = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
        needed = re.search(rb"\0depends=([^\0]*)\0", content)
        for each in needed[1].decode().split(",") if needed else ():
            load(each.replace("-", "_"))
        order[name] = content

    for module in names:
        load(module)
    return order


class Cpio:
    """An archive in the format `newc`, as the kernel's Documentation/driver-api/early-userspace/buffer-format.rst has it."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._count = 0

    def add(self, name: str, mode: int, content: bytes = b"") -> None:
        """One more file, directory or link."""
        self._count += 1
        size = len(name) + 1
        fields = (self._count, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, size, 0)
        head = b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
        self._parts += [_padded(head), _padded(content)]

    def finish(self) -> bytes:
        self.add("TRAILER!!!", 0)
        return b"".join(self._parts)


def _padded(part: bytes) -> bytes:
    return part + bytes(-len(part) % 4)
