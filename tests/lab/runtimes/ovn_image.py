"""The image of OVN's daemons. `python -m tests.lab.runtimes.ovn_image` makes it while other tests run."""

from __future__ import annotations

from pathlib import Path

from tests.lab.guests.roots import print_made
from tests.lab.runtimes.built_image import BuiltImage
from tests.lab.runtimes.dockerfile import OVN
from userspace_cni.pod.program_build import recorded_build

IMAGE = f"docker.io/library/userspace-cni-ovn:{recorded_build().version}"
"""The full name that runtimes make of the name in the manifests."""


def archive() -> Path:
    """The archive with IMAGE, built now unless there is one of this Dockerfile; PodmanError says what failed. Needs root."""
    return BuiltImage("ovn-image", OVN, IMAGE).archive()


if __name__ == "__main__":
    print_made("image of OVN", archive)
