"""The agent's image, built from its Dockerfile, in an archive that podman and containerd import: once for the same sources.

`python -m tests.lab.runtimes.agent_image` makes it while other tests run. The base is a Debian made by `image_base`.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.lab.guests.roots import kept, print_made
from tests.lab.runtimes import image_base
from tests.lab.runtimes.containerd_host import mount_points
from tests.lab.runtimes.dockerfile import AGENT, ROOT, copied_files
from tests.lab.runtimes.podman import Storage

IMAGE = "docker.io/library/userspace-cni:0.1.0"
"""The full name that runtimes make of the name in the manifest."""
_BASE = "localhost/userspace-cni-base:1"
_BUILD_S = 600.0
_FORMER = 3
"""How many images of other sources are kept, hundreds of megabytes each: other checkouts on this machine use them."""
_ARCHIVE = "image.tar"


def archive() -> Path:
    """The archive with IMAGE, built now unless there is one of these sources; PodmanError says what failed. Needs root."""
    base = image_base.archive()
    return kept("agent-image", (_digest(), str(base), IMAGE), _make, _FORMER) / _ARCHIVE


def _make(part: Path) -> None:
    with TemporaryDirectory(prefix="uc-images-", dir="/var/tmp") as directory:
        top = Path(directory)
        with Storage(top / "podman") as podman:
            try:
                podman.call("import", str(image_base.archive()), _BASE)
                options = ["--isolation=chroot", "--network=host", "--layers=false", "--jobs=2", "--timestamp=315532800"]
                what = [f"--build-arg=BASE={_BASE}", f"--file={AGENT}", f"--tag={IMAGE}", str(ROOT)]
                podman.call("build", *options, *image_base.way_out(top), *what, seconds=_BUILD_S)
                podman.call("save", f"--output={part / _ARCHIVE}", IMAGE)
            finally:
                for point in mount_points(top):
                    subprocess.run(["umount", "--lazy", point], check=True)


def _digest() -> str:
    """Of the Dockerfile and every file that it copies, with its name and mode."""
    digest = hashlib.sha256()
    for path in _sources():
        digest.update(f"{path.relative_to(ROOT)} {path.stat().st_mode:o} {path.stat().st_size}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _sources() -> Iterator[Path]:
    yield AGENT
    yield from copied_files(AGENT)


if __name__ == "__main__":
    print_made("agent image", archive)
