"""Links of bridges and internal ports, made before the switch opens them.

For each bridge with datapath_type netdev, and each internal port on one, OVS has a tap of its name. A tap of that name that it
finds, it takes for its own: it gives it another MAC, and deletes it together with the row. So the name is taken here first, by
one message to the kernel, which fails where any link has it; OVS then opens the tap that was made, and no other program can
come in between.

An alias tells which taps were made here. A link without it is never changed or deleted, nor is a tap that a process has open.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from userspace_cni.base.errors import StepFailed, Unavailable
from userspace_cni.base.root import HERE, HostRoot
from userspace_cni.host.netlink import link_messages as links
from userspace_cni.host.netlink.netns import open_switch_netns
from userspace_cni.host.pod_net.pod_links import connect, find_link, kernel_does

if TYPE_CHECKING:
    from userspace_cni.host.netlink.netns import Netns
    from userspace_cni.linux.netlink import NetlinkConnection

ALIAS: Final = "userspace-cni: link of Open vSwitch"


_UNNAMED: Final = "uctap%d"
"""The name of a tap that is not marked yet; the kernel chooses the number."""


@dataclass(frozen=True)
class ExistingLink:
    """A link that has a name. `ours`: it was made here. `in_use`: it is no tap, or a process has it open."""

    index: int
    ours: bool
    in_use: bool


@dataclass(frozen=True)
class SwitchTaps:
    """The taps of the network namespace `switch_netns`, "" for that of this process. All raise Unavailable."""

    switch_netns: str = ""
    root: HostRoot = HERE

    def find(self, name: str) -> ExistingLink | None:
        with self._opened(f"link {name}: looking for it") as (_, kernel):
            found = find_link(kernel, name)
        return ExistingLink(found.index, found.alias == ALIAS, found.carrier) if found else None

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
        """The namespace and a connection to its kernel. What cannot be read there is unknown, not free: Unavailable."""
        try:
            with open_switch_netns(self.switch_netns, self.root) as switch, connect(switch, what) as kernel:
                yield switch, kernel
        except StepFailed as error:
            raise Unavailable(error.message, error.details) from error


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
