"""What `userspace-cni capture` adds to the switch for a moment: a port that is the output of a mirror of one other port.

The mirror is the port's (`mirrors`): it is made in its transaction, and removed in that of its deletion. The mirrored port specs
nothing, and its row is not written: it may be any port of the bridge.
"""

from __future__ import annotations

from typing import Final

from userspace_cni.attachment.steps import OvsPort
from userspace_cni.base.errors import BadRequest, Unavailable
from userspace_cni.dataplane.ovsdb import mirrors
from userspace_cni.dataplane.ovsdb.commands import AddPort
from userspace_cni.dataplane.ovsdb.groups import Draft, as_json
from userspace_cni.dataplane.ovsdb.replica import count, references
from userspace_cni.dataplane.ovsdb.session import Clause, Session, named

MIRRORS_MAX: Final = 32
"""Mirrors of a bridge: ovs-vswitchd (3.1) ignores more, with a line in its log (ofproto/ofproto-dpif-mirror.c, MAX_MIRRORS)."""


class AddCapture(AddPort):
    """Adds the port, the output of a mirror, and has the port `source` shown there.

    Raises BadRequest where `source` has gone, Unavailable where the bridge can have no further mirror.
    """

    def __init__(self, session: Session, step: OvsPort, marks: dict[str, str], afxdp_max: int = 0, *, source: str) -> None:
        super().__init__(session, step, marks, afxdp_max)
        self._source = source

    def needs(self) -> frozenset[Clause]:
        """The rows of the port, and those with the source's name."""
        return super().needs() | named(self._source)

    def run_idl(self, txn: Draft) -> None:
        """Insert the rows, or update them when they are ours."""
        step, bridge, source = self._step, self.api.row("Bridge", self._step.bridge), self.api.row("Port", self._source)
        if source is None:
            raise BadRequest(f"there is no port {self._source} any more", "its attachment was removed; userspace-cni list")
        [name] = step.mirror_outputs
        row = mirrors.find_mirror(self.api.replica, bridge, name)
        if row is None and bridge is not None and count(bridge, "mirrors") >= MIRRORS_MAX:
            raise Unavailable(
                f"bridge {step.bridge} has {count(bridge, 'mirrors')} mirrors, and ovs-vswitchd ignores more than {MIRRORS_MAX}",
                f"ovs-vsctl list Mirror; ovs-vsctl get Bridge {step.bridge} mirrors",
            )
        super().run_idl(txn)
        txn.verify(source, "name")
        txn.bridge(step.bridge, bridge).mirror(name, row).show(as_json(source.uuid))


def is_mirrored(session: Session, bridge: str, mirror: str) -> bool:
    """Whether the bridge's mirror of that name has its source and its output. Needs a session that replicates everything."""
    row = mirrors.find_mirror(session.replica, session.row("Bridge", bridge), mirror)
    return row is not None and bool(references(row, "select_src_port") and references(row, "output_port"))
