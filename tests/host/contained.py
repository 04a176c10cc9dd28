"""What `test_container` runs in a container: the drivers of an agent with host_root, which take commands line by line.

A line on stdin is a command with its arguments; one line of JSON on stdout answers it, `{"error": TEXT}` when it failed.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.host.places import soon
from userspace_cni.attachment.drift import sentence
from userspace_cni.attachment.steps import Announcement, Driver, Guard, Link, PodMount, Shaper, Step, host_alias
from userspace_cni.base.errors import UserspaceError
from userspace_cni.base.root import HostRoot
from userspace_cni.base.settings import Settings
from userspace_cni.host.files.mounts import PodMountDriver
from userspace_cni.host.netlink.netns import is_own, namespace
from userspace_cni.host.pod_net.announcements import AnnouncementDriver
from userspace_cni.host.pod_net.guards import GuardDriver
from userspace_cni.host.pod_net.pod_links import LinkDriver
from userspace_cni.host.pod_net.shapers import ShaperDriver
from userspace_cni.host.runtimes.ipam import Delegate
from userspace_cni.node.surroundings import missing

SEEN_AT = "/host"
_ROOT = HostRoot(SEEN_AT)
_MOUNTS = PodMountDriver("/nowhere", _ROOT)


def lacking(room: str) -> object:
    """What an agent reports as missing at its start."""
    settings = Settings(
        host_root=SEEN_AT, short_dir=f"{room}/short", kubelet_dir=f"{room}/pods", state_dir=f"{room}/var/lib/state"
    )
    return missing(settings)


def mount(room: str) -> object:
    """Mount a pod's directory for OVS; return the drift right after."""
    _MOUNTS.apply(_step(room), soon())
    return [sentence(drift) for drift in _MOUNTS.check(_step(room), soon())]


def unmount(room: str) -> object:
    _MOUNTS.undo(_step(room), soon())
    return _MOUNTS.is_present(_step(room))


def netns(path: str) -> object:
    """Inode of a namespace, and whether it is this process's own."""
    return [namespace(path, _ROOT).inode, is_own(path, _ROOT)]


def lease(room: str) -> object:
    """The answer of the IPAM plugin in `room`."""
    return Delegate("scripted", [f"{room}/bin"], {"CNI_IFNAME": "net1"}, _ROOT).add(b"{}", soon())


def ours(path: str) -> object:
    """Whether a file is at the path in the container's own root."""
    return Path(path).exists()


def link(paths: str) -> object:
    """Make a pod's veth with everything that belongs to it, between the namespaces of switch and pod; the drift right after.

    Its host end stays.
    """
    switch, pod = paths.split()
    at_pod: dict[str, Any] = {"name": "eth0", "netns": pod, "netns_inode": namespace(pod, _ROOT).inode}
    host, mac, addresses = "uc0123456789ab", "02:00:00:00:00:02", ("10.9.0.2/24", "fd00:9::2/64")
    marked = host_alias("store", "c0ffee", "eth0")
    steps: list[tuple[Driver[Any], Step]] = [
        (GuardDriver(_ROOT), Guard(host, "store", switch)),
        (
            LinkDriver(_ROOT),
            Link(host, "02:00:00:00:00:01", marked, mac=mac, mtu=1500, switch_netns=switch, addresses=addresses, **at_pod),
        ),
        (ShaperDriver(_ROOT), Shaper(rate=10_000_000, burst=1_000_000, **at_pod)),
        (AnnouncementDriver(_ROOT), Announcement(mac=mac, addresses=addresses, **at_pod)),
    ]
    for driver, step in steps:
        if rest := driver.apply(step, soon()):
            rest()
    return [sentence(drift) for driver, step in steps for drift in driver.check(step, soon())]


def _step(room: str) -> PodMount:
    return PodMount(f"{room}/pods/uid", f"{room}/pods", f"{room}/short/uid")


def main() -> None:
    """Serve until stdin ends."""
    commands: dict[str, Callable[[str], object]] = {
        function.__name__: function for function in (lacking, mount, unmount, netns, lease, ours, link)
    }
    for line in sys.stdin:
        name, _, argument = line.rstrip("\n").partition(" ")
        try:
            answer = commands[name](argument)
        except UserspaceError as error:
            answer = {"error": str(error)}
        os.write(1, json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    main()
