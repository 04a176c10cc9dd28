"""What the token of a node's agent may write under the overlay admission-policy, by the policies' own CEL."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import pytest
import yaml

from tests.lab.kube.admission import AdmissionPolicy, AdmissionRequest
from tests.lab.kube.daemonset import BASE, CLUSTER
from userspace_cni.node.state import CHASSIS, KUBEOVN_CHASSIS, LABELS, notes

OVERLAY = CLUSTER / "overlays" / "admission-policy"
AGENT = "system:serviceaccount:userspace-cni:userspace-cni"
READY = f"net1{LABELS}ready"
Object = dict[str, Any]


def of(name: str) -> AdmissionPolicy:
    named = yaml.safe_load((OVERLAY / "kustomization.yaml").read_text())["resources"]
    documents = [yaml.safe_load((OVERLAY / each).read_text()) for each in named]
    [found] = [each for each in documents if each["kind"] == "ValidatingAdmissionPolicy" and each["metadata"]["name"] == name]
    [bound] = [each for each in documents if each["kind"].endswith("Binding") and each["spec"]["policyName"] == name]
    assert bound["spec"]["validationActions"] == ["Deny"]
    return AdmissionPolicy(found["spec"])


REPORT, PODS, DEVICES = of("userspace-cni-report"), of("userspace-cni"), of("userspace-cni-dra")


def node(name: str = "one", **metadata: Any) -> Object:
    """A Node as a kubelet makes it, with its name in metadata."""
    labels = {"kubernetes.io/hostname": name}
    status = {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}
    return {"metadata": {"name": name, "labels": labels, **metadata}, "spec": {"podCIDR": "10.1.0.0/24"}, "status": status}


def changed(found: Object, **fields: Any) -> Object:
    """A copy whose spec and status have other values, and whose labels and annotations have others beside them."""
    made = deepcopy(found)
    for key, value in fields.items():
        if key in ("labels", "annotations"):
            made["metadata"].setdefault(key, {}).update(value)
        elif key in ("finalizers", "ownerReferences"):
            made["metadata"][key] = value
        else:
            made[key] = {**made.get(key, {}), **value}
    return made


def update(old: Object, new: Mapping[str, Any] | None, **asked: Any) -> AdmissionRequest:
    """A write to a Node with the token of the agent of node `one`."""
    return AdmissionRequest("nodes", **{"operation": "UPDATE", "new": new, "old": old, "user": AGENT, "node": "one", **asked})


def without(found: Object, kind: str, key: str) -> Object:
    """A copy without that label or annotation."""
    made = deepcopy(found)
    del made["metadata"][kind][key]
    return made


@pytest.mark.parametrize("kubeovn", [False, True])
def test_what_an_agent_writes_to_its_node(kubeovn: bool) -> None:
    """Its labels and annotations: made, changed and taken away; also on a Node with taints, or without anything."""
    old = node()
    new = changed(old, labels={READY: "true", f"net1{LABELS}interface": "eth1"}, annotations=notes("a-chassis", kubeovn=kubeovn))
    assert REPORT.refusals(update(old, new)) == []
    assert REPORT.refusals(update(new, changed(new, labels={READY: "false"}, annotations={CHASSIS: "b"}))) == []
    assert REPORT.refusals(update(new, old)) == []
    tainted = changed(old, spec={"taints": [{"key": "k", "effect": "NoSchedule"}], "unschedulable": True}, finalizers=["a/b"])
    assert REPORT.refusals(update(tainted, changed(tainted, labels={READY: "true"}))) == []
    bare = {"metadata": {"name": "one"}}
    assert REPORT.refusals(update(bare, changed(bare, labels={READY: "true"}))) == []


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"spec": {"taints": [{"key": "k", "effect": "NoExecute"}]}}, "may not change the spec"),
        ({"spec": {"unschedulable": True}}, "may not change the spec"),
        ({"status": {"addresses": []}}, "the status of a Node"),
        ({"labels": {"node-role.kubernetes.io/control-plane": ""}}, "may change the labels"),
        ({"labels": {"kubernetes.io/hostname": "two"}}, "may change the labels"),
        ({"annotations": {"a-program/of-others": "x"}}, "may change the annotations"),
        ({"finalizers": ["a/b"]}, "may not change finalizers and owners"),
        ({"ownerReferences": [{"kind": "Pod"}]}, "may not change finalizers and owners"),
    ],
)
def test_what_an_agent_may_not_write_to_its_node(fields: Mapping[str, Any], told: str) -> None:
    """Whatever decides which pods run there, and what other programs have written; beside labels of ours, too."""
    old = node()
    for new in (changed(old, **fields), changed(old, **{**fields, "labels": {READY: "true", **fields.get("labels", {})}})):
        [refused] = REPORT.refusals(update(old, new))
        assert told in refused


def test_what_an_agent_may_not_take_from_its_node() -> None:
    """A label and an annotation of others; the whole Node; the spec's fields."""
    old = changed(node(), annotations={"a-program/of-others": "x", KUBEOVN_CHASSIS: "c"}, spec={"taints": [{"key": "k"}]})
    for kind, key in (("labels", "kubernetes.io/hostname"), ("annotations", "a-program/of-others")):
        [refused] = REPORT.refusals(update(old, without(old, kind, key)))
        assert f"may change the {kind}" in refused
    [refused] = REPORT.refusals(update(old, {"metadata": old["metadata"], "status": old["status"]}))
    assert "may not change the spec" in refused
    for operation, new, former in (("DELETE", None, old), ("CREATE", old, None)):
        [refused] = REPORT.refusals(update(former, new, operation=operation))  # type: ignore[arg-type]
        assert "neither make nor delete a Node" in refused


def test_another_node() -> None:
    """The agent may not write even a label of ours to another node."""
    old = node("two")
    [refused] = REPORT.refusals(update(old, changed(old, labels={READY: "true"})))
    assert refused == "userspace-cni on node one may write its own Node and NodeState only"


@pytest.mark.parametrize("operation", ["CREATE", "UPDATE", "DELETE"])
def test_node_states(operation: str) -> None:
    """Its own is made, written and deleted; another node's is not touched."""
    for name, refused in (("one", False), ("two", True)):
        state = {"metadata": {"name": name}, "status": {"chassis": "x"}}
        new, old = None if operation == "DELETE" else state, None if operation == "CREATE" else state
        group = {"group": "userspace-cni.io", "version": "v1alpha1"}
        asked = AdmissionRequest("nodestates", operation, new, old, AGENT, "one", **group)
        assert bool(REPORT.refusals(asked)) == refused


def test_a_token_of_no_node_and_other_users() -> None:
    """A token that names no node writes nothing; writes of other users are not judged."""
    old = node()
    new = changed(old, spec={"unschedulable": True})
    assert "bound to no node" in REPORT.refusals(update(old, changed(old, labels={READY: "true"}), node=""))[0]
    assert REPORT.refusals(update(old, new, user="kubernetes-admin", node="")) == []


def test_pods() -> None:
    """An agent annotates pods of its node and changes no label; pods without labels and pods without a node cause no error."""
    pod = {"metadata": {"name": "app", "namespace": "blue"}, "spec": {"nodeName": "one"}}

    def asked(old: Object, new: Object) -> AdmissionRequest:
        return AdmissionRequest("pods", "UPDATE", new, old, AGENT, "one", subresource="status")

    assert PODS.refusals(asked(pod, changed(pod, annotations={"k8s.v1.cni.cncf.io/network-status": "[]"}))) == []
    for old, new, told in (
        (pod, changed(pod, labels={"app": "web"}), "may not change the labels"),
        (changed(pod, spec={"nodeName": "two"}), pod, "pods of that node only"),
        ({**pod, "spec": {}}, {**pod, "spec": {}}, "pods of that node only"),
    ):
        [refused] = PODS.refusals(asked(old, new))
        assert told in refused


def claim(driver: str = "userspace-cni.io", pool: str = "one", **status: Any) -> Object:
    """An allocated claim with one device."""
    allocation = {"devices": {"results": [{"request": "r", "driver": driver, "pool": pool, "device": "br0"}]}}
    return {"metadata": {"name": "c"}, "spec": {"devices": {}}, "status": {"allocation": allocation, **status}}


@pytest.mark.parametrize("operation", ["CREATE", "UPDATE", "DELETE"])
def test_slices(operation: str) -> None:
    """Its own of its node are made, written and deleted; another node's, and another driver's, are not touched."""
    for node_name, driver, refused in (
        ("one", "userspace-cni.io", False),
        ("two", "userspace-cni.io", True),
        ("one", "gpu.example.com", True),
    ):
        offered = {"metadata": {"name": "s"}, "spec": {"nodeName": node_name, "driver": driver, "pool": {"name": node_name}}}
        new, old = None if operation == "DELETE" else offered, None if operation == "CREATE" else offered
        asked = AdmissionRequest("resourceslices", operation, new, old, AGENT, "one", group="resource.k8s.io")
        found = DEVICES.refusals(asked)
        assert bool(found) == refused, found
    everywhere = {"metadata": {"name": "s"}, "spec": {"allNodes": True, "driver": "userspace-cni.io", "pool": {"name": "one"}}}
    asked = AdmissionRequest("resourceslices", "CREATE", everywhere, None, AGENT, "one", group="resource.k8s.io")
    assert "its own ResourceSlices" in DEVICES.refusals(asked)[0]


def test_claims() -> None:
    """An agent says what became of its node's devices, and changes neither what was allocated nor who uses it."""

    def asked(old: Object, new: Object, **of: Any) -> list[str]:
        where = {"group": "resource.k8s.io", "subresource": "status", "user": AGENT, "node": "one", **of}
        return DEVICES.refusals(AdmissionRequest("resourceclaims", "UPDATE", new, old, **where))

    user = {"resource": "pods", "name": "app", "uid": "1"}
    devices = [{"driver": "userspace-cni.io", "pool": "one", "device": "br0", "networkData": {"interfaceName": "net0"}}]
    assert asked(claim(reservedFor=[user]), claim(reservedFor=[user], devices=devices)) == []
    assert asked(claim(), claim(devices=devices)) == []
    for old, new, told in (
        (claim(pool="two"), claim(pool="two", devices=devices), "claims with devices of that node only"),
        (claim(driver="gpu.example.com"), claim(driver="gpu.example.com", devices=devices), "of that node only"),
        (claim(), claim(reservedFor=[user]), "may change status.devices"),
        (claim(reservedFor=[user]), claim(), "may change status.devices"),
        (claim(), {**claim(), "spec": {"devices": {"requests": []}}}, "may change status.devices"),
    ):
        assert any(told in each for each in asked(old, new)), (old, new)
    assert "bound to no node" in asked(claim(), claim(devices=devices), node="")[0]
    assert asked(claim(pool="two"), claim(pool="two", reservedFor=[user]), user="system:kube-scheduler") == []


def test_every_right_to_write_is_bound() -> None:
    """What roles let an agent write of objects that are not its own by their content is what the policies are about."""
    roles = [
        yaml.safe_load(path.read_text())
        for path in (
            BASE / "cluster-role.yaml",
            CLUSTER / "overlays/controller/report-cluster-role.yaml",
            CLUSTER / "overlays/dra/component/cluster-role.yaml",
        )
    ]
    rules = [rule for role in roles for rule in role["rules"] if {"create", "patch", "update", "delete"} & set(rule["verbs"])]
    written = {(group, name) for rule in rules for group in rule["apiGroups"] for name in rule["resources"]}
    bound = {
        (group, name)
        for policy in (PODS, REPORT, DEVICES)
        for rule in policy.spec["matchConstraints"]["resourceRules"]
        for group in rule["apiGroups"]
        for name in rule["resources"]
    }
    # events are told of others' objects; an IP object follows its pod from node to node, and nothing decides by it
    assert written - bound == {("", "events"), ("userspace-cni.io", "ips")}
