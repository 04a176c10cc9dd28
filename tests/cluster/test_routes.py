"""Routes in pods on the real node: agent and controller as they are deployed, with the rights of the manifests."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.cluster.test_object_rules import send_here
from tests.lab.cluster.cluster import NAMESPACE, Cluster
from tests.lab.cluster.control import API, NODE_NAME, SERVICES
from tests.lab.cluster.node import ADDRESS as ADDRESS_OF_NODE
from tests.lab.cluster.pods import deployment, link_network, pod
from tests.lab.cluster.requests import Call, send
from tests.lab.kube.definitions import defined_server, definitions
from userspace_cni.kube.resources import ROUTES
from userspace_cni.routes.resource import read_route

pytestmark = pytest.mark.timeout(600)  # the first test of a run starts the cluster
SETTINGS = "/etc/userspace-cni/config.toml"
PROTOCOL = 148
ADDRESS = "10.96.0.77"
LANE = "lane"
JSON = "application/json"
LOGGED = ("app.kubernetes.io/name=userspace-cni", "app.kubernetes.io/name=userspace-cni-controller")


def route(name: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": ROUTES.api_version, "kind": ROUTES.kind, "metadata": {"name": name}, "spec": spec}


def service(name: str) -> dict[str, Any]:
    """A Service with the ClusterIP ADDRESS."""
    spec = {"clusterIP": ADDRESS, "ports": [{"port": 80}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "default"}, "spec": spec}


def restart_agent(cluster: Cluster) -> None:
    """Delete the agent's pod; the DaemonSet makes the next one, which is not waited for."""
    metadata = cluster.agent_pod()["metadata"]
    cluster.delete("pod", metadata["name"], f"--namespace={metadata['namespace']}")


@pytest.fixture
def routed(clean: Cluster) -> Iterator[Cluster]:
    """The cluster with an agent that keeps routes, and the controller; Routes, controller and setting are removed at the end."""
    settings = clean.path(SETTINGS)
    before = settings.read_text() if settings.exists() else ""
    settings.write_text(f"{before}routes = true\n")
    try:
        clean.deploy_controller()
        restart_agent(clean)
        yield clean
    finally:
        settings.write_text(before)
        clean.end_controller()
        clean.delete("routes.k8s.ovn.org", "--all")
        clean.delete("service", "web", "--ignore-not-found")
        clean.kubectl("label", "namespace", "default", f"{LANE}-")
        clean.delete("nodestates.userspace-cni.io", "--all")
        restart_agent(clean)
        clean.wait_agent()


class Inside:
    """The network namespace of a running pod, asked with this machine's `ip`."""

    def __init__(self, cluster: Cluster, found: Mapping[str, Any]) -> None:
        self._cluster = cluster
        [container] = found["status"]["containerStatuses"]
        task = container["containerID"].removeprefix("containerd://")
        lines = cluster.node_shell("ctr", "--namespace=k8s.io", "tasks", "ls").splitlines()
        [pid] = [line.split()[1] for line in lines if line.startswith(task)]
        self._enter = ("nsenter", f"--net=/proc/{pid}/ns/net", "ip", "-j", "-4")

    def ours(self) -> list[str]:
        """Our routes, as "DST VIA DEV"."""
        shown = json.loads(self._cluster.node_shell(*self._enter, "route", "show", "proto", str(PROTOCOL)) or "[]")
        return sorted(f"{each['dst']} {each.get('gateway', '-')} {each['dev']}" for each in shown)

    def others(self) -> list[dict[str, Any]]:
        shown = json.loads(self._cluster.node_shell(*self._enter, "-N", "route", "show"))
        return [each for each in shown if each.get("protocol") != str(PROTOCOL)]

    def wait(self, *routes: str) -> None:
        """Wait until our routes are these."""
        self._cluster.wait(lambda: self.ours() == sorted(routes), f"routes {routes}")


def test_routes_in_pods_of_the_node(routed: Cluster) -> None:
    """Routes of a Route, and of a Service, are in pods of two CNI plugins, and follow both; its status is Applied.

    Each kind of selector is asked of the API with the rights of the manifests. What can never work is in status and Event of its
    Route, what one pod cannot have in that pod's.
    """
    cluster = routed
    cluster.apply(pod("plain"))  # another plugin's: it has eth0 alone
    cluster.wait_running("plain")
    cluster.join(link_network("links", "10.57.0.0/24"))
    cluster.apply(deployment("web", 1))
    cluster.kubectl("label", "namespace", "default", f"{LANE}=fast")
    workload = {"kind": "Deployment", "namespace": "default", "name": "web"}
    cluster.apply(
        route(
            "one",
            route=[{"dst": "172.16.10.0/24", "dev": "eth1"}],
            svc=[{"namespace": "default", "name": "web", "dev": "eth1"}],
            workloads=[workload],
        ),
        route("two", route=[{"dst": "172.17.0.0/16", "dev": "eth0", "via": "auto"}], namespaces=[{"labels": {LANE: "fast"}}]),
        route("closed", route=[{"dst": SERVICES, "dev": "eth0"}, {"dst": "172.18.1.0/16", "dev": "eth0"}]),
        route("lost", route=[{"dst": "172.21.0.0/16", "dev": "eth0", "via": "192.0.2.9"}], pods=[{"name": "plain"}]),
        route("odd", route=[{"dst": "172.19.0.0/16", "dev": "eth0"}], pods=[{}]),
        service("web"),
    )
    cluster.wait(lambda: (found := cluster.pods("app=web")) and running(found[0]), "the pod of a Deployment")
    [found] = cluster.pods("app=web")
    web, plain = Inside(cluster, found), Inside(cluster, cluster.pod("plain"))
    gateway = "10.244.0.1"
    web.wait("172.16.10.0/24 - eth1", f"{ADDRESS} - eth1", f"172.17.0.0/16 {gateway} eth0")
    plain.wait(f"172.17.0.0/16 {gateway} eth0")
    others = web.others()
    expected = {"one": "Applied", "two": "Applied", "closed": "Degraded", "lost": "Degraded", "odd": "Invalid"}
    cluster.wait(lambda: words(cluster) == expected, "statuses")
    counts = {"nodes": {"total": 1, "applied": 1, "failed": 0}, "pods": {"matched": 1, "applied": 1, "skipped": 0, "failed": 0}}
    cluster.wait(lambda: counts.items() <= cluster.get("routes.k8s.ovn.org", "one")["status"].items(), "what became of one")
    [invalid] = [each for each in cluster.get("routes.k8s.ovn.org", "closed")["status"]["conditions"] if each["type"] == "Valid"]
    assert "has host bits set" in invalid["message"]
    assert f"{SERVICES} has an address of the API server" in invalid["message"]
    assert [each["name"] for each in cluster.get("nodestate", NODE_NAME)["status"]["routes"]] == ["closed", "lost", "one", "two"]
    for name, said in (("closed", "has host bits set"), ("odd", "nothing of it is applied"), ("plain", "Route 'lost'")):
        cluster.wait(lambda: cluster.reasoned(name, "RouteRefused"), f"the event about {name}")  # noqa: B023 -- at once
        [event] = cluster.reasoned(name, "RouteRefused")
        assert said in event["message"]
        kind = "pod" if name == "plain" else "routes.k8s.ovn.org"
        assert "RouteRefused  " in cluster.kubectl("describe", kind, name)
    assert [name for name in ("one", "two", "lost") if cluster.events(name, kind="Route")] == []

    cluster.apply(route("one", route=[{"dst": "172.20.0.0/16", "dev": "eth1"}], workloads=[workload]))
    cluster.delete("routes.k8s.ovn.org", "two")
    web.wait("172.20.0.0/16 - eth1")
    plain.wait()
    cluster.wait(lambda: cluster.get("routes.k8s.ovn.org", "one")["status"]["observedGeneration"] == 2, "the next status")
    cluster.apply(route("wide", route=[{"dst": "default", "dev": "eth1"}], workloads=[workload]))
    cluster.wait(lambda: "default - eth1" in web.ours(), "the default route")
    assert {f"{API} {gateway} eth0", f"{ADDRESS_OF_NODE} {gateway} eth0"} <= set(web.ours())
    cluster.delete("routes.k8s.ovn.org", "one", "wide")
    web.wait()
    assert web.others() == others
    page = json.loads(cluster.agent("routes", "list", "--json"))
    assert page["problems"] == {}
    here = [each for chosen in LOGGED for each in cluster.pods(chosen, NAMESPACE) if running(each)]
    assert len(here) >= len(LOGGED)
    logs = [cluster.logs(each["metadata"]["name"], NAMESPACE) for each in here]
    assert [line for log in logs for line in log.splitlines() if "not allowed" in line] == []


def running(found: Mapping[str, Any]) -> bool:
    """Whether the pod's container runs."""
    return any("running" in each["state"] for each in found.get("status", {}).get("containerStatuses", ()))


def words(cluster: Cluster) -> dict[str, str]:
    """For each Route with a state, the word that `kubectl get routes` shows."""
    lines = [line.split() for line in cluster.kubectl("get", "routes", "--no-headers").splitlines()]
    return {name: words[0] for name, *words, _ in lines if words}


ENTRY = {"dst": "10.0.0.0/8", "dev": "eth1"}
REFUSED: Mapping[str, Mapping[str, Any]] = {
    "no device": {"route": [{"dst": "10.0.0.0/8"}]},
    "no destination": {"route": [{"dev": "eth1"}]},
    "a next hop that is a number": {"route": [{**ENTRY, "via": 1}]},
    "a Service without a name": {"svc": [{"namespace": "default", "dev": "eth1"}]},
    "a workload of another kind": {"workloads": [{"kind": "Pod", "namespace": "default", "name": "a"}]},
    "an excluded workload without a name": {"exclude": {"workloads": [{"kind": "Job", "namespace": "default"}]}},
    "labels that are numbers": {"pods": [{"labels": {"a": 1}}]},
    "a namespace's name of 64 characters": {"namespaces": [{"name": "n" * 64}]},
    "a priority of 1001": {"priority": 1001},
    "a priority that is a text": {"priority": "1"},
    "a gate that is no text": {"feature_gate": {"allow-dns": True}},
    "another default next hop": {"defaults": {"via": "auto"}},
}
TAKEN: Mapping[str, Mapping[str, Any]] = {
    "host-bits": {"route": [{"dst": "10.0.0.1/8", "dev": "eth1"}]},
    "loopback": {"route": [{"dst": "127.0.0.0/8", "dev": "lo"}]},
    "long-device": {"route": [{"dst": "10.0.0.0/8", "dev": "e" * 16}]},
    "long-destination": {"route": [{**ENTRY, "dst": "1" * 65}]},
    "many-entries": {"route": [ENTRY] * 5000},
    "unknown": {"routes": [ENTRY], "route": [{**ENTRY, "metric": 1}]},
    "empty": {},
}


def creating(name: str, spec: Any) -> Call:
    """The request that makes a Route."""
    return "POST", ROUTES.path(), JSON, route(name, **spec)


def whole(schema: Mapping[str, Any], name: str = "") -> Any:
    """A value with every field that the schema names, valid for the schema and for the reader."""
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema["type"]
    if kind == "object":
        if "properties" not in schema:
            return {"allow-dns": "true"} if name == "feature_gate" else {"a": "b"}
        return {key: whole(each, key) for key, each in schema["properties"].items()}
    if kind == "array":
        return [whole(schema["items"])]
    return {"priority": 7, "dst": "10.1.0.0/16", "via": "10.2.0.1", "dev": "eth1"}.get(name, "a")


def test_what_the_definition_takes_and_refuses(deployed: Cluster) -> None:
    """The server refuses what the schema excludes, accepts all else, and returns each field as it was written.

    The server of the other tests answers the same.
    """
    [definition] = [each for each in definitions() if each["metadata"]["name"] == "routes.k8s.ovn.org"]
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    every = whole(schema)
    assert set(every) == set(schema["properties"])
    assert not read_route({"metadata": {"name": "every"}, "spec": every}).problems
    specs = {**TAKEN, "every": every}
    said = {"status": "Applied", "nodes": {"total": 1}, "conditions": [{"type": "Valid", "status": "True"}]}
    calls = [creating("odd", spec) for spec in REFUSED.values()]
    calls.append(("POST", ROUTES.path(), JSON, {key: each for key, each in route("odd").items() if key != "spec"}))
    calls += [creating(name, spec) for name, spec in specs.items()]
    calls.append(("PATCH", ROUTES.path("every", subresource="status"), "application/merge-patch+json", {"status": said}))
    calls.append(("GET", ROUTES.path("every"), JSON, None))
    calls += [("DELETE", ROUTES.path(name), JSON, None) for name in specs]
    answers = send(deployed.control, calls)
    refused = dict(zip([*REFUSED, "no spec"], answers, strict=False))
    assert {what: code for what, (code, _) in refused.items() if code != 422} == {}
    taken = dict(zip(specs, answers[len(refused) :], strict=False))
    assert {name: code for name, (code, _) in taken.items() if code != 201} == {}
    assert {name: body["spec"] for name, (_, body) in taken.items()} == specs
    _, found = answers[len(refused) + len(taken) + 1]
    assert (found["spec"], found["status"]) == (every, said)
    with defined_server() as api:
        here = send_here(api, calls)
    assert [code for code, _ in here] == [code for code, _ in answers]
