"""The agent's image. `python -m tests.lab.runtimes.agent_image` makes it while other tests run."""

from __future__ import annotations

from pathlib import Path

from tests.lab.guests.roots import print_made
from tests.lab.runtimes.built_image import BuiltImage
from tests.lab.runtimes.dockerfile import AGENT

IMAGE = "docker.io/library/userspace-cni:0.1.0"
"""The full name that runtimes make of the name in the manifest."""


def archive() -> Path:
    """The archive with IMAGE, built now unless there is one of these sources; PodmanError says what failed. Needs root."""
    return BuiltImage("agent-image", AGENT, IMAGE).archive()


if __name__ == "__main__":
    print_made("agent image", archive)
