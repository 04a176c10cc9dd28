"""Decides which changes of rows may be a loss for an attachment or the node.

Pure: rows come as values. A new row is no loss; a new bridge is reported, because a port may wait for it. Status columns that
ovs-vswitchd writes are ignored, unless it could not open the interface. Only a check of the attachment shows whether anything
is lost: our own transactions cause notices here, too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from userspace_cni.ovsdb.database import ROW_CREATE, ROW_DELETE, ROW_UPDATE

_SHARED: Final = frozenset({"ports", "mirrors"})
"""Columns of Bridge that change with each port, whose own rows are told."""
_TOLD: Final = frozenset({"link_state", "status", "mtu", "ofport", "error"})
"""Columns of Interface that ovs-vswitchd writes."""
_OPENING: Final = frozenset({"admin_state", "ifindex", "mac_in_use"})
"""What it says beside when it has opened the interface: these columns have no value before. Another value later is a change."""
_OF_PORTS: Final = ("Port", "Interface", "QoS", "Queue", "Mirror")
_MARKS: Final = "external_ids"

Value = Callable[[str], Any]
"""Gives the value of a column by its name."""

Change = tuple[str, Mapping[str, str]]
"""The name of a bridge that came, went or is another, "" for none; or the external_ids of a row of a port, {} for none."""


@dataclass(frozen=True)
class Listeners:
    """Who is told by a session that replicates all rows, on its thread and with its lock: neither may wait.

    `disconnect` gets the name of each vhost-user interface whose peer has gone, `change` each Change; `lost` is called when the
    session is lost.
    """

    disconnect: Callable[[str], None] = lambda _: None
    change: Callable[[str, Mapping[str, str]], None] = lambda *_: None
    lost: Callable[[], None] = lambda: None


UNTOLD: Final = Listeners()


def read_changes(table: str, event: str, value: Value, changed: Collection[str], former: Value) -> Iterator[Change]:
    """What a notice of the IDL says. `value` gives a column of the row, `former` one of those that `changed` as it was."""
    if table == "Bridge":
        if event != ROW_UPDATE or not _SHARED.issuperset(changed):
            yield value("name"), {}
    elif table in _OF_PORTS and event != ROW_CREATE and (event == ROW_DELETE or _matters(table, value, changed, former)):
        for marks in (value(_MARKS), former(_MARKS) if _MARKS in changed else None):
            if marks:
                yield "", marks


def _matters(table: str, value: Value, changed: Collection[str], former: Value) -> bool:
    """Whether an update says more than that ovs-vswitchd has opened the interface, or what its peer does."""
    if table != "Interface" or any(each not in _TOLD and (each not in _OPENING or former(each)) for each in changed):
        return True
    return not {"ofport", "error"}.isdisjoint(changed) and (bool(value("error")) or value("ofport") == [-1])
