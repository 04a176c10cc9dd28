"""Checks the claims of a VM's networks: whether the VM can migrate with them. Pure.

Both pods of a migration need a claim of their own, and the socket at one path: the first a template gives, the second our driver
when the claim's parameters say that a VM uses it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from kubevirt.lint.machine import LintedMachine
from kubevirt.lint.reading import DocumentValue, fold_keys

TEMPLATE: Final = "ResourceClaimTemplate"
DRIVER: Final = "userspace-cni.io"
CLASS: Final = f"vhost-user.{DRIVER}"
"""The DeviceClass as we deploy it, which says nothing of consumers; what another one says is not known here."""


def judge_claims(machine: LintedMachine, templates: Sequence[DocumentValue]) -> None:
    """Everything about claims of its vhost-user interfaces. `templates`: those that are given, of any namespace."""
    claims = {each.text("name"): each for each in machine.instance.items("resourceClaims")}
    for nic in machine.vhost_user:
        asked = nic.network.child("resourceClaim")
        claim = claims.get(asked.text("claimName"))
        if claim is None:
            continue
        if named := claim.text("resourceClaimName"):
            claim.find(
                "not-migratable",
                "note",
                f"the VM names ResourceClaim '{named}' itself, which is allocated on one node: the VM stays there",
                "for a VM that is to migrate name a template (resourceClaimTemplateName), which makes a claim for each pod",
            )
        made_of = claim.text("resourceClaimTemplateName")
        for template in templates:
            metadata = template.child("metadata")
            if made_of and (metadata.text("name"), metadata.text("namespace")) == (made_of, machine.namespace):
                _judge_template(template.child("spec", "spec", "devices"), asked.text("requestName"), machine)


def _judge_template(devices: DocumentValue, request: str, machine: LintedMachine) -> None:
    ours = [each for each in devices.items("config") if each.child("opaque").text("driver") == DRIVER]
    of_vm = [each for each in ours if fold_keys(each.child("opaque").get("parameters")).get("consumer") == "kubevirt"]
    named = [set(each.texts("requests")) for each in of_vm]
    if not all(any(not names or names & asked for names in named) for asked in _asked(devices, request)):
        devices.find(
            "not-migratable",
            "warning",
            f"VM {machine} has a claim of this template, which does not say that its consumer is kubevirt: the VM starts, and "
            "QEMU finds no directory for its socket where it migrates to",
            f"add `consumer: kubevirt` to the parameters for {DRIVER} (docs/dra.md)",
        )


def _asked(devices: DocumentValue, request: str) -> Iterator[set[str]]:
    """By which names parameters can be for the request where it is of our class: for each of its alternatives, its own and that
    of the request."""
    for each in devices.items("requests"):
        if each.text("name") == request:
            if each.child("exactly").text("deviceClassName") == CLASS:
                yield {request}
            for alternative in each.items("firstAvailable"):
                if alternative.text("deviceClassName") == CLASS:
                    yield {request, f"{request}/{alternative.text('name')}"}
