"""Migrations that may turn to post-copy, in the cluster's settings and in policies, and whose VMs they are. Pure.

Rule not our own: KubeVirt's staging/src/kubevirt.io/api/migrations/v1alpha1 (a policy without selectors is for no VM; labels
of the instance and of its namespace must all be there).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from kubevirt.kubevirt_traps import Severity
from kubevirt.lint.machine import LintedMachine
from kubevirt.lint.reading import DocumentValue
from kubevirt.lint.registrations import RegisteredObjects, configuration

_KEY: Final = "allowPostCopy"
_NAMESPACE_LABEL: Final = "kubernetes.io/metadata.name"
"""Which every namespace has, with its own name."""


def judge_migrations(cluster: RegisteredObjects, policies: Sequence[DocumentValue], machines: Sequence[LintedMachine]) -> None:
    """Everything about post-copy. Where no VM of concern is given, there may be one elsewhere."""
    ours = [machine for machine in machines if machine.vhost_user]
    off = [policy for policy in policies if policy.child("spec").get(_KEY) is False]
    spared = bool(ours) and all(any(_selects(policy, machine) for policy in off) for machine in ours)
    for spot in cluster.kubevirts:
        _judge_cluster(configuration(spot).child("migrations"), spared=spared)
    for spot in cluster.operators:
        _judge_cluster(spot.child("spec", "liveMigrationConfig"), spared=spared)
        _judge_cluster(spot.child("spec", "virtualization", "liveMigrationConfig"), spared=spared)
    for policy in policies:
        _judge_policy(policy, ours)


def _judge_cluster(migrations: DocumentValue, *, spared: bool) -> None:
    if migrations.flag(_KEY):
        suffix = "; policies that are given keep the given VMs from it" if spared else ""
        _report(migrations, "note" if spared else "warning", suffix)


def _judge_policy(policy: DocumentValue, machines: Sequence[LintedMachine]) -> None:
    spec = policy.child("spec")
    if not spec.flag(_KEY):
        return
    if not spec.has("selectors"):
        _report(spec, "note", "; but the policy has no selectors, and so is for no VM")
    elif machines and all(_selects(policy, machine) is False for machine in machines):
        _report(spec, "note", "; but the policy selects none of the given VMs")
    else:
        _report(spec, "warning", "")


def _report(migrations: DocumentValue, severity: Severity, suffix: str) -> None:
    DocumentValue(True, migrations.at(_KEY), migrations.report).find(
        "post-copy",
        severity,
        f"migrations may turn to post-copy, which Open vSwitch does not serve by default{suffix}",
        "set it to false for VMs with vhost-user interfaces, by a MigrationPolicy that selects them; or set other_config:"
        "vhost-postcopy-support=true and restart every ovs-vswitchd, which then must not lock its memory (--mlockall)",
    )


def _selects(policy: DocumentValue, machine: LintedMachine) -> bool | None:
    """Whether the policy is for the VM; None when that depends on labels which the files do not tell."""
    if not policy.child("spec").has("selectors"):
        return False
    selectors = policy.child("spec", "selectors")
    wanted = selectors.child("virtualMachineInstanceSelector").value or {}
    answers = [_has(machine.labels.value or {}, key, value) for key, value in wanted.items()]
    for key, value in (selectors.child("namespaceSelector").value or {}).items():
        known = key == _NAMESPACE_LABEL and bool(machine.namespace)
        answers.append(machine.namespace == value if known else None)
    return False if False in answers else None if None in answers else True


def _has(labels: Mapping[object, object], key: object, value: object) -> bool | None:
    """Labels of KubeVirt's own come to the instance later."""
    if isinstance(key, str) and key not in labels and key.partition("/")[0].endswith("kubevirt.io"):
        return None
    return labels.get(key) == value
