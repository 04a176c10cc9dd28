"""Hears of changes of addresses and links on the node, so that what others change at a NIC or a bridge is followed at once.

A thread that waits for the kernel's notices. It tells only that something has changed at one of the links that it was given: what
there is now is for a fresh look. It changes nothing, and a notice that was lost counts as one.
"""

from __future__ import annotations

import errno
import os
import select
import threading
from collections.abc import Callable, Collection
from typing import Final

from userspace_cni.base.errors import UserspaceError, of_kernel
from userspace_cni.base.log import say
from userspace_cni.base.root import HERE, HostRoot
from userspace_cni.base.threads import start
from userspace_cni.host.netlink import links
from userspace_cni.host.netlink.codec import ROUTE, Connection
from userspace_cni.host.netns import opened_switch
from userspace_cni.host.rtnetlink import DELETED_LINK, NEW_LINK, noticed_index

_GROUPS: Final = 0x1 | 0x10 | 0x100
"""Of linux/rtnetlink.h: RTMGRP_LINK, RTMGRP_IPV4_IFADDR, RTMGRP_IPV6_IFADDR."""
_AGAIN_S = 5.0
"""After which notices are asked for again, where that failed: the namespace of the switch may come later."""


class AddressWatch:
    """The thread. `watched`: the names of the links of which `changed` is told; neither may wait, nor fail."""

    def __init__(
        self,
        watched: Callable[[], Collection[str]],
        changed: Callable[[], object],
        switch_netns: str = "",
        root: HostRoot = HERE,
    ) -> None:
        self._watched = watched
        self._changed = changed
        self._switch_netns = switch_netns
        self._root = root
        self._names: dict[int, str] = {}
        self._problem = ""
        self._ending = threading.Event()
        self._end, self._wake = os.pipe2(os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="address-watch", daemon=True)

    def start(self) -> None:
        """Start the thread. Raises Unavailable."""
        start(self._thread, "watching the addresses of the node")

    def stop(self) -> None:
        """End the thread, and wait for it. It may not have been started."""
        if self._ending.is_set():
            return
        self._ending.set()
        os.write(self._wake, b"x")
        if self._thread.is_alive():
            self._thread.join()
        for each in (self._end, self._wake):
            os.close(each)

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                self._listen()
            except UserspaceError as error:
                if str(error) != self._problem:
                    say("warning", "changes of addresses are noticed by the passes alone", error=error)
                self._problem = str(error)
                self._ending.wait(_AGAIN_S)

    def _listen(self) -> None:
        """Listen until the end, or until the kernel had more notices than were taken: then all may have changed."""
        with opened_switch(self._switch_netns, self._root) as netns:
            try:
                with netns.do(lambda: Connection(ROUTE, _GROUPS)) as notices:
                    with netns.do(lambda: Connection(ROUTE)) as kernel:
                        found = [links.read(payload) for _, payload in kernel.ask(links.listed())]
                    self._names = {each.index: each.name for each in found}
                    self._problem = ""
                    self._changed()
                    waiting = select.poll()
                    for each in (notices.fileno(), self._end):
                        waiting.register(each, select.POLLIN)
                    while True:
                        waiting.poll()
                        if self._ending.is_set():
                            return
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
