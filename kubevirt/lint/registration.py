"""A binding's registration, and what beside it in the cluster's objects would fail: gates, owners. Pure."""

from __future__ import annotations

from typing import Final

from kubevirt.lint.plugin_objects import judge_plugins
from kubevirt.lint.reading import DocumentValue
from kubevirt.lint.registrations import RegisteredObjects, Registration, configuration

_SIDECAR_ENOUGH: Final = 64_000_000
"""Bytes: what KubeVirt gives a sidecar by default."""
_SIDECAR_LEAST: Final = 48 << 20
"""Bytes: what ours is made to stay below."""
_HCO_NAME: Final = "kubevirt-kubevirt-hyperconverged"


def judge_cluster(cluster: RegisteredObjects) -> None:
    """Everything that the objects themselves tell; what VMs make of it is judged with the VMs."""
    for registration in cluster.vhost_user():
        _judge_registration(registration, hooked=bool(cluster.hooked or cluster.pruned))
    _judge_shared_images(cluster)
    _judge_owners(cluster)
    _judge_gates(cluster)
    for spot in cluster.kubevirts:
        _judge_sidecar_memory(spot)
    judge_plugins(cluster)


def _judge_registration(registration: Registration, *, hooked: bool) -> None:
    spot, name = registration.spot, registration.name
    if kind := spot.text("domainAttachmentType"):
        spot.find(
            "domain-attachment",
            "error",
            f"binding '{name}' has domainAttachmentType '{kind}': KubeVirt adds an interface of that type itself",
            "remove domainAttachmentType: the sidecar adds the interface",
        )
    if not registration.image and not hooked:
        spot.find(
            "no-source",
            "error",
            f"binding '{name}' has no sidecarImage, and no Plugin with a sidecar was given: no sidecar adds the interface",
            "name the sidecar's image, or give the Plugin's file too",
        )
    if definition := spot.text("networkAttachmentDefinition"):
        spot.find(
            "binding-nad",
            "warning",
            f"binding '{name}' has networkAttachmentDefinition '{definition}': its plugin is run beside each network's own",
            "remove networkAttachmentDefinition: the VM's own networks name what they need",
        )
    if not spot.has("migration"):
        spot.find(
            "not-migratable",
            "warning",
            f"binding '{name}' has no 'migration': a VM whose first interface is bound by it cannot be migrated",
            "add `migration: {}`",
        )
    elif method := spot.child("migration").text("method"):
        spot.find(
            "not-migratable",
            "error",
            f"binding '{name}' has migration method '{method}': after the guest has moved, KubeVirt updates the interface from a "
            "model that does not have its socket, libvirt refuses that, and the migration never completes",
            "write `migration: {}`: the guest keeps MAC and address, and one with DHCP can be told to ask again",
        )
    if spot.text("downwardAPI") != "device-info":
        spot.find(
            "no-device-info",
            "note",
            f"binding '{name}' has no `downwardAPI: device-info`: MAC, MTU and a device plugin's socket do not reach the sidecar",
            "add `downwardAPI: device-info`",
        )


def _judge_shared_images(cluster: RegisteredObjects) -> None:
    """One image under two names: its sidecars make sockets of one name, unless they are ours."""
    first: dict[tuple[str, str], Registration] = {}
    for each in cluster.vhost_user():
        if not each.image or each.is_ours:
            continue
        other = first.setdefault((each.operator, each.image), each)
        if other.name != each.name:
            each.spot.find(
                "socket-name-collision",
                "warning",
                f"bindings '{other.name}' and '{each.name}' have one image: where its socket has a fixed name, a VM with both "
                "waits for the second and ends",
                "use one of the two bindings in a VM, or this project's image, whose sockets have names of their own",
            )


def _judge_owners(cluster: RegisteredObjects) -> None:
    """Registrations in a KubeVirt object that the HyperConverged operator owns."""
    for spot in cluster.kubevirts:
        metadata = spot.child("metadata")
        owned = any(owner.text("kind") == "HyperConverged" for owner in metadata.items("ownerReferences"))
        managed = owned or metadata.text("name") == _HCO_NAME or bool(cluster.operators)
        there = {each.name for each in cluster.registrations if each.operator == "HyperConverged"}
        lost = [each for each in cluster.vhost_user() if each.spot.report is spot.report and each.name not in there]
        for each in lost if managed else ():
            each.spot.find(
                "hco-overwrites",
                "warning",
                f"binding '{each.name}' is registered in a KubeVirt object that the HyperConverged operator writes",
                "register it in the HyperConverged object: spec.networkBinding",
            )


def _judge_gates(cluster: RegisteredObjects) -> None:
    if not cluster.vhost_user():
        return
    where = next((spot for spot in (*cluster.kubevirts, *cluster.operators) if spot.has("kind")), None)
    by_sidecar = [each.name for each in cluster.vhost_user() if each.image]
    if "Plugins" in cluster.gates and by_sidecar and where:
        names = ", ".join(spot.child("metadata").text("name") or "without a name" for spot in cluster.plugins)
        bindings = ", ".join(f"'{name}'" for name in dict.fromkeys(by_sidecar))
        where.find(
            "plugins-gate",
            "error" if names else "warning",
            f"feature gate Plugins is on, and binding {bindings} has a sidecar of KubeVirt's: "
            + (
                f"with a Plugin there ({names}), whatever its condition, KubeVirt drops the sockets that the sidecar wrote"
                if names
                else "as soon as there is any Plugin, KubeVirt drops the sockets that the sidecar wrote"
            ),
            "register the binding without sidecarImage, and the sidecar as a Plugin (`userspace-cni kubevirt manifests plugin`); "
            "or turn the gate off",
        )
    if cluster.gated and cluster.hooked and "Plugins" not in cluster.gates:
        cluster.hooked[0].find(
            "plugins-gate",
            "warning",
            "the Plugin does nothing: feature gate Plugins is not among those of the KubeVirt object given",
            "add Plugins to spec.configuration.developerConfiguration.featureGates, or leave the Plugin out",
        )


def _judge_sidecar_memory(kubevirt: DocumentValue) -> None:
    for each in configuration(kubevirt).items("supportContainerResources"):
        limit = each.child("resources", "limits").amount("memory") if each.text("type") == "sidecar" else None
        sidecar_memory(each.child("resources", "limits"), limit)


def sidecar_memory(limits: DocumentValue, limit: int | None) -> None:
    """A sidecar's memory limit in bytes that is not enough."""
    if limit is not None and limit < _SIDECAR_ENOUGH:
        least = limit < _SIDECAR_LEAST
        limits.find(
            "sidecar-memory",
            "error" if least else "warning",
            f"sidecars get {limit >> 20} MiB: ours takes up to 48 MiB",
            "give 64M, which is KubeVirt's default, or more",
        )
