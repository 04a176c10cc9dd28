"""`kubevirt lint`: what in manifests or in a libvirt domain would keep VMs from their vhost-user network. It reads files only."""

from __future__ import annotations

from typing import Final

import click

from kubevirt.lint.linted_documents import ManifestDocument, judge
from userspace_cni.base.findings import Finding
from userspace_cni.cli import view
from userspace_cni.cli.command_line import ProgramCommand
from userspace_cni.cli.exit_codes import FOUND
from userspace_cni.cli.manifest_files import files_of, read_file
from userspace_cni.diagnosis.rendering import OF_TRAPS, as_json
from userspace_cni.diagnosis.traps import findings_with_refusals

_NOTHING: Final = Finding(
    "not-given",
    "warning",
    "all files",
    "nothing in them is for KubeVirt; nothing was checked",
    "give the files of VMs, of their networks and of the KubeVirt object; see that kind and apiVersion are right",
)


@click.command("lint", cls=ProgramCommand, examples=("userspace-cni kubevirt lint all.yaml",))
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(exists=True, allow_dash=True))
@click.option("--binding", "bindings", multiple=True, metavar="NAME", help="A binding that is ours; else it is known by names.")
@click.option("--json", "in_json", is_flag=True, help="As a JSON object.")
@click.pass_context
def lint_command(ctx: click.Context, files: tuple[str, ...], bindings: tuple[str, ...], in_json: bool) -> None:
    """Report what in manifests would fail: of VMs, networks, the KubeVirt or HyperConverged object, migration policies, Plugins,
    templates of claims, virt-launcher pods, and libvirt domains.

    A FILE is YAML or JSON with any number of objects, the XML of a domain, a directory with such files (in it and below; hidden
    directories and links are not entered), or - for stdin. A VM is checked together with the networks and the registration that
    are given with it. Exit code: 0 when nothing is wrong (there may be notes), 1 for errors or warnings, and when nothing in
    the files could be checked, 2 for a missing file.
    """
    documents: list[ManifestDocument] = []
    findings: list[Finding] = []
    with view.progress("reading") as tell:
        for path in files_of(files):
            tell(f"reading {path}")
            read, unreadable = read_file(path)
            documents += read
            findings += unreadable
        judged = judge(documents, bindings)
    findings += findings_with_refusals(judged)
    if not judged.checked and not findings:
        findings.append(_NOTHING)
    if in_json:
        found = [as_json(each, OF_TRAPS) for each in findings]
        view.show_json({"checked": judged.checked, "ignored": judged.ignored, "findings": found})
    else:
        view.show_findings(findings)
        kinds = view.join([f"{count} {kind}" for kind, count in judged.checked.items()], "nothing that is for KubeVirt")
        view.note_checked(kinds, findings, judged.ignored)
    if any(finding.severity != "note" for finding in findings):
        ctx.exit(FOUND)
