"""`check`: whether attachments are still what their ADD made. It changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import click

from userspace_cni.attachment.listing import name_of
from userspace_cni.attachment.records import Record
from userspace_cni.base.errors import UserspaceError
from userspace_cni.base.findings import Finding
from userspace_cni.cli import view
from userspace_cni.cli.exit_codes import FOUND, UNREACHABLE
from userspace_cni.cli.name_completion import attachment_names
from userspace_cni.cli.site import NodeCommand, Site, attachment_limit, look_at_silence, open_site
from userspace_cni.cli.view import Cell
from userspace_cni.diagnosis.attachment_findings import check_one, findings_of, whose
from userspace_cni.diagnosis.rendering import OF_DRIFTS, as_json

_COLUMNS: Final = ("ATTACHMENT", "STEP", "WHAT", "EXPECTED", "FOUND")


@click.command("check", cls=NodeCommand, examples=("userspace-cni check",))
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=attachment_names)
@click.option("--json", "in_json", is_flag=True, help="As a JSON object.")
@click.pass_context
def check_command(ctx: click.Context, names: tuple[str, ...], in_json: bool) -> None:
    """Compare attachments, all or those named, with what ADD made: the switch, mounts, sockets, files and annotations.

    Each difference that a runtime's CHECK would refuse is listed with the expected and the found value; and if OVS makes the
    socket, what keeps the pod's processes from it, now or after a restart of ovs-vswitchd. Without names the node's own network
    (uplinks, gateways) is compared, too. Exit code: 0 when nothing differs, 1 when something does, 3 when nothing differs but
    not everything could be checked.
    """
    site = open_site(ctx)
    records = site.records(names) + ([] if names else site.node.store.journal.node_records())
    differing: list[tuple[Record, list[Finding]]] = []
    unchecked: list[dict[str, str]] = []
    with view.progress("checking") as show:
        away = site.switch_problem()
        for number, record in enumerate(records, 1):
            show(f"checking {number} of {len(records)}: {name_of(record)}")
            outcome = check_one(record, site.node, attachment_limit, away)
            if outcome.drifts:
                differing.append((record, findings_of(record, outcome)))
            unchecked += outcome.unchecked
    _note_silence(site, away)
    if in_json:
        drifts = [{**whose(record), **as_json(each, OF_DRIFTS)} for record, found in differing for each in found]
        view.show_json({"checked": len(records), "drifts": drifts, "unchecked": unchecked})
    else:
        _show(len(records), [found for _, found in differing], unchecked)
    if differing or unchecked:
        ctx.exit(FOUND if differing else UNREACHABLE)


def _note_silence(site: Site, away: UserspaceError | None) -> None:
    """Note on stderr that ovs-vswitchd hangs: its ports may look right although it does nothing."""
    liveness = site.liveness() if away is None else None
    if liveness and liveness.state == "silent":
        before = "ports were compared with what it had said before"
        view.note(f"ovs-vswitchd is silent: {liveness.reason}; {before}; {look_at_silence()}")


def _show(count: int, differing: Sequence[Sequence[Finding]], unchecked: Sequence[dict[str, str]]) -> None:
    findings = [each for found in differing for each in found]
    if findings:
        view.show_table(_COLUMNS, [_row(each) for each in findings])
    for details in dict.fromkeys(f"{each.path}: {each.remedy}" for each in findings if each.remedy):
        view.note(details)
    for reason in dict.fromkeys(f"step '{each['step']}' could not be looked at: {each['error']}" for each in unchecked):
        view.note(reason)
    summary = f"{view.format_count(count, 'attachment')} checked, {f'{len(differing)} differ' if differing else 'no differences'}"
    view.note(summary + (f", {view.format_count(len(unchecked), 'step')} could not be looked at" if unchecked else ""))


def _row(found: Finding) -> list[Cell | str]:
    return [found.subject, found.name, found.path, Cell(found.expected, "green"), Cell(found.found, "red")]
