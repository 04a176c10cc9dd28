"""Which logical port of OVN a pod's interface is, on which bridge, and whether the rules let its pod have it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.lab.node.configurations import request_of
from userspace_cni.attachment.facts import Pod
from userspace_cni.attachment.steps import LogicalPort
from userspace_cni.base.errors import BadEnvironment, BridgeRefused, InvalidConfig, LogicalPortRefused
from userspace_cni.base.settings import Settings
from userspace_cni.base.tenancy import read_rules
from userspace_cni.cni.annotations import Logical
from userspace_cni.cni.options import Options, read_options
from userspace_cni.cni.request import Request
from userspace_cni.consumers import CONSUMERS
from userspace_cni.node.installation import Installation
from userspace_cni.node.pod_annotations import interface_of
from userspace_cni.node.pod_logical_port import logical_port, place_options, require_allowed

POD = "K8S_POD_NAMESPACE=blue;K8S_POD_NAME=web-0"
USUAL = Settings()
KUBEOVN = Settings(ovn_naming="kube-ovn")
WEB = Pod("blue", "web-0", "u1")
LAUNCHER = Pod("blue", "virt-launcher-db-abcde", "u1", api_uid="u1", machine_uid="vmi-1")


def asked(cni_args: str = POD, **keys: Any) -> tuple[Request, Options]:
    """A call of the runtime's, and what it asks for."""
    request = request_of(cni_args, **keys)
    return request, read_options(request, CONSUMERS, lambda _: None)


def named(
    settings: Settings = USUAL, logical: Logical = "first", pod: Pod = WEB, cni_args: str = POD, **keys: Any
) -> LogicalPort | None:
    """The logical port of the interface of that call."""
    request, options = asked(cni_args, **keys)
    owner = CONSUMERS[options.consumer].logical_owner(pod)
    installation = Installation(settings, {})
    return logical_port(options, request.environment, interface_of(request, settings, logical), installation, owner)


def test_names() -> None:
    """After the pod; further interfaces after themselves too, or with kube-ovn's names after their network."""
    assert named(ovn={}) == LogicalPort("blue_web-0", "u1")
    assert named(ovn={"wait": "port"}, logical="further") == LogicalPort("blue_web-0_net1", "u1", waits=False)
    ids = {"pod_name": "web-0", "pod_namespace": "blue", "pod_netns": "/run/netns/x"}
    assert named(KUBEOVN, ovn={}) == LogicalPort("web-0.blue", "u1", ids)
    assert named(KUBEOVN, ovn={}, logical="further") == LogicalPort("web-0.blue.n.blue.ovn", "u1", ids)
    assert named() is None


def test_a_static_pod_has_the_uid_of_the_api() -> None:
    """The controller of logical ports knows no other: the node's own UID of a static pod would be bound nowhere."""
    assert named(ovn={}, pod=Pod("blue", "web-0", "on-node", api_uid="in-api")) == LogicalPort("blue_web-0", "in-api")


def test_a_vm_has_one_logical_port_on_all_nodes() -> None:
    """It is called after the VM, and its version is that of the VM's instance: the pod to which it migrates has the same."""
    target = Pod("blue", "virt-launcher-db-vwxyz", "u2", api_uid="u2", machine_uid="vmi-1")
    found = [named(ovn={}, consumer="kubevirt", pod=pod) for pod in (LAUNCHER, target)]
    assert found == [LogicalPort("blue_db", "vmi-1")] * 2
    with pytest.raises(BadEnvironment):
        named(ovn={}, consumer="kubevirt", pod=Pod("blue", "web-0"))


def test_a_port_without_a_pod() -> None:
    """Its name has to be given, as there is no pod after which it could be called."""
    with pytest.raises(BadEnvironment, match="K8S_POD_NAMESPACE"):
        named(ovn={}, cni_args="")
    assert named(ovn={}, cni_args="OvnPort=p", pod=Pod()) == LogicalPort("p")


def test_the_bridge() -> None:
    """A logical port is on OVN's bridge, which a network may name and not change; others are where their network says."""
    settings = Settings(ovn_bridge="br-ovn")
    assert [place_options(each, settings).bridge for each in (asked()[1], asked(ovn={})[1])] == ["br0", "br-ovn"]
    host = {"bridge": {"bridgeName": "br-ovn"}}
    assert place_options(asked(ovn={}, host=host)[1], settings).bridge == "br-ovn"
    with pytest.raises(InvalidConfig, match="'br-ovn' beside 'ovn': OVN sees only the ports of br-int"):
        place_options(asked(ovn={}, host=host)[1], Settings())


def allowed(settings: Settings, cni_args: str = POD, **keys: Any) -> type[Exception] | None:
    """The error for such a port of a pod, None for none."""
    request, options = asked(cni_args, **keys)
    try:
        require_allowed(place_options(options, settings), request.environment, settings)
    except (BridgeRefused, LogicalPortRefused) as error:
        return type(error)
    return None


def test_what_a_tenant_may_have() -> None:
    """The node's own switch, and ports of its own namespace; OVN's bridge in no other way. Without a pod rules bind no call."""
    host = {"bridge": {"bridgeName": "br-int"}}
    assert allowed(USUAL, ovn={}) is None
    assert allowed(USUAL, ovn={"switch": "dmz"}) is LogicalPortRefused
    assert allowed(USUAL, host=host) is BridgeRefused
    assert allowed(USUAL, cni_args="", host=host) is None
    assert allowed(USUAL, cni_args=f"{POD};OvnPort=blue_db") is None
    assert allowed(USUAL, cni_args=f"{POD};OvnPort=red_db") is LogicalPortRefused
    assert allowed(KUBEOVN, cni_args=f"{POD};OvnPort=db.red") is LogicalPortRefused
    assert allowed(KUBEOVN, cni_args=f"{POD};OvnPort=db.blue") is None
    assert allowed(KUBEOVN, cni_args="K8S_POD_NAMESPACE=ovn;K8S_POD_NAME=a;OvnPort=db.ovn") is None
    assert allowed(KUBEOVN, cni_args="K8S_POD_NAMESPACE=ovn;K8S_POD_NAME=a;OvnPort=db.red.net.red.ovn") is LogicalPortRefused
    assert allowed(USUAL, cni_args="OvnPort=red_db", ovn={}) is None


def test_no_pod_is_called_as_a_node() -> None:
    """With kube-ovn's names a pod's name and namespace could be those of a node's own port: in the domain of the nodes it has
    none, but by a rule."""
    settings = replace(KUBEOVN, node_name="n7.example.com")
    pod, cni_args = Pod("com", "k8s-n1.example", "u1"), "K8S_POD_NAMESPACE=com;K8S_POD_NAME=k8s-n1.example"
    with pytest.raises(LogicalPortRefused, match="not named after a pod of its own namespace alone"):
        named(settings, ovn={}, pod=pod, cni_args=cni_args)
    assert allowed(settings, cni_args=f"{cni_args};OvnPort=node-n1.example.com") is LogicalPortRefused
    every = replace(settings, rules=read_rules([{"namespaces": ["com"], "logical_switches": ["*"]}], "c.toml"))
    assert named(every, ovn={}, pod=pod, cni_args=cni_args) is not None
    assert allowed(every, cni_args=f"{cni_args};OvnPort=node-n1.example.com") is None


def test_no_pod_is_called_as_a_further_port_of_another() -> None:
    """With kube-ovn's names pod a.b.c.b of namespace ovn would be: it has no port, and with other names it has one."""
    pod, cni_args = Pod("ovn", "a.b.c.b", "u1"), "K8S_POD_NAMESPACE=ovn;K8S_POD_NAME=a.b.c.b"
    with pytest.raises(LogicalPortRefused, match="not named after a pod of its own namespace alone"):
        named(KUBEOVN, ovn={}, pod=pod, cni_args=cni_args)
    assert named(USUAL, ovn={}, pod=pod, cni_args=cni_args) == LogicalPort("ovn_a.b.c.b", "u1")
    assert named(KUBEOVN, ovn={}, pod=Pod("ovn", "a.b.c.d", "u1"), cni_args=cni_args) is not None


def test_rules_open_switches_and_not_bridges() -> None:
    """A logical port is bound by the rules of switches alone: its bridge is the administrator's choice."""
    table = {"namespaces": ["blue"], "bridges": ["br-t*"], "logical_switches": ["dmz"]}
    ruled = Settings(rules=read_rules([table], "c.toml"))
    assert allowed(ruled, ovn={"switch": "dmz"}) is None
    assert allowed(ruled, ovn={}) is LogicalPortRefused
    assert allowed(ruled) is BridgeRefused


@pytest.mark.parametrize("keys", [{"ovn": {"portSecurity": False}}, {"ovn": {}, "addresses": "unknown"}])
def test_a_port_that_sends_from_any_address(keys: dict[str, Any]) -> None:
    """A definition's author gets one only by a rule, also for a VM's; without a pod it is the administrator's own word."""
    ruled = Settings(rules=read_rules([{"namespaces": ["blue"], "without_port_security": ["node"]}], "c.toml"))
    assert allowed(USUAL, **keys) is LogicalPortRefused
    assert allowed(USUAL, consumer="kubevirt", **keys) is LogicalPortRefused
    assert allowed(ruled, **keys) is None
    assert allowed(ruled, consumer="kubevirt", **keys) is None
    assert allowed(USUAL, cni_args="OvnPort=p", **keys) is None
