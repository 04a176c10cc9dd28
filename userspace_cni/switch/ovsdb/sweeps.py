"""The commands that delete rows of ours which have lost what they are for. They need a session that replicates everything."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from userspace_cni.ovsdb.column_values import value_of
from userspace_cni.ovsdb.draft import Draft
from userspace_cni.ovsdb.groups import Command
from userspace_cni.switch.ovsdb import bridge_mirrors
from userspace_cni.switch.ovsdb.bridge_drafts import draft_bridge
from userspace_cni.switch.ovsdb.port_limits import find_orphans
from userspace_cni.switch.ovsdb.switch_database import SwitchSession


class SweepLimits(Command[SwitchSession]):
    """Deletes the rows of QoS and Queue with our owner mark and this store's, to which no port, or no QoS row, refers.

    A port that was deleted by another program leaves them. `swept`: how many there were. Needs a session that replicates
    everything.
    """

    def __init__(self, session: SwitchSession, store: str) -> None:
        super().__init__(session)
        self._store = store
        self.swept = 0

    def run_idl(self, txn: Draft) -> None:
        """Delete what no row refers to; the server refuses it if one does by now."""
        rows = find_orphans(self.api.replica, self._store)
        for row in rows:
            txn.delete(row)
        self.swept = len(rows)


class SweepMirrors(Command[SwitchSession]):
    """Deletes mirrors of ours without an output, but those for which `keep`, given their marks, says so. Needs all rows.

    `swept`: how many.
    """

    def __init__(self, session: SwitchSession, keep: Callable[[Mapping[str, str]], bool]) -> None:
        super().__init__(session)
        self._keep = keep
        self.swept = 0

    def run_idl(self, txn: Draft) -> None:
        """Remove the references to the rows, which deletes them."""
        self.swept = 0
        for bridge, row in bridge_mirrors.find_without_output(self.api.replica):
            if not self._keep(value_of(row, "external_ids")):
                draft_bridge(txn, value_of(bridge, "name"), bridge).draft_mirror(value_of(row, "name"), row).remove()
                self.swept += 1
