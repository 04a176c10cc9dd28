"""Pods for tests of a cluster: with the image that every node of the lab has, this machine's programs and this checkout."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from tests.lab.frames.testpmd import MEMORY_MIB
from tests.lab.kube.pods import MAPPED_DIR
from tests.lab.runtimes.agent_image import IMAGE as AGENT_IMAGE
from tests.lab.runtimes.dockerfile import ROOT
from tests.lab.runtimes.images import IMAGE

READER = f"{sys.executable} -I -m userspace_cni.pod"
"""The command of the reader in the pod, for a shell."""
BRIDGE = "br-test"
SUBNET = "10.56.217.0/24"
_TOLD: Sequence[Mapping[str, Any]] = (
    {"name": "shared-dir", "mountPath": MAPPED_DIR, "mountPropagation": "HostToContainer"},
    {"name": "podinfo", "mountPath": "/etc/podinfo"},
)
_VOLUMES: Sequence[Mapping[str, Any]] = (
    {"name": "shared-dir", "emptyDir": {}},
    {"name": "podinfo", "downwardAPI": {"items": [{"path": "annotations", "fieldRef": {"fieldPath": "metadata.annotations"}}]}},
)
"""The mounts of the container and the volumes of the pod in docs/network.md: sockets and annotations."""
_SLEEP = ("sh", "-c", "trap exit TERM; sleep 2147483647 & wait")
"""It ends at once when told to: a first process without a trap would not, and the kubelet would wait 2 s for each."""


def pod(name: str, *command: str, annotations: Mapping[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    """A pod with one container `app`, which sleeps unless there is a command; `spec` overrides the pod's spec."""
    container = {"name": "app", "image": IMAGE, "command": list(command or _SLEEP)}
    metadata = {"name": name, "labels": {"app": name}, "annotations": dict(annotations or {})}
    body = {
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "dnsPolicy": "Default",
        "containers": [container],
        **spec,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": body}


def attached_pod(name: str, *command: str, **spec: Any) -> dict[str, Any]:
    """A pod with only a place for its sockets: its interfaces have no application, and it takes no hugepages.

    Its container mounts the place, because the kubelet makes no volume that no container mounts.
    """
    made = pod(name, *command, volumes=[{"name": "shared-dir", "emptyDir": {}}], **spec)
    made["spec"]["containers"][0]["volumeMounts"] = [{"name": "shared-dir", "mountPath": MAPPED_DIR}]
    return made


def deployment(name: str, replicas: int) -> dict[str, Any]:
    """A Deployment of `attached_pod`, with the label app of that name."""
    template = attached_pod(name)
    spec: dict[str, Any] = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}}
    spec["template"] = {"metadata": {"labels": {"app": name}}, "spec": template["spec"]}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


def dpdk_pod(name: str, *command: str, **context: Any) -> dict[str, Any]:
    """A pod for vhost-user interfaces as in docs/network.md: volumes for sockets and annotations, and hugepages.

    It sees this machine's programs and this checkout. Its CPU is limited to part of a core, because it would poll all of one.
    `context` is its container's security context.
    """
    made = pod(name, *command)
    container = made["spec"]["containers"][0]
    machine = {"/usr": "usr", str(ROOT): "checkout"}
    container["volumeMounts"] = [
        *({"name": volume, "mountPath": path, "readOnly": True} for path, volume in machine.items()),
        *_TOLD,
        {"name": "tmp", "mountPath": "/tmp"},
    ]
    container["env"] = [{"name": "RUNTIME_DIRECTORY", "value": "/tmp"}]
    container["resources"] = {"limits": {"hugepages-2Mi": f"{MEMORY_MIB}Mi", "memory": "256Mi", "cpu": "300m"}}
    container["securityContext"] = context
    container["stdin"] = True
    made["spec"]["volumes"] = [
        {"name": "usr", "hostPath": {"path": "/usr"}},
        {"name": "checkout", "hostPath": {"path": str(ROOT)}},
        {"name": "tmp", "emptyDir": {}},
        *_VOLUMES,
    ]
    return made


def tap_pod(name: str, *interfaces: str) -> dict[str, Any]:
    """A pod as in docs/tap.md: `app`, which sleeps, and for each interface a container `tap-INTERFACE` that makes it a link."""
    made = pod(name)
    made["spec"]["containers"] += [
        {
            "name": f"tap-{interface}",
            "image": AGENT_IMAGE,
            "command": ["userspace-cni", "tap", f"--interface={interface}"],
            "securityContext": {"capabilities": {"add": ["NET_ADMIN"]}},
            "volumeMounts": [*_TOLD, {"name": "tun", "mountPath": "/dev/net/tun"}],
        }
        for interface in interfaces
    ]
    made["spec"]["volumes"] = [*_VOLUMES, {"name": "tun", "hostPath": {"path": "/dev/net/tun", "type": "CharDevice"}}]
    return made


def with_the_machine(spec: dict[str, Any]) -> None:
    """Give the containers of a pod's spec the lab's image, this machine's programs and this checkout's reader."""
    machine = {"usr": "/usr", "reader": str(ROOT)}
    spec["volumes"] += [{"name": name, "hostPath": {"path": path}} for name, path in machine.items()]
    for container in spec["containers"]:
        container["image"] = IMAGE
        container["volumeMounts"] += [{"name": name, "mountPath": path, "readOnly": True} for name, path in machine.items()]
        container.setdefault("env", []).append({"name": "PYTHONPATH", "value": str(ROOT)})


def network(name: str, subnet: str = SUBNET, **host: Any) -> dict[str, Any]:
    """A network of ours as a file of the node, with client ports on BRIDGE; `host` overrides its block of that name."""
    block = {"vhost": {"mode": "client"}, "bridge": {"bridgeName": BRIDGE}, **host}
    plugin = {"type": "userspace", "host": block, "ipam": {"type": "host-local", "subnet": subnet}}
    return {"cniVersion": "1.0.0", "name": name, "plugins": [plugin]}


def link_network(name: str, subnet: str = SUBNET, **host: Any) -> dict[str, Any]:
    """The same for kernel links: its pods need neither a place for sockets nor an application."""
    made = network(name, subnet, iftype="veth", **host)
    del made["plugins"][0]["host"]["vhost"]
    return made


def forwarding(mode: str, *options: str, expect: int = 1, reader: str = READER) -> Sequence[str]:
    """The command of a container in which testpmd waits for `expect` interfaces and forwards frames, on the first core alone."""
    eal = f"--lcores=0@0,1@0 --no-pci -m {MEMORY_MIB} $({reader} --wait --expect {expect})"
    run = f"--total-num-mbufs=4096 --no-mlockall --forward-mode={mode} --stats-period=1 {' '.join(options)}"
    return ("sh", "-c", f"exec dpdk-testpmd {eal} -- {run}")
