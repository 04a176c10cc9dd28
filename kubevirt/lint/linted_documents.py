"""Checks objects for a cluster with KubeVirt before they are applied: what would keep a VM from its vhost-user network.

Pure: it takes decoded objects and texts of domains, and must never fail for what is in them. Each object is checked by itself,
and against the others that are given: a VM against the registration of its binding and the definitions of its networks. Where
these are not given there is a note, never a guess.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kubevirt.kubevirt_traps import SEVERITIES, Trap
from kubevirt.lint.copies import without_copies
from kubevirt.lint.duplicate_addresses import judge_addresses, judge_machines
from kubevirt.lint.fields import judge_fields
from kubevirt.lint.guest import judge_guest
from kubevirt.lint.kinds import GROUPS, MACHINES, group_of, judge_kind
from kubevirt.lint.launcher_pod import is_launcher, judge_pod
from kubevirt.lint.linted_domain import Domain, judge_domain, machines_by_domain, read_domain
from kubevirt.lint.machine import judge_networks, read_machine
from kubevirt.lint.migration import judge_migrations
from kubevirt.lint.network import Definition, Definitions, judge_definition, read_definition
from kubevirt.lint.reading import DocumentReport, DocumentValue
from kubevirt.lint.refusals import judge_refusals
from kubevirt.lint.registration import judge_cluster
from kubevirt.lint.registrations import read_cluster
from kubevirt.lint.sidecars import judge_sidecars
from kubevirt.lint.vm_claims import TEMPLATE, judge_claims

DOMAIN: Final = "domain"
_NESTED_MAX: Final = 5
_NAME_MAX: Final = 100


@dataclass(frozen=True)
class ManifestDocument:
    """One document of a file: a decoded object, or the text of a libvirt domain."""

    file: str
    content: object


@dataclass(frozen=True)
class JudgedDocuments:
    """`findings`: the gravest first in each object, objects in the order given. `checked`: how many of each kind.

    `ignored`: file, kind and name of what is of no concern here. `definitions`: the networks, for what only the plugin can judge.
    """

    findings: tuple[Trap, ...]
    checked: Mapping[str, int]
    ignored: tuple[str, ...]
    definitions: tuple[Definition, ...] = ()


def judge(documents: Sequence[ManifestDocument], bindings: Collection[str] = ()) -> JudgedDocuments:
    """What is wrong, with what was looked at and what was not.

    `bindings`: names of the bindings that are ours; without any they are known by name, image and network.
    """
    reports: list[DocumentReport] = []
    objects: list[tuple[str, DocumentValue]] = []
    domains: list[Domain] = []
    checked: dict[str, int] = {}
    ignored: list[str] = []
    for document in documents:
        for kind, content in flatten(document.content):
            where = f"{document.file}: {label_of(kind, content)}"
            reports.append(DocumentReport(where, document.file))
            if kind == "":
                ignored.append(where)
                judge_kind(content, reports[-1])
                continue
            checked[kind] = checked.get(kind, 0) + 1
            if kind == DOMAIN:
                domain = read_domain(str(content), reports[-1])
                domains += [domain] if domain else []
            else:
                objects.append((kind, DocumentValue(content, "", reports[-1])))
    definitions = _judge_objects(without_copies(objects), domains, bindings)
    return JudgedDocuments(tuple(_ordered(reports)), checked, tuple(ignored), tuple(definitions))


def kind_of(content: object) -> str:
    """Kind of a document that is judged, "" for all others. A patch of a KubeVirt or HyperConverged object counts as one."""
    if isinstance(content, str):
        return DOMAIN
    if not isinstance(content, Mapping):
        return ""
    kind = content.get("kind")
    if isinstance(kind, str) and kind:
        known = kind in GROUPS and group_of(content) in ("", GROUPS[kind])
        return kind if known and (kind != "Pod" or is_launcher(DocumentValue(content, "", DocumentReport("")))) else ""
    spec = content.get("spec")
    if not isinstance(spec, Mapping):
        return ""
    return "KubeVirt" if isinstance(spec.get("configuration"), Mapping) else "HyperConverged" if "networkBinding" in spec else ""


def _judge_objects(
    objects: Sequence[tuple[str, DocumentValue]], domains: Sequence[Domain], bindings: Collection[str]
) -> list[Definition]:
    cluster = read_cluster(objects, bindings)
    definitions = [read_definition(spot) for kind, spot in objects if kind == "NetworkAttachmentDefinition"]
    networks = Definitions(definitions)
    machines = [read_machine(spot, kind, cluster, networks) for kind, spot in objects if kind in MACHINES]
    judge_cluster(cluster)
    for kind, spot in objects:
        if kind == "Pod":
            judge_pod(spot)
    judge_migrations(cluster, [spot for kind, spot in objects if kind == "MigrationPolicy"], machines)
    templates = [spot for kind, spot in objects if kind == TEMPLATE]
    used = {id(nic.definition) for machine in machines for nic in machine.vhost_user}
    for definition in definitions:
        judge_definition(definition, machines=bool(machines), used=id(definition) in used)
    for machine in machines:
        judge_fields(machine)
        judge_networks(machine, cluster)
        judge_sidecars(machine, cluster)
        judge_claims(machine, templates)
        judge_guest(machine)
        if machine.vhost_user:
            judge_addresses(machine)
            judge_refusals(machine)
    judge_machines(machines)
    by_domain = machines_by_domain(machines)
    for domain in domains:
        judge_domain(domain, by_domain.get(domain.name, ()))
    return definitions


def flatten(content: object, depth: int = 0) -> Iterator[tuple[str, object]]:
    """A document with its kind, of a list what is in it: of Kubernetes' own, or of JSON's, if there is anything in it."""
    if isinstance(content, list) and content and depth < _NESTED_MAX:
        for item in content:
            yield from flatten(item, depth + 1)
        return
    if isinstance(content, Mapping) and depth < _NESTED_MAX and isinstance(content.get("items"), list):
        kind = content.get("kind")
        if kind is None or (isinstance(kind, str) and kind.endswith("List")):
            for item in content["items"]:
                yield from flatten(item, depth + 1)
            return
    yield kind_of(content), content


def label_of(kind: str, content: object) -> str:
    if isinstance(content, str):
        return "domain XML"
    fields: Mapping[str, Any] = content if isinstance(content, Mapping) else {}
    given = fields.get("kind")
    metadata = fields.get("metadata")
    names = [metadata.get(key) for key in ("namespace", "name")] if isinstance(metadata, Mapping) else []
    name = "/".join(each for each in names if isinstance(each, str) and each)
    written = given if isinstance(given, str) and given else f"a part of {kind}" if kind else "no object of Kubernetes"
    return f"{written} {name}".strip()[:_NAME_MAX]


def _ordered(reports: Sequence[DocumentReport]) -> Iterator[Trap]:
    for report in reports:
        yield from sorted(report.found, key=lambda finding: SEVERITIES.index(finding.severity))
