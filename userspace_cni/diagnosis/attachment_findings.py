"""Whether attachments are still what their ADD made, as the verb CHECK compares them, and what pods see of it.

The verb does not ask the latter: the pod decides how it mounts its volume, not ADD, and a verb does not read all processes of the
node. Nothing is changed here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from userspace_cni.attachment.drift import Drift, finding
from userspace_cni.attachment.listing import name_of
from userspace_cni.attachment.node import Node
from userspace_cni.attachment.records import Record
from userspace_cni.attachment.steps import Step
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import UserspaceError
from userspace_cni.base.findings import Finding


@dataclass(frozen=True)
class Outcome:
    """The result for one attachment: drifts by kind of step, "" for the record; and what could not be looked at, as JSON."""

    drifts: Mapping[str, Sequence[Drift]] = field(default_factory=dict)
    unchecked: tuple[dict[str, str], ...] = ()


def check_one(record: Record, node: Node, limit: Callable[[], Deadline], away: UserspaceError | None = None) -> Outcome:
    """Every drift of an attachment; none while another call works on it, because then it differs for a moment.

    `limit` gives the deadline when the look begins. `away`: why the switch cannot be asked; it is not asked again for each port.
    """
    if record.state != "ready":
        return _unfinished(record, node)
    drifts: dict[str, list[Drift]] = {}
    unchecked = []
    for step in record.steps:
        with suppress(UserspaceError):  # told by the look itself
            node.driver(step).prepare()
    deadline = limit()
    for step in record.steps:
        try:
            if away and step.stage == "ovs":
                raise away
            driver = node.driver(step)
            _add(drifts, step, driver.check(step, deadline))
            _add(drifts, step, driver.find_unseen(step, record.netns_inode, deadline))
        except UserspaceError as error:
            unchecked.append({**whose(record), "step": step.kind, "error": str(error)})
    if (drifts or unchecked) and node.store.journal.read_key(record.key) != record:
        return Outcome()
    return Outcome(drifts, tuple(unchecked))


def findings_of(record: Record, outcome: Outcome) -> list[Finding]:
    """The drifts as findings about the attachment; their names are the kinds of step."""
    return [finding(drift, kind, name_of(record)) for kind, drifts in outcome.drifts.items() for drift in drifts]


def whose(record: Record) -> dict[str, str]:
    return {"name": name_of(record), "container": record.container_id, "ifname": record.ifname}


def _unfinished(record: Record, node: Node) -> Outcome:
    lock = node.store.journal.try_turn_lock(record.key)
    if lock is None:
        return Outcome()
    with lock:
        current = node.store.journal.read_key(record.key)
    if current != record:
        return Outcome()
    command = "network" if record.owner == "node" else "gc --dry-run"
    details = f"userspace-cni {command} shows what would be done"
    return Outcome({"": [Drift("state of the record", "", "ready", record.state, details)]})


def _add(drifts: dict[str, list[Drift]], step: Step, found: list[Drift]) -> None:
    if found:
        drifts.setdefault(step.kind, []).extend(found)
