"""`kubevirt lint`: what in manifests or in a libvirt domain would keep VMs from their vhost-user network. It reads files only."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import click

from kubevirt.lint.documents import Judged, ManifestDocument, judge
from kubevirt.lint.network import OUR_TYPE, Definition, plugins_of
from userspace_cni.base.findings import SEVERITIES, Finding, Severity
from userspace_cni.cli import view
from userspace_cni.cli.exit_codes import FOUND
from userspace_cni.cli.manifests import files_of, read_file
from userspace_cni.diagnosis.rendering import OF_TRAPS, as_json, by_subject, counts_text
from userspace_cni.diagnosis.traps import findings_of
from userspace_cni.node.remarks import remarks_on

_IGNORED_SHOWN: Final = 5
_NOTHING: Final = Finding(
    "not-given",
    "warning",
    "all files",
    "there is nothing in them that is for KubeVirt, and nothing was judged",
    "give the files of VMs, of their networks and of the KubeVirt object; see that kind and apiVersion are right",
)
_MISPLACED: Final = re.compile(r"key '(host|container)\..*' is unknown|key '.*' is unknown and ignored here")
"""The plugin's warnings of an unknown key in our blocks, and of one that it knows in another place."""


@click.command("lint")
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(exists=True, allow_dash=True))
@click.option("--binding", "bindings", multiple=True, metavar="NAME", help="A binding that is ours; else it is known by names.")
@click.option("--json", "in_json", is_flag=True, help="As a JSON object.")
@click.pass_context
def lint_command(ctx: click.Context, files: tuple[str, ...], bindings: tuple[str, ...], in_json: bool) -> None:
    """Tell what in manifests would fail: of VMs, networks, the KubeVirt or HyperConverged object, migration policies, Plugins,
    virt-launcher pods, and libvirt domains.

    A FILE is YAML or JSON with any number of objects, the XML of a domain, a directory with such files (in it and below; hidden
    directories and links are not entered), or - for stdin. A VM is judged together with the networks and the registration that
    are given with it. Exit code: 0 when nothing is wrong (there may be notes), 1 for errors or warnings, and when there is
    nothing in the files that could be judged, 2 for a file that is not there.
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
    findings += _with_refusals(judged)
    if not judged.checked and not findings:
        findings.append(_NOTHING)
    if in_json:
        found = [as_json(each, OF_TRAPS) for each in findings]
        view.show_json({"checked": judged.checked, "ignored": judged.ignored, "findings": found})
    else:
        view.show_findings(findings)
        _summarise(judged, findings)
    if any(finding.severity != "note" for finding in findings):
        ctx.exit(FOUND)


def _with_refusals(judged: Judged) -> Iterator[Finding]:
    """The findings; those of a network include what the plugin itself refuses or ignores of it."""
    told = {trap.subject for trap in judged.findings if trap.name == "server-mode"}
    refusals = [finding for definition in judged.definitions for finding in _refusals(definition, told)]
    for mine in by_subject((*findings_of(judged.findings), *refusals)).values():
        yield from sorted(mine, key=lambda finding: SEVERITIES.index(finding.severity))


def _refusals(definition: Definition, told: Collection[str]) -> list[Finding]:
    """What the plugin refuses of a network, in its own words, and what it ignores of one for VMs.

    `told`: where the mode of the socket has a finding already.
    """
    where, config = definition.spot.report.where, _configuration(definition)
    if config is None:
        return []
    remedy = "leave it out, or write it as in docs/network.md"
    found = []
    for remark in remarks_on(config):
        of_network = replace(remark, subject=where, path="spec.config")
        if remark.code and not (where in told and remark.path == "host.vhost.mode"):
            found.append(replace(of_network, name="network-refused"))
        elif not remark.code and definition.for_kubevirt:
            severity = _severity(remark.message)
            found.append(replace(of_network, name="ignored-option", severity=severity, remedy=remedy))
    return found


def _severity(text: str) -> Severity:
    """The severity of an ignored key: a warning in our own blocks and for a misplaced block, where the port is not as meant."""
    return "warning" if _MISPLACED.match(text) else "note"


def _configuration(definition: Definition) -> dict[str, Any] | None:
    """The configuration that the plugin gets on stdin, from the object; None when the network is not this plugin's."""
    written = definition.spot.child("spec").json("config")
    ours = next((each for each in plugins_of(written.value) if each.get("type") == OUR_TYPE), None) if written else None
    if written is None or ours is None:
        return None
    inherited = {key: written.value[key] for key in ("cniVersion", "name") if key in written.value}
    return {"name": definition.name, **inherited, **ours}


def _summarise(judged: Judged, findings: Sequence[Finding]) -> None:
    kinds = view.joined([f"{count} {kind}" for kind, count in judged.checked.items()], "nothing that is for KubeVirt")
    view.note(f"checked {kinds}: {counts_text(findings)}")
    if judged.ignored:
        more = len(judged.ignored) - _IGNORED_SHOWN
        shown = view.joined(judged.ignored[:_IGNORED_SHOWN]) + (f" and {more} more" if more > 0 else "")
        view.note(f"not looked at: {shown}")
