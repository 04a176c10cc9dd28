"""Hears of changes of nftables, and looks what has become of our tables: what another program flushes is made again at once.

A thread that waits for the kernel's notices in the namespace of the switch. It changes nothing. Of each transaction, of whomever,
it is sent the one notice that ends it: a node's other programs change thousands of rules at a time, of which it must not hear.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Mapping
from typing import Final

from userspace_cni.base.errors import of_kernel
from userspace_cni.base.root import HERE, HostRoot
from userspace_cni.host.netlink import nftables_messages as nftables
from userspace_cni.host.netlink.listening import KernelWatch
from userspace_cni.host.netlink.netns import open_switch_netns
from userspace_cni.host.node_net import address_moves
from userspace_cni.host.pod_net import guards
from userspace_cni.host.pod_net.ingress_drops import TableLook, look_at
from userspace_cni.linux.netlink import NETFILTER, NetlinkConnection

APART_S: Final = 0.5
"""Between two looks: programs make many transactions one after the other."""
GONE_S: Final = 60.0
"""How long each further change tells of a guard that has gone: it may have been made and gone again between two looks."""
_GROUP: Final = 1 << 6
"""NFNLGRP_NFTABLES, the seventh of linux/netfilter/nfnetlink.h."""
_CHOSEN: Final = b"".join(
    struct.pack("HBBI", *each)
    for each in (
        (0x28, 0, 0, 4),  # the type of the message, in the machine's order
        (0x15, 0, 1, socket.htons(nftables.NEW_GENERATION)),
        (0x06, 0, 0, 0xFFFFFFFF),
        (0x06, 0, 0, 0),
    )
)
"""Classic BPF (struct sock_filter): the notices that are sent."""
_Looked = Mapping[tuple[str, int], TableLook]


class TableWatch(KernelWatch):
    """The thread. `store` names the tables of this installation. `changed` is told of those of the node's own network, and at the
    beginning; `ended` gets the name of each link whose guard has gone or is another, and "" when no guard is called any more.

    None of them may wait; `store` alone may fail, with UserspaceError.
    """

    def __init__(
        self,
        store: Callable[[], str],
        changed: Callable[[], object],
        ended: Callable[[str], object],
        switch_netns: str = "",
        root: HostRoot = HERE,
    ) -> None:
        super().__init__("table-watch", "watches our nftables tables", "their changes are noticed by the passes alone")
        self._store = store
        self._changed = changed
        self._ended = ended
        self._switch_netns = switch_netns
        self._root = root
        self._gone: dict[str, float] = {}
        """The guards that have gone and are not there again, and since when (CLOCK_MONOTONIC)."""

    def _round(self) -> float:
        store = self._store()
        guarded = guards.table_of(store), nftables.NETDEV
        ours = guarded, (address_moves.table_of(store), nftables.NETDEV), (guards.table_of(store), nftables.INET)
        with open_switch_netns(self._switch_netns, self._root) as netns:
            try:
                with (
                    netns.do(lambda: NetlinkConnection(NETFILTER, _GROUP, chosen=_CHOSEN)) as notices,
                    netns.do(lambda: NetlinkConnection(NETFILTER)) as kernel,
                ):
                    before = {each: look_at(kernel, *each) for each in ours}
                    self._changed()
                    while self._waited(notices.fileno()):
                        notices.drain()
                        now = {each: look_at(kernel, *each) for each in ours}
                        self._compare(before, now, guarded)
                        before = now
                        self._rest(APART_S)
            except OSError as error:
                raise of_kernel("listening to changes of nftables", error, "nftables may be missing in this kernel") from error
        return 0.0

    def _compare(self, before: _Looked, now: _Looked, guarded: tuple[str, int]) -> None:
        if any(now[each] != before[each] for each in now if each != guarded):
            self._changed()
        former, found = before[guarded], now[guarded]
        if found.table and found.table.dormant:
            self._ended("")
        at = time.monotonic()
        ended = {name for name, chain in former.chains.items() if found.chains.get(name) != chain}
        gone = {name: since for name, since in {**dict.fromkeys(ended, at), **self._gone}.items() if name not in found.chains}
        self._gone = {name: since for name, since in gone.items() if at - since < GONE_S}
        for name in ended | self._gone.keys():
            self._ended(name)
