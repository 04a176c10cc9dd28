"""The commands about routes in pods, beside a real agent and in real namespaces."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.agent.living import LiveNode
from tests.lab.kube.cluster_objects import node
from tests.lab.kube.definitions import defined_server
from tests.lab.network.dual_pod import DualPod, dual_pod
from tests.lab.node.forked_node import run_command
from tests.lab.runtimes.cached import BOX, cached, routing, written
from tests.lab.switch.switch import wait_until
from userspace_cni.kube.object_requests import Objects
from userspace_cni.kube.pod_requests import KubeClient
from userspace_cni.kube.resources import ROUTES

OURS = "148"
POD = "default/web-0"


@dataclass
class Front:
    """A node whose runtime's cache has a pod of another CNI plugin."""

    live: LiveNode
    pod: DualPod
    cache: Path
    file: Path

    def cached(self, path: str, name: str = "web-0", sandbox: str = BOX) -> None:
        """The file of a sandbox, as libcni writes it."""
        cached(self.cache, path, name, sandbox=sandbox)

    def run(self, *argv: str, given: str = "") -> tuple[int, str, str]:
        """Exit code, stdout and stderr of a command of ours on this node."""
        done = run_command(self.live.environ, *argv, given=given)
        return done.returncode, done.stdout, done.stderr

    def json(self, *argv: str, code: int = 0) -> Any:
        """The output of a command of ours as JSON."""
        ended, out, err = self.run("routes", *argv, "--json")
        assert ended == code, (out, err)
        return json.loads(out)

    def routes(self) -> list[str]:
        """Routes of ours in the pod."""
        return [each.removesuffix(f" {OURS}") for each in self.pod.routes() if each.endswith(f" {OURS}")]

    def wait(self, *routes: str) -> None:
        """Wait until our routes in the pod are these."""
        wait_until(lambda: self.routes() == list(routes), what=f"routes {routes}; it has {self.routes()}")

    def asks(self, *entries: dict[str, str]) -> None:
        self.file.write_text(json.dumps(entries))


@pytest.fixture
def front(live: LiveNode, tmp_path: Path) -> Iterator[Front]:
    """A node without a cluster, and without an agent yet."""
    cache, file, settings = routing(tmp_path)
    with dual_pod() as pod:
        made = Front(live, pod, cache, file)
        live.settings |= settings
        made.cached(pod.path)
        yield made
        live.close()


def test_what_the_agent_keeps_is_listed(front: Front) -> None:
    """The list has each Route with its pods, and what is made or skipped in a pod; an unknown pod is a failure."""
    front.asks({"route": "172.16.0.0/16", "dev": "eth1", "via": "10.2.0.1"}, {"route": "172.17.0.0/16", "dev": "eth7"})
    front.live.start()
    front.wait("172.16.0.0/16 10.2.0.1 eth1")
    code, out, err = front.run("routes", "list", "--pod", POD)
    assert (code, err) == (0, "")
    assert "cr-config" in out
    [there] = [line for line in out.splitlines() if " there " in line]
    assert "172.16.0.0/16 via 10.2.0.1 dev eth1" in there
    assert any("skipped" in line and "the pod has no device eth7" in line for line in out.splitlines())
    [pod] = front.json("list")["pods"]
    assert [each["dst"] for each in pod["wanted"]] == ["172.16.0.0/16"]
    assert front.run("routes", "list", "--pod", "default/none")[0] == 1


def test_a_route_that_was_replaced_is_not_said_to_be_there(front: Front) -> None:
    """Removed, or another one in its place: the list says so at once, however long ago the agent looked; nothing is repaired."""
    front.asks({"route": "172.16.0.0/16", "dev": "eth1", "via": "10.2.0.1"}, {"route": "172.17.0.0/16", "dev": "eth1"})
    front.live.start()
    front.wait("172.16.0.0/16 10.2.0.1 eth1", "172.17.0.0/16 - eth1")
    front.pod.ip("route", "replace", "172.16.0.0/16", "via", "10.1.0.1", "dev", "eth0")
    front.pod.ip("route", "prepend", "172.17.0.0/16", "dev", "eth0")
    code, out, err = front.run("routes", "list", "--pod", POD)
    assert (code, "routes are missing in 1 pod" in err) == (0, True)
    states = {line.split()[3]: line.split(None, 2) for line in out.splitlines() if line.startswith(POD)}
    assert {dst: line[1] for dst, line in states.items()} == {"172.16.0.0/16": "missing", "172.17.0.0/16": "behind"}
    assert "another program's 172.16.0.0/16 via 10.1.0.1 dev eth0 is in its place" in out
    [pod] = front.json("list")["pods"]
    assert {each["dst"]: (each["now"], each["instead"]) for each in pod["wanted"]} == {
        "172.16.0.0/16": ("missing", "172.16.0.0/16 via 10.1.0.1 dev eth0"),
        "172.17.0.0/16": ("behind", "172.17.0.0/16 dev eth0"),
    }
    assert front.routes() == ["172.17.0.0/16 - eth1"]
    front.pod.ip("route", "delete", "172.16.0.0/16")
    os.kill(front.live.pid, signal.SIGHUP)
    front.wait("172.16.0.0/16 10.2.0.1 eth1", "172.17.0.0/16 - eth1")
    assert [each["now"] for each in front.json("list")["pods"][0]["wanted"]] == ["there", "there"]


def test_without_an_agent_and_switched_off(front: Front) -> None:
    """Without an agent the exit code is 3; with the setting off it is 2, with and without an agent."""
    assert front.run("routes", "list")[0] == 3
    front.live.settings["USERSPACE_CNI_ROUTES"] = "false"
    code, _, err = front.run("routes", "list")
    assert (code, "the setting routes" in err) == (2, True)
    assert [front.run("routes", *each)[0] for each in (["check"], ["explain", POD, "10.0.0.1"])] == [2, 2]
    front.live.start()
    code, _, err = front.run("routes", "list")
    assert (code, "are off on this node" in err) == (2, True)


def test_drift_is_found_and_not_repaired(front: Front) -> None:
    """Missing and surplus routes are reported, with and without an agent, until a pass has repaired them."""
    front.asks({"route": "172.16.0.0/16", "dev": "eth1"}, {"route": "172.17.0.0/16", "dev": "eth1"})
    front.pod.ip("route", "add", "10.99.0.0/16", "dev", "eth0", "proto", OURS)
    front.cached(str(Path(front.pod.path).parent / "gone"), "gone", "b" * 64)
    found = front.json("check", code=1)
    [pod] = found["pods"]
    assert [each["route"] for each in pod["missing"]] == ["172.16.0.0/16 dev eth1", "172.17.0.0/16 dev eth1"]
    assert (pod["extra"], found["sound"]) == (["10.99.0.0/16 dev eth0"], False)
    code, out, _ = front.run("routes", "check")
    assert (code, out.count("missing"), out.count("too many")) == (1, 2, 1)
    assert front.routes() == ["10.99.0.0/16 - eth0"]
    front.live.start()
    front.wait("172.16.0.0/16 - eth1", "172.17.0.0/16 - eth1")
    assert front.json("check")["sound"]
    front.pod.ip("route", "delete", "172.17.0.0/16")
    assert front.run("routes", "check")[0] == 1
    assert front.routes() == ["172.16.0.0/16 - eth1"]


def test_what_cannot_be_looked_at_is_no_good_news(front: Front) -> None:
    """When the runtime's cache cannot be read, its pods are unknown: that is reported as a failure."""
    assert front.json("check")["sound"]
    (front.cache / "results").rename(front.cache / "former")
    (front.cache / "results").touch()
    found = front.json("check", code=1)
    assert (found["sound"], found["pods"], list(found["problems"])) == (False, [], ["cache"])
    code, out, err = front.run("routes", "check")
    assert (code, out, "no pod" in err.splitlines()[0], "cache: " in err) == (1, "", True, True)
    front.file.write_text("[{")
    code, out, err = front.run("routes", "check")
    assert (code, out, "what the file of routes asks for is not known" in err) == (3, "", True)


def test_what_becomes_of_a_packet(front: Front) -> None:
    """The command shows which Route, which next hop and why, before it is
    applied, and the kernel's own answer, for both IP versions.
    """
    front.asks({"route": "172.16.0.0/16", "dev": "eth1", "via": "10.2.0.1"})
    code, out, _ = front.run("routes", "explain", POD, "172.16.9.9")
    assert code == 0
    assert "Route 'cr-config' asks for 172.16.0.0/16 via 10.2.0.1 dev eth1" in out
    assert "now: default via 10.1.0.1 dev eth0, of others" in out
    assert "the kernel: by eth0 via 10.1.0.1 from 10.1.0.2" in out
    front.live.start()
    front.wait("172.16.0.0/16 10.2.0.1 eth1")
    found = front.json("explain", POD, "172.16.9.9")
    assert found["kernel"] == {"dev": "eth1", "via": "10.2.0.1", "source": "10.2.0.2", "problem": ""}
    assert (found["route"], found["now"]["ours"]) == ("cr-config", True)
    assert front.json("explain", POD, "2001:db8::1")["kernel"]["via"] == "fd01::1"
    assert front.json("explain", POD, "default")["kernel"] is None
    assert "no packet to it leaves the pod" in front.json("explain", POD, "127.0.0.1")["notes"][-1]
    front.pod.ip("rule", "add", "to", "198.51.100.0/24", "lookup", "77")
    front.pod.ip("route", "add", "default", "via", "10.2.0.1", "table", "77")
    assert "note: the kernel goes by another table" in front.run("routes", "explain", POD, "198.51.100.7")[1].splitlines()[-1]
    assert [front.run("routes", "explain", *each)[0] for each in (("default/no", "10.0.0.1"), (POD, "x"), ("x/", "::"))] == [
        1,
        2,
        2,
    ]


def test_the_node_s_own_namespace_is_left_alone(front: Front) -> None:
    """A path in the cache that leads to the node's own network is neither looked at nor explained."""
    front.cached("/proc/self/ns/net", "host", "c" * 64)
    assert [each["name"] for each in front.json("check")["pods"]] == ["web-0"]
    code, _, err = front.run("routes", "explain", "default/host", "10.0.0.1")
    assert (code, "the node's own" in err) == (1, True)


def test_in_a_cluster_it_takes_what_an_agent_has_read(front: Front) -> None:
    """Without an agent's file, what Route objects ask for is unknown, and that is a failure; with it, the agent may be away."""
    with defined_server() as api:
        api.add(node("n1", "192.0.2.11"))
        metadata = {"name": "web-0", "namespace": "default", "uid": "u-web-0"}
        api.add_pod({"metadata": metadata, "spec": {"nodeName": "n1", "containers": []}, "status": {"phase": "Running"}})
        front.live.follow(api)
        assert front.run("routes", "check")[0] == 3
        spec = {"route": [{"dst": "172.16.0.0/16", "dev": "eth1"}]}
        api.add({"apiVersion": "k8s.ovn.org/v1", "kind": "Route", "metadata": {"name": "low-latency"}, "spec": spec})
        front.live.start()
        front.wait("172.16.0.0/16 - eth1")
        assert front.json("check")["sound"]
        cached(front.cache, front.pod.beyond, "web-0", "u-former", "0" * 64)  # of a former pod of that name
        assert front.run("enter", POD, "ip", "link", "show", "eth1")[0] == 0
        lost = {**metadata, "name": "lost", "uid": "u-lost"}
        api.add_pod({"metadata": lost, "spec": {"nodeName": "n1", "containers": []}, "status": {"phase": "Running"}})
        wait_until(lambda: front.run("routes", "check")[0] == 1, what="the pod that is not found to be told")
        found = front.json("check", code=1)
        assert (found["sound"], found["unfound"]) == (False, ["default/lost"])
        assert "no network namespace is found of default/lost" in front.run("routes", "check")[2]
        assert front.json("check", code=1)["agent"]
        api.change("default", "web-0", {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})
        wait_until(
            lambda: "it is terminating" in front.json("explain", POD, "172.16.0.1")["notes"][0],
            what="a pod that ends to be explained",
        )
        api.change("default", "web-0", {"metadata": {"deletionTimestamp": None}})
        wait_until(lambda: front.json("explain", POD, "172.16.0.1")["route"], what="the pod to be back")
        front.live.kill()
        front.pod.ip("route", "delete", "172.16.0.0/16")
        assert "those that one knew last" in front.run("routes", "check")[2]
        [pod] = front.json("check", code=1)["pods"]
        assert pod["missing"] == [{"route": "172.16.0.0/16 dev eth1", "asked_by": "low-latency"}]


def test_routes_are_taken_out(front: Front) -> None:
    """All of our routes, and no others, are removed from one pod or from all.

    The command says beforehand which the agent will restore.
    """
    before = front.pod.routes()
    with dual_pod() as second:
        front.cached(second.path, "web-1", "b" * 64)
        front.asks({"route": "172.16.0.0/16", "dev": "eth1"}, {"route": "2001:db8::/32", "dev": "eth1"})
        front.live.start()
        front.wait("172.16.0.0/16 - eth1")
        wait_until(lambda: f"172.16.0.0/16 - eth1 {OURS}" in second.routes(), what="the other pod to have it, too")
        code, _, err = front.run("routes", "flush", given="n\n")
        assert (code, "puts back" in err, "Remove 4 routes of ours from 2 pods?" in err) == (1, True, True)
        code, _, err = front.run("routes", "flush")
        assert (code, "--yes" in err) == (2, True)
        assert front.routes() == ["172.16.0.0/16 - eth1"]
        assert front.live.end() == 0
        assert front.json("flush", "--pod", POD, "--yes") == {
            "removed": [{"pod": POD, "routes": ["172.16.0.0/16 dev eth1", "2001:db8::/32 dev eth1"]}],
            "left": [],
            "problems": {},
            "kept_by_agent": False,
        }
        assert (front.pod.routes(), len(second.routes())) == (before, len(before) + 1)
        code, out, err = front.run("routes", "flush", given="y\n")
        assert (code, "default/web-1" in out, "Remove 2 routes of ours from 1 pod?" in err) == (0, True, True)
        assert second.routes() == before
        code, _, err = front.run("routes", "flush")
        assert (code, "no pod of this node that is known has a route of ours" in err) == (0, True)
    assert front.run("routes", "flush", "--yes", "--pod", "default/none")[0] == 1


def test_pods_of_which_nothing_can_be_read_may_have_routes(front: Front) -> None:
    """Then the command does not say that all are gone; with a named pod only that one has to be readable."""
    front.asks({"route": "172.16.0.0/16", "dev": "eth1"})
    front.live.start()
    front.wait("172.16.0.0/16 - eth1")
    assert front.live.end() == 0
    aside = front.cache.rename(front.cache.with_name("aside"))
    front.cache.symlink_to(front.cache.name)
    found = front.json("flush", "--yes", code=1)
    assert (found["removed"], found["left"], list(found["problems"])) == ([], [], ["cache"])
    front.cache.unlink()
    aside.rename(front.cache)
    assert front.json("flush", "--yes")["problems"] == {}
    assert front.routes() == []


def test_a_container_outside_of_a_cluster_is_named(front: Front) -> None:
    """By the name that its runtime uses, or by the beginning of its ID: podman gives no namespace."""
    written(front.cache, front.pod.path, "b" * 64, K8S_POD_NAME="c1")
    (front.cache / "results" / f"net-{BOX}-eth0").unlink()
    front.asks({"route": "172.16.0.0/16", "dev": "eth1"})
    front.live.start()
    front.wait("172.16.0.0/16 - eth1")
    for name in ("c1", "b" * 12):
        assert front.json("list", "--pod", name)["pods"][0]["name"] == "c1"
        assert front.json("explain", name, "172.16.0.1")["route"] == "cr-config"
        assert front.run("enter", name, "ip", "link", "show", "eth1")[0] == 0
    assert "c1 " in front.run("routes", "list")[1]
    assert front.run("routes", "explain", "b" * 11, "172.16.0.1")[0] == 1
    assert front.run("routes", "explain", "/c1", "172.16.0.1")[0] == 2
    assert front.json("flush", "--pod", "c1", "--yes")["removed"][0]["pod"] == "c1"


def test_a_program_in_a_pod_s_network(front: Front) -> None:
    """It has the pod's links and the node's files, gets signals as usual, and its exit code is the command's."""
    code, out, err = front.run("enter", POD, "ip", "-o", "-4", "address", "show", "eth1")
    assert (code, "10.2.0.2/16" in out, err) == (0, True, "")
    assert [front.run("enter", POD, *each, "sh", "-c", "exit 7")[0] for each in ((), ("--",))] == [7, 7]
    assert "SigIgn:\t0000000000000000" in front.run("enter", POD, "cat", "/proc/self/status")[1]
    front.live.settings["SHELL"] = "/bin/sh"
    code, out, _ = front.run("enter", POD, given="readlink /proc/self/ns/net\nexit 5\n")
    assert (code, out.strip()) == (5, f"net:[{Path(front.pod.path).stat().st_ino}]")
    assert [front.run("enter", POD, each)[0] for each in ("/no/such", "/etc")] == [127, 126]
    assert [front.run("enter", each)[0] for each in ("default/none", "/web-0")] == [1, 2]


def test_the_node_s_own_network_is_not_entered(front: Front) -> None:
    """A path in the cache that leads there is refused."""
    front.cached("/proc/self/ns/net", "host", "c" * 64)
    code, out, err = front.run("enter", "default/host", "ip", "link")
    assert (code, out, "the node's own" in err) == (1, "", True)


def test_a_file_becomes_the_node_s(front: Front) -> None:
    """A short form takes effect in one step; a dry run, the same file again, and a wrong entry change nothing."""
    front.live.start()
    given = json.dumps([{"route": "172.16.0.0/16", "dev": "eth1"}])
    assert front.run("routes", "apply", "-f", "-", "--dry-run", given=given)[0] == 0
    assert not front.file.exists()
    code, out, _ = front.run("routes", "apply", "-f", "-", given=given)
    assert (code, "written" in out, "applied in 1 of 1 pod" in out) == (0, True, True)
    assert (front.routes(), front.file.stat().st_mode & 0o777) == (["172.16.0.0/16 - eth1"], 0o644)
    inode = front.file.stat().st_ino
    assert "unchanged" in front.run("routes", "apply", "-f", "-", given=given)[1]
    code, out, _ = front.run("routes", "apply", "-f", "-", given='[{"route": "127.0.0.0/8", "dev": "eth1"}]')
    assert (code, "stdin:1: entry 1" in out, "127.0.0.0/8" in out) == (1, True, True)
    assert (front.routes(), front.file.stat().st_ino) == (["172.16.0.0/16 - eth1"], inode)
    assert [each.name for each in front.file.parent.iterdir()] == [front.file.name]


def test_objects_without_a_cluster(front: Front) -> None:
    """They become the node's file, too, which the next agent reads; each fault of them is reported."""
    good = {"apiVersion": "k8s.ovn.org/v1", "kind": "Route", "metadata": {"name": "good"}}
    spec = {"route": [{"dst": "172.16.0.0/16", "dev": "eth1"}], "svc": [{"namespace": "a", "name": "b", "dev": "eth1"}]}
    bad = {**good, "metadata": {"name": "bad"}, "spec": {"route": [{"dst": "10.0.0.0/8", "dev": "lo"}], "priority": 1}}
    code, out, err = front.run("routes", "apply", "-f", "-", given=json.dumps([{**good, "spec": spec}, bad]))
    assert (code, "nothing was applied" in err) == (1, True)
    assert [line.partition("; ")[0] for line in out.splitlines()] == ["stdin:1: Route 'bad': spec.route[0]: 'dev' is 'lo'"]
    assert not front.file.exists()
    code, out, err = front.run("routes", "apply", "-f", "-", given=json.dumps({**good, "spec": spec}))
    assert (code, "there is no cluster" in out, "no agent runs here" in err) == (0, True, True)
    front.live.start()
    front.wait("172.16.0.0/16 - eth1")


def test_objects_go_into_the_api(front: Front) -> None:
    """Each is created, changed or left unchanged; fields of another writer are taken over by force; entries stay the node's."""
    with defined_server() as api:
        front.live.settings["USERSPACE_CNI_KUBECONFIG"] = api.kubeconfig(front.live.directory)
        thing: dict[str, Any] = {"apiVersion": "k8s.ovn.org/v1", "kind": "Route", "metadata": {"name": "low-latency"}}

        def apply(dst: str, *more: str) -> tuple[int, str]:
            given = json.dumps({**thing, "spec": {"route": [{"dst": dst, "dev": "eth1"}]}, "status": {"status": "Applied"}})
            code, out, err = front.run("routes", "apply", "-f", "-", "--json", *more, given=given)
            assert out, err
            return code, json.loads(out)["routes"][0]["state"]

        assert [apply(each) for each in ("10.0.0.0/8", "10.0.0.0/8", "10.0.0.0/9")] == [
            (0, "created"),
            (0, "unchanged"),
            (0, "changed"),
        ]
        of_kubectl = {"spec": {"route": [{"dst": "10.2.0.0/16", "dev": "eth1"}]}}
        session = KubeClient(api.kubeconfig(front.live.directory)).session
        Objects(session).apply(ROUTES, "low-latency", of_kubectl, manager="kubectl")
        assert [apply("10.3.0.0/16", *each) for each in ((), ("--force",))] == [(1, "refused"), (0, "changed")]
        code, _, err = front.run("routes", "apply", "-f", "-", "--dry-run", given='[{"route": "10.0.0.0/8", "dev": "eth1"}]')
        assert (code, str(front.file) in err, front.file.exists()) == (0, True, False)
