"""The switch's own name, by which OVN and people know the node's switch: Open_vSwitch.external_ids:system-id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from userspace_cni.base.deadline import Deadline
    from userspace_cni.switch.ovsdb.switch_database import SwitchClient, SwitchSession

SYSTEM_ID: Final = "system-id"


def read_chassis(client: SwitchClient, deadline: Deadline) -> str:
    """The name; "" when the switch has none. Raises Unavailable."""
    return switch_ids(client, deadline).get(SYSTEM_ID, "")


def switch_ids(client: SwitchClient, deadline: Deadline) -> Mapping[str, str]:
    """Open_vSwitch.external_ids, asked of the server each time: no replica has them. Raises Unavailable."""
    from userspace_cni.ovsdb.reads import Select

    def select(session: SwitchSession) -> list[dict[str, Any]]:
        command = Select(session, "Open_vSwitch", [], ["external_ids"])
        session.transact([command], deadline)
        return command.rows

    rows = client.use(select, frozenset(), "reading the switch's external_ids", deadline)
    return {str(key): str(value) for key, value in rows[0].get("external_ids", ["map", []])[1]} if rows else {}
