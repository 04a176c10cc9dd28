"""Questions about the switch's links share connections to the kernel, which never outlive what the path names."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.host.places import descriptors
from tests.lab.runtimes.runtime import netns
from userspace_cni.base.errors import Unavailable
from userspace_cni.host.node_net.switch_links import SwitchLinks


def test_a_connection_is_used_again(room: Path) -> None:
    """Any number of questions leaves few descriptors, and a path that names another namespace is asked there."""
    place = room / "netns"
    with netns() as first, netns() as second:
        subprocess.run(["nsenter", f"--net={second}", "ip", "link", "add", "there0", "type", "veth"], check=True)
        place.symlink_to(first)
        links = SwitchLinks(str(place))
        before = descriptors()
        with ThreadPoolExecutor(16) as threads:
            assert set(threads.map(links.find, ["there0"] * 200)) == {None}
        assert len(descriptors() - before) <= 4
        place.unlink()
        place.symlink_to(second)
        assert links.find("there0")
        assert len(descriptors() - before) <= 4
        place.unlink()
        with pytest.raises(Unavailable):
            links.find("there0")
        del links
        assert descriptors() == before


def test_the_namespace_of_this_process() -> None:
    """Without a path it is that of the process."""
    assert SwitchLinks().find("lo")
    assert SwitchLinks().find("no-such-link") is None
