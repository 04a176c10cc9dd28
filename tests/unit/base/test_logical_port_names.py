"""What logical ports of OVN are called, and which names can only be those of one namespace."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from userspace_cni.base.logical_ports import (
    INFRASTRUCTURE,
    NAMINGS,
    is_called_as_a_nodes,
    is_further_name,
    logical_port_name,
    may_name,
    names_of_nodes,
)

LABEL = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,8}[a-z0-9])?", fullmatch=True)
POD = st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,8}[a-z0-9])?", fullmatch=True)


def test_names() -> None:
    """Those of ovn-kubernetes' tools, and kube-ovn's; an interface beyond the first has a part of its own."""
    assert [logical_port_name("ovn-kubernetes", "blue", "web-0", each) for each in ("", "net1")] == [
        "blue_web-0",
        "blue_web-0_net1",
    ]
    names = [logical_port_name("kube-ovn", "blue", "web-0", each) for each in ("", "net.blue.ovn")]
    assert names == ["web-0.blue", "web-0.blue.net.blue.ovn"]


@pytest.mark.parametrize("naming", NAMINGS)
@given(LABEL, POD, LABEL)
def test_a_namespace_has_its_own_names(naming: str, namespace: str, pod: str, other: str) -> None:
    """The name of a pod's port is of its namespace, and of no other."""
    name = logical_port_name(naming, namespace, pod)
    is_as_a_nodes = name.startswith(INFRASTRUCTURE)
    assert may_name(name, naming, namespace) == (not is_as_a_nodes)
    assert may_name(name, naming, other) == (other == namespace and not is_as_a_nodes)


@pytest.mark.parametrize(
    ("name", "naming", "namespace"),
    [
        ("k8s-n1.example.com", "kube-ovn", "com"),
        ("node-n1.example.com", "kube-ovn", "com"),
        ("stor-n1.example.com", "kube-ovn", "com"),
        ("localnet.blue", "kube-ovn", "blue"),
        ("ovn-cluster-a.blue", "kube-ovn", "blue"),
        (".blue", "kube-ovn", "blue"),
        ("Web.blue", "kube-ovn", "blue"),
        ("web.blueXcom", "kube-ovn", "blue.com"),
        ("blue_", "ovn-kubernetes", "blue"),
        ("blue_GR_n1", "ovn-kubernetes", "blue"),
        ("blue_web\n", "ovn-kubernetes", "blue"),
    ],
)
def test_names_that_no_pod_may_choose(name: str, naming: str, namespace: str) -> None:
    """Those of nodes, switches and routers, and what no pod can be called."""
    assert not may_name(name, naming, namespace)


def test_a_pod_that_is_called_as_a_node() -> None:
    """In the nodes' own domain, where its name could be a node's; elsewhere it is a pod like any other."""
    assert is_called_as_a_nodes("k8s-n1.example.com", "n7.example.com")
    assert not is_called_as_a_nodes("k8s-n1.tools", "n7.example.com")
    assert not is_called_as_a_nodes("k8s-n1.tools", "n7")
    assert not is_called_as_a_nodes("web.com", "n7.example.com")
    assert {"k8s-n1", "stor-n1", "node-N1", "rtos-n1"} <= set(names_of_nodes(["N1"]))


def test_further_names() -> None:
    """They end with their own interface's name."""
    assert is_further_name("blue_web_net1", "net1")
    assert not is_further_name("blue_net1", "net1")
    assert not is_further_name("blue_web_net1", "net2")
