"""The Kubernetes objects that a cluster with KubeVirt needs for VMs on our networks, made to measure. Pure: no YAML, no cluster.

A manifest is an object and the text above it: what it is for and how it is applied. It must never have a field that the CRDs'
schemas do not know, nor overwrite what others put into a shared object: the KubeVirt CR and the HyperConverged CR are only
patched, at our own key of a map. Their lists (feature gates, supportContainerResources) are left to their owners, because a merge
patch would replace them whole.

Names go into paths and into CEL expressions as they are: `ManifestOptions` takes what matches the patterns here, and its
maker checks them.

Sources: KubeVirt's CRDs (kubevirt.io/v1, plugin.kubevirt.io/v1alpha1) and docs on plugins, HyperConverged's api/v1beta1, the
NetworkAttachmentDefinition of the multi-network specification, MutatingAdmissionPolicy of Kubernetes 1.36.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kubevirt.annotation import ANNOTATION
from kubevirt.plugin_schema import FIRST, Version
from userspace_cni.pod.program_build import recorded_build

LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
"""RFC 1123 label: names of networks, VMs, namespaces and bindings."""
IMAGE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}", re.ASCII)
BRIDGE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,14}", re.ASCII)
PAGES: Final[Mapping[str, int]] = {"2Mi": 2 << 20, "1Gi": 1 << 30}
CNI_VERSIONS: Final = ("0.4.0", "1.0.0", "1.1.0")

BINDING: Final = "vhostuser"
IMAGE_NAME: Final = "userspace-cni-kubevirt-sidecar"
"""Of the sidecar; by default the tag is the version of this program."""
DISK_DEFAULT: Final = "quay.io/containerdisks/fedora:latest"
POD_LABEL: Final = "userspace-cni/binding"
"""Label of a VM's template, and so of its launcher pod, that has the plugin's sidecar injected; its value is the binding."""

KUBEVIRT_NAMESPACE: Final = "kubevirt"
_HCO_NAMESPACE: Final = "kubevirt-hyperconverged"

Object = dict[str, Any]


@dataclass(frozen=True)
class ManifestOptions:
    """What the manifests are for. None: left out, so that the other side's default holds.

    `network`: name of the NetworkAttachmentDefinition, and of the VM's network and interface. `machine`: the sample VM.
    `operator_namespace`: where the KubeVirt or HyperConverged CR is. `memory` is a multiple of `hugepages`, a key of PAGES.
    `queues` (pairs) are not more than `cpus`. `injected`: the sidecar comes by the plugin's admission policy.
    `kubevirt`: the version whose form a Plugin has.
    """

    namespace: str = "default"
    network: str = "dpdk"
    binding: str = BINDING
    image: str = field(default_factory=lambda: f"{IMAGE_NAME}:{recorded_build().version}")
    bridge: str = "br0"
    vlan: int | None = None
    mtu: int | None = None
    cni_version: str = "1.0.0"
    machine: str = "dpdk-vm"
    disk: str = DISK_DEFAULT
    hugepages: str = "2Mi"
    memory: str = "1Gi"
    cpus: int = 2
    dedicated: bool = False
    queues: int | None = None
    operator_namespace: str = ""
    injected: bool = False
    kubevirt: Version = FIRST


@dataclass(frozen=True)
class Manifest:
    """One object, and the text above it, without comment signs."""

    about: str
    object: Object


def kubevirt_manifests(wanted: ManifestOptions) -> list[Manifest]:
    """The binding's registration in the KubeVirt CR."""
    namespace = wanted.operator_namespace or KUBEVIRT_NAMESPACE
    command = f"kubectl patch kubevirt kubevirt --namespace {namespace} --type merge --patch-file FILE"
    return [
        Manifest(
            f"Registers network binding '{wanted.binding}' with KubeVirt. Save it as a file of its own and merge it in:\n\n"
            f"    {command}\n\n{_ABOUT_SIDECAR}\n\n"
            "Under the HyperConverged operator it would be undone: use `manifests hco` there.",
            make_registration(namespace, wanted.binding, registration(wanted.image)),
        )
    ]


def hco_manifests(wanted: ManifestOptions) -> list[Manifest]:
    """The binding's registration where the HyperConverged operator owns the KubeVirt CR."""
    namespace = wanted.operator_namespace or _HCO_NAMESPACE
    resource = "hyperconvergeds.v1beta1.hco.kubevirt.io"
    return [
        Manifest(
            f"Registers network binding '{wanted.binding}' where the HyperConverged operator owns the KubeVirt CR (on OpenShift "
            "with --operator-namespace openshift-cnv). Save it as a file of its own and merge it in:\n\n"
            f"    kubectl patch {resource} kubevirt-hyperconverged --namespace {namespace} --type merge --patch-file FILE\n\n"
            f"{_ABOUT_SIDECAR}\n\nIn API version v1 the same stands at spec.networking.networkBinding.",
            {
                "apiVersion": "hco.kubevirt.io/v1beta1",
                "kind": "HyperConverged",
                "metadata": {"name": "kubevirt-hyperconverged", "namespace": namespace},
                "spec": {"networkBinding": {wanted.binding: registration(wanted.image)}},
            },
        )
    ]


def nad_manifests(wanted: ManifestOptions) -> list[Manifest]:
    bridge: Object = {"bridgeName": wanted.bridge}
    if wanted.vlan:
        bridge["vlanId"] = wanted.vlan
    host: Object = {
        "engine": "ovs-dpdk",
        "iftype": "vhostuser",
        "netType": "bridge",
        "vhost": {"mode": "client"},
        "bridge": bridge,
    }
    if wanted.mtu:
        host["mtu"] = wanted.mtu
    config = {
        "cniVersion": wanted.cni_version,
        "name": wanted.network,
        "type": "userspace",
        "consumer": "kubevirt",
        "host": host,
    }
    return [
        Manifest(
            f"The network: a vhost-user port on OVS-DPDK bridge {wanted.bridge} for each interface on it. `consumer` makes the "
            "directory in the launcher pod QEMU's, and MAC and socket the same wherever the VM migrates. cniVersion 1.1.0 tells "
            "KubeVirt the port's MTU, too, where Multus knows that version. Apply it with kubectl apply -f FILE.",
            {
                "apiVersion": "k8s.cni.cncf.io/v1",
                "kind": "NetworkAttachmentDefinition",
                "metadata": {"name": wanted.network, "namespace": wanted.namespace},
                "spec": {"config": json.dumps(config, indent=2) + "\n"},
            },
        )
    ]


def vm_manifests(wanted: ManifestOptions) -> list[Manifest]:
    """A VM with the pod's network and an interface on ours."""
    about = (
        f"A VM with two interfaces: the pod's network, and '{wanted.network}' on OVS-DPDK, which has no address yet. Log in with "
        f"virtctl console {wanted.machine} (user and password: fedora). Its node needs {wanted.memory} of free hugepages of "
        f"{wanted.hugepages} beside the switch's own. Apply it with kubectl apply -f FILE."
    )
    if wanted.mtu:
        about += (
            f"\n\nThe port takes {wanted.mtu} bytes. The guest sets its own MTU (ip link set dev INTERFACE mtu {wanted.mtu}), "
            "unless the sidecar is to tell it: see MTU in docs/kubevirt.md."
        )
    return [
        Manifest(
            about,
            {
                "apiVersion": "kubevirt.io/v1",
                "kind": "VirtualMachine",
                "metadata": {"name": wanted.machine, "namespace": wanted.namespace},
                "spec": {"runStrategy": "Always", "template": _template(wanted)},
            },
        )
    ]


_ABOUT_SIDECAR: Final = (
    "`migration` lets VMs with it be migrated; `downwardAPI` tells the sidecar what Multus knows of the network. The sidecar "
    "needs less than 48 MiB; VMs with dedicated CPUs, and all others of QoS class Guaranteed, give it 64M and 200m unless "
    "spec.configuration.supportContainerResources says otherwise for type sidecar. A VM that runs keeps the sidecar that it was "
    "started with."
)


def make_registration(namespace: str, binding: str, registration: Object) -> Object:
    """The KubeVirt CR, as far as a binding goes."""
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "KubeVirt",
        "metadata": {"name": "kubevirt", "namespace": namespace},
        "spec": {"configuration": {"network": {"binding": {binding: registration}}}},
    }


def registration(image: str) -> Object:
    """A binding; without a sidecar for "". No domainAttachmentType, or KubeVirt would make an interface of its own, and no
    networkAttachmentDefinition: the VM's own network is enough."""
    sidecar = {"sidecarImage": image} if image else {}
    return {**sidecar, "downwardAPI": "device-info", "migration": {}}


def _template(wanted: ManifestOptions) -> Object:
    tuning = {key: value for key, value in (("mtu", wanted.mtu), ("queues", wanted.queues)) if value}
    metadata: Object = {"labels": {"kubevirt.io/domain": wanted.machine}}
    if wanted.injected:
        metadata["labels"][POD_LABEL] = wanted.binding
    if tuning:
        metadata["annotations"] = {ANNOTATION: json.dumps({wanted.network: tuning})}
    cpu: Object = {"cores": wanted.cpus}
    if wanted.dedicated:
        cpu["dedicatedCpuPlacement"] = True
    return {
        "metadata": metadata,
        "spec": {
            "domain": {
                "cpu": cpu,
                "memory": {"guest": wanted.memory, "hugepages": {"pageSize": wanted.hugepages}},
                "devices": {
                    "disks": [
                        {"name": "root", "disk": {"bus": "virtio"}},
                        {"name": "cloud-init", "disk": {"bus": "virtio"}},
                    ],
                    "interfaces": [
                        {"name": "default", "masquerade": {}},
                        {"name": wanted.network, "binding": {"name": wanted.binding}},
                    ],
                    "rng": {},
                },
            },
            "networks": [
                {"name": "default", "pod": {}},
                {"name": wanted.network, "multus": {"networkName": wanted.network}},
            ],
            "volumes": [
                {"name": "root", "containerDisk": {"image": wanted.disk}},
                {"name": "cloud-init", "cloudInitNoCloud": {"userData": _USER_DATA}},
            ],
        },
    }


_USER_DATA: Final = "#cloud-config\nuser: fedora\npassword: fedora\nchpasswd: {expire: false}\n"
