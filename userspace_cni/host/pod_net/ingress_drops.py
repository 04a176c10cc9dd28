"""Drops what arrives at a link, for the stack of its namespace: a chain of nftables at the link's ingress hook.

Packet sockets and XDP programs have had a frame by then, so the switch loses none. Each link has a chain of its own in a table
that is its user's alone: it comes and goes by itself, in one transaction of the kernel. Nothing here reads or changes another
table. The table goes with its last chain.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Final

from userspace_cni.attachment.drift import Absent, Value
from userspace_cni.base.errors import Unavailable, UserspaceError, of_kernel
from userspace_cni.base.root import HERE, HostRoot
from userspace_cni.host.netlink import nftables_messages as nftables
from userspace_cni.host.netlink.closer import Closer
from userspace_cni.host.netlink.netns import open_switch_netns
from userspace_cni.host.netlink.nftables_messages import Chain, Table
from userspace_cni.linux.netlink import NETFILTER, Message, NetlinkConnection

NEEDED: Final = "the kernel needs CONFIG_NF_TABLES and CONFIG_NF_TABLES_NETDEV"
_PROBE: Final = "userspace-cni-probe"
_TRIES = 10
_CLOSER: Final = Closer(0.2)
"""Much later than the kernel needs for what was deleted: then closing waits for nothing, and no transaction for it."""
_LACKING: Final = (errno.ENOENT, errno.EOPNOTSUPP, errno.EPROTONOSUPPORT, errno.EAFNOSUPPORT, errno.EINVAL)
"""How a kernel without these tables refuses them, by what it lacks: the chain, its family, the socket, all of it."""
_RIGHTS: Final = "it takes CAP_NET_ADMIN in the network namespace of the switch"


def why_unsupported(switch_netns: str, root: HostRoot = HERE) -> str:
    """Why no link can be guarded there; "" where it can. Asked by a transaction that leaves nothing. Raises Unavailable."""
    chain = nftables.new_chain(_PROBE, "lo", "lo", nftables.ACCEPT)
    changes = nftables.batch(nftables.new_table(_PROBE), chain, nftables.delete_table(_PROBE))
    try:
        with _kernel(switch_netns, root, "guarding host ends") as kernel:
            kernel.send(*changes)
    except Unavailable:
        raise
    except UserspaceError as error:
        return str(error)
    return ""


@dataclass(frozen=True)
class Drops:
    """The chains of one table in one namespace. Equal ones share a look (`SharedReads.once`). All raise UserspaceError."""

    switch_netns: str
    table: str
    root: HostRoot = HERE

    def __call__(self) -> Mapping[str, Chain]:
        """The chains of the table by name, which is their link's. A dormant table's have no hook."""
        with self._kernel("reading it") as kernel:
            found = _table(kernel, self.table)
            if found is None:
                return {}
            ours = {each.name: each for each in _chains(kernel) if each.table == self.table}
        return {name: replace(each, hook="") for name, each in ours.items()} if found.dormant else ours

    def make(self, link: str) -> bool:
        """Make the link's chain, or mend it, in one transaction; False when the kernel says that something is not there."""
        chain = nftables.new_chain(self.table, link, link, nftables.DROP)
        changes = nftables.batch(nftables.new_table(self.table), chain, nftables.flush_chain(self.table, link))
        with self._kernel(f"making the chain of {link}") as kernel:
            try:
                kernel.send(*changes)
            except FileNotFoundError:
                return False
        return True

    def remove(self, link: str) -> None:
        """Delete the link's chain and, if it was the last, the table; but only if no transaction came between the look at it and
        its end, so that what other processes add meanwhile stays."""
        with self._kernel(f"removing the chain of {link}") as kernel:
            if any((each.table, each.name) == (self.table, link) for each in _chains(kernel)):
                # what is not there costs the kernel 15 ms
                with suppress(FileNotFoundError):
                    kernel.send(*nftables.batch(nftables.delete_chain(self.table, link)))
            self._remove_empty(kernel)

    def _remove_empty(self, kernel: NetlinkConnection) -> None:
        for _ in range(_TRIES):
            asked = _asked(kernel, nftables.get_generation())
            found = _table(kernel, self.table)
            if not asked or found is None or found.things:
                return
            ((_, payload),) = asked
            try:
                kernel.send(*nftables.batch(nftables.delete_table(self.table), generation=nftables.generation(payload)))
            except OSError as error:
                if error.errno not in (errno.ERESTART, errno.ENOENT):
                    raise

    @contextmanager
    def _kernel(self, doing: str) -> Iterator[NetlinkConnection]:
        with _kernel(self.switch_netns, self.root, f"table {self.table}: {doing}") as kernel:
            yield kernel


def differences(link: str, chain: Chain | None) -> Iterator[tuple[str, Value, Value]]:
    """Field, expected and found of each difference between the chain and one that drops all that arrives at the link."""
    if chain is None:
        yield "", "a chain at its ingress hook", Absent()
        return
    if chain.devices != (link,):
        yield "device", link, ", ".join(chain.devices) or Absent()
    if chain.hook != "ingress":
        yield "hook", "ingress", chain.hook or Absent()
    if chain.policy != nftables.DROP:
        yield "policy", "drop", "accept"
    if chain.rules:
        yield "rules", 0, chain.rules


@dataclass(frozen=True)
class TableLook:
    """What a table has. `table` is None where there is none, and then there are no `chains`, by name."""

    table: Table | None
    chains: Mapping[str, Chain]


def look_at(kernel: NetlinkConnection, name: str, family: int) -> TableLook:
    """The table of that name and family. Raises OSError."""
    found = _table(kernel, name, family)
    chains = _chains(kernel, family) if found else []
    return TableLook(found, {each.name: each for each in chains if each.table == name})


def has_table(name: str, family: int, switch_netns: str, root: HostRoot = HERE) -> bool:
    """Whether the switch's namespace has a table of that name and family. Raises UserspaceError."""
    with _kernel(switch_netns, root, f"looking for table {name}") as kernel:
        return _table(kernel, name, family) is not None


def _table(kernel: NetlinkConnection, table: str, family: int = nftables.NETDEV) -> Table | None:
    return next((nftables.table(payload) for _, payload in _asked(kernel, nftables.get_table(table, family))), None)


def _chains(kernel: NetlinkConnection, family: int = nftables.NETDEV) -> list[Chain]:
    return [nftables.chain(payload) for _, payload in _asked(kernel, nftables.get_chains(family))]


def _asked(kernel: NetlinkConnection, message: Message) -> list[tuple[int, bytes]]:
    """The replies; none from a kernel without these tables, which has no chains: then there is nothing to remove, either."""
    try:
        return kernel.ask(message)
    except OSError as error:
        if error.errno not in _LACKING:
            raise
        return []


@contextmanager
def _kernel(switch_netns: str, root: HostRoot, what: str) -> Iterator[NetlinkConnection]:
    """A connection in the switch's namespace; what the kernel refuses is `what` that could not be done."""
    with open_switch_netns(switch_netns, root) as netns:
        try:
            kernel = netns.do(lambda: NetlinkConnection(NETFILTER))
            try:
                yield kernel
            finally:
                _CLOSER.close(kernel)
        except OSError as error:
            raise of_kernel(what, error, NEEDED if error.errno in _LACKING else _RIGHTS) from error
