"""How many ports of type afxdp the switch has: those that all commands of a group add count."""

from __future__ import annotations

from userspace_cni.base.errors import SwitchRefused
from userspace_cni.ovsdb.column_values import value_of
from userspace_cni.ovsdb.draft import Draft
from userspace_cni.switch.ovsdb.rows.interface_row import AFXDP
from userspace_cni.switch.ovsdb.switch_database import SwitchSession


class AfxdpPorts:
    """The interfaces of type afxdp that a transaction adds, beside the `others` that the replica shows."""

    def __init__(self, others: frozenset[str]) -> None:
        self.others = others
        self.added: frozenset[str] = frozenset()

    def write(self, draft: Draft) -> None:
        """Commit only if the database has no others."""
        if self.added:
            draft.expect("Interface", [["type", "==", AFXDP]], [{"name": name} for name in sorted(self.others | self.added)])


def list_afxdp_ports(session: SwitchSession) -> frozenset[str]:
    return frozenset(value_of(row, "name") for row in session.rows("Interface") if value_of(row, "type") == AFXDP)


def require_memory(txn: Draft, session: SwitchSession, names: frozenset[str], most: int, *, adds: bool) -> None:
    """Raise SwitchRefused if the switch had more ports of type afxdp than it may have, with those of these names.

    `adds`: they are added now, and the transaction is committed only if the switch has no others.
    """
    part = txn.share_part(AfxdpPorts, AFXDP, lambda: AfxdpPorts(list_afxdp_ports(session)))
    if len(part.others | part.added | names) > most:
        raise SwitchRefused(
            f"port {min(names)}: the switch has {most} ports of type afxdp, which is all that it may have",
            "each takes 76 MiB of ovs-vswitchd's memory: setting afxdp_max; or open it as system, af_packet or af_xdp",
        )
    if adds:
        part.added |= names
