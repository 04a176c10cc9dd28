"""overlays/ovn-single as it is applied: from a node without OVN to pods that reach each other by their logical ports."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.cluster.test_deployed_examples import EXAMPLES, NETWORKS, read
from tests.lab.cluster.cluster import NAMESPACE, Cluster
from tests.lab.cluster.control import NODE_NAME
from tests.lab.cluster.node import ADDRESS
from tests.lab.cluster.ovn_overlay import DEFINITION, LABEL, OVERLAYS, WORKLOADS, apply_ovn, wait_rolled_out
from tests.lab.cluster.ovn_sight import told
from tests.lab.cluster.pods import pod, with_the_machine
from userspace_cni.base.whereabouts import CONFIG_FILE

pytestmark = pytest.mark.timeout(900)  # the first test of a run starts the cluster
NODE_PORT = f"k8s-{NODE_NAME}"


@pytest.fixture
def ovn(clean: Cluster, tmp_path: Path) -> Iterator[Cluster]:
    """The overlay is applied, with the node's address, and all of it is Ready; in the end the node is as it was."""
    try:
        apply_ovn(clean, tmp_path)
        yield clean
    finally:
        remove(clean)


def ended(cluster: Cluster) -> dict[str, str]:
    """The containers of the overlay that have ended once, each with the exit code and the end of what it said."""
    pods = json.loads(cluster.kubectl("-n", NAMESPACE, "get", "pods", "-o", "json"))["items"]
    states = [(each["metadata"]["name"], state) for each in pods for state in each["status"].get("containerStatuses", ())]
    return {
        f"{name} {state['name']} {state['lastState']}": cluster.kubectl(
            "-n", NAMESPACE, "logs", name, "--container", state["name"], "--previous"
        )[-3000:]
        for name, state in states
        if state["restartCount"]
    }


def remove(cluster: Cluster) -> None:
    """Take the overlay away, but for the agents, and what OVN has on the node."""
    cluster.delete("deployments,replicasets", "--all", "--cascade=orphan")
    cluster.end_pods()
    cluster.wait(lambda: not cluster.node.ports(), "no port of a pod")
    config = cluster.path(CONFIG_FILE)
    if config.exists():
        config.write_text("")  # an agent that starts undoes the node's own port
        cluster.roll_out()
        cluster.wait(lambda: NODE_PORT not in {row["name"] for row in cluster.switch.rows("Interface")}, "the node's port gone")
    cluster.kubectl("-n", NAMESPACE, "delete", *WORKLOADS, "--ignore-not-found")
    cluster.kubectl("delete", "-k", str(OVERLAYS / "logical-ports"), "--ignore-not-found", "--wait=false")
    cluster.end_controller()
    cluster.kubectl("delete", "customresourcedefinition", DEFINITION["metadata"]["name"], "--ignore-not-found")
    cluster.kubectl("label", "node", NODE_NAME, f"{LABEL}-")
    cluster.switch.vsctl("--no-wait", "--if-exists", "del-br", "br-int")
    keys = [key for key in cluster.switch.rows("Open_vSwitch")[0]["external_ids"] if key.startswith("ovn-") or key == "hostname"]
    cluster.switch.vsctl("--no-wait", "remove", "Open_vSwitch", ".", "external_ids", *keys)
    cluster.node_shell("rm", "-rf", "/var/lib/ovn", CONFIG_FILE)


def wait_answers(cluster: Cluster, address: str) -> None:
    """Wait until the address answers the node; AssertionError tells what is in the way."""
    ping = ("ping", "-c", "1", "-W", "1", address)
    with told(cluster, NODE_PORT, address):
        installed = "the node's own port is OVN's"
        cluster.wait(
            lambda: cluster.switch.interface(NODE_PORT).get("external_ids", {}).get("ovn-installed") == "true", installed
        )
        cluster.wait(lambda: not cluster.node.machine.attempt(*ping).returncode, f"{address} answers the node")


def test_from_nothing_to_pods(ovn: Cluster) -> None:
    """The node is OVN's, without a finding; pods of the examples' networks get addresses from the controller, and the node's own
    port, which the agent made, reaches them, with veths and with DPDK; also after OVN's pods have been made anew."""
    found = json.loads(ovn.agent("ovn", "check", "--json"))["findings"]
    assert [each for each in found if each["severity"] != "note"] == []
    assert ended(ovn) == {}
    [chassis] = json.loads(ovn.agent("ovn", "status", "--json"))["chassis"]
    assert (chassis["hostname"], chassis["tunnels"]) == (NODE_NAME, [["geneve", ADDRESS]])
    networks, _ = read(EXAMPLES / "ovn-veth.yaml")
    [definition, _] = yaml.safe_load_all((EXAMPLES / "ovn-veth.yaml").read_text())
    ovn.apply(definition)
    ovn.join(*networks)
    ovn.apply(*(pod(name, annotations={NETWORKS: "ovn-veth"}) for name in ("ovn-one", "ovn-two")))
    ovn.wait_running("ovn-one", "ovn-two")
    addresses = [json.loads(ovn.pod(name)["metadata"]["annotations"]["ovn"])["ip_address"] for name in ("ovn-one", "ovn-two")]
    assert sorted(addresses) == ["10.248.0.3/24", "10.248.0.4/24"]
    for address in (each.partition("/")[0] for each in addresses):
        wait_answers(ovn, address)
    for each in WORKLOADS:
        ovn.kubectl("-n", NAMESPACE, "rollout", "restart", each)
    for each in WORKLOADS:
        wait_rolled_out(ovn, each)
    wait_answers(ovn, addresses[0].partition("/")[0])
    ovn.apply(pod("three", annotations={NETWORKS: "ovn-veth"}))
    ovn.wait_running("three")
    ovn.end_pods()
    ovn.wait(lambda: not ovn.node.ports(), "no port of a pod")
    networks, deployment = read(EXAMPLES / "ovn-dpdk.yaml")
    [definition, _] = yaml.safe_load_all((EXAMPLES / "ovn-dpdk.yaml").read_text())
    template = deployment["spec"]["template"]
    template["metadata"]["annotations"][NETWORKS] = definition["metadata"]["name"]
    with_the_machine(template["spec"])
    ovn.apply(definition)
    ovn.join(*networks)
    ovn.apply(deployment)
    [name] = ovn.wait(lambda: [each["metadata"]["name"] for each in ovn.pods("app=ovn-dpdk")], "the Deployment's pod")
    ovn.wait_running(name)
    address = json.loads(ovn.pod(name)["metadata"]["annotations"]["ovn"])["ip_address"].partition("/")[0]
    wait_answers(ovn, address)
