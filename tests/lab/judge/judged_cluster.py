"""The cluster on which Kubernetes' cases run: one node, whose pods have OVN's network alone, of both families.

There is no kube-proxy. `python -m tests.lab.judge.judged_cluster` starts one to look at.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from tests.lab.cluster.cluster import NAMESPACE, Cluster, one_cluster
from tests.lab.cluster.control import API, NODE_NAME, SERVICES
from tests.lab.cluster.node import ADDRESS, GATEWAY, NODE_LINK
from tests.lab.cluster.ovn_overlay import apply_ovn, import_image
from tests.lab.cluster.shape import SecondFamily, Shape
from tests.lab.judge import agnhost_image, cluster_dns

SECOND: Final = SecondFamily(node="fd00:30::2", gateway="fd00:30::1", pods="fd00:10:244::/64")
CLUSTER_SUBNETS: Final = "10.244.0.0/16,fd00:10:244::/56"
DNS: Final = "10.96.0.10"
SERVICE_SUBNETS: Final = f"{SERVICES},fd00:10:96::/112"
_RANGE: Final = f"--service-cluster-ip-range={SERVICE_SUBNETS}"
_DUAL: Final = "--feature-gates=IPv6DualStack=true"
_BRIDGE: Final = "breth0"
_NETWORK: Final[dict[str, Any]] = {
    "cniVersion": "1.0.0",
    "name": "pods",
    "plugins": [{"type": "userspace", "host": {"iftype": "veth"}, "ovn": {"switch": "node"}, "addresses": "annotations"}],
}
_SHAPE: Final = Shape(
    network=_NETWORK,
    second=SECOND,
    arguments={
        # the address that pods reach by the Service `kubernetes`: its own is on no machine that OVN knows
        "kube-apiserver": [_DUAL, _RANGE, f"--advertise-address={GATEWAY}", "--endpoint-reconciler-type=master-count"],
        "kube-controller-manager": [
            *(_DUAL, _RANGE, "--allocate-node-cidrs=true", f"--cluster-cidr={CLUSTER_SUBNETS}"),
            "--node-cidr-mask-size-ipv6=64",
        ],
        "kubelet": [_DUAL, f"--node-ip={ADDRESS},{SECOND.node}"],
    },
    kubelet={"clusterDNS": [DNS], "clusterDomain": cluster_dns.DOMAIN},
)
_PAGES: Final = 0


@contextmanager
def judged_cluster() -> Iterator[Cluster]:
    """The cluster; all of it is Ready."""
    image = agnhost_image.archive()
    with one_cluster(_PAGES, _SHAPE) as cluster:
        # the node's own processes reach the API server before there is OVN, by which they reach all other Services
        cluster.node_shell("ip", "route", "add", API, "via", GATEWAY)
        import_image(cluster, image)
        directory = cluster.top / "overlay"
        directory.mkdir()
        apply_ovn(
            cluster,
            directory,
            {
                "OVN_CLUSTER_SUBNET": CLUSTER_SUBNETS,
                "OVN_SERVICE_SUBNET": SERVICE_SUBNETS,
                "USERSPACE_CNI_OVN_GATEWAY_BRIDGE": _BRIDGE,
            },
            ["ovn-default-network"],
            replicas=[{"name": "userspace-cni-controller", "count": 1}],
        )
        cluster.wait_agent()
        _share_address(cluster)
        _serve_names(cluster)
        yield cluster


def _share_address(cluster: Cluster) -> None:
    """Make the node's NIC a bridge's, and OVN's gateway router on it one with the node's address; pods leave by it."""
    # the kernel gives a veth frames without checksums, and the userspace datapath would pass them on
    cluster.control.machine.run("ethtool", "-K", NODE_LINK, "tx", "off")
    cluster.agent("nic-to-bridge", "eth0", "--bridge", _BRIDGE, "--move-addresses", "primary")
    addresses = f"{ADDRESS}/24,{SECOND.node}/64"
    gateway = ("--bridge", _BRIDGE, "--shared", "--ip", addresses, "--next-hop", f"{GATEWAY},{SECOND.gateway}")
    databases = [f"USERSPACE_CNI_OVN_{each}=tcp:{ADDRESS}:{port}" for each, port in (("NB", 6641), ("SB", 6642))]
    pod = cluster.agent_pod()["metadata"]["name"]
    init = ("env", *databases, "userspace-cni", "ovn", "init-gateway", *gateway)
    cluster.exec(pod, *init, container="agent", namespace=NAMESPACE)


def nbctl(cluster: Cluster, *arguments: str) -> str:
    """What OVN's ovn-nbctl prints."""
    database = f"--db=tcp:{ADDRESS}:6641"
    return cluster.exec("ovn-databases-0", "ovn-nbctl", database, *arguments, container="nb", namespace=NAMESPACE)


def versions(cluster: Cluster) -> str:
    """What the cluster consists of, in words."""
    kubernetes = json.loads(cluster.kubectl("version", "-o", "json"))["serverVersion"]["gitVersion"].removeprefix("v")
    ovn = re.search(r"[\d.]+", nbctl(cluster, "--version"))
    switch = re.search(r"[\d.]+", cluster.node_shell("ovs-vsctl", "--version"))
    assert ovn, "ovn-nbctl tells no version"
    assert switch, "ovs-vsctl tells no version"
    return f"Kubernetes {kubernetes}, OVN {ovn[0]}, Open vSwitch {switch[0]} with DPDK"


def _serve_names(cluster: Cluster) -> None:
    """Start the server of names beside the API server, and make the Service by which pods reach it."""
    control = cluster.control
    program = (sys.executable, "-m", "tests.lab.judge.cluster_dns", GATEWAY, str(control.proxy))
    control.machine.start(control.directory / "dns.log", *program)
    ports = [{"name": "dns", "port": cluster_dns.PORT, "protocol": "UDP"}]
    metadata = {"name": "kube-dns", "namespace": "kube-system"}
    cluster.apply(
        {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"clusterIP": DNS, "ports": ports}},
        {
            "apiVersion": "v1",
            "kind": "Endpoints",
            "metadata": metadata,
            "subsets": [{"addresses": [{"ip": GATEWAY}], "ports": ports}],
        },
    )


def main() -> None:
    """Start the cluster, print how to use it, and end it when stdin ends."""
    with judged_cluster() as made:
        print("kubectl:", shlex.join(made.control.kubectl()))
        print("on the node:", shlex.join(made.node.machine.command("bash")))
        print(f"API server {API}, node {NODE_NAME}; logs:", made.top, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
