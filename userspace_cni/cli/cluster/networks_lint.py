"""`lint`: shows what ADD would refuse in the configurations of networks, and what it would warn of. It reads files only."""

from __future__ import annotations

from dataclasses import asdict

import click

from userspace_cni.cli import view
from userspace_cni.cli.command_line import ProgramCommand
from userspace_cni.cli.exit_codes import FOUND
from userspace_cni.cli.manifest_files import CONFIGURATIONS, NETWORKS, Unreadable, files_of, name_of, read_file, read_text
from userspace_cni.diagnosis.networks import JudgedNetworks, Place, judge_document, judge_text
from userspace_cni.diagnosis.rendering import OF_NETWORKS, as_json


@click.command("lint", cls=ProgramCommand, examples=("userspace-cni lint net.yaml /etc/cni/net.d",))
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(exists=True, allow_dash=True))
@click.option("--json", "in_json", is_flag=True, help="As a JSON object.")
@click.option("--strict", is_flag=True, help="Exit code 1 for notes, too.")
@click.pass_context
def lint_command(ctx: click.Context, files: tuple[str, ...], in_json: bool, strict: bool) -> None:
    """Report what ADD would refuse in the networks of these files, and what it would warn of.

    A FILE is YAML or JSON with any number of NetworkAttachmentDefinitions (the text in spec.config is checked) among other
    objects, a CNI configuration (.conf, .conflist, .json), a directory with such files (in it and below; hidden directories and
    links are not entered), or - for stdin. Networks of other CNI types, and other objects, are named and not checked; of a
    network of ovs-cni (type ovs) notes say what it would be as one of this plugin.

    Errors are what ADD would answer with code 7, or 1, 2 or 6, on every node: misspelt keys, invalid values. Warnings are what
    it would accept with a warning: unknown keys, keys given twice, OVS as the vhost-user server. The node's settings
    (directories, rules of namespaces) are not known here. `kubevirt lint` reports what VMs need in addition. Notes are keys
    without effect on the interface, such as logFile.

    Exit code: 0 when nothing is wrong (there may be notes), 1 for errors or warnings, with --strict for notes, too, and when no
    network of this plugin or of ovs-cni is in the files, 2 for a missing file.
    """
    judged = JudgedNetworks()
    with view.progress("reading") as tell:
        for path in files_of(files, NETWORKS):
            tell(f"reading {path}")
            _judge_file(judged, path)
    if not judged.networks and not judged.found:
        message = "no network of this plugin is in them; nothing was checked"
        remedy = 'give the files of networks whose configuration has "type": "userspace"'
        judged.add(Place("all files"), "error", "nothing-judged", message, remedy)
    findings = [finding for _, finding in judged.found]
    if in_json:
        found = [{**asdict(place), **as_json(finding, OF_NETWORKS)} for place, finding in judged.found]
        view.show_json({"networks": judged.networks, "ignored": judged.ignored, "findings": found})
    else:
        view.show_findings(findings)
        view.note_checked(view.format_count(judged.networks, "network"), findings, judged.ignored)
    if any(strict or finding.severity != "note" for finding in findings):
        ctx.exit(FOUND)


def _judge_file(judged: JudgedNetworks, path: str) -> None:
    if path.endswith(CONFIGURATIONS):
        try:
            judge_text(judged, Place(name_of(path), 1), read_text(path))
        except Unreadable as error:
            judged.add(Place(name_of(path)), "error", "bad-input", str(error), error.remedy)
        return
    documents, unreadable = read_file(path)
    for number, document in enumerate(documents, 1):
        judge_document(judged, document.file, number, document.content)
    for finding in unreadable:
        judged.take(Place(finding.subject), finding)
