"""The image that pods of Kubernetes' cases run, under the name by which they ask for it: agnhost, and programs that they call.

The original has Alpine's. Here are Debian's, as far as the cases of networks call them: a shell, curl, nc, ss, nslookup, wget.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

from tests.lab.guests.roots import kept, own_suite, print_made, unpack_release
from tests.lab.judge import programs
from tests.lab.runtimes.images import write_archive

IMAGE: Final = "k8s.gcr.io/e2e-test-images/agnhost:2.21"
"""As test/utils/image/manifest.go of Kubernetes 1.20 has it."""
FORMAT: Final = 1
"""Raise it when `_make` makes something different of the same programs."""
_PACKAGES: Final = (
    "bash",
    "bind9-dnsutils",
    "coreutils",
    "curl",
    "dash",
    "grep",
    "iproute2",
    "netcat-openbsd",
    "sed",
    "wget",
)
_MERGED: Final = ("bin", "sbin", "lib", "lib64")
_LINKS: Final = {"usr/bin/nc": "nc.openbsd", "agnhost-2": programs.AGNHOST}
_DIRECTORIES: Final = ("dev", "etc", "proc", "sys", "tmp", "uploads")
_ARCHIVE: Final = "image.tar"


def archive() -> Path:
    """The archive with IMAGE, made now unless there is one; RuntimeError says what failed. Needs root."""
    made = programs.directory()
    return kept("agnhost-image", (str(made), own_suite()[0], _PACKAGES, _LINKS, FORMAT), _make) / _ARCHIVE


def _make(part: Path) -> None:
    root = part / "root"
    for name in _MERGED:
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to(f"usr/{name}")
    unpack_release(_PACKAGES, [own_suite()[0]], root)
    for name in _DIRECTORIES:
        (root / name).mkdir(exist_ok=True)
    for name in (programs.AGNHOST, *programs.CERTIFICATE):
        shutil.copy(programs.directory() / name, root)
    for name, target in _LINKS.items():
        (root / name).symlink_to(target)
    tar = ("tar", "--create", "--sort=name", "--numeric-owner", f"--directory={root}", ".")
    layer = subprocess.run(tar, stdout=subprocess.PIPE, check=True).stdout
    path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    write_archive(part / _ARCHIVE, IMAGE, layer, {"Entrypoint": ["/agnhost"], "Cmd": ["pause"], "Env": [path]})
    shutil.rmtree(root)


if __name__ == "__main__":
    print_made("the image of agnhost", archive)
