"""The traps that `kubevirt/` finds in files and objects, as findings like the node's own: its image has no `base/`. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

from kubevirt.kubevirt_traps import Trap
from kubevirt.lint.linted_documents import JudgedDocuments
from kubevirt.lint.network import OUR_TYPE, Definition, plugins_of
from userspace_cni.base.findings import SEVERITIES, Finding, Severity
from userspace_cni.diagnosis.rendering import by_subject
from userspace_cni.node.remarks import remarks_on

_MISPLACED: Final = re.compile(r"key '(host|container)\..*' is unknown|key '.*' is unknown and ignored here")
"""The plugin's warnings of an unknown key in our blocks, and of one that it knows in another place."""


def findings_of(traps: Iterable[Trap]) -> list[Finding]:
    return [Finding(each.name, each.severity, each.subject, each.message, each.remedy, each.path, each.why) for each in traps]


def findings_with_refusals(judged: JudgedDocuments) -> Iterator[Finding]:
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
