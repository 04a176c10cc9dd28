"""A cluster's manifests without any fault. Tests of the lint put faults into them."""

from __future__ import annotations

import copy
import json
from typing import Any

from kubevirt.kubevirt_traps import Trap
from kubevirt.lint.linted_documents import ManifestDocument, judge
from kubevirt.manifests import ManifestOptions, hco_manifests, kubevirt_manifests, nad_manifests, vm_manifests

OURS = "userspace/vhostuser"
WANTED = ManifestOptions(mtu=9000, queues=2, vlan=5, dedicated=True, hugepages="1Gi", memory="4Gi", cpus=4, namespace="nfv")


class Files:
    """The manifests of a cluster without any fault, as objects of the test's own that it may change."""

    def __init__(self, wanted: ManifestOptions = WANTED) -> None:
        [self.kubevirt] = [each.object for each in kubevirt_manifests(wanted)]
        [self.hco] = [each.object for each in hco_manifests(wanted)]
        [self.network] = [each.object for each in nad_manifests(wanted)]
        [self.vm] = [each.object for each in vm_manifests(wanted)]
        self.others: list[Any] = []
        for name in ("kubevirt", "hco", "network", "vm"):
            setattr(self, name, copy.deepcopy(getattr(self, name)))

    @property
    def configuration(self) -> dict[str, Any]:
        return self.kubevirt["spec"]["configuration"]  # type: ignore[no-any-return]

    @property
    def binding(self) -> dict[str, Any]:
        return self.configuration["network"]["binding"]["vhostuser"]  # type: ignore[no-any-return]

    @property
    def template(self) -> dict[str, Any]:
        return self.vm["spec"]["template"]  # type: ignore[no-any-return]

    @property
    def domain(self) -> dict[str, Any]:
        return self.template["spec"]["domain"]  # type: ignore[no-any-return]

    @property
    def nic(self) -> dict[str, Any]:
        """The vhost-user interface."""
        return self.domain["devices"]["interfaces"][1]  # type: ignore[no-any-return]

    def spec(self, **keys: Any) -> None:
        """Set the annotation of the interface to this value."""
        self.template["metadata"]["annotations"] = {OURS: json.dumps({"dpdk": keys})}

    def config(self, **keys: Any) -> None:
        """Change the plugin's configuration; None removes a key."""
        config = json.loads(self.network["spec"]["config"]) | keys
        self.network["spec"]["config"] = json.dumps({key: value for key, value in config.items() if value is not None})

    def second_nic(self, **keys: Any) -> dict[str, Any]:
        """Add one more interface on the same network."""
        self.domain["devices"]["interfaces"].append({"name": "more", "binding": {"name": "vhostuser"}} | keys)
        networks = self.template["spec"]["networks"]
        networks.append({"name": "more", "multus": {"networkName": "dpdk"}})
        return networks[-1]  # type: ignore[no-any-return]

    def findings(self) -> list[Trap]:
        return found(self.kubevirt, self.network, self.vm, *self.others)


def found(*contents: Any) -> list[Trap]:
    return list(judge([ManifestDocument("f.yaml", content) for content in contents]).findings)


def grave(found: list[Trap]) -> list[Trap]:
    return [each for each in found if each.severity != "note"]


def plugin(name: str = "mine", **hook: Any) -> dict[str, Any]:
    """A Plugin object with a sidecar."""
    hooks = [{"sidecar": {"socketPath": f"/var/run/kubevirt-plugin/{name}/a.sock"}, **hook}]
    return {
        "apiVersion": "plugin.kubevirt.io/v1alpha1",
        "kind": "Plugin",
        "metadata": {"name": name},
        "spec": {"domainHooks": hooks},
    }


def launcher_plugin(*points: str, name: str = "userspace-cni-vhostuser", **sidecar: Any) -> dict[str, Any]:
    """A Plugin object in the form of KubeVirt 1.10, which is called at these hook points."""
    asked = {"socketPath": f"/var/run/kubevirt-plugin/{name}/a.sock", "permittedHooks": list(points), **sidecar}
    return {**plugin(name), "spec": {"launcherHooks": [{"sidecar": asked}]}}


def policy(allow: Any, **selectors: Any) -> dict[str, Any]:
    """A MigrationPolicy. It is for all VMs unless it has selectors."""
    spec = {"allowPostCopy": allow, "selectors": selectors}
    return {"apiVersion": "migrations.kubevirt.io/v1alpha1", "kind": "MigrationPolicy", "spec": spec}


def sidecar(**keys: Any) -> dict[str, Any]:
    """Our container in a launcher pod."""
    limits = {"limits": {"cpu": "200m", "memory": "64M"}}
    return {"name": "hook-sidecar-0", "image": "userspace-cni-kubevirt:1", "resources": limits, **keys}


def pod(**spec: Any) -> dict[str, Any]:
    """A launcher pod without any fault, with our sidecar."""
    compute = {"name": "compute", "resources": {"limits": {"hugepages-2Mi": "1Gi"}}}
    volumes = [{"name": "public", "emptyDir": {}}]
    metadata = {"name": "virt-launcher-vm-abcde", "labels": {"kubevirt.io": "virt-launcher"}, "annotations": {}}
    content = {"containers": [compute, sidecar()], "volumes": volumes, **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": content}


def told_pod(
    mode: str = "server", path: str = "/var/run/kubevirt/vhostuser/a.sock", mac: str = "02:00:00:00:00:01"
) -> dict[str, Any]:
    """A launcher pod with the annotations that Multus and KubeVirt write for network dpdk."""
    device = {"type": "vhost-user", "vhost-user": {"mode": mode, "path": path}}
    status = [{"name": "ns/dpdk", "interface": "pod5010c6ff3d0", "mac": "02:00:00:00:00:01", "device-info": device}]
    info = {"interfaces": [{"network": "dpdk", "mac": mac}]}
    told = pod()
    told["metadata"]["annotations"] = {
        "k8s.v1.cni.cncf.io/network-status": json.dumps(status),
        "kubevirt.io/network-info": json.dumps(info),
    }
    return told
