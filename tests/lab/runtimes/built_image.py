"""An image built from a Dockerfile of deploy/images, in an archive that podman and containerd import: once for the same sources.

The base is a Debian made by `image_base`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deploy import image_builds
from tests.lab.guests.roots import kept
from tests.lab.runtimes import image_base
from tests.lab.runtimes.dockerfile import ROOT, copied_files
from tests.lab.runtimes.podman import Storage, own_storage
from userspace_cni.pod.program_build import ProgramBuild, recorded_build

_BASE: Final = "localhost/userspace-cni-base:1"
_BUILD_S: Final = 600.0
_FORMER: Final = 3
"""How many images of other sources are kept, hundreds of megabytes each: other checkouts on this machine use them."""
_ARCHIVE: Final = "image.tar"
BUILD: Final = ProgramBuild(recorded_build().version, "c0ffeec0ffee", "2026-11-28T03:12:11Z")
"""The build that the images say they are: not the commit, with which they would have to be built anew."""
_OPTIONS: Final = tuple(image_builds.options_of(BUILD, 315532800))


def build_image(podman: Storage, directory: Path, dockerfile: Path, name: str) -> None:
    """Build the image `name` in podman's storage. `directory`: for what the build needs. PodmanError has what failed."""
    podman.call("import", str(image_base.archive()), _BASE)
    options = ["--isolation=chroot", "--network=host", "--layers=false", "--jobs=2", *_OPTIONS]
    what = [f"--build-arg=BASE={_BASE}", f"--file={dockerfile}", f"--tag={name}", str(ROOT)]
    podman.call("build", *options, *image_base.way_out(directory), *what, seconds=_BUILD_S)


@dataclass(frozen=True)
class BuiltImage:
    """`kept_as`: what its directories are called; `name`: the full name that runtimes make of the one in the manifests."""

    kept_as: str
    dockerfile: Path
    name: str

    def archive(self) -> Path:
        """The archive with the image, built now unless there is one of these sources. Needs root; PodmanError has what failed."""
        base = image_base.archive()
        return kept(self.kept_as, (self._digest(), str(base), self.name, _OPTIONS), self._make, _FORMER) / _ARCHIVE

    def _make(self, part: Path) -> None:
        with own_storage() as (podman, directory):
            build_image(podman, directory, self.dockerfile, self.name)
            podman.call("save", f"--output={part / _ARCHIVE}", self.name)

    def _digest(self) -> str:
        """Of the Dockerfile and every file that it copies, with its name and mode."""
        digest = hashlib.sha256()
        for path in (self.dockerfile, *copied_files(self.dockerfile)):
            digest.update(f"{path.relative_to(ROOT)} {path.stat().st_mode:o} {path.stat().st_size}\n".encode())
            digest.update(path.read_bytes())
        return digest.hexdigest()
