"""Checks which sidecars edit a VM's definition, and that ours is there with its label and claims. Pure."""

from __future__ import annotations

from typing import Final

from kubevirt.lint.machine import LintedInterface, LintedMachine
from kubevirt.lint.reading import DocumentValue
from kubevirt.lint.registrations import RegisteredObjects, Registration
from kubevirt.manifests import POD_LABEL
from kubevirt.plugin_schema import format_version

HOOKS: Final = "hooks.kubevirt.io/hookSidecars"
_TELLS_BINDING: Final = (1, 9)
"""The first KubeVirt that tells a sidecar its binding."""
_GIVES_CLAIM: Final = (1, 10)
"""The first KubeVirt that gives a binding's sidecar the claim."""
_DRA_GATE: Final = "NetworkDevicesWithDRA"


def judge_sidecars(machine: LintedMachine, cluster: RegisteredObjects) -> None:
    """Everything about sidecars of a VM that has a vhost-user interface."""
    if machine.vhost_user:
        _judge_label(machine, cluster)
        _judge_claims(machine, cluster)
        _judge_others(machine, cluster)
        _judge_our_bindings(machine, cluster)


def _judge_label(machine: LintedMachine, cluster: RegisteredObjects) -> None:
    """Check the label by which an injected sidecar gets into a pod."""
    ours = any(cluster.is_our_plugin(spot) for spot in cluster.hooked)
    for nic in machine.vhost_user if ours else ():
        found = cluster.find_registrations(nic.binding)
        if found and not any(each.image for each in found) and machine.labels.get(POD_LABEL) != nic.binding:
            machine.labels.find(
                "no-source",
                "error",
                f"binding '{nic.binding}' has its sidecar injected into pods with a label that this VM's has not: none answers",
                f"add the label {POD_LABEL}: {nic.binding} to spec.template.metadata.labels",
            )


def _judge_claims(machine: LintedMachine, cluster: RegisteredObjects) -> None:
    claimed = {each.text("name") for each in machine.instance.items("resourceClaims")}
    for nic in machine.vhost_user:
        if not nic.network.has("resourceClaim"):
            continue
        claim = nic.network.child("resourceClaim").text("claimName")
        if claim not in claimed:
            nic.network.find(
                "no-source",
                "error",
                f"claim '{claim}' of network '{nic.name}' is not in the VM's resourceClaims",
                "add it there, with the ResourceClaim or the template that it is from",
            )
        if cluster.gated and _DRA_GATE not in cluster.gates:
            nic.network.find(
                "dra-not-mounted",
                "error",
                f"feature gate {_DRA_GATE} is not among those of the KubeVirt object given: networks of claims are refused",
                f"add {_DRA_GATE} to spec.configuration.developerConfiguration.featureGates (KubeVirt 1.9, Kubernetes 1.36)",
            )
        elif cluster.version is None or cluster.version < _GIVES_CLAIM:
            nic.network.find(
                "dra-not-mounted",
                "warning" if cluster.version else "note",
                f"network '{nic.name}' is of a claim: the sidecar must see /var/run/kubernetes.io/dra-device-attributes, which "
                f"KubeVirt mounts in it from {format_version(_GIVES_CLAIM)} on",
                "look for the claim in the launcher pod's hook-sidecar container; with an older KubeVirt an admission policy has "
                "to add it",
            )


def _judge_others(machine: LintedMachine, cluster: RegisteredObjects) -> None:
    """Other sidecars of the VM. Which one runs last is not known, and those made with KubeVirt's own model drop our fields."""
    remedy = "leave it out for VMs with vhost-user interfaces, unless its image is known to keep what it does not know"
    if machine.annotations.text(HOOKS):
        DocumentValue(None, machine.annotations.at(HOOKS), machine.spot.report).find(
            "lossy-sidecar", "warning", "another hook sidecar edits the VM's definition: most drop a vhost-user socket", remedy
        )
    ours = {nic.binding for nic in machine.vhost_user}
    images: dict[str, LintedInterface] = {}
    for nic in machine.nics:
        found = next(iter(cluster.find_registrations(nic.binding)), None) if nic.binding else None
        if nic.binding not in ours:
            if nic.binding and (found is None or found.image):
                nic.spot.find(
                    "lossy-sidecar",
                    "warning" if found else "note",
                    f"binding '{nic.binding}' has a sidecar of its own: most drop a vhost-user socket",
                    remedy,
                )
            continue
        if found and not found.is_ours and found.image:
            other = images.setdefault(found.image, nic)
            if other.binding != nic.binding:
                nic.spot.find(
                    "socket-name-collision",
                    "error",
                    f"bindings '{other.binding}' and '{nic.binding}' have one image, whose sockets have one name: the second is "
                    "waited for in vain, and the launcher ends",
                    "use one of the two bindings for all interfaces of the VM",
                )


def _judge_our_bindings(machine: LintedMachine, cluster: RegisteredObjects) -> None:
    """Two bindings with our sidecar: before 1.9 none of the two knows which one it is, and refuses the other's interface."""
    if cluster.version and cluster.version >= _TELLS_BINDING:
        return
    first: tuple[LintedInterface, Registration] | None = None
    for nic in machine.vhost_user:
        found = next((each for each in cluster.find_registrations(nic.binding) if each.image and each.is_ours), None)
        first = first or ((nic, found) if found else None)
        if first is None or found is None or nic.binding == first[0].binding:
            continue
        sure = cluster.version is not None and found.image == first[1].image
        nic.spot.find(
            "other-binding",
            "error" if sure else "warning",
            f"interfaces '{first[0].name}' and '{nic.name}' have the bindings '{first[0].binding}' and '{nic.binding}', and "
            "KubeVirt before 1.9 does not tell their sidecars which is whose: they refuse the VM",
            "use one of the two bindings for both; or give each an image of its own, with USERSPACE_CNI_KUBEVIRT_BINDING and "
            "_OTHER_BINDINGS in it",
        )
