"""Hears of changes of addresses and links on the node, so that what others change at a NIC or a bridge is followed at once.

A thread that waits for the kernel's notices. It tells only that something has changed at one of the links that it was given: what
there is now is for a fresh look. It changes nothing, and a notice that was lost counts as one.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection
from typing import Final

from userspace_cni.base.errors import of_kernel
from userspace_cni.base.root import HERE, HostRoot
from userspace_cni.host.listening import Listener
from userspace_cni.host.netlink import links
from userspace_cni.host.netlink.codec import ROUTE, Connection
from userspace_cni.host.netns import opened_switch
from userspace_cni.host.rtnetlink import DELETED_LINK, NEW_LINK, noticed_index

_GROUPS: Final = 0x1 | 0x10 | 0x100
"""Of linux/rtnetlink.h: RTMGRP_LINK, RTMGRP_IPV4_IFADDR, RTMGRP_IPV6_IFADDR."""


class AddressWatch(Listener):
    """The thread. `watched`: the names of the links of which `changed` is told; neither may wait, nor fail."""

    def __init__(
        self,
        watched: Callable[[], Collection[str]],
        changed: Callable[[], object],
        switch_netns: str = "",
        root: HostRoot = HERE,
    ) -> None:
        meanwhile = "changes of addresses are noticed by the passes alone"
        super().__init__("address-watch", "watching the addresses of the node", meanwhile)
        self._watched = watched
        self._changed = changed
        self._switch_netns = switch_netns
        self._root = root
        self._names: dict[int, str] = {}

    def _listen(self) -> None:
        """Listen until the end, or until the kernel had more notices than were taken: then all may have changed."""
        with opened_switch(self._switch_netns, self._root) as netns:
            try:
                with netns.do(lambda: Connection(ROUTE, _GROUPS)) as notices:
                    with netns.do(lambda: Connection(ROUTE)) as kernel:
                        found = [links.read(payload) for _, payload in kernel.ask(links.listed())]
                    self._names = {each.index: each.name for each in found}
                    self._changed()
                    while self._waited(notices.fileno()):
                        told = [self._is_watched(*each) for each in notices.noticed()]  # each of them: names change
                        if any(told):
                            self._changed()
            except OSError as error:
                if error.errno == errno.ENOBUFS:
                    return
                what = "listening to changes of addresses"
                raise of_kernel(what, error, "the namespace of the switch may be gone") from error

    def _is_watched(self, kind: int, payload: bytes) -> bool:
        """Whether the notice is of a watched link, by its former name or its present one."""
        index = noticed_index(payload)
        names = {self._names.get(index, "")}
        if kind in (NEW_LINK, DELETED_LINK):
            self._names[index] = links.read(payload).name
            names.add(self._names[index])
        if kind == DELETED_LINK:
            del self._names[index]
        return not names.isdisjoint(self._watched())
