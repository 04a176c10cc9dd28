"""Builds the images of deploy/images with podman, from the commit that is checked out, so that each says which build it is.

    make images        or: .venv/bin/python -m deploy.image_builds [IMAGE...]

As deploy/dist.py it builds a clone of its own. The images are tagged with the project's version. The label `revision` names the
commit, `created` the commit's date, which every file in an image has, too: two builds with the same packages of Debian agree.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from deploy import dist
from userspace_cni.pod.program_build import ProgramBuild, ask_git, recorded_build

IMAGES: Final = {
    "userspace-cni": "Dockerfile",
    "userspace-cni-kubevirt-sidecar": "kubevirt-sidecar.Dockerfile",
    "userspace-cni-ovn": "ovn.Dockerfile",
    "userspace-cni-testpmd": "testpmd.Dockerfile",
}
"""Name of each image -> its file in deploy/images."""
_ANNOTATION: Final = "org.opencontainers.image"


def options_of(build: ProgramBuild, epoch: int) -> list[str]:
    """podman's options for an image of this build. `epoch`: the time of each file in it."""
    told = {"revision": build.commit, "created": build.committed}
    return [
        *(f"--label={_ANNOTATION}.{name}={value}" for name, value in told.items()),
        f"--build-arg=BUILD_COMMIT={build.commit}",
        f"--build-arg=BUILD_DATE={build.committed}",
        f"--timestamp={epoch}",
    ]


def main() -> int:
    """Build the images that are named, or all, and print each with its ID."""
    names = sys.argv[1:] or list(IMAGES)
    unknown = [name for name in names if name not in IMAGES]
    if unknown:
        print(f"image_builds: there is no image {unknown[0]!r}: {', '.join(IMAGES)}", file=sys.stderr)
        return 2
    with TemporaryDirectory(prefix="userspace-cni-images-") as directory:
        clone = Path(directory) / "sources"
        epoch = dist.clone_commit(clone)
        build = ProgramBuild(recorded_build().version, *ask_git(clone))
        for name in names:
            tag = f"{name}:{build.version}"
            file = clone / "deploy" / "images" / IMAGES[name]
            subprocess.run(["podman", "build", *options_of(build, epoch), f"--file={file}", f"--tag={tag}", clone], check=True)
            inspect = ["podman", "image", "inspect", "--format={{.Id}}", tag]
            told = subprocess.run(inspect, stdout=subprocess.PIPE, text=True, check=True)
            print(tag, told.stdout.strip())
    return 0


if __name__ == "__main__":
    dist.run_build(main)
