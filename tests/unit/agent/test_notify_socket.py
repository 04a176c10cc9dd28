"""systemd is told when the agent serves and when it ends."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from userspace_cni.agent.notify_socket import READY, notify


@pytest.mark.parametrize("abstract", [False, True])
def test_the_state_comes_to_the_socket_that_the_environment_names(place: Path, abstract: bool) -> None:
    """A path names the socket, and a name in the abstract namespace begins with @."""
    name = f"{place}/notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(f"\0{name}" if abstract else name)
        systemd.settimeout(30)
        notify(READY, {"NOTIFY_SOCKET": f"@{name}" if abstract else name})
        assert systemd.recv(64) == b"READY=1"


@pytest.mark.parametrize("value", ["", "vsock:2:1234", "/nowhere/notify"])
def test_an_agent_that_nobody_listens_to_goes_on(value: str) -> None:
    """Without a socket, or with one that is not there, nothing is raised."""
    notify(READY, {"NOTIFY_SOCKET": value})
