"""The agent's image. `python -m tests.lab.runtimes.agent_image` makes it while other tests run."""

from __future__ import annotations

from pathlib import Path

from tests.lab.guests.roots import print_made
from tests.lab.runtimes.built_image import BuiltImage
from tests.lab.runtimes.dockerfile import AGENT
from userspace_cni.pod.program_build import recorded_build

IMAGE = f"docker.io/library/userspace-cni:{recorded_build().version}"
"""The full name that runtimes make of the name in the manifest."""


def archive() -> Path:
    """The archive with IMAGE, built now unless there is one of these sources; PodmanError says what failed. Needs root."""
    return BuiltImage("agent-image", AGENT, IMAGE).archive()


if __name__ == "__main__":
    print_made("agent image", archive)
