"""`why`: one paragraph about what is wrong with an attachment, and what to do. It changes nothing."""

from __future__ import annotations

from collections.abc import Sequence

import click

from userspace_cni.attachment.listing import Unresolved, select
from userspace_cni.attachment.records import Record
from userspace_cni.cli import view
from userspace_cni.cli.exit_codes import FOUND, UNREACHABLE, USAGE
from userspace_cni.cli.name_completion import attachment_names
from userspace_cni.cli.node.why_facts import WhyFacts
from userspace_cni.cli.site import CommandRefused, NodeCommand, Site, open_site
from userspace_cni.cli.view import Cell
from userspace_cni.diagnosis.why.causes import Diagnosis, diagnose, diagnose_absence
from userspace_cni.diagnosis.why.paragraph import diagnosis_json, sentences


@click.command(
    "why",
    cls=NodeCommand,
    examples=(
        "userspace-cni why default/dpdk-app/net1",
        "userspace-cni why b",
    ),
)
@click.argument("names", nargs=-1, metavar="POD[/IFNAME]...", required=True, shell_complete=attachment_names)
@click.option("--json", "as_json", is_flag=True, help="As a JSON object.")
@click.pass_context
def why_command(ctx: click.Context, names: tuple[str, ...], as_json: bool) -> None:
    """Say in one paragraph for each interface what is wrong with it, why that matters, and what to do.

    It reads the record, what the switch has now, mounts and socket, the pod's processes, the agent, and the API server if the
    node has an account. A cause hides what follows from it. What could not be asked is named.

    A name is POD, NAMESPACE/POD or CONTAINERID-PREFIX, each also with /IFNAME. Of a pod that has no attachment here it says why:
    its ADD was refused, it is another node's, this plugin was never called for it, or its name is spelled otherwise.

    Exit code: 0 when nothing wrong was found, 1 when something was, 3 when nothing was and not everything could be asked.
    """
    site = open_site(ctx)
    with view.progress("looking at the attachment, the switch and the agent"):
        found = _diagnose(site, names)
    if as_json:
        view.show_json({"attachments": list(map(diagnosis_json, found))})
    else:
        _show(found)
    if any(each.is_wrong for each in found):
        ctx.exit(FOUND)
    if any(each.unasked for each in found):
        ctx.exit(UNREACHABLE)


def _diagnose(site: Site, names: Sequence[str]) -> list[Diagnosis]:
    """The attachments of these names, each once, then the names of none. Raises CommandRefused for a name of several pods."""
    every = site.node.store.journal.records()
    chosen: dict[str, Record] = {}
    absent: dict[str, tuple[str, ...]] = {}
    for name in names:
        try:
            chosen |= {record.key: record for record in select(every, (name,))}
        except Unresolved as error:
            if error.ambiguous:
                raise CommandRefused(str(error), USAGE) from error
            absent[name] = error.candidates
    facts = WhyFacts(site, list(chosen.values()))
    found = [diagnose(each) for each in facts.gather()] if chosen else []
    return found + [diagnose_absence(facts.gather_absence(name, near)) for name, near in absent.items()]


def _show(found: Sequence[Diagnosis]) -> None:
    for number, each in enumerate(found):
        if number:
            view.say("")
        view.say(Cell(each.name, "bold red" if each.is_wrong else "bold"), f": {' '.join(sentences(each))}")
