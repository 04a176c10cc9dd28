"""Tells a pod's neighbours its addresses, and asks them before: the driver of `Announcement`.

The frames go through a packet socket in the pod's network namespace, so they take the way of the pod's own: link, port, VLAN,
switch. What is told is not there to be undone or checked. Two questions may be asked of the network; each has a bound that no
neighbour can stretch. Answers come from other pods and machines: they decide whether this pod starts, and nothing else.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address, ip_interface
from typing import Final

from userspace_cni.attachment.drift import Drift
from userspace_cni.attachment.steps import Announcement, Driver
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import StepFailed, of_kernel
from userspace_cni.base.log import timed
from userspace_cni.base.root import HERE, HostRoot
from userspace_cni.host.netlink.netns import open_pod_netns
from userspace_cni.host.pod_net.neighbour_frames import Address, announcement
from userspace_cni.host.pod_net.neighbour_queries import ask_neighbours, find_duplicates, wire

DUPLICATE_S: Final = 0.1
"""How long others have to say that an address is theirs; across a switch they need 2 ms."""
GATEWAY_S: Final = 2.0
"""How long all gateways together have to answer."""


class AnnouncementDriver(Driver[Announcement]):
    """The frames of one interface. `root` is the host's: the path of the pod's namespace is the host's."""

    def __init__(self, root: HostRoot = HERE) -> None:
        self._root = root

    def apply(self, step: Announcement, deadline: Deadline) -> None:
        """Ask whether the addresses are free, tell that they are the pod's, and ask whether the gateways are there.

        Raises StepFailed with the address and the other MAC, or with the gateways that do not answer, and ContainerGone when the
        namespace is gone.
        """
        deadline.require(_what(step))
        addresses = [ip_interface(each).ip for each in step.addresses]
        gateways = [ip_address(each) for each in step.gateways]
        if not addresses and not gateways:
            return
        with self._wire(step, listening=step.duplicate_check or bool(gateways)) as wire:
            if step.duplicate_check:
                _refuse_duplicates(step, addresses, wire, deadline.within(DUPLICATE_S))
            for each in addresses:
                wire.send(announcement(step.mac, each))
            if gateways:
                _await_gateways(step, gateways, wire, deadline.within(GATEWAY_S))

    def undo(self, step: Announcement, deadline: Deadline) -> None:
        """Nothing: caches forget by themselves."""

    def check(self, step: Announcement, deadline: Deadline) -> list[Drift]:  # noqa: ARG002 - the interface
        """Nothing of it stays that could differ."""
        return []

    @contextmanager
    def _wire(self, step: Announcement, *, listening: bool) -> Iterator[socket.socket]:
        with open_pod_netns(step.netns, step.netns_inode, self._root) as netns:
            try:
                with wire(netns, step.name, listening=listening) as opened:
                    yield opened
            except OSError as error:
                raise of_kernel(
                    _what(step), error, f"the frames go by link {step.name} in the pod: is it there, and up?"
                ) from error


def _refuse_duplicates(step: Announcement, addresses: list[Address], wire: socket.socket, deadline: Deadline) -> None:
    for address, mac in find_duplicates(wire, step.mac, addresses, deadline).items():
        raise StepFailed(
            f"{_what(step)}: {address} is in use by {mac}",
            "another machine of the network has the address, and its IPAM does not know; or leave out duplicateCheck",
        )


def _await_gateways(step: Announcement, gateways: list[Address], wire: socket.socket, deadline: Deadline) -> None:
    with timed("asked the gateways", gateways=",".join(step.gateways)):
        silent = ask_neighbours(wire, step.mac, step.addresses, gateways, deadline)
    if silent:
        raise StepFailed(
            f"{_what(step)}: no answer from the gateway {', '.join(map(str, silent))} within {GATEWAY_S:g} s",
            "look at the bridge, its VLAN and its uplink, and at the gateway itself; or leave out gatewayCheck",
        )


def _what(step: Announcement) -> str:
    return f"link {step.name}: announcing {step.summary}"
