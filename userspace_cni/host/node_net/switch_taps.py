"""Links of bridges and internal ports, made before the switch opens them.

For each bridge with datapath_type netdev, and each internal port on one, OVS has a tap of its name. A tap of that name that it
finds, it takes for its own: it gives it another MAC, and deletes it together with the row. So the name is taken here first, by
one message to the kernel, which fails where any link has it; OVS then opens the tap that was made, and no other program can
come in between.

An alias tells which taps were made here. A link without it is never changed or deleted, nor is a tap that a process has open.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from userspace_cni.base.errors import StepFailed, Unavailable, UserspaceError
from userspace_cni.base.root import HERE, HostRoot
from userspace_cni.host.netlink import link_messages as links
from userspace_cni.host.netlink.netns import open_switch_netns
from userspace_cni.host.pod_net.pod_links import connect, find_link, kernel_does
from userspace_cni.linux.netlink import ROUTE, NetlinkConnection

if TYPE_CHECKING:
    from userspace_cni.host.netlink.netns import Netns

ALIAS: Final = "userspace-cni: link of Open vSwitch"


_Identity = tuple[int, int]
_OWN: Final[_Identity] = (0, 0)
"""That of the namespace of this process."""
_UNSEEN: Final[_Identity] = (-1, -1)
"""No namespace has it: what keeps the path from being seen is the error of entering it."""
_KEPT: Final = 4

_UNNAMED: Final = "uctap%d"
"""The name of a tap that is not marked yet; the kernel chooses the number."""


@dataclass(frozen=True)
class ExistingLink:
    """A link that has a name. `ours`: it was made here. `in_use`: it is no tap, or a process has it open."""

    index: int
    ours: bool
    in_use: bool


class KeptConnections:
    """Connections to the kernel that wait for the next question, each with its namespace: to enter one and to return takes four
    times as long as a question. Any thread may call."""

    def __init__(self) -> None:
        self._kept: list[tuple[_Identity, NetlinkConnection]] = []

    def __del__(self) -> None:
        for _, kernel in self._kept:
            kernel.close()

    def take(self, identity: _Identity) -> NetlinkConnection | None:
        """One of that namespace, None for none. Those of another one, which the path named before, are closed."""
        while self._kept:
            with suppress(IndexError):  # another thread has taken the last one
                of, kernel = self._kept.pop()
                if of == identity:
                    return kernel
                kernel.close()
        return None

    def keep(self, identity: _Identity, kernel: NetlinkConnection) -> None:
        """Keep a connection on which no question is open; it is closed where enough wait."""
        if len(self._kept) < _KEPT:
            self._kept.append((identity, kernel))
        else:
            kernel.close()


@dataclass(frozen=True)
class SwitchTaps:
    """The taps of the network namespace `switch_netns`, "" for that of this process. All raise Unavailable."""

    switch_netns: str = ""
    root: HostRoot = HERE

    def find(self, name: str, kept: KeptConnections) -> ExistingLink | None:
        """The link of this name or alternative name, None for none; `kept`: the connections to ask by."""
        what = f"link {name}: looking for it"
        identity = self._identity()
        kernel = kept.take(identity)
        if kernel is None:
            with _unavailable(), open_switch_netns(self.switch_netns, self.root) as switch, kernel_does(what):
                identity = _identity_of(switch)
                kernel = switch.do(lambda: NetlinkConnection(ROUTE))
        try:
            with _unavailable():
                found = find_link(kernel, name)
        except BaseException:
            kernel.close()
            raise
        kept.keep(identity, kernel)
        return ExistingLink(found.index, found.alias == ALIAS, found.carrier) if found else None

    def _identity(self) -> _Identity:
        """What distinguishes the namespace that the path names now."""
        if not self.switch_netns:
            return _OWN
        try:
            facts = os.stat(self.root.path(self.switch_netns))  # noqa: PTH116 - as netns.py
        except (OSError, UserspaceError):
            return _UNSEEN
        return facts.st_dev, facts.st_ino

    def take(self, name: str) -> bool:
        """Make a tap of this name, which stays; False where a link has it, or had. Where taps cannot be made at all, none is.

        It gets the name when it is marked: a tap without the alias that is seen under the name is not one of ours.
        """
        from userspace_cni.fastpath.tap import NoTapDevice, Tap, TapGone, TapRefused

        what = f"link {name}: making it for ovs-vswitchd"
        with self._opened(what) as (switch, kernel):
            try:
                with kernel_does(what):
                    tap = switch.do(lambda: Tap(_UNNAMED))
                with tap:
                    if not _named(kernel, tap.name, name):
                        return False
                    tap.keep()  # from here on it is found by its alias, whatever becomes of this process
            except NoTapDevice:
                return True  # nor has another program a tap that ovs-vswitchd could open
            except TapGone:
                return False  # a call that deletes the former bridge of the name took it for that one's
            except TapRefused as error:
                raise Unavailable(f"{what}: {error.what}", error.look_at) from error
        return True

    def mark(self, name: str, opened: int) -> None:
        """Give the tap its alias, if it has none and this index: ovs-vswitchd has opened it for a row of ours."""
        with self._opened(f"link {name}: marking it") as (_, kernel):
            found = find_link(kernel, name)
            if found and found.kind == "tun" and not found.alias and found.index == opened:
                kernel.exchange(links.set_alias(found.name, ALIAS))  # gone by now is fine

    def let_go(self, name: str, opened: int = 0) -> bool:
        """Delete the tap of this name unless a process has it open; whether it was deleted.

        It has to be one that was made here, or have the index `opened`: ovs-vswitchd had opened it for a row of ours.
        """
        with self._opened(f"link {name}: deleting it") as (_, kernel):
            found = find_link(kernel, name)
            if found is None or found.kind != "tun" or found.carrier:
                return False
            if found.alias != ALIAS and (found.alias or found.index != opened):
                return False
            with kernel_does(f"link {name}: deleting it"):
                (answer,) = kernel.exchange(links.delete(found.index))
                if answer.error and answer.error.errno != errno.ENODEV:
                    raise answer.error
        return True

    @contextmanager
    def _opened(self, what: str) -> Iterator[tuple[Netns, NetlinkConnection]]:
        """The namespace and a connection to its kernel."""
        with _unavailable(), open_switch_netns(self.switch_netns, self.root) as switch, connect(switch, what) as kernel:
            yield switch, kernel


@contextmanager
def _unavailable() -> Iterator[None]:
    """What cannot be read of the switch's links is unknown, not free: Unavailable."""
    try:
        yield
    except StepFailed as error:
        raise Unavailable(error.message, error.details) from error


def _identity_of(switch: Netns) -> _Identity:
    if switch.fileno() < 0:
        return _OWN
    facts = os.fstat(switch.fileno())
    return facts.st_dev, facts.st_ino


def _named(kernel: NetlinkConnection, former: str, name: str) -> bool:
    """Mark the tap `former` as ours, and give it the name; False where a link has that."""
    with kernel_does(f"link {name}: marking it"):
        kernel.send(links.set_alias(former, ALIAS))
    made = find_link(kernel, former)
    if made is None:
        raise Unavailable(f"link {name}: its tap {former} has gone", "another program deletes or renames links: ip monitor link")
    with kernel_does(f"link {name}: giving it the name"):
        (answer,) = kernel.exchange(links.rename(made.index, name))
        if answer.error and answer.error.errno == errno.EEXIST:
            return False
        if answer.error:
            raise answer.error
    return True
