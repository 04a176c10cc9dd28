"""Hears of changes of links, addresses, routes and policy rules on the node: what others change is followed at once.

A thread that waits for the kernel's notices. It tells only that something has changed at one of the links that it was given, or
of ours among routes and rules, and which links have gone: what there is now is for a fresh look. It changes nothing, and a notice
that was lost counts as one.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Callable, Collection
from typing import Final

from userspace_cni.base.errors import of_kernel
from userspace_cni.base.root import HERE, HostRoot
from userspace_cni.host.netlink import link_messages as links
from userspace_cni.host.netlink.kept_messages import DELETED_LINK, NEW_LINK, read_index
from userspace_cni.host.netlink.listening import KernelWatch
from userspace_cni.host.netlink.netns import open_switch_netns
from userspace_cni.host.netlink.node_kernel import NODE_PROTOCOL
from userspace_cni.linux.netlink import ROUTE, NetlinkConnection, attributes

_GROUPS: Final = 0x1 | 0x10 | 0x40 | 0x80 | 0x100 | 0x400 | 0x40000
"""Of linux/rtnetlink.h: RTMGRP_LINK, and of each of IPv4 and IPv6 the addresses, routes and rules."""
_NEW_ROUTE, _DELETED_ROUTE, _NEW_RULE, _DELETED_RULE = 24, 25, 32, 33
_RULE_PROTOCOL: Final = 21
"""FRA_PROTOCOL of linux/fib_rules.h."""
_RTM_HEADER: Final = 12
"""Bytes of struct rtmsg and struct fib_rule_hdr."""


def _chosen() -> bytes:
    """All notices but those of routes of others: a routing daemon changes thousands, which must cost us nothing.

    Classic BPF (struct sock_filter): the type of the message is at 4, in the machine's order, rtm_protocol at 16 + 5.
    """
    load_half, load_byte, equal, end = 0x28, 0x30, 0x15, 0x06
    program = (
        (load_half, 0, 0, 4),
        (equal, 1, 0, socket.htons(_NEW_ROUTE)),
        (equal, 0, 2, socket.htons(_DELETED_ROUTE)),
        (load_byte, 0, 0, 21),
        (equal, 0, 1, NODE_PROTOCOL),
        (end, 0, 0, 0xFFFFFFFF),
        (end, 0, 0, 0),
    )
    return b"".join(struct.pack("HBBI", *each) for each in program)


class AddressWatch(KernelWatch):
    """The thread. `watched`: the names of the links of which `changed` is told; `ended` gets the name of each link that has gone,
    has got another name or is down, and "" when notices were lost. None of them may wait, nor fail."""

    def __init__(
        self,
        watched: Callable[[], Collection[str]],
        changed: Callable[[], object],
        switch_netns: str = "",
        root: HostRoot = HERE,
        ended: Callable[[str], object] = lambda _: None,
    ) -> None:
        meanwhile = "changes of links and addresses are noticed by the passes alone"
        super().__init__("address-watch", "watches the links and addresses of the node", meanwhile)
        self._watched = watched
        self._changed = changed
        self._switch_netns = switch_netns
        self._root = root
        self._ended = ended
        self._names: dict[int, str] = {}

    def _round(self) -> float:
        """Listen until the end, or until the kernel had more notices than were taken: then all may have changed."""
        with open_switch_netns(self._switch_netns, self._root) as netns:
            try:
                with netns.do(lambda: NetlinkConnection(ROUTE, _GROUPS, chosen=_chosen())) as notices:
                    with netns.do(lambda: NetlinkConnection(ROUTE)) as kernel:
                        found = [links.read(payload) for _, payload in kernel.ask(links.dump())]
                    self._names = {each.index: each.name for each in found}
                    self._changed()
                    while self._waited(notices.fileno()):
                        told = [self._matters(*each) for each in notices.read_notices()]  # each of them: names change
                        if any(told):
                            self._changed()
            except OSError as error:
                if error.errno == errno.ENOBUFS:
                    self._ended("")
                    return 0.0
                what = "listening to changes of addresses"
                raise of_kernel(what, error, "the namespace of the switch may be gone") from error
        return 0.0

    def _matters(self, kind: int, payload: bytes) -> bool:
        """Whether the notice is of a watched link, by its former name or its present one, or of a route or rule of ours."""
        if kind in (_NEW_ROUTE, _DELETED_ROUTE):
            return kind == _DELETED_ROUTE
        if kind in (_NEW_RULE, _DELETED_RULE):
            protocol = attributes(payload[_RTM_HEADER:]).get(_RULE_PROTOCOL, b"")
            return kind == _DELETED_RULE and protocol == bytes((NODE_PROTOCOL,))
        index = read_index(payload)
        former = self._names.get(index, "")
        names = {former}
        if kind in (NEW_LINK, DELETED_LINK):
            _, name, up = links.read_name_and_state(payload)
            self._names[index] = name
            names.add(name)
            if kind == DELETED_LINK or not up:
                self._ended(name)
            if former not in ("", name):
                self._ended(former)
        if kind == DELETED_LINK:
            del self._names[index]
        return not names.isdisjoint(self._watched())
