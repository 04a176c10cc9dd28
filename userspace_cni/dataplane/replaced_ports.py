"""Puts ports in the place of others, all in one transaction: between two, ovs-vswitchd would go through its rows once more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from userspace_cni.attachment.steps import OvsPort, PortRef
from userspace_cni.base.deadline import Deadline
from userspace_cni.dataplane.ovsdb.rows.marks import marks_of

if TYPE_CHECKING:
    from userspace_cni.dataplane.ovsdb.client import Client
    from userspace_cni.dataplane.ovsdb.session import Session


def replace(client: Client, pairs: Sequence[tuple[PortRef, OvsPort]], store: str, deadline: Deadline) -> None:
    """Delete each first port, if it is there, and add each second one. Waits for OVSDB alone. Done twice it changes nothing.

    For a resident client. Raises Unavailable, and what DeletePort and AddPort raise: then none of it was done.
    """
    from userspace_cni.dataplane.ovsdb.commands import AddPort, DeletePort

    def write(session: Session) -> None:
        added = [AddPort(session, new, marks_of(new, new.marks.get("store") or store)) for _, new in pairs]
        session.transact([*(DeletePort(session, old) for old, _ in pairs), *added], deadline)
        session.look(lambda _: [each.opened.forget() for each in added])  # type: ignore[func-returns-value]

    client.use(write, frozenset(), f"making {len(pairs)} ports under other names", deadline)
