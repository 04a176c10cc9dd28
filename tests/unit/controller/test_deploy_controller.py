"""What is deployed of the controller: names fit together, and its rights are what it uses, no more and no less."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.client import ApiClient

from tests.lab.kube.apiserver import ApiServer, Request
from tests.lab.kube.cluster_objects import ip, node, ours, spec, state
from tests.lab.kube.daemonset import BASE, CLUSTER, MANIFEST
from tests.lab.kube.resource_definitions import SLICES, define_resources
from tests.lab.switch.switch import wait_until
from userspace_cni.attachment.specs import SpecStatus
from userspace_cni.attachment.steps import UplinkInterface, UplinkPort
from userspace_cni.base.back_off import BackOff
from userspace_cni.base.settings import load
from userspace_cni.controller.controller_service import Controller
from userspace_cni.controller.election import NAME
from userspace_cni.controller.status_rounds import RoundTimes
from userspace_cni.kube.credentials import ApiSession
from userspace_cni.kube.list_watch import WatchTimes
from userspace_cni.kube.object_requests import Objects
from userspace_cni.node.objects import NodeObjects
from userspace_cni.node.reporting import Report

OVERLAY = CLUSTER / "overlays" / "controller"
NAMESPACE = "userspace-cni"
AT_ONCE = WatchTimes(page=100, back_off=BackOff(0.005, 0.02), confirm_s=0)
"""Watches with short waits for the lists that confirm theirs."""
OURS = "userspace-cni.io"
_PATH = re.compile(r"/(?:api|apis/([^/]+))/v[^/]+(?:/namespaces/[^/]+)?/([^/?]+)(?:/([^/?]+)(?:/([^/?]+))?)?(\?.*)?")


def read(path: Path) -> dict[str, Any]:
    """The one document of a file."""
    found: dict[str, Any] = yaml.safe_load(path.read_text())
    return found


def offered_slice(name: str, of: str, driver: str) -> dict[str, Any]:
    """A ResourceSlice of that node."""
    spec = {"driver": driver, "nodeName": of, "pool": {"name": of, "generation": 1, "resourceSliceCount": 1}, "devices": []}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec}


@pytest.fixture(scope="module")
def documents() -> dict[str, dict[str, Any]]:
    """The overlay's objects, by kind and name."""
    names = read(OVERLAY / "kustomization.yaml")["resources"]
    found = [read(OVERLAY / name) for name in names]
    return {f"{each['kind']} {each['metadata']['name']}": each for each in found}


@pytest.fixture(scope="module")
def deployment(documents: dict[str, dict[str, Any]]) -> dict[str, Any]:
    spec: dict[str, Any] = documents["Deployment userspace-cni-controller"]["spec"]
    return spec


def asked(request: Request) -> tuple[str, str, str, str]:
    """Group, resource with its subresource, verb and name of a request, as RBAC has them."""
    match = _PATH.fullmatch(request.path)
    assert match, request.path
    resource = f"{match[2]}/{match[4]}" if match[4] else match[2]
    verbs = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
    return match[1] or "", resource, verbs.get(request.method) or request.verb.lower(), match[3] or ""


def granted(rules: Iterable[dict[str, Any]]) -> set[tuple[str, str, str, str]]:
    """What rules allow, in the same form; the name is "" where it is bound to none."""
    return {
        (group, resource, verb, name)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [""])
    }


def test_objects_are_of_their_types(documents: dict[str, dict[str, Any]]) -> None:
    """Every field is one that Kubernetes knows and of its type: read by the client's models and written back, nothing is lost."""
    client = ApiClient()
    for document in documents.values():
        known = client.deserialize(json.dumps(document), f"V1{document['kind']}", "application/json")
        assert client.sanitize_for_serialization(known) == document  # type: ignore[no-untyped-call]


def test_names_fit_together(documents: dict[str, dict[str, Any]], deployment: dict[str, Any]) -> None:
    """Accounts, roles and bindings name each other; the agents' account is the base's."""
    for name, document in documents.items():
        if "Binding" in name:
            [subject] = document["subjects"]
            role = document["roleRef"]
            assert f"{role['kind']} {role['name']}" in documents
            accounts = {"userspace-cni-report": read(BASE / "service-account.yaml")}
            account = accounts.get(role["name"], documents["ServiceAccount userspace-cni-controller"])["metadata"]
            assert (subject["name"], subject["namespace"]) == (account["name"], account["namespace"])
    pod = deployment["template"]["spec"]
    assert pod["serviceAccountName"] == "userspace-cni-controller"
    assert documents["Role userspace-cni-controller"]["rules"][1]["resourceNames"] == [NAME]


def test_nothing_of_the_agents_takes_a_controller_for_an_agent(deployment: dict[str, Any]) -> None:
    """Selectors of DaemonSet, Service and PodMonitor do not find its pods; uninstall removes its roles."""
    labels = deployment["template"]["metadata"]["labels"]
    selectors = [read(MANIFEST)["spec"]["selector"]["matchLabels"], read(BASE / "service.yaml")["spec"]["selector"]]
    monitor = read(CLUSTER / "overlays" / "pod-monitor" / "pod-monitor.yaml")
    for selector in (*selectors, monitor["spec"]["selector"]["matchLabels"]):
        assert not selector.items() <= labels.items()
    assert deployment["selector"]["matchLabels"].items() <= labels.items()
    assert (
        "userspace-cni userspace-cni-controller userspace-cni-report userspace-cni-logical-ports"
        in (CLUSTER / "uninstall.sh").read_text()
    )


def test_the_controller_is_no_root_and_probed_where_it_answers(deployment: dict[str, Any]) -> None:
    """It has no privilege; its ports are those of its settings; the Lease is in its own namespace."""
    pod = deployment["template"]["spec"]
    [container] = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    settings = load({each["name"]: each.get("value", "of-the-pod") for each in container["env"]})
    assert settings.controller_namespace == "of-the-pod"
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    listened = {"metrics": settings.metrics_listen, "health": settings.health_listen}
    assert {name: f"0.0.0.0:{port}" for name, port in ports.items()} == listened
    assert {container[probe]["httpGet"]["port"] for probe in ("livenessProbe", "readinessProbe")} == {"health"}


def test_the_controllers_rights_are_what_it_uses(
    api: ApiServer, session: Callable[[], ApiSession], documents: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From an empty cluster to the garbage of a node that is gone, each request is allowed, and each right is used."""
    monkeypatch.setattr(
        "userspace_cni.controller.absence.Absence.list_retained", lambda _self, nodes, _named, _now: frozenset(nodes)
    )
    api.add(ours("ProviderNetwork", "net1", defaultInterface="eth1"))
    api.add(ours("Vlan", "v100", id=100, provider="net1"))
    api.add(ours("Subnet", "pods", cidrBlock="10.0.0.0/16", perNodePrefix=24, vlan="v100"))
    for name in ("a", "b"):
        api.add(node(name))
        api.add(state(name, [spec()]))
    api.add(ip("web", "pods", "b", "10.0.1.5"))
    refused = {"apiVersion": "k8s.ovn.org/v1", "kind": "Route", "metadata": {"name": "one"}, "spec": {"pods": [{}]}}
    api.add(refused)
    routed = state("a", [spec()])
    api.add({**routed, "status": {**routed["status"], "routes": []}})
    controller = Controller(session(), NAMESPACE, RoundTimes(rounds_s=0.1), AT_ONCE)
    controller.start()
    networks = api.objects("provider-networks.userspace-cni.io")
    wait_until(lambda: networks.get("", "net1").get("status", {}).get("readyNodes") == ["a", "b"])
    api.objects("nodes").remove("", "b")
    wait_until(lambda: api.objects("ips.userspace-cni.io").names() == [])
    wait_until(lambda: networks.get("", "net1")["status"]["readyNodes"] == ["a"])
    wait_until(lambda: api.objects("routes.k8s.ovn.org").get("", "one").get("status"))
    wait_until(lambda: api.events.of("one"))
    controller.stop()
    api.add({**refused, "status": {"conditions": []}})  # so that the next controller has to tell it again
    later = Controller(session(), NAMESPACE, RoundTimes(rounds_s=0.1), AT_ONCE)
    later.start()
    wait_until(lambda: any(request.verb == "EVENT" and request.method == "PATCH" for request in api.requests))
    later.stop()
    rules = [documents[f"{kind} userspace-cni-controller"]["rules"] for kind in ("ClusterRole", "Role")]
    allowed = granted([each for some in rules for each in some])
    used = {asked(request) for request in api.requests}
    bound = {(*each[:3], each[3] if each[1] == "leases" and each[2] != "create" else "") for each in used}
    assert bound == allowed


def test_the_controllers_rights_to_slices_are_what_it_uses(
    api: ApiServer, session: Callable[[], ApiSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the setting dra it asks for slices of our driver alone, deletes those of a node that is gone, and needs no more."""
    monkeypatch.setattr(
        "userspace_cni.controller.absence.Absence.list_retained", lambda _self, nodes, _named, _now: frozenset(nodes)
    )
    define_resources(api)
    api.add(node("a"))
    for name, of, driver in (("here", "a", OURS), ("left", "b", OURS), ("anothers", "b", "gpu.example.com")):
        api.add(offered_slice(name, of, driver))
    controller = Controller(session(), NAMESPACE, RoundTimes(rounds_s=0.1), AT_ONCE, slices=True)
    controller.start()
    slices = api.objects(SLICES)
    wait_until(lambda: slices.names() == [("", "anothers"), ("", "here")])
    controller.stop()
    used = {(*asked(request)[:3], "") for request in api.requests if "/resourceslices" in request.path}
    component = CLUSTER / "overlays" / "dra" / "component"
    assert used == granted(read(component / "controller-cluster-role.yaml")["rules"])
    assert (
        read(component / "controller-cluster-role-binding.yaml")["subjects"]
        == read(OVERLAY / "cluster-role-binding.yaml")["subjects"]
    )


def test_the_agents_right_to_watch_objects_is_what_it_uses(api: ApiServer, session: Callable[[], ApiSession]) -> None:
    """Each request of the watches is allowed by the base's role, and but for `get` each right to what they watch is used."""
    watching = NodeObjects(session(), "a", lambda: None)
    watching.start()
    wait_until(lambda: sum(request.verb == "WATCH" for request in api.requests) >= 4)
    watching.stop()
    used = {(*asked(request)[:3], "") for request in api.requests}
    watched = {each[1] for each in used}
    rules = granted(read(BASE / "cluster-role.yaml")["rules"])
    assert used == {each for each in rules if each[1] in watched and each[2] != "get"}
    assert {each[1] for each in rules if each[1] in watched and each[2] == "get"} == {"vlans", "subnets"}


def test_the_agents_right_to_report_is_what_it_uses(
    api: ApiServer, session: Callable[[], ApiSession], documents: dict[str, dict[str, Any]]
) -> None:
    """Each request of a report is allowed, and each right is used; making an object by server-side apply takes create as well."""
    api.add(node("a"))
    report = Report(Objects(session()), "a", lambda: "chassis-1")
    uplink = UplinkPort("br-net1", "up", (UplinkInterface("eth1", "system"),))
    report.note_specs([SpecStatus("provider-network", "net1", "objects", "", "", (uplink,))])
    report.report()
    used = {(*asked(request)[:3], "") for request in api.requests}
    allowed = granted(documents["ClusterRole userspace-cni-report"]["rules"])
    assert used | {("userspace-cni.io", "nodestates", "create", "")} == allowed
