"""ADD waits for the addresses that a controller writes into the pod's annotations: by the node's watch or its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.lab.kube.apiserver import ApiServer, Fault
from tests.lab.switch.switch import wait_until
from userspace_cni.attachment.facts import Pod
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import ContainerGone, InvalidConfig, NoteRefused, Unavailable
from userspace_cni.base.notices import ANNOTATION_IGNORED, collect
from userspace_cni.base.port_kinds import PortKind
from userspace_cni.base.settings import Settings
from userspace_cni.cni.annotations import PodInterface
from userspace_cni.kube.watch import KEPT_LIMIT, PodWatch
from userspace_cni.node.local_node import LocalNode
from userspace_cni.node.pod_annotations import Sources, find_awaited_addresses, has_enough, read_addresses, require_addresses

ETH0 = PodInterface("podnet", "default", "eth0", kubeovn_read=True)
ADDRESS, CIDR = "ovn.kubernetes.io/ip_address", "ovn.kubernetes.io/cidr"
WAIT_S = 60.0

Asked = Callable[..., "Future[Pod]"]


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with ApiServer() as started:
        started.add_pod({"metadata": {"name": "p"}, "spec": {"nodeName": "n1"}})
        yield started


@pytest.fixture(params=["watch of the node", "watch of its own"])
def node(request: pytest.FixtureRequest, api: ApiServer, tmp_path: Path) -> Iterator[LocalNode]:
    """A node whose process watches its pods, and one with a process per call."""
    settings = Settings(kubeconfig=api.kubeconfig(tmp_path), state_dir=str(tmp_path), node_name="n1")
    made = LocalNode(settings, {}, resident=request.param == "watch of the node")
    if made.service.resident:
        made.changed = threading.Event()  # type: ignore[attr-defined]
        made.pods.watch = PodWatch(made.installation.clients.of("").session, "n1", on_change=lambda *_: made.changed.set())  # type: ignore[attr-defined]
        made.pods.watch.start()
        assert made.pods.watch.wait_synced(Deadline.after(60))
    yield made
    made.close()


@pytest.fixture
def asked(api: ApiServer, node: LocalNode) -> Iterator[Asked]:
    """Ask for the addresses of the pod in a thread, and return when the server was asked."""
    with ThreadPoolExecutor() as threads:

        def ask(seconds: float = WAIT_S) -> Future[Pod]:
            pod = node.installation.clients.of("").get_pod("default", "p", Deadline.after(60))
            future = threads.submit(addressed, node, pod, ETH0, Deadline.after(seconds))
            wait_until(lambda: future.done() or api.watches)
            return future

        yield ask


def sources(node: LocalNode) -> Sources:
    """Where this node gets a pod's addresses from, with its own account."""
    return lambda: (node.pods.watch, node.installation.clients.of(""))


def addressed(node: LocalNode, pod: Pod | None, interface: PodInterface, deadline: Deadline) -> Pod:
    """The pod with its addresses, as an ADD waits for them: an agent in the background, a process where it is."""
    awaited = find_awaited_addresses(sources(node), pod, interface, deadline)
    if awaited and node.service.resident:
        changed = node.changed  # type: ignore[attr-defined]
        awaited.begin(changed.set)
        while not awaited.over() and awaited.until.remaining():
            changed.wait(awaited.until.remaining())
            changed.clear()
    if awaited:
        awaited.settle()
    known = node.pods.watch.view("default", "p", pod.uid) if node.pods.watch and pod else None
    if not (known and has_enough(known, interface)):  # the watch may tell later than the server answers
        known = node.installation.clients.of("").get_pod("default", "p", Deadline.after(60))
    if known is None or (pod and known.uid != pod.uid):
        raise ContainerGone("pod default/p was deleted", "")
    require_addresses(known, interface)
    return known


def annotate(api: ApiServer, **values: Any) -> None:
    api.change(
        "default", "p", {"metadata": {"annotations": {f"ovn.kubernetes.io/{key}": value for key, value in values.items()}}}
    )


def test_addresses_that_are_there(asked: Asked, api: ApiServer) -> None:
    """ADD takes an address that was written before."""
    annotate(api, ip_address="10.16.0.7/16")
    assert asked().result(WAIT_S).annotations == {ADDRESS: "10.16.0.7/16"}


def test_addresses_that_come(asked: Asked, api: ApiServer, node: LocalNode) -> None:
    """ADD goes on when everything that it needs has come, not with half of it. Meanwhile it sends no request."""
    future = asked()
    reads = api.count("GET")
    annotate(api, mac_address="0a:00:00:00:00:07")
    annotate(api, ip_address="10.16.0.7")
    annotate(api, cidr="10.16.0.0/16")
    assert future.result(WAIT_S).annotations[CIDR] == "10.16.0.0/16"
    assert api.count("GET") == reads + (not node.service.resident)  # its last look


def test_addresses_that_never_come(asked: Asked, api: ApiServer) -> None:
    """At the deadline the answer is "try again later", and names the pod and what it lacks."""
    annotate(api, ip_address="10.16.0.7")
    with pytest.raises(Unavailable, match=rf"pod default/p has no annotation {CIDR} yet"):
        asked(0.5).result(WAIT_S)


def test_a_pod_that_goes_meanwhile(asked: Asked, api: ApiServer) -> None:
    """The wait ends when the pod is deleted, or begins to be."""
    future = asked()
    api.store.mark_deleted("default", "p")
    with pytest.raises(ContainerGone, match="pod default/p was deleted"):
        future.result(WAIT_S)


def test_a_pod_that_is_gone(asked: Asked, api: ApiServer) -> None:
    """The wait ends, too, when the pod vanishes at once, or is made anew under its name."""
    future = asked()
    api.remove_pod("default", "p")
    with pytest.raises(ContainerGone):
        future.result(WAIT_S)


def test_annotations_that_cannot_be_meant(asked: Asked, api: ApiServer) -> None:
    """An invalid annotation of OVN ends the wait at once. The error names it."""
    future = asked()
    api.change("default", "p", {"metadata": {"annotations": {"ovn": "{"}}})
    with pytest.raises(InvalidConfig, match="annotation 'ovn' is not JSON"):
        future.result(WAIT_S)


def test_a_watch_that_ends(asked: Asked, api: ApiServer) -> None:
    """When a server ends its watches, another watch begins, and no change is missed."""
    future = asked()
    api.close_watches()
    annotate(api, ip_address="10.16.0.7/16")
    assert future.result(WAIT_S).annotations[ADDRESS] == "10.16.0.7/16"


def test_what_can_never_be_meant(asked: Asked, api: ApiServer) -> None:
    """ADD does not wait if the present annotations are refused whatever else comes."""
    annotate(api, vlan_id="x")
    with pytest.raises(InvalidConfig, match="vlan_id' is 'x'"):
        asked().result(WAIT_S)


def test_a_pod_that_grows_meanwhile(asked: Asked, api: ApiServer, node: LocalNode) -> None:
    """A pod that has become too large for the node's watch is not gone: another watch follows it alone, and ADD waits on."""
    future = asked()
    annotate(api, routes="y" * KEPT_LIMIT)
    wait_until(lambda: following() or not node.service.resident)
    annotate(api, routes="", ip_address="10.16.0.7/16")
    assert future.result(WAIT_S).annotations[ADDRESS] == "10.16.0.7/16"
    wait_until(lambda: not following())


def test_a_wait_that_is_given_up(api: ApiServer, node: LocalNode) -> None:
    """The watch of a single pod ends when its call has ended, long before its deadline."""
    annotate(api, routes="y" * KEPT_LIMIT)
    pod = node.installation.clients.of("").get_pod("default", "p", Deadline.after(60))
    awaited = find_awaited_addresses(sources(node), pod, ETH0, Deadline.after(300))
    assert awaited
    before = api.watches
    if node.pods.watch:
        wait_until(lambda: node.pods.watch.view("default", "p", pod.uid) is None)  # type: ignore[union-attr]
    over = threading.Event()
    awaited.begin(over.set)
    wait_until(lambda: api.watches == before + 1)
    assert (awaited.runs, awaited.over()) == (True, False)
    awaited.end()
    assert over.wait(WAIT_S)
    assert (awaited.runs, awaited.over()) == (False, True)
    wait_until(lambda: not following())
    awaited.settle()


def following() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "following-pod"]


def test_what_can_never_come(node: LocalNode) -> None:
    """Without the setting, and without a pod of an API server, ADD is refused instead of waiting."""
    pod = Pod("default", "p", "u")
    with pytest.raises(InvalidConfig, match="'addresses' is 'annotations': this node reads no addresses") as refused:
        addressed(node, pod, PodInterface("podnet", "default", "eth0"), Deadline.after(WAIT_S))
    assert "kubeovn_annotations" in refused.value.details
    with pytest.raises(InvalidConfig, match="there is no pod"):
        addressed(node, None, ETH0, Deadline.after(WAIT_S))


@pytest.mark.parametrize("status", [403, 404])
def test_an_account_that_may_not_watch(api: ApiServer, tmp_path: Path, status: int) -> None:
    """Without an agent the account of the network's kubeconfig needs the verb watch, and the error says so at once."""
    made = LocalNode(Settings(kubeconfig=api.kubeconfig(tmp_path), state_dir=str(tmp_path)), {})
    api.faults.append(Fault("WATCH", status=status))
    pod = made.installation.clients.of("").get_pod("default", "p", Deadline.after(60))
    with pytest.raises(NoteRefused, match=f"watching pod default/p: the API server answered {status}") as refused:
        addressed(made, pod, ETH0, Deadline.after(WAIT_S))
    assert "watch on pods" in refused.value.details


@pytest.mark.parametrize(
    ("asked", "kind", "told"),
    [
        ("internal-port", "system", "eth0 is a veth, since ovs-vswitchd"),
        ("offload-port", "system", "eth0 is a veth, as its network says"),
        ("dpdk-port", "afxdp", "eth0 is a veth, as its network says"),
        ("veth-pair", "vhostuser", "eth0 is a vhost-user interface, as its network says"),
        ("internal-port", "vhostuser", "eth0 is a vhost-user interface, as its network says"),
        ("veth-pair", "system", ""),
        ("dpdk-port", "vhostuser", ""),
        ("", "vhostuser", ""),
        ("eth", "system", ""),
    ],
)
def test_another_type_of_interface_than_asked_for(asked: str, kind: PortKind, told: str) -> None:
    """The pod gets an Event if it asks for another type of interface than its network makes."""
    pod = Pod("default", "p", "u", annotations={ADDRESS: "10.16.0.7/16", "ovn.kubernetes.io/pod_nic_type": asked})
    with collect() as notices:
        read_addresses(pod, ETH0, kind)
    assert [(notice.name, told in notice.message) for notice in notices] == ([(ANNOTATION_IGNORED.name, True)] if told else [])
