"""The commands about mirrors of the node whose output is a port of others, and a look at such a port. No such port is changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from userspace_cni.attachment.steps import MirrorOutput
from userspace_cni.base.errors import NameTaken, Unavailable
from userspace_cni.ovsdb.database import Clause, named
from userspace_cni.ovsdb.draft import Draft
from userspace_cni.ovsdb.groups import Command
from userspace_cni.ovsdb.values import as_json, refers, value_of
from userspace_cni.switch.ovsdb import mirrors
from userspace_cni.switch.ovsdb.bridge_drafts import bridge_draft
from userspace_cni.switch.ovsdb.database import SwitchSession
from userspace_cni.switch.ovsdb.rounds import Round
from userspace_cni.switch.ovsdb.rows.bridge import datapath_of
from userspace_cni.switch.ovsdb.rows.marks import is_nodes, is_ours, whose


@dataclass(frozen=True)
class OutputLook:
    """What is to be known of a bridge and of a port that is to be a mirror's output.

    `datapath`: the bridge's, "" for a bridge that is not there. `is_there`, `on_bridge`: the port. `owned`: it is a pod's or the
    node's own, with these `marks`. `type`: of its interface, "" also where that is not known.
    """

    datapath: str = ""
    is_there: bool = False
    on_bridge: bool = False
    owned: bool = False
    marks: Mapping[str, str] = field(default_factory=dict)
    type: str = ""


def look_at_output(session: SwitchSession, bridge: str, name: str) -> OutputLook:
    """Look at them. Needs a session that replicates everything."""
    found, port, link = session.row("Bridge", bridge), session.row("Port", name), session.row("Interface", name)
    if found is None:
        return OutputLook()
    datapath = datapath_of(value_of(found, "datapath_type"))
    if port is None:
        return OutputLook(datapath)
    marks = value_of(port, "external_ids")
    kind = "" if link is None else value_of(link, "type")
    return OutputLook(
        datapath, is_there=True, on_bridge=refers(found, "ports", port.uuid), owned=_is_owned(marks), marks=marks, type=kind
    )


class PutMirror(Command[SwitchSession]):
    """Makes the mirror, or makes it as the step says. `flows_after`: as that of AddPort; None when nothing has changed."""

    def __init__(self, session: SwitchSession, step: MirrorOutput, marks: dict[str, str]) -> None:
        super().__init__(session)
        self._step = step
        self._marks = marks
        self.flows_after: int | None = None

    def needs(self) -> frozenset[Clause]:
        """The rows of bridge, port and mirror, and of the ports that join."""
        return needed(self._step)

    def run_idl(self, txn: Draft) -> None:
        """Write what differs. Raises Unavailable where the port has gone from the bridge, NameTaken where it has an owner."""
        step, api = self._step, self.api
        bridge, port = api.row("Bridge", step.bridge), api.row("Port", step.port)
        if bridge is None or port is None or not refers(bridge, "ports", port.uuid):
            raise Unavailable(f"mirror {step.name}: port {step.port} is not on bridge {step.bridge} any more", "ovs-vsctl show")
        if _is_owned(marks := value_of(port, "external_ids")):
            raise NameTaken(f"mirror {step.name}: port {step.port} belongs to {whose(marks)}", "use another port as output")
        txn.verify(port, "external_ids")
        txn.verify(bridge, "ports")
        draft = bridge_draft(txn, step.bridge, bridge)
        mirrors.require_output(api.replica, step, bridge, draft)
        mirrors.take_output(draft, api.replica, step, self._marks, as_json(port.uuid))
        self._round = Round(txn)

    def post_commit(self, txn: Draft) -> None:  # noqa: ARG002 - the interface
        self.flows_after = self._round.configuration


class DeleteMirror(Command[SwitchSession]):
    """Deletes the mirror, wherever it is, if it is ours. `flows_after`: as that of AddPort."""

    def __init__(self, session: SwitchSession, step: MirrorOutput) -> None:
        super().__init__(session)
        self._step = step
        self.flows_after: int | None = None

    def needs(self) -> frozenset[Clause]:
        return needed(self._step)

    def run_idl(self, txn: Draft) -> None:
        """Remove the reference to the row, which deletes it."""
        bridge = self.api.row("Bridge", self._step.bridge)
        mirrors.leave(bridge_draft(txn, self._step.bridge, bridge), self.api.replica, self._step)
        self._round = Round(txn)

    def post_commit(self, txn: Draft) -> None:  # noqa: ARG002 - the interface
        self.flows_after = self._round.configuration


def needed(step: MirrorOutput) -> frozenset[Clause]:
    return named(step.bridge, step.port) | mirrors.clauses_of(step)


def _is_owned(marks: Mapping[str, str]) -> bool:
    return is_ours(marks) or is_nodes(marks)
