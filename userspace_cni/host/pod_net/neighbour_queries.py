"""Asks and hears the neighbours on a link's wire, by ARP and Neighbour Discovery, whatever the kernel's own tables say.

The frames go through a packet socket, so they take the way of the link's own. Answers come from other pods and machines: they
decide what was asked, and nothing else. Each question has a bound that no neighbour can stretch.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from ipaddress import ip_interface
from typing import Final

from userspace_cni.base.deadline import Deadline
from userspace_cni.host.netlink.closer import Closer
from userspace_cni.host.netlink.netns import Netns
from userspace_cni.host.pod_net.neighbour_frames import Address, AddressClaim, claim, question

_AGAIN_S = 0.25
_PROBES: Final = 3
"""How often is asked whether others have an address. IPv6 answers to all nodes: what the switch has cached of where the
answerer's frames to all nodes go holds for some milliseconds after a port was added, without it."""
_EVERY_PROTOCOL = 3
_FRAME_MAX = 2048
_CLOSER: Final = Closer(0)


@contextmanager
def wire(netns: Netns, link: str, *, listening: bool) -> Iterator[socket.socket]:
    """A packet socket at the link. Raises OSError when it is not there, or is down."""
    # made without a protocol: it hears nothing before it is bound to the one link
    opened = netns.do(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0))
    try:
        opened.bind((link, _EVERY_PROTOCOL if listening else 0))
        yield opened
    finally:
        _CLOSER.close(opened)


def ask_neighbours(
    wire: socket.socket, mac: str, own: Iterable[str], targets: Iterable[Address], deadline: Deadline, *, enough: int = 0
) -> list[Address]:
    """Ask all targets until `enough` have answered (0: all), the silent ones again and again; those that have not answered.

    `own`: the addresses of the link, with prefix length, one of which each answers to.
    """
    mine = [ip_interface(each) for each in own]
    silent = list(dict.fromkeys(targets))
    left = len(silent) - (enough or len(silent))
    while len(silent) > left and deadline.remaining():
        for each in silent:
            senders = sorted((i for i in mine if i.version == each.version), key=lambda i: each not in i.network)
            wire.send(question(mac, senders[0].ip if senders else unspecified(each), each))
        for found in claims(wire, mac, deadline.within(_AGAIN_S)):
            silent = [each for each in silent if each != found.address]
            if len(silent) <= left:
                break
    return silent


def find_duplicates(wire: socket.socket, mac: str, addresses: Iterable[Address], deadline: Deadline) -> dict[Address, str]:
    """Which of the addresses other machines have, and their MACs; probes change no cache. It takes all of the time."""
    own, found = list(addresses), dict[Address, str]()
    part_s = deadline.remaining() / _PROBES
    for _ in range(_PROBES):
        for each in own:
            wire.send(question(mac, unspecified(each), each))
        found |= {each.address: each.mac for each in claims(wire, mac, deadline.within(part_s)) if each.address in own}
    return found


def claims(wire: socket.socket, own: str, deadline: Deadline) -> Iterator[AddressClaim]:
    """What others say of their addresses until the deadline."""
    readable = select.poll()
    readable.register(wire, select.POLLIN)
    while deadline.remaining():
        if readable.poll(deadline.milliseconds()):
            found = claim(wire.recv(_FRAME_MAX, socket.MSG_DONTWAIT))
            if found and found.mac != own.lower():
                yield found


def unspecified(address: Address) -> Address:
    return type(address)(0)
