"""Launcher pods of KubeVirt VMs, as kubelet, runtime and API server know them before the plugin is called."""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.lab.kube.apiserver import ApiServer
from tests.lab.node.node import Node
from userspace_cni.pod import launcher

IFNAME = launcher.interface_name("dpdk")
SOCKET = launcher.socket_file(IFNAME)


@dataclass(frozen=True)
class LauncherPod:
    """One launcher pod of the VM; the next one of the same VM differs in `random` and UID."""

    machine: str = "vm-1"
    random: str = "abcde"
    namespace: str = "default"
    uid: str = field(default_factory=lambda: str(uuid.uuid4()))

    @property
    def name(self) -> str:
        """As the API server makes it of metadata.generateName."""
        return f"virt-launcher-{self.machine}-"[:58] + self.random

    @property
    def args(self) -> str:
        """CNI_ARGS as containerd makes them."""
        return f"{self.args_without_uid};K8S_POD_UID={self.uid}"

    @property
    def args_without_uid(self) -> str:
        """CNI_ARGS of a runtime that sends no UID."""
        return f"IgnoreUnknown=1;K8S_POD_NAMESPACE={self.namespace};K8S_POD_NAME={self.name}"

    def public(self, node: Node) -> Path:
        """Its emptyDir `public`, made as the kubelet makes it for a pod with fsGroup 107."""
        path = node.empty_dir(self.uid, launcher.VOLUME)
        os.chown(path, 0, launcher.QEMU_ID)
        path.chmod(0o2777)
        return path

    def directory(self, node: Node) -> Path:
        return self.public(node) / launcher.DIRECTORY

    def create(self, api: ApiServer) -> None:
        container = {"name": "compute", "image": "launcher", "volumeMounts": [{"name": "public", "mountPath": launcher.MOUNT}]}
        pod: dict[str, Any] = {
            "metadata": {
                "name": self.name,
                "namespace": self.namespace,
                "uid": self.uid,
                "annotations": {launcher.DOMAIN: self.machine},
            },
            "spec": {"volumes": [{"name": "public", "emptyDir": {}}], "containers": [container]},
            "status": {"phase": "Pending"},
        }
        api.add_pod(pod)


def vm_network(node: Node, version: str = "1.1.0", *, mtu: int = 9000, **keys: Any) -> dict[str, Any]:
    """A network for VMs on br-test, whose host block does not say OVS's role."""
    host = {"engine": "ovs-dpdk", "iftype": "vhostuser", "bridge": {"bridgeName": "br-test"}, "mtu": mtu}
    return node.network(version, **{"host": host, "consumer": "kubevirt", **keys})
