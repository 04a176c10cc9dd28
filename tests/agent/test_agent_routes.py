"""Routes that an agent keeps in pods, from a file and from objects of the API, in real namespaces."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.agent.living import WITHOUT_API_S, LiveNode
from tests.lab.kube.apiserver import ApiServer, Fault
from tests.lab.kube.cluster_objects import node
from tests.lab.kube.definitions import defined_server
from tests.lab.kube.objectstore import SERVICE_CIDRS
from tests.lab.kube.pods import Pod
from tests.lab.network.dual_pod import DualPod, dual_pod
from tests.lab.node import agent
from tests.lab.runtimes.cached import BOX, cached, routing
from tests.lab.switch.switch import wait_until

OURS = 148


@dataclass
class Routed:
    """An agent with routes, and a pod web-0 of another CNI plugin, of which the runtime's cache tells."""

    live: LiveNode
    pod: DualPod
    cache: Path
    file: Path
    api: ApiServer | None = None

    def cached(self, name: str = "web-0", uid: str = "", sandbox: str = BOX, path: str = "") -> Path:
        """The file of a sandbox, as libcni writes it."""
        return cached(self.cache, path or self.pod.path, name, uid, sandbox)

    def page(self) -> dict[str, Any]:
        status, body = self.live.page("/api/v1/routes")
        assert status == 200, body
        return dict(body)

    def routes(self, version: int = 4) -> list[str]:
        """Routes of ours in the pod."""
        return [each.removesuffix(f" {OURS}") for each in self.pod.routes(version) if each.endswith(f" {OURS}")]

    def wait(self, *routes: str, version: int = 4) -> None:
        """Wait until our routes in the pod are these."""
        wait_until(lambda: self.routes(version) == list(routes), what=f"routes {routes}; it has {self.routes(version)}")

    def seen(self, pod: str) -> dict[str, Any]:
        """What is reported of the pod once it has been looked at, which is a moment after its routes are there."""
        [found] = wait_until(lambda: [each for each in self.page()["pods"] if each["name"] == pod], what=f"a look at {pod}")
        return dict(found)


@pytest.fixture
def routed(live: LiveNode, tmp_path: Path) -> Iterator[Routed]:
    """A node without a cluster: the file alone."""
    cache, file, settings = routing(tmp_path)
    with dual_pod() as pod:
        made = Routed(live, pod, cache, file)
        live.settings |= settings
        yield made
        live.close()


@pytest.fixture
def clustered(routed: Routed) -> Iterator[Routed]:
    """A node n1 of a cluster that has the pod."""
    with defined_server() as api:
        api.add(node("n1", "192.0.2.11"))
        api.add_pod(pod_object())
        routed.api = api
        routed.live.follow(api)
        routed.cached()
        yield routed
        routed.live.close()


def pod_object(name: str = "web-0", **metadata: Any) -> dict[str, Any]:
    """A pod of the node, as the API has it."""
    about = {"name": name, "namespace": "default", "uid": f"u-{name}", "labels": {"app": "web"}, **metadata}
    return {"metadata": about, "spec": {"nodeName": "n1", "containers": []}, "status": {"phase": "Running"}}


def route(name: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "k8s.ovn.org/v1", "kind": "Route", "metadata": {"name": name}, "spec": {"route": [], "svc": [], **spec}}


def service(name: str, *addresses: str) -> dict[str, Any]:
    spec = {"type": "ClusterIP", "clusterIP": addresses[0], "clusterIPs": list(addresses)}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "default"}, "spec": spec}


def test_a_file_without_a_cluster(routed: Routed) -> None:
    """Its routes come, change and go with it, also in a container that comes later; a wrong file changes nothing."""
    routed.file.write_text(json.dumps([{"route": "172.16.0.0/16 ", "dev": "eth1"}, {"svc": "a/b", "dev": "eth1"}]))
    routed.live.start()
    before = routed.pod.routes()
    routed.cached()
    routed.wait("172.16.0.0/16 - eth1")
    assert "there is no cluster" in routed.page()["routes"][0]["problems"][0]
    routed.file.write_text("[{]")
    wait_until(lambda: "file" in routed.page()["problems"], what="the fault to be told")
    routed.wait("172.16.0.0/16 - eth1")
    routed.file.write_text(json.dumps([{"route": "default", "dev": "eth1", "via": "10.2.0.1"}]))
    routed.wait("default 10.2.0.1 eth1")
    assert routed.pod.way("198.51.100.1") == "eth1"
    routed.file.unlink()
    routed.wait()
    assert routed.pod.routes() == before


def test_a_pod_that_was_looked_at_already(routed: Routed) -> None:
    """A pod is looked at again when the runtime attaches another interface, and all pods on SIGHUP, not ten minutes later."""
    routed.cached()
    routed.file.write_text(json.dumps([{"route": "172.16.0.0/16", "dev": "eth1"}]))
    routed.live.start()
    routed.wait("172.16.0.0/16 - eth1")
    routed.pod.ip("route", "flush", "proto", str(OURS))
    routed.cached()
    routed.wait("172.16.0.0/16 - eth1")
    routed.pod.ip("route", "flush", "proto", str(OURS))
    os.kill(routed.live.pid, signal.SIGHUP)
    routed.wait("172.16.0.0/16 - eth1")
    routed.file.chmod(0o666)
    wait_until(lambda: "file" in routed.page()["problems"], what="the fault to be told")
    routed.file.chmod(0o600)
    wait_until(lambda: "file" not in routed.page()["problems"], what="the fault to be over")


def test_routes_outlive_the_agent(routed: Routed) -> None:
    """They stay while there is no agent, whether it ended or was killed; the next one removes what is no longer asked for."""
    routed.cached()
    routed.file.write_text(json.dumps([{"route": "172.16.0.0/16", "dev": "eth1"}, {"route": "172.17.0.0/16", "dev": "eth1"}]))
    routed.live.start()
    routed.wait("172.16.0.0/16 - eth1", "172.17.0.0/16 - eth1")
    routed.live.kill()
    routed.file.write_text(json.dumps([{"route": "172.17.0.0/16", "dev": "eth1"}]))
    assert len(routed.routes()) == 2
    routed.live.start()
    routed.wait("172.17.0.0/16 - eth1")
    assert routed.live.end() == 0
    assert routed.routes() == ["172.17.0.0/16 - eth1"]


def test_objects_and_services(clustered: Routed) -> None:
    """Routes, Services, labels and devices: each change is followed while the pod runs."""
    api = clustered.api
    assert api
    entry = {"dst": "172.16.0.0/16", "dev": "eth1", "via": "10.2.0.1"}
    api.add(route("one", route=[entry], svc=[svc()], pods=[{"labels": {"app": "web"}}]))
    clustered.live.start()
    clustered.wait("172.16.0.0/16 10.2.0.1 eth1")
    assert "there is no such Service" in clustered.page()["routes"][0]["told"][0]
    api.add(service("nginx", "10.96.0.7", "fd96::7"), "default")
    clustered.wait("10.96.0.7 - eth1", "172.16.0.0/16 10.2.0.1 eth1")
    clustered.wait("fd96::7 - eth1", version=6)
    api.objects("services").remove("default", "nginx")
    api.add(service("nginx", "10.96.0.8"), "default")
    clustered.wait("10.96.0.8 - eth1", "172.16.0.0/16 10.2.0.1 eth1")
    api.change("default", "web-0", {"metadata": {"labels": {"app": "other"}}})
    clustered.wait()
    api.change("default", "web-0", {"metadata": {"labels": {"app": "web"}}})
    clustered.wait("10.96.0.8 - eth1", "172.16.0.0/16 10.2.0.1 eth1")
    api.objects("routes.k8s.ovn.org").remove("", "one")
    clustered.wait()


def svc() -> dict[str, str]:
    return {"namespace": "default", "name": "nginx", "dev": "eth1"}


def test_who_wins(clustered: Routed) -> None:
    """Of two Routes for one destination the more specific one is made.

    The other is reported, and replaces it when that is deleted.
    """
    api = clustered.api
    assert api
    api.add(route("all", route=[{"dst": "172.16.0.0/16", "dev": "eth0"}]))
    api.add(route("pod", route=[{"dst": "172.16.0.0/16", "dev": "eth1"}], pods=[{"namespace": "default", "name": "web-0"}]))
    clustered.live.start()
    clustered.wait("172.16.0.0/16 - eth1")
    assert "Route 'pod' has 172.16.0.0/16: its selector is more specific" in clustered.seen("web-0")["conflicts"][0]
    api.objects("routes.k8s.ovn.org").remove("", "pod")
    clustered.wait("172.16.0.0/16 - eth0")


def test_a_sandbox_that_is_not_proven(clustered: Routed) -> None:
    """A pod that the API does not have on this node with that UID, and one in the node's own network, are left alone."""
    api = clustered.api
    assert api
    api.add(route("all", route=[{"dst": "172.16.0.0/16", "dev": "eth1"}]))
    with dual_pod() as stranger, dual_pod() as second:
        clustered.cached("web-0", "u-former", "b" * 64, stranger.path)
        api.add_pod(pod_object("late"))
        clustered.cached("late", "u-late", "c" * 64, "/proc/self/ns/net")
        clustered.live.start()
        clustered.wait("172.16.0.0/16 - eth1")
        assert stranger.routes() == ["default 10.1.0.1 eth0 3"]
        assert clustered.seen("late")["host_network"]
        api.add_pod(pod_object("second"))
        clustered.cached("second", "u-second", "d" * 64, second.path)
        wait_until(lambda: "172.16.0.0/16 - eth1 148" in second.routes(), what="the routes of a pod that came later")


def test_a_device_that_comes_later(clustered: Routed) -> None:
    """A pod without the device is left alone, and gets the route once the device is attached."""
    api = clustered.api
    assert api
    clustered.pod.ip("link", "set", "eth1", "name", "later")
    api.add(route("one", route=[{"dst": "172.16.0.0/16", "dev": "eth1"}]))
    clustered.live.start()
    wait_until(lambda: clustered.seen("web-0")["skipped"], what="the pod to be skipped")
    for each in (("down",), ("name", "eth1"), ("up",)):
        clustered.pod.ip("link", "set", "later" if each != ("up",) else "eth1", *each)
    agent.get(clustered.live.socket, "/api/v1/routes", "POST")
    clustered.wait("172.16.0.0/16 - eth1")


def test_without_the_api_server(clustered: Routed) -> None:
    """While it is away everything stays, also through a new agent; changes are followed when it is back."""
    api = clustered.api
    assert api
    api.add(route("one", route=[{"dst": "172.16.0.0/16", "dev": "eth1"}], pods=[{"labels": {"app": "web"}}]))
    clustered.live.start()
    clustered.wait("172.16.0.0/16 - eth1")
    clustered.live.kill()
    api.faults.append(Fault(status=503))
    clustered.pod.ip("route", "flush", "proto", str(OURS))
    clustered.live.start(START_S=WITHOUT_API_S)
    clustered.wait("172.16.0.0/16 - eth1")
    api.faults.clear()
    api.objects("routes.k8s.ovn.org").remove("", "one")
    clustered.wait()


def test_what_was_deleted_stays_so_without_the_api_server(clustered: Routed) -> None:
    """An agent that is killed after it acted on a deletion leaves nothing of it to the next one, which has no API server."""
    api = clustered.api
    assert api
    api.add(route("one", route=[{"dst": "172.16.0.0/16", "dev": "eth1"}]))
    api.add(route("two", route=[{"dst": "172.17.0.0/16", "dev": "eth1"}]))
    clustered.live.start()
    clustered.wait("172.16.0.0/16 - eth1", "172.17.0.0/16 - eth1")
    api.objects("routes.k8s.ovn.org").remove("", "one")
    clustered.wait("172.17.0.0/16 - eth1")
    clustered.live.kill()
    api.faults.append(Fault(status=503))
    clustered.pod.ip("route", "flush", "proto", str(OURS))
    clustered.live.start(START_S=WITHOUT_API_S)
    clustered.wait("172.17.0.0/16 - eth1")


def test_what_was_learnt_last_is_kept_at_the_end(clustered: Routed) -> None:
    """An agent that ends leaves the present Services to the next one, which has no API server."""
    api = clustered.api
    assert api
    api.add(route("one", svc=[{"namespace": "default", "name": "web", "dev": "eth1"}]))
    api.add(service("web", "10.96.0.1"), "default")
    clustered.live.start()
    clustered.wait("10.96.0.1 - eth1")
    api.add(service("web", "10.96.0.2"), "default")
    clustered.wait("10.96.0.2 - eth1")
    assert clustered.live.end() == 0
    api.faults.append(Fault(status=503))
    clustered.pod.ip("route", "flush", "proto", str(OURS))
    clustered.live.start(START_S=WITHOUT_API_S)
    clustered.wait("10.96.0.2 - eth1")


def test_another_number_of_our_routes(routed: Routed) -> None:
    """The next agent removes routes with the former protocol number, once; it keeps the new number, also through a kill."""
    routed.cached()
    routed.file.write_text(json.dumps([{"route": "172.16.0.0/16", "dev": "eth1"}, {"route": "172.17.0.0/16", "dev": "eth1"}]))
    routed.live.start()
    routed.wait("172.16.0.0/16 - eth1", "172.17.0.0/16 - eth1")
    routed.live.kill()
    routed.live.settings["USERSPACE_CNI_ROUTE_PROTOCOL"] = "200"
    routed.file.write_text(json.dumps([{"route": "172.17.0.0/16", "dev": "eth1"}]))
    routed.live.start()
    routed.wait()
    ours = ["172.17.0.0/16 - eth1 200"]
    assert [each for each in routed.pod.routes() if "172" in each] == ours
    kept = Path(routed.live.environ["USERSPACE_CNI_STATE_DIR"]) / "routes.json"
    wait_until(lambda: json.loads(kept.read_text())["protocols"] == [200], what="the new number to be kept")
    routed.pod.ip("route", "add", "172.18.0.0/16", "dev", "eth1", "proto", str(OURS))
    routed.live.kill()
    routed.live.start()
    agent.get(routed.live.socket, "/api/v1/routes", "POST")
    assert routed.routes() == ["172.18.0.0/16 - eth1"]
    routed.live.kill()  # amid another change, which has not reached all pods: each number that was in use is remembered
    kept.write_text(json.dumps({**json.loads(kept.read_text()), "protocols": [OURS, 199, 200]}))
    routed.pod.ip("route", "add", "172.19.0.0/16", "dev", "eth1", "proto", "199")
    routed.live.start()
    wait_until(lambda: [each for each in routed.pod.routes() if "172" in each] == ours, what="only those of the number of now")
    wait_until(lambda: json.loads(kept.read_text())["protocols"] == [200], what="the others to be forgotten")


def test_networks_of_the_cluster_are_found(clustered: Routed) -> None:
    """They keep the CNI plugin's default route from the first moment; what a server does not report is noted."""
    api = clustered.api
    assert api
    for name, taken in (("n1", "10.244.0.0/24"), ("n2", "10.244.1.0/24"), ("n3", "10.244.2.0/24"), ("n4", "none")):
        api.add(node(name, "192.0.2.11") | {"spec": {"podCIDRs": [taken]}})
    api.add(route("one", route=[{"dst": "default", "dev": "eth1", "via": "10.2.0.1"}]))
    clustered.live.start()
    kept = ["10.244.0.0/23 10.1.0.1 eth0", "10.244.2.0/24 10.1.0.1 eth0", "192.0.2.11 10.1.0.1 eth0"]
    clustered.wait("default 10.2.0.1 eth1", *kept)
    [remark] = clustered.page()["routes"][0]["remarks"]
    assert "networks of Services are not known" in remark
    assert clustered.page()["problems"] == {}
    clustered.live.kill()
    api.serve(SERVICE_CIDRS)
    services = {"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": "kubernetes"}}
    api.add(services | {"spec": {"cidrs": ["10.96.0.0/16", "fd96::/108"]}})
    clustered.live.start()
    clustered.wait("default 10.2.0.1 eth1", "10.96.0.0/16 10.1.0.1 eth0", *kept)
    assert clustered.page()["routes"][0]["remarks"] == []
    api.objects("nodes").remove("", "n3")
    clustered.wait("default 10.2.0.1 eth1", "10.96.0.0/16 10.1.0.1 eth0", kept[0], kept[2])
    clustered.live.kill()
    clustered.live.settings["USERSPACE_CNI_ROUTE_CLUSTER_RANGES"] = "10.0.0.0/8"
    asked = len(api.requests)
    clustered.live.start()
    clustered.wait("default 10.2.0.1 eth1", "10.0.0.0/8 10.1.0.1 eth0", kept[2])
    assert not any("servicecidrs" in each.path for each in api.requests[asked:])


def test_what_is_refused(clustered: Routed) -> None:
    """Invalid entries are reported by name and the others made.

    A route to the API server's address needs the gate allow-apiserver.
    """
    api = clustered.api
    assert api
    api.add(service("kubernetes", "10.96.0.1"), "default")
    entries = [
        {"dst": "169.254.169.254/32", "dev": "eth1"},
        {"dst": "10.96.0.0/16", "dev": "eth1"},
        {"dst": "172.16.0.0/16", "dev": "lo"},
        {"dst": "172.17.0.0/16", "dev": "eth1", "via": "192.0.2.9"},
        {"dst": "172.18.0.0/16", "dev": "eth1"},
    ]
    api.add(route("one", route=entries))
    clustered.live.start()
    clustered.wait("172.18.0.0/16 - eth1")
    seen, page = clustered.seen("web-0"), clustered.page()
    [told] = page["routes"]
    assert ["link-local" in told["problems"][0], "'lo'" in told["problems"][1]] == [True, True]
    assert "the gate allow-apiserver allows it" in told["told"][0]
    assert "192.0.2.9" in seen["refused"][0]
    assert clustered.live.metric("route_pods_failed") == 1
    wait_until(lambda: "RouteRefused" in api.events.of("web-0"), what="the pod to be told")
    event = api.events.of("web-0")["RouteRefused"]
    assert event["involvedObject"]["uid"] == "u-web-0"
    assert event["message"].startswith("Route 'one': spec.route[3]: 172.17.0.0/16: its gateway 192.0.2.9 is not reached")


def test_a_pod_of_our_own(clustered: Routed, sandbox: str) -> None:
    """The routes of a pod that we attached are found by its record, without a file of the runtime; ADD returns with them made."""
    api = clustered.api
    assert api
    api.add(route("own", route=[{"dst": "172.16.0.0/16", "dev": "net1"}]))
    own = Pod("own", uid="u-own")
    api.add_pod(pod_object("own"))
    clustered.live.start()
    wait_until(lambda: clustered.page()["routes"], what="the Route to be known")
    host = {"iftype": "veth", "bridge": {"bridgeName": "br-test"}}
    network = clustered.live.network("1.0.0", host=host, ipam=clustered.live.host_local())
    assert clustered.live.run("ADD", network, sandbox, CNI_ARGS=own.args).status == 0
    shown = DualPod(sandbox, "")
    wait_until(lambda: "172.16.0.0/16 - net1 148" in shown.routes(), what="the route of the pod that was attached")
    wait_until(lambda: clustered.seen("own")["state"] == "applied", what="that the routes are reported")
    assert clustered.seen("own")["source"] == "records"
    second = {**network, "name": "second"}
    assert clustered.live.run("ADD", second, sandbox, ifname="net2", CNI_ARGS=own.args).status == 0
    for _ in range(2):  # one that is attached once more, too
        assert clustered.live.run("DEL", network, sandbox, CNI_ARGS=own.args).status == 0
        assert shown.routes() == []
        assert clustered.live.run("ADD", network, sandbox, CNI_ARGS=own.args).status == 0
        wait_until(lambda: "172.16.0.0/16 - net1 148" in shown.routes(), what="the route of the interface")
    assert clustered.live.run("DEL", second, sandbox, ifname="net2", CNI_ARGS=own.args).status == 0
    assert clustered.live.run("DEL", network, sandbox, CNI_ARGS=own.args).status == 0
    wait_until(lambda: not [each for each in clustered.page()["pods"] if each["name"] == "own"], what="the pod to be forgotten")


def test_what_the_node_reports(clustered: Routed) -> None:
    """Its NodeState has the outcome of each Route, and is not written while nothing changes."""
    api = clustered.api
    assert api
    unreachable = {"dst": "172.17.0.0/16", "dev": "eth1", "via": "192.0.2.9"}
    api.add(route("one", route=[{"dst": "172.16.0.0/16", "dev": "eth1"}, unreachable]))
    clustered.live.start()
    states = api.objects("nodestates.userspace-cni.io")

    def said() -> dict[str, Any]:
        found = states.get("", "n1").get("status", {}).get("routes") if ("", "n1") in states.names() else None
        return dict(found[0]) if found else {}

    wait_until(lambda: said().get("matched"), what="the report")
    assert {key: said()[key] for key in ("name", "generation", "matched", "applied", "failed")} == {
        "name": "one",
        "generation": 1,
        "matched": 1,
        "applied": 0,
        "failed": 1,
    }
    [failure] = said()["failures"]
    assert failure["pod"] == "default/web-0"
    assert "192.0.2.9" in failure["message"]


def test_a_file_that_is_put_back(routed: Routed) -> None:
    """A wrong file is reported; when the former one is back, unchanged, there is no fault any more."""
    routed.cached()
    routed.file.write_text(json.dumps([{"route": "172.16.0.0/16", "dev": "eth1"}]))
    routed.live.start()
    routed.wait("172.16.0.0/16 - eth1")
    aside, wrong = routed.file.with_name("aside"), routed.file.with_name("wrong")
    aside.hardlink_to(routed.file)
    wrong.write_text("[{]")
    wrong.rename(routed.file)
    wait_until(lambda: "file" in routed.page()["problems"], what="the fault to be told")
    assert routed.routes() == ["172.16.0.0/16 - eth1"]
    aside.rename(routed.file)
    wait_until(lambda: "file" not in routed.page()["problems"], what="the fault to be over")
    assert routed.routes() == ["172.16.0.0/16 - eth1"]
