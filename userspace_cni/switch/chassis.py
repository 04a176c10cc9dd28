"""The switch's own name, by which OVN and people know the node's switch: Open_vSwitch.external_ids:system-id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from userspace_cni.base.deadline import Deadline
    from userspace_cni.switch.ovsdb.switch_database import SwitchClient, SwitchSession

_KEY: Final = "system-id"


def chassis(client: SwitchClient, deadline: Deadline) -> str:
    """The name; "" when the switch has none. It is asked for each time: no replica has it. Raises Unavailable."""
    from userspace_cni.ovsdb.reads import Select

    def select(session: SwitchSession) -> list[dict[str, Any]]:
        command = Select(session, "Open_vSwitch", [], ["external_ids"])
        session.transact([command], deadline)
        return command.rows

    rows = client.use(select, frozenset(), "reading the switch's system-id", deadline)
    return _name(rows[0]) if rows else ""


def _name(row: Mapping[str, Any]) -> str:
    """The name in a row as OVSDB writes it."""
    pairs = row.get("external_ids", ["map", []])[1]
    return next((str(value) for key, value in pairs if key == _KEY), "")
