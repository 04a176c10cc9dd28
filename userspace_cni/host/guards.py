"""Keeps the node's own stack from the frames of pods: the driver of `Guard`, and what is guarded.

OVS reads a host end of type `system` by a packet socket, which takes copies: each frame goes on into the stack of the namespace
that has the host end. There the node answers ARP for all of its addresses, and forwards, past the VLAN of the port. A chain of
nftables at the ingress hook of the host end drops the frame; packet sockets have had it by then, so the switch loses none.

Each host end has a chain of its own in a table of this installation's, named by its store: it comes and goes alone, in one
transaction of the kernel. Nothing here reads or changes another table. The table goes with its last chain.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from userspace_cni.attachment.drift import Absent, Drift, Value
from userspace_cni.attachment.steps import Driver, Guard, Rest, Seen
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import StepFailed, Unavailable, UserspaceError, of_kernel
from userspace_cni.base.root import HERE, HostRoot
from userspace_cni.host.closer import Closer
from userspace_cni.host.netlink import nftables
from userspace_cni.host.netlink.codec import NETFILTER, Connection
from userspace_cni.host.netlink.nftables import Chain, Table
from userspace_cni.host.netns import is_gone, opened_switch

_PROBE: Final = "userspace-cni-probe"
_TRIES = 10
_CLOSER: Final = Closer(0.2)
"""Much later than the kernel needs for what was deleted: then closing waits for nothing, and no transaction for it."""
_LACKING: Final = (errno.ENOENT, errno.EOPNOTSUPP, errno.EPROTONOSUPPORT, errno.EAFNOSUPPORT, errno.EINVAL)
"""How a kernel without these tables refuses them, by what it lacks: the chain, its family, the socket, all of it."""
_NEEDED: Final = "the kernel needs CONFIG_NF_TABLES and CONFIG_NF_TABLES_NETDEV; the ports afxdp and af_xdp need no guard"
_RIGHTS: Final = "it takes CAP_NET_ADMIN in the network namespace of the switch"


def table_of(store: str) -> str:
    """The name of our table."""
    return f"userspace-cni-{store}"


def supported(switch_netns: str, root: HostRoot = HERE) -> str:
    """Why no host end can be guarded there; "" where it can. Asked by a transaction that leaves nothing. Raises Unavailable."""
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
class Guards:
    """The guards of one installation in one namespace, as a look shows them. Equal ones share a look (`Seen.once`)."""

    switch_netns: str
    store: str
    root: HostRoot = HERE

    def __call__(self) -> Mapping[str, Chain]:
        """The chains of our table by name, which is their host end's. A dormant table's have no hook."""
        table = table_of(self.store)
        with _kernel(self.switch_netns, self.root, f"table {table}: reading it") as kernel:
            found = _table(kernel, table)
            if found is None:
                return {}
            ours = {each.name: each for each in _chains(kernel) if each.table == table}
        return {name: replace(each, hook="") for name, each in ours.items()} if found.dormant else ours


def guarded(switch_netns: str, store: str, root: HostRoot = HERE) -> Mapping[str, bool]:
    """The host ends that have a chain of ours, and whether it drops what arrives there. Raises UserspaceError."""
    return {name: not list(_differences(name, chain)) for name, chain in Guards(switch_netns, store, root)().items()}


class GuardDriver(Driver[Guard]):
    """The chain that drops what arrives at a host end. `root` is the host's: the path of the switch's namespace is the host's."""

    def __init__(self, root: HostRoot = HERE) -> None:
        self._root = root

    def apply(self, step: Guard, deadline: Deadline) -> Rest | None:
        """Make the chain before its link exists: then no frame is too early for it.

        Kernels before 6.16 make none for a link that is not there; on those the rest makes it, before the pod's containers run.
        """
        deadline.require(_what(step))
        return None if self._make(step) else partial(self._make_late, step)

    def undo(self, step: Guard, deadline: Deadline) -> None:
        """Delete the chain, and the table if nothing is left in it. A namespace that is gone took them with it."""
        deadline.require(_what(step))
        if step.switch_netns and is_gone(step.switch_netns, self._root):
            return
        with _kernel(step.switch_netns, self._root, f"{_what(step)}: removing it") as kernel:
            _remove(kernel, table_of(step.store), step.link)

    def check(self, step: Guard, deadline: Deadline) -> list[Drift]:
        """The chain is there, at the hook of its host end alone, drops, and has no rules that could let frames pass."""
        deadline.require(_what(step))
        look = f"in the switch's network namespace: nft list table netdev {table_of(step.store)}"
        chain = self._guards(step)().get(step.link)
        return [Drift(_what(step), *difference, look) for difference in _differences(step.link, chain)]

    def lost(self, step: Guard, seen: Seen, deadline: Deadline) -> bool:
        """Whether there is no chain, or none that is called for the host end."""
        deadline.require(_what(step))
        chain = seen.once(self._guards(step)).get(step.link)
        return chain is None or not chain.hook or step.link not in chain.devices

    def _guards(self, step: Guard) -> Guards:
        return Guards(step.switch_netns, step.store, self._root)

    def _make(self, step: Guard) -> bool:
        """Make the chain, or mend it, in one transaction; False when the kernel says that something is not there."""
        table = table_of(step.store)
        chain = nftables.new_chain(table, step.link, step.link, nftables.DROP)
        changes = nftables.batch(nftables.new_table(table), chain, nftables.flush_chain(table, step.link))
        with _kernel(step.switch_netns, self._root, f"{_what(step)}: making it") as kernel:
            try:
                kernel.send(*changes)
            except FileNotFoundError:
                return False
        return True

    def _make_late(self, step: Guard) -> None:
        if not self._make(step):
            raise StepFailed(f"{_what(step)}: making it: the kernel has no such link, or no such chains", _NEEDED)


def _what(step: Guard) -> str:
    return f"guard of {step.link}"


def _remove(kernel: Connection, table: str, link: str) -> None:
    """Delete the chain and, if it was the last, the table; but only if no transaction came between the look at it and its end, so
    that what other processes add meanwhile stays."""
    if any((each.table, each.name) == (table, link) for each in _chains(kernel)):  # what is not there costs the kernel 15 ms
        with suppress(FileNotFoundError):
            kernel.send(*nftables.batch(nftables.delete_chain(table, link)))
    for _ in range(_TRIES):
        ((_, payload),) = kernel.ask(nftables.get_generation())
        found = _table(kernel, table)
        if found is None or found.things:
            return
        try:
            kernel.send(*nftables.batch(nftables.delete_table(table), generation=nftables.generation(payload)))
        except OSError as error:
            if error.errno not in (errno.ERESTART, errno.ENOENT):
                raise


def _table(kernel: Connection, table: str) -> Table | None:
    try:
        ((_, payload),) = kernel.ask(nftables.get_table(table))
    except FileNotFoundError:
        return None
    return nftables.table(payload)


def _chains(kernel: Connection) -> list[Chain]:
    return [nftables.chain(payload) for _, payload in kernel.ask(nftables.get_chains())]


def _differences(link: str, chain: Chain | None) -> Iterator[tuple[str, Value, Value]]:
    """Field, expected and found of each difference between the chain and the guard of the link."""
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


@contextmanager
def _kernel(switch_netns: str, root: HostRoot, what: str) -> Iterator[Connection]:
    """A connection in the switch's namespace; what the kernel refuses is `what` that could not be done."""
    with opened_switch(switch_netns, root) as netns:
        try:
            kernel = netns.do(lambda: Connection(NETFILTER))
            try:
                yield kernel
            finally:
                _CLOSER.close(kernel)
        except OSError as error:
            raise of_kernel(what, error, _NEEDED if error.errno in _LACKING else _RIGHTS) from error
