"""Ports that see the frames of another port: what `userspace-cni capture` adds to the switch for a moment, and takes away.

Beside `ports`, for a probe's port alone: mirrors of attachments belong to their ports' steps. It touches no other mirror, and
waits for nothing beyond its deadline. Raises errors of `userspace_cni.base.errors`: Unavailable when OVSDB or ovs-vswitchd does
not answer in time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from userspace_cni.attachment.steps import OvsPort, PortRef
from userspace_cni.base.deadline import Deadline
from userspace_cni.dataplane.ports import PortDriver

if TYPE_CHECKING:
    from userspace_cni.dataplane.ovsdb.session import Session


@dataclass(frozen=True)
class FoundMirror:
    """A mirror into a port of ours, which has or had its name. `marks`: its external_ids. `whole`: it has source and output."""

    uuid: str
    name: str
    marks: Mapping[str, str]
    whole: bool


class Captures:
    """The captures on the switch of `ports`; `owner`: the value of their mark of that name."""

    def __init__(self, ports: PortDriver, owner: str) -> None:
        self._ports = ports
        self._owner = owner

    def add(self, step: OvsPort, source: str, deadline: Deadline) -> None:
        """Add the port `step` with a mirror of port `source` into it, and wait until the switch has opened it.

        Raises BadRequest when `source` has gone, and as PortDriver.apply.
        """
        from userspace_cni.dataplane.ovsdb.captures import AddCapture, require_room

        where = [["name", "==", step.bridge]]
        require_room(step.bridge, self._select("Bridge", where, ["mirrors"], f"bridge {step.bridge}: its mirrors", deadline))
        self._ports.add(step, partial(AddCapture, source=source), deadline)()

    def find(self, deadline: Deadline, name: str = "") -> list[FoundMirror]:
        """The mirrors into ports of ours; those of this name, if one is given."""
        from userspace_cni.dataplane.ovsdb.captures import members

        where: list[Any] = [["external_ids", "includes", ["map", [["owner", self._owner]]]]]
        where += [["name", "==", name]] if name else []
        columns = ["_uuid", "name", "external_ids", "select_src_port", "output_port"]
        rows = self._select("Mirror", where, columns, "looking for the mirrors of captures", deadline)
        return [
            FoundMirror(
                row["_uuid"][1],
                row["name"],
                dict(row["external_ids"][1]),
                all(members(row[column]) for column in ("select_src_port", "output_port")),
            )
            for row in rows
        ]

    def remove(self, port: PortRef, deadline: Deadline) -> None:
        """Delete the port with its mirror; either may be gone."""
        from userspace_cni.dataplane.ovsdb.captures import DeleteCapture

        mirrors = [each.uuid for each in self.find(deadline, port.name) if each.marks.get("store") == port.marks.get("store")]
        self._ports.remove(port, partial(DeleteCapture, mirrors=mirrors), deadline)

    def _select(self, table: str, where: list[Any], columns: list[str], what: str, deadline: Deadline) -> list[dict[str, Any]]:
        """Rows that no session replicates, as OVSDB writes them."""
        from userspace_cni.dataplane.ovsdb.commands import Select

        def select(session: Session) -> list[dict[str, Any]]:
            command = Select(session, table, where, columns)
            session.transact([command], deadline)
            return command.rows

        return self._ports.client.use(select, frozenset(), what, deadline)
