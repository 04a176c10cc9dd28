"""Writes keys of Open_vSwitch.external_ids: what ovn-controller and OVN's tools read of a node. Other keys stay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from userspace_cni.ovsdb.groups import Command
from userspace_cni.switch.ovsdb.switch_database import SwitchClient, SwitchSession

if TYPE_CHECKING:
    from userspace_cni.base.deadline import Deadline
    from userspace_cni.ovsdb.draft import Draft


class WriteIds(Command[SwitchSession]):
    """Sets these keys; an empty value removes one."""

    def __init__(self, session: SwitchSession, ids: Mapping[str, str]) -> None:
        super().__init__(session)
        self.target = "external_ids of Open_vSwitch"
        self._ids = ids

    def run_idl(self, txn: Draft) -> None:
        """Replace the keys' values, whatever they are."""
        txn.set_keys(self.api.root(), "external_ids", self._ids)


def write_ids(client: SwitchClient, ids: Mapping[str, str], deadline: Deadline) -> None:
    """Set these keys in one transaction. Raises Unavailable, SwitchRefused."""
    client.use(
        lambda session: session.transact([WriteIds(session, ids)], deadline),
        frozenset(),
        "writing external_ids of Open_vSwitch",
        deadline,
    )
