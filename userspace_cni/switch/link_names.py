"""Which names a bridge or a port can have beside the kernel's links, where ovs-vswitchd opens its ports.

OVSDB knows its own names alone. A bridge with datapath_type netdev has a tap of its name, and so has an internal port on it. If
another program made a tap of that name, ovs-vswitchd takes it for its own, changes it, and deletes it with the row. So each name
that OVSDB is to get is judged, and taken in the kernel, before the row is written (`host.switch_taps`). What OVSDB has already is
not judged here: its own link is no conflict.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import LinkNameTaken
from userspace_cni.base.log import say
from userspace_cni.switch.kernel_links import KernelLinks, NamedLink
from userspace_cni.switch.read_back import ReadBack

if TYPE_CHECKING:
    from userspace_cni.switch.ovsdb.switch_database import SwitchSession

_RESERVED: Final = ("ovs-netdev", "ovs-system", "ovs-dummy")
_RESERVED_STARTS: Final = (
    "bareudp_sys",
    "erspan_sys",
    "genev_sys",
    "gre_sys",
    "gtpu_sys",
    "ip6erspan_sys",
    "ip6gre_sys",
    "lisp_sys",
    "srv6_sys",
    "stt_sys",
    "vxlan_sys",
)
"""Names that ovs-vswitchd opens nothing by, and says nothing of: netdev_is_reserved_name of OVS's lib/netdev.c, all versions."""


MARKING_S: Final = 0.5
"""How long another caller may need to mark the link that ovs-vswitchd has made for its rows."""
_AGAIN_S: Final = 0.01


def is_reserved(name: str) -> bool:
    """Whether ovs-vswitchd keeps the name for itself."""
    return name in _RESERVED or name.startswith(_RESERVED_STARTS)


@dataclass
class LinkNames:
    """The names that one call takes for what it adds. `taps`: those of which ovs-vswitchd is to have a tap."""

    links: KernelLinks
    read_back: ReadBack
    names: set[str] = field(default_factory=set)
    taps: set[str] = field(default_factory=set)

    def require_free(self, name: str, session: SwitchSession, deadline: Deadline) -> NamedLink | None:
        """Raise LinkNameTaken if OVSDB lacks the name and a link that is not ours has it; the link, None if there is none.

        Raises Unavailable where that cannot be seen.
        """
        if is_reserved(name):
            raise LinkNameTaken(f"no bridge or port can have the name {name}", "Open vSwitch keeps it for links of its own")
        found, former = self.links.find(name), 0
        while found and not found.ours and found.index != former and self._lacks(name, session):
            former = found.index  # another one afterwards is of a bridge that came and went meanwhile
            self._await_rows(name, found, session, deadline)
            found = self.links.find(name)
        if found and not found.ours and self._lacks(name, session):
            raise LinkNameTaken(
                f"no bridge or port can have the name {name}: a link has it where ovs-vswitchd opens its ports",
                f"ip -d link show {name}, in that network namespace (setting switch_netns); take another name, or, if nothing "
                f"needs the link: ip link delete {name}",
            )
        return found

    def hold(self, name: str, session: SwitchSession, deadline: Deadline, *, gets_tap: bool) -> None:
        """Take the name; `gets_tap`: ovs-vswitchd is to have a tap of it. Raises as `require_free`."""
        while True:
            found, former = self.require_free(name, session, deadline), 0
            while found and found.ours and found.in_use and found.index != former and self._lacks(name, session):
                former = found.index  # it goes with its former bridge
                self._await_rows(name, found, session, deadline)
                found = self.require_free(name, session, deadline)
            if found or not gets_tap or self.links.take(name):
                break
            deadline.require(f"taking the name {name}")
        self.names.add(name)
        if gets_tap:
            self.taps.add(name)

    def settle(self, session: SwitchSession, deadline: Deadline) -> bool:
        """Once ovs-vswitchd has gone through the rows: whether a link that it did not open had to go, so that it makes its own.

        It may not be allowed to open what another process made, or open its ports in another namespace.
        """
        from userspace_cni.switch.ovsdb.switch_reads import read_link_index

        unopened = sorted(name for name in self.taps if self.links.let_go(name))
        if unopened:
            self._reopen(unopened, session, deadline)
        for name in self.taps:
            if index := session.look(partial(read_link_index, name=name)):
                self.links.mark(name, index)  # ovs-vswitchd made it, where it deleted ours with a former bridge of the name
        return bool(unopened)

    def _reopen(self, unopened: Iterable[str], session: SwitchSession, deadline: Deadline) -> None:
        say(
            "warning",
            f"ovs-vswitchd has not opened the link that was made for it, and makes its own: {', '.join(unopened)}",
            hint="is setting switch_netns right? if it is, the log of ovs-vswitchd says what it may not open",
        )
        self._another_round(session, unopened, deadline)

    def _await_rows(self, name: str, found: NamedLink, session: SwitchSession, deadline: Deadline) -> None:
        """Wait for another caller's rows and mark, and for the end of a link whose bridge is deleted."""
        from userspace_cni.ovsdb.database import named
        from userspace_cni.ovsdb.reads import Read

        if found.in_use:
            self._another_round(session, (), deadline)
        else:
            session.transact([Read(session, named(name), lambda _: None)], deadline)
        end = deadline.within(MARKING_S)
        while (now := self.links.find(name)) and not now.ours and self._lacks(name, session) and end.remaining():
            time.sleep(min(_AGAIN_S, end.remaining()))

    def _another_round(self, session: SwitchSession, closed: Iterable[str], deadline: Deadline) -> None:
        from userspace_cni.switch.ovsdb.rounds import AnotherRound

        again = AnotherRound(session, closed)
        session.transact([again], deadline)
        self.read_back.wait(again.done, deadline)

    @staticmethod
    def _lacks(name: str, session: SwitchSession) -> bool:
        from userspace_cni.switch.ovsdb.switch_reads import find_missing

        return bool(find_missing(session, [name]))
