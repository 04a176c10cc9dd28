"""`why` of a pod whose interface is a logical port: with OVN, the controller's part, and what each of them lacks."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.lab.kube.apiserver import ApiServer
from tests.lab.kube.cluster_objects import node as api_node
from tests.lab.kube.definitions import multi_policy_definition, multus_definition
from tests.lab.node.forked_node import run_command
from tests.lab.node.node import Node
from tests.lab.ovn.central import CHASSIS, INTEGRATION, Ovn
from tests.lab.ovn.policed_pods import logical_network
from tests.lab.switch.switch import Switch, wait_until
from tests.ovn.test_kept_logical_ports import Kept
from tests.ovn.test_kept_policies import policy, space
from userspace_cni.base.root import HERE
from userspace_cni.base.settings import Settings
from userspace_cni.kube.kubeconfig import KubeconfigBounds
from userspace_cni.kube.pod_requests import Clients

LABELS = {"app": "web"}
NUMBERS = count(1)
FAR = "far"
"""Another chassis, which is only rows of the southbound database."""


@dataclass
class LogicalNode:
    """A node on OVN's chassis with one pod, whose logical port a controller has made."""

    node: Node
    ovn: Ovn
    switch: Switch
    api: ApiServer
    keeper: Kept
    pod: str

    @property
    def port(self) -> str:
        return f"default_{self.pod}"

    def option(self, key: str, value: str) -> None:
        self.ovn.nbctl("set", "Logical_Switch_Port", self.port, f"options:{key}={value}")

    def without_controller(self) -> None:
        self.keeper.ports.stop()

    def why(self) -> tuple[str, list[dict[str, Any]]]:
        """The paragraph, and the findings."""
        environ = self.node.environ | self.node.settings
        told, found = (run_command(environ, "why", self.pod, *more) for more in ((), ("--json",)))
        assert "Traceback" not in told.stderr, told.stderr
        [attachment] = json.loads(found.stdout)["attachments"]
        return told.stdout, attachment["findings"]

    def is_first(self, name: str, *words: str) -> None:
        """Wait until this finding is the first one, and the paragraph has the words."""

        def look() -> bool:
            text, findings = self.why()
            named = [each["name"] for each in findings[:1]] == [name]
            return named and bool(findings[0]["remedy"]) and not [each for each in words if each.lower() not in text.lower()]

        try:
            wait_until(look, 30, what=name)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.why()}") from None


@pytest.fixture
def logical(node: Node, ovn: Ovn, switch: Switch, sandbox: str, tmp_path: Path) -> Iterator[LogicalNode]:
    """The pod is attached, and nothing is wrong with it."""
    wait_until(lambda: switch.bridge(INTEGRATION), what="the controller has made its bridge")
    ovn.nbctl("--may-exist", "ls-add", CHASSIS, "--", "set", "Logical_Switch", CHASSIS, "other_config:subnet=192.168.1.0/24")
    with ApiServer() as api:
        for definition in (multus_definition(), multi_policy_definition()):
            api.define(definition)
        for thing in (api_node(CHASSIS), space("default", {})):
            api.add(thing)
        blue = logical_network("blue")
        network = {**json.loads(blue["spec"]["config"]), "host": {"iftype": "veth"}}
        api.add({**blue, "spec": {"config": json.dumps(network)}}, "default")
        pod = f"web-{next(NUMBERS)}"
        metadata = {"name": pod, "labels": LABELS, "annotations": {"k8s.v1.cni.cncf.io/networks": "blue"}}
        made = api.add_pod(
            {"metadata": metadata, "spec": {"nodeName": CHASSIS, "containers": []}, "status": {"phase": "Running"}}
        )
        kubeconfig = api.kubeconfig(tmp_path)
        names = {"OVN_RUNDIR": ovn.rundir, "OVN_NB": ovn.remote("nb"), "KUBECONFIG": kubeconfig, "NODE_NAME": CHASSIS}
        node.settings |= {f"USERSPACE_CNI_{name}": value for name, value in names.items()}
        session = Clients(KubeconfigBounds.of(Settings()), HERE, kubeconfig).of("").session
        keeper = Kept(session, Settings(ovn_nb=ovn.remote("nb"), ovn_default_network=False))
        try:
            uid = made["metadata"]["uid"]
            args = f"IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME={pod};K8S_POD_UID={uid}"
            done = node.run("ADD", network, sandbox, CNI_ARGS=args)
            assert done.status == 0, done.stdout
            found = LogicalNode(node, ovn, switch, api, keeper, pod)
            text, findings = found.why()
            assert "Nothing wrong was found." in text, (text, findings)
            assert f"logical port default_{pod}, which OVN has installed" in text
            yield found
        finally:
            keeper.ports.stop()
            keeper.events.stop()
            ovn.nbctl("--if-exists", "lsp-del", f"default_{pod}")
            node.run("DEL", network, sandbox)


def multi_policy(name: str, **spec: Any) -> dict[str, Any]:
    """A policy for the interfaces of the network blue."""
    made = policy(name, **spec)
    notes = {"k8s.v1.cni.cncf.io/policy-for": "blue"}
    kind = {"apiVersion": "k8s.cni.cncf.io/v1beta1", "kind": "MultiNetworkPolicy"}
    return {**made, **kind, "metadata": {**made["metadata"], "annotations": notes}}


@pytest.fixture
def stopped(ovn: Ovn) -> Iterator[Callable[[], None]]:
    """Stops ovn-controller, until the end of the test."""
    pid = int((Path(ovn.rundir) / "controller.pid").read_text())
    yield lambda: os.kill(pid, signal.SIGSTOP)
    os.kill(pid, signal.SIGCONT)


def test_a_logical_port_that_is_gone(logical: LogicalNode) -> None:
    """The controller is away, and the row was deleted: that is the cause, and no word of the chassis."""
    logical.without_controller()
    logical.ovn.nbctl("lsp-del", logical.port)
    logical.is_first("logical-port-missing", f"has no logical port {logical.port}", "no controller has made it")


def test_a_logical_port_of_another_pod_of_the_name(logical: LogicalNode) -> None:
    """Its row has the UID of another pod."""
    logical.without_controller()
    logical.option("iface-id-ver", "u-former")
    logical.is_first("logical-port-version", "its options:iface-id-ver is u-former")


def test_a_logical_port_that_is_asked_for_elsewhere(logical: LogicalNode) -> None:
    """options:requested-chassis names another chassis; without the northbound database it is seen where the port is bound."""
    logical.without_controller()
    logical.ovn.sbctl("--may-exist", "chassis-add", FAR, "geneve", "192.0.2.9")
    try:
        logical.option("requested-chassis", FAR)
        logical.is_first("logical-port-requested-elsewhere", f"is asked for on chassis {FAR}", f"this is {CHASSIS}")
        logical.ovn.sbctl("lsp-bind", logical.port, FAR)
        del logical.node.settings["USERSPACE_CNI_OVN_NB"]
        logical.is_first("logical-port-elsewhere", f"is bound to chassis {FAR}")
    finally:
        logical.ovn.sbctl("--if-exists", "lsp-unbind", logical.port)
        logical.ovn.sbctl("--if-exists", "chassis-del", FAR)


def test_a_logical_port_that_is_disabled(logical: LogicalNode) -> None:
    """OVN drops its frames, although the port is installed."""
    logical.without_controller()
    logical.ovn.nbctl("lsp-set-enabled", logical.port, "disabled")
    logical.is_first("logical-port-disabled", "is disabled in the northbound database", "lsp-set-enabled")


def test_an_ovn_controller_that_is_silent(logical: LogicalNode, stopped: Callable[[], None]) -> None:
    """What is installed goes on, which is said; of a port that is not installed it is the cause."""
    stopped()
    logical.is_first("ovn-controller-dead", "ovn-controller does not answer", "what is installed goes on")
    [row] = logical.switch.rows("Interface", f"external_ids:iface-id={logical.port}")
    logical.switch.vsctl("remove", "Interface", row["name"], "external_ids", "ovn-installed")
    logical.is_first("ovn-controller-dead", "ovn-controller does not answer", "the switch drops the pod's frames")


def test_a_southbound_database_that_is_not_reached(logical: LogicalNode) -> None:
    """external_ids:ovn-remote leads nowhere: ovn-controller's own word, and what could not be asked is told."""
    former = logical.ovn.remote("sb")
    logical.switch.vsctl("set", "Open_vSwitch", ".", "external_ids:ovn-remote=unix:/no/such.sock")
    try:
        logical.is_first("ovn-southbound-away", "of the southbound database unix:/no/such.sock", "OVN's southbound database")
    finally:
        logical.switch.vsctl("set", "Open_vSwitch", ".", f'external_ids:ovn-remote="{former}"')
        wait_until(lambda: "connected" in logical.ovn.control("connection-status"), what="ovn-controller to be back")


def test_a_chassis_that_is_none(logical: LogicalNode) -> None:
    """Without external_ids:system-id the node is no chassis; what sets it is the remedy."""
    logical.switch.vsctl("remove", "Open_vSwitch", ".", "external_ids", "system-id")
    try:
        [row] = logical.switch.rows("Interface", f"external_ids:iface-id={logical.port}")
        logical.switch.vsctl("remove", "Interface", row["name"], "external_ids", "ovn-installed")
        logical.is_first("ovn-chassis-unset", "external_ids:system-id of Open_vSwitch is not set", "userspace-cni ovn init-node")
    finally:
        logical.switch.vsctl("set", "Open_vSwitch", ".", f"external_ids:system-id={CHASSIS}")


def test_policies_that_isolate_the_pod(logical: LogicalNode) -> None:
    """They are named, with the direction; that is no fault, and `ovn trace` says what becomes of a packet."""
    for name in ("from-front", "from-probes"):
        rules: list[dict[str, Any]] = [{"from": [{"podSelector": {"matchLabels": {"app": name}}}]}]
        logical.api.add(
            multi_policy(name, podSelector={"matchLabels": LABELS}, policyTypes=["Ingress"], ingress=rules), "default"
        )
    wait_until(lambda: "from-probes" in logical.why()[0], what="the policies in OVN")
    text, findings = logical.why()
    assert [(each["severity"], "ovn trace" in each["remedy"]) for each in findings if each["name"] == "policies-isolate"] == [
        ("note", True)
    ]
    assert "policies isolate the pod for ingress" in text
    assert "MultiNetworkPolicy default/from-front, MultiNetworkPolicy default/from-probes" in text
    assert "Nothing wrong was found." in text
