"""`check`: whether attachments are still what their ADD made, as the verb CHECK compares them, and what pods see of it.

The verb does not ask the latter: the pod decides how it mounts its volume, not ADD, and a verb does not read all processes of the
node. Nothing is changed here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import click

from userspace_cni.attachment.drift import Drift, row
from userspace_cni.attachment.listing import name_of
from userspace_cni.attachment.records import Record
from userspace_cni.attachment.steps import Step
from userspace_cni.base.errors import UserspaceError
from userspace_cni.cli import view
from userspace_cni.cli.exit_codes import FOUND, UNREACHABLE
from userspace_cni.cli.site import NodeCommand, Site, look_at_silence, open_site, patient
from userspace_cni.cli.view import Cell, Column

RECORD_S: Final = 3.0
"""Seconds for looking at one attachment."""
_COLUMNS: Final = (Column("ATTACHMENT"), Column("STEP", rank=1), Column("WHAT"), Column("EXPECTED"), Column("FOUND"))


@dataclass(frozen=True)
class Outcome:
    """The result for one attachment: drifts by kind of step, "" for the record; and what could not be looked at, as JSON."""

    drifts: Mapping[str, Sequence[Drift]] = field(default_factory=dict)
    unchecked: tuple[dict[str, str], ...] = ()


@click.command("check", cls=NodeCommand)
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--json", "as_json", is_flag=True, help="As a JSON object.")
@click.pass_context
def check_command(ctx: click.Context, names: tuple[str, ...], as_json: bool) -> None:
    """Compare attachments, all or those named, with what ADD made: the switch, mounts, sockets, files and annotations.

    Each difference that a runtime's CHECK would refuse is listed with what was expected and what was found; and where OVS made
    the socket, what keeps the pod's processes from it, now or after a restart of ovs-vswitchd. Without names, what the node
    itself has (uplinks, gateways) is compared, too. Exit code: 0 when nothing differs, 1 when something does, 3 when nothing
    differs but not everything could be looked at.
    """
    site = open_site(ctx)
    records = site.records(names) + ([] if names else site.node.journal.node_records())
    drifts: list[dict[str, str]] = []
    unchecked: list[dict[str, str]] = []
    with view.progress("checking") as show:
        away = site.switch_problem()
        for number, record in enumerate(records, 1):
            show(f"checking {number} of {len(records)}: {name_of(record)}")
            outcome = check_one(record, site, away)
            drifts += _rows(record, outcome)
            unchecked += outcome.unchecked
    _note_silence(site, away)
    if as_json:
        view.show_json({"checked": len(records), "drifts": drifts, "unchecked": unchecked})
    else:
        _show(len(records), drifts, unchecked)
    if drifts or unchecked:
        ctx.exit(FOUND if drifts else UNREACHABLE)


def _note_silence(site: Site, away: UserspaceError | None) -> None:
    """Note on stderr that ovs-vswitchd hangs: its ports may look right although it does nothing."""
    liveness = site.liveness() if away is None else None
    if liveness and liveness.state == "silent":
        before = "ports were compared with what it had said before"
        view.note(f"ovs-vswitchd is silent: {liveness.reason}; {before}; {look_at_silence()}")


def check_one(record: Record, site: Site, away: UserspaceError | None = None) -> Outcome:
    """Every drift of an attachment; none while another call works on it, because then it differs for a moment.

    `away`: why the switch cannot be asked; it is not asked again for each port.
    """
    if record.state != "ready":
        return _unfinished(record, site)
    drifts: dict[str, list[Drift]] = {}
    unchecked = []
    for step in record.steps:
        with suppress(UserspaceError):  # told by the look itself
            site.node.driver(step).prepare()
    deadline = patient(RECORD_S)
    for step in record.steps:
        try:
            if away and step.stage == "ovs":
                raise away
            driver = site.node.driver(step)
            _add(drifts, step, driver.check(step, deadline))
            _add(drifts, step, driver.unseen(step, record.netns_inode, deadline))
        except UserspaceError as error:
            unchecked.append({**_whose(record), "step": step.kind, "error": str(error)})
    if (drifts or unchecked) and site.node.journal.read_key(record.key) != record:
        return Outcome()
    return Outcome(drifts, tuple(unchecked))


def _unfinished(record: Record, site: Site) -> Outcome:
    lock = site.node.journal.try_container_lock(record.container_id)
    if lock is None:
        return Outcome()
    with lock:
        current = site.node.journal.read_key(record.key)
    if current != record:
        return Outcome()
    command = "network" if record.is_nodes else "gc --dry-run"
    details = f"userspace-cni {command} tells what would be done"
    return Outcome({"": [Drift("state of the record", "", "ready", record.state, details)]})


def _add(drifts: dict[str, list[Drift]], step: Step, found: list[Drift]) -> None:
    if found:
        drifts.setdefault(step.kind, []).extend(found)


def _rows(record: Record, outcome: Outcome) -> list[dict[str, str]]:
    """Drifts as JSON values."""
    return [{**_whose(record), "step": kind, **row(drift)} for kind, found in outcome.drifts.items() for drift in found]


def _whose(record: Record) -> dict[str, str]:
    return {"name": name_of(record), "container": record.container_id, "ifname": record.ifname}


def _show(count: int, drifts: list[dict[str, str]], unchecked: list[dict[str, str]]) -> None:
    if drifts:
        view.show_table(_COLUMNS, [_row(drift) for drift in drifts])
    for details in dict.fromkeys(f"{drift['what']}: {drift['details']}" for drift in drifts if drift["details"]):
        view.note(details)
    for reason in dict.fromkeys(f"step '{each['step']}' could not be looked at: {each['error']}" for each in unchecked):
        view.note(reason)
    differ = len({(drift["container"], drift["ifname"]) for drift in drifts})
    summary = f"{view.counted(count, 'attachment')} checked, {f'{differ} differ' if differ else 'no differences'}"
    view.note(summary + (f", {view.counted(len(unchecked), 'step')} could not be looked at" if unchecked else ""))


def _row(drift: Mapping[str, str]) -> list[Cell | str]:
    return [
        drift["name"],
        drift["step"],
        drift["what"],
        Cell(drift["expected"], "green"),
        Cell(drift["found"], "red"),
    ]
