"""ADDs that wait for a tenant's controller to write into pods hold nothing that others need, and their number is limited."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from tests.agent.living import LiveNode, container
from tests.cni.spec import refused, succeeded
from tests.lab.kube.apiserver import ApiServer, Fault
from tests.lab.kube.pods import Pod
from tests.lab.node.links import addresses
from tests.lab.node.trace_collector import attributes, collecting
from tests.lab.runtimes.runtime import Call
from tests.lab.switch.switch import wait_until
from userspace_cni.cni import protocol
from userspace_cni.kube.watch import KEPT_LIMIT

MOST = 3
WAITED_S = 60
SHARED_NETWORK = "podnet.{}.ovn.kubernetes.io/{}"


@pytest.fixture
def api(live: LiveNode) -> Iterator[ApiServer]:
    """An API server by which the agent knows its pods, of which so many per namespace may wait."""
    with ApiServer() as started:
        live.follow(started)
        live.settings |= {
            "USERSPACE_CNI_KUBEOVN_ANNOTATIONS": "true",
            "USERSPACE_CNI_WAITING_PER_NAMESPACE": str(MOST),
        }
        yield started


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    """Callers, as many as a test has."""
    with ThreadPoolExecutor(64) as made:
        yield made


class Adding:
    """An ADD of a pod of its own, in a thread."""

    def __init__(self, live: LiveNode, api: ApiServer, number: int, namespace: str = "default", **keys: Any) -> None:
        self.pod = Pod(f"app{number}", namespace)
        manifest = self.pod.manifest()
        manifest["spec"]["nodeName"] = "n1"
        api.add_pod(manifest)
        host = {"iftype": "veth", "bridge": {"bridgeName": "br-test"}}
        self.network = {
            "cniVersion": "1.0.0", "name": "podnet", "type": "userspace", "host": host, "addresses": "annotations", **keys
        }  # fmt: skip
        self.container, self.ifname = container(number), f"net{number}"
        self._live, self._api, self._number = live, api, number

    def run(self, verb: str, netns: str) -> Call:
        """One call of the runtime's about this interface."""
        return self._live.run(verb, self.network, netns, self.container, self.ifname, CNI_ARGS=self.pod.args)

    def request(self, netns: str) -> bytes:
        """ADD as the shim sends it."""
        environ = self._live.variables("ADD", netns, self.container, self.ifname, CNI_ARGS=self.pod.args)
        return protocol.request_bytes("/api/v1/add", environ, json.dumps(self.network).encode())

    @property
    def address(self) -> str:
        return f"10.16.0.{self._number}/16"

    def annotate(self, **values: str) -> None:
        """Write kube-ovn's address, or these values, as its controller does."""
        values = values or {"ip_address": self.address}
        written = {SHARED_NETWORK.format(self.pod.namespace, key): value for key, value in values.items()}
        self._api.change(self.pod.namespace, self.pod.name, {"metadata": {"annotations": written}})

    def call(self, netns: str) -> socket.socket:
        client = socket.socket(socket.AF_UNIX)
        client.connect(self._live.socket)
        client.sendall(self.request(netns))
        return client


def waits(live: LiveNode, number: int) -> None:
    """Wait until so many ADDs wait, and no thread of the agent works."""
    wait_until(lambda: live.metric("adds_waiting") == number, what=f"{number} ADDs to wait")
    wait_until(lambda: live.metric("workers_busy") == 0, what="no thread to be held")


def test_what_waits_holds_nothing(live: LiveNode, sandbox: str, api: ApiServer, threads: ThreadPoolExecutor) -> None:
    """Waiting ADDs hold no thread; one more of their namespace is refused at once, and others are served as usual."""
    pods = [Adding(live, api, number) for number in range(1, MOST + 1)]
    more, other, another = Adding(live, api, 11), Adding(live, api, 12, "other"), Adding(live, api, 13, "other")
    live.start()
    adding = [threads.submit(pod.run, "ADD", sandbox) for pod in pods]
    waits(live, MOST)
    error = refused(more.run("ADD", sandbox), 11)
    assert f"{MOST} ADDs of namespace default wait for their pods already" in error["msg"]
    assert "waiting_per_namespace" in error["details"]
    other.annotate()
    assert succeeded(other.run("ADD", sandbox))["ips"][0]["address"] == other.address
    adding.append(threads.submit(another.run, "ADD", sandbox))
    waits(live, MOST + 1)
    for pod in (*pods, another):
        pod.annotate()
    for pod, future in zip((*pods, another), adding, strict=True):
        assert succeeded(future.result(WAITED_S))["ips"][0]["address"] == pod.address
        assert addresses(sandbox, pod.ifname) == [pod.address]
    waits(live, 0)
    more.annotate()
    succeeded(more.run("ADD", sandbox))
    waited = partial(live.metric, "verb_seconds_count", verb="ADD", stage="address", outcome="ok")
    wait_until(lambda: waited() >= MOST + 1, what="each to be counted")  # the two others, too, where the watch had not told yet
    for pod in (*pods, more, other, another):
        succeeded_del(pod.run("DEL", sandbox))
    live.require_clean()


def test_the_wait_is_in_the_trace(live: LiveNode, sandbox: str, api: ApiServer, threads: ThreadPoolExecutor) -> None:
    """The span of an ADD that waited without a thread has the wait and what came before and after it, in this order."""
    pod = Adding(live, api, 1)
    with collecting() as collector:
        live.settings["USERSPACE_CNI_OTLP_ENDPOINT"] = collector.endpoint
        live.start(SETTLE_S=0.05)
        adding = threads.submit(pod.run, "ADD", sandbox)
        waits(live, 1)
        pod.annotate()
        succeeded(adding.result(WAITED_S))
        wait_until(lambda: collector.calls("ADD"), what="the span")
        [span] = collector.calls("ADD")
        began = {each.name: each.start_time_unix_nano for each in reversed(collector.below(span))}
        assert began["hand-over"] <= began["address"] < began["ovs"]
        assert attributes(span.attributes)["k8s.pod.name"] == pod.pod.name


def succeeded_del(call: Call) -> None:
    assert (call.status, call.stdout) == (0, b"")


def test_the_wait_is_a_line_of_the_log(live: LiveNode, sandbox: str, api: ApiServer, threads: ThreadPoolExecutor) -> None:
    """At `debug` the log has a line for the wait of an ADD, with milliseconds and the call's names, before its steps."""
    pod = Adding(live, api, 1, logLevel="debug")
    live.start()
    adding = threads.submit(pod.run, "ADD", sandbox)
    waits(live, 1)
    pod.annotate()
    succeeded(adding.result(WAITED_S))
    lines = [line for line in live.log.read_text().splitlines() if "level=debug" in line]
    assert "waited for the pod's annotations" in lines[0]
    assert all(f"interface={pod.ifname}" in line and " ms=" in line for line in lines)
    assert "msg=answered" in lines[-1]
    succeeded_del(pod.run("DEL", sandbox))
    live.require_clean()


def test_del_of_what_waits(live: LiveNode, sandbox: str, api: ApiServer, threads: ThreadPoolExecutor) -> None:
    """A DEL does not wait for the waiting ADD of its container, but ends it: no pod is attached after its DEL."""
    pod = Adding(live, api, 1)
    live.start()
    adding = threads.submit(pod.run, "ADD", sandbox)
    waits(live, 1)
    succeeded_del(pod.run("DEL", sandbox))
    error = refused(adding.result(WAITED_S), 11)
    assert "a DEL of it came" in error["msg"]
    waits(live, 0)
    pod.annotate()
    live.require_clean()


def test_a_caller_that_hangs_up(live: LiveNode, sandbox: str, api: ApiServer) -> None:
    """A call whose caller has gone no longer counts against its namespace, and attaches nothing."""
    pods = [Adding(live, api, number) for number in range(1, MOST + 1)]
    live.start()
    clients = [pod.call(sandbox) for pod in pods]
    waits(live, MOST)
    for client in clients:
        client.close()
    waits(live, 0)
    for pod in pods:
        pod.annotate()
    live.tick()
    live.require_clean()


def test_a_pod_that_goes(live: LiveNode, sandbox: str, api: ApiServer, threads: ThreadPoolExecutor) -> None:
    """The wait ends when the pod is deleted, or begins to be."""
    gone, going = Adding(live, api, 1), Adding(live, api, 2)
    live.start()
    adding = [threads.submit(pod.run, "ADD", sandbox) for pod in (gone, going)]
    waits(live, 2)
    api.remove_pod("default", gone.pod.name)
    api.store.mark_deleted("default", going.pod.name)
    for future in adding:
        refused(future.result(WAITED_S), 3)
    live.require_clean()


def test_an_agent_that_is_stopped(live: LiveNode, sandbox: str, api: ApiServer, threads: ThreadPoolExecutor) -> None:
    """An agent that is stopped answers waiting calls before it ends."""
    pods = [Adding(live, api, number) for number in range(1, MOST + 1)]
    live.start()
    adding = [threads.submit(pod.run, "ADD", sandbox) for pod in pods]
    waits(live, MOST)
    assert live.end() == 0
    for future in adding:
        assert "the agent is stopping" in refused(future.result(WAITED_S), 11)["msg"]
    assert "cut short" not in live.log.read_text()
    live.require_clean()


def test_an_agent_that_is_killed(live: LiveNode, sandbox: str, api: ApiServer, threads: ThreadPoolExecutor) -> None:
    """A waiting ADD has nothing on the node: the next agent has nothing to undo."""
    pod = Adding(live, api, 1)
    live.start()
    adding = threads.submit(pod.run, "ADD", sandbox)
    waits(live, 1)
    live.kill()
    refused(adding.result(WAITED_S), 11)
    live.require_clean()
    live.start()
    pod.annotate()
    succeeded(pod.run("ADD", sandbox))
    succeeded_del(pod.run("DEL", sandbox))
    live.require_clean()


def test_a_pod_that_the_watch_does_not_know(live: LiveNode, sandbox: str, api: ApiServer, threads: ThreadPoolExecutor) -> None:
    """When the network's own account watches the pod, the ADD holds no worker thread either, and errors are reported."""
    kubeconfig = live.settings.pop("USERSPACE_CNI_KUBECONFIG")
    live.settings["USERSPACE_CNI_KUBECONFIG_DIRS"] = str(live.directory)
    pods = [Adding(live, api, number, kubeconfig=kubeconfig) for number in (1, 2)]
    live.start()
    adding = [threads.submit(pod.run, "ADD", sandbox) for pod in pods]
    waits(live, 2)
    pods[0].annotate()
    assert succeeded(adding[0].result(WAITED_S))["ips"][0]["address"] == pods[0].address
    waits(live, 1)
    api.faults.append(Fault("WATCH", status=403))
    api.close_watches()
    refused(adding[1].result(WAITED_S), 107)
    waits(live, 0)
    succeeded_del(pods[0].run("DEL", sandbox))
    live.require_clean()


def test_what_the_watch_keeps_nothing_of(live: LiveNode, sandbox: str, api: ApiServer, threads: ThreadPoolExecutor) -> None:
    """ADDs of such pods have a thread each, within their namespace's limit; a DEL, and a caller that goes, free both."""
    pods = [Adding(live, api, number) for number in range(1, MOST + 1)]
    more = Adding(live, api, 11)
    for pod in (*pods, more):
        pod.annotate(routes="y" * KEPT_LIMIT)
    live.start()
    for turn in range(3):
        adding = [threads.submit(pod.run, "ADD", sandbox) for pod in pods]
        waits(live, MOST)
        await_followed(api, (2 * turn + 1) * MOST)
        refused(more.run("ADD", sandbox), 11)
        for pod in pods:
            succeeded_del(pod.run("DEL", sandbox))
        for future in adding:
            assert "a DEL of it came" in refused(future.result(WAITED_S), 11)["msg"]
        clients = [pod.call(sandbox) for pod in pods]  # at once
        waits(live, MOST)
        await_followed(api, (2 * turn + 2) * MOST)
        for client in clients:
            client.close()
        waits(live, 0)
    adding = [threads.submit(pod.run, "ADD", sandbox) for pod in pods]
    waits(live, MOST)
    for pod in pods:
        pod.annotate(ip_address=pod.address, routes="")
    for pod, future in zip(pods, adding, strict=True):
        assert succeeded(future.result(WAITED_S))["ips"][0]["address"] == pod.address
        succeeded_del(pod.run("DEL", sandbox))
    live.require_clean()


def await_followed(api: ApiServer, times: int) -> None:
    """Until single pods were watched so many times."""

    def followed() -> int:
        return sum(request.verb == "WATCH" and "metadata.name" in request.path for request in list(api.requests))

    wait_until(lambda: followed() == times, what=f"pods to be followed {times} times")


def test_a_pod_that_grows(live: LiveNode, sandbox: str, api: ApiServer, threads: ThreadPoolExecutor) -> None:
    """An ADD goes on waiting when the watch stops keeping anything of its pod."""
    pod = Adding(live, api, 1)
    live.start()
    adding = threads.submit(pod.run, "ADD", sandbox)
    waits(live, 1)
    pod.annotate(routes="y" * KEPT_LIMIT)
    await_followed(api, 1)
    waits(live, 1)
    pod.annotate(ip_address=pod.address, routes="")
    assert succeeded(adding.result(WAITED_S))["ips"][0]["address"] == pod.address
    succeeded_del(pod.run("DEL", sandbox))
    live.require_clean()


def test_what_the_watch_does_not_tell(live: LiveNode, sandbox: str, api: ApiServer) -> None:
    """An address that the server has does not count as missing, even if the watch has not reported it."""
    live.settings["USERSPACE_CNI_DEADLINE_S"] = "4"
    pod = Adding(live, api, 1)
    live.start()
    api.silent = True
    pod.annotate()
    assert succeeded(pod.run("ADD", sandbox))["ips"][0]["address"] == pod.address
    succeeded_del(pod.run("DEL", sandbox))
    live.require_clean()


def test_an_annotation_in_the_last_moment(live: LiveNode, sandbox: str, api: ApiServer, threads: ThreadPoolExecutor) -> None:
    """When most of the deadline has passed, ADD answers "try again"; the rest of it is left for an attachment that can begin."""
    live.settings["USERSPACE_CNI_DEADLINE_S"] = "2"
    pod = Adding(live, api, 1)
    live.start()
    began = time.monotonic()
    error = refused(pod.run("ADD", sandbox), 11)
    assert "has no annotation podnet.default.ovn.kubernetes.io/ip_address" in error["msg"]
    assert time.monotonic() - began >= 1  # it has waited
    live.require_clean()
