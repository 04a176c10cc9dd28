"""What the agent knows of its node's pods while the API server works, and what it does not conclude from that."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.kube.apiserver import ApiServer
from tests.lab.switch.switch import wait_until
from userspace_cni.base.back_off import BackOff
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import InvalidConfig
from userspace_cni.kube.list_watch import WatchTimes
from userspace_cni.kube.pod_requests import MIRROR, KubeClient
from userspace_cni.kube.watch import KEPT_LIMIT, PodWatch
from userspace_cni.pod import document

PACE = WatchTimes(page=3, back_off=BackOff(0.005, 0.02), confirm_s=0)
SPEC: dict[str, Any] = {
    "nodeName": "n1",
    "volumes": [
        {"name": "shared-dir", "emptyDir": {"medium": "Memory"}},
        {"name": "h", "hostPath": {"path": "/srv", "type": ""}},
    ],
    "containers": [
        {"name": "a", "image": "x", "volumeMounts": [{"name": "shared-dir", "mountPath": "/a", "readOnly": True}]},
        {"name": "b"},
    ],
}


@pytest.fixture
def api() -> Iterator[ApiServer]:
    """A server with seven pods on our node and one on another."""
    with ApiServer() as started:
        for number in range(7):
            started.add_pod(pod(f"p{number}"))
        started.add_pod(pod("elsewhere", node="n2"))
        yield started


@pytest.fixture
def watch(api: ApiServer, tmp_path: Path) -> Iterator[PodWatch]:
    """A watch of our node that has seen everything."""
    made = synced(watch_of(api, tmp_path, PACE))
    yield made
    made.stop()


def pod(name: str, node: str = "n1", **metadata: Any) -> dict[str, Any]:
    """A pod as one gives it to the server."""
    return {"metadata": {"name": name, "managedFields": [{"manager": "x"}], **metadata}, "spec": {**SPEC, "nodeName": node}}


def watch_of(api: ApiServer, directory: Path, times: WatchTimes) -> PodWatch:
    """A watch of node n1, not begun."""
    return PodWatch(KubeClient(api.kubeconfig(directory)).session, "n1", times)


def synced(watch: PodWatch) -> PodWatch:
    """The watch after two lists."""
    watch.start()
    assert watch.wait_synced(Deadline.after(60))
    wait_until(lambda: watch.confirmed and not watch.problem)
    return watch


def version(watch: PodWatch, name: str) -> str:
    """The resourceVersion of a pod as it is known; "" when it is not."""
    known = watch.get("default", name)
    return str(known["metadata"]["resourceVersion"]) if known else ""


def all_uids(api: ApiServer) -> frozenset[str]:
    pods = [api.pod(*key) for key in api.store.names()]
    return frozenset(pod["metadata"]["uid"] for pod in pods if pod["spec"].get("nodeName") == "n1")


def test_the_first_list_is_read_in_pages(api: ApiServer, watch: PodWatch) -> None:
    """Three pages of our node's pods and one watch are requested. No pod of another node is known."""
    wait_until(lambda: api.count("WATCH") == 1)  # it follows the second list
    assert api.count("LIST") == 6
    assert all(request.option("fieldSelector") == "spec.nodeName=n1" for request in api.requests)
    assert (watch.synced, watch.fresh, watch.alive) == (True, True, True)
    assert watch.uids() == all_uids(api)
    assert watch.get("default", "elsewhere") is None


def test_changes_are_followed_without_asking_again(api: ApiServer, watch: PodWatch) -> None:
    """New pods, pods that come to this node, changes, the begin of a deletion and its end all arrive as events."""
    api.add_pod(pod("new"))
    wait_until(lambda: watch.get("default", "new"))
    api.add_pod(pod("unbound", node=""))
    api.change("default", "unbound", {"spec": {"nodeName": "n1"}})
    wait_until(lambda: watch.get("default", "unbound"))
    api.change("default", "p1", {"metadata": {"annotations": {document.MAPPED_DIR: "/x/"}}})
    wait_until(lambda: (watch.get("default", "p1") or {})["metadata"]["annotations"] == {document.MAPPED_DIR: "/x/"})
    uid = api.pod("default", "p2")["metadata"]["uid"]
    api.store.mark_deleted("default", "p2")
    wait_until(lambda: (view := watch.view("default", "p2", uid)) and view.deleting)
    api.remove_pod("default", "p2")
    wait_until(lambda: watch.get("default", "p2") is None)
    assert watch.uids() == all_uids(api)
    assert (api.count("LIST"), api.count("WATCH")) == (6, 1)


def test_what_is_known_is_what_the_server_would_say(api: ApiServer, watch: PodWatch, tmp_path: Path) -> None:
    """Volumes, mounts and our annotations are kept, and nothing else of a pod."""
    own = {document.CONFIGURATION_DATA: "[]", document.MAPPED_DIR: "/a/", document.DPDK_ARGS: "x"}
    uid = api.add_pod(pod("p1", annotations={**own, "other": "y" * 1000}))["metadata"]["uid"]
    wait_until(lambda: watch.view("default", "p1", uid))
    asked = KubeClient(api.kubeconfig(tmp_path)).get_pod("default", "p1", Deadline.after(60))
    assert asked is not None
    assert watch.view("default", "p1", uid) == dataclasses.replace(asked, annotations=own)
    known = watch.get("default", "p1") or {}
    assert "managedFields" not in known["metadata"]
    assert known["metadata"]["resourceVersion"] == api.pod("default", "p1")["metadata"]["resourceVersion"]


def test_a_pod_is_seen_by_its_uid_only(api: ApiServer, watch: PodWatch) -> None:
    """Without a UID, or with another one, the pod of the name may be an earlier one: the caller must ask."""
    uid = api.pod("default", "p1")["metadata"]["uid"]
    view = watch.view("default", "p1", uid)
    assert view is not None
    assert (view.uid, view.mounts) == (uid, {"shared-dir": ("/a",)})
    assert watch.view("default", "p1", "") is None
    assert watch.view("default", "p1", "another") is None


def test_a_pod_made_anew_replaces_the_one_of_its_name(api: ApiServer, watch: PodWatch) -> None:
    """When a pod is made anew under its name, as in a StatefulSet, the old UID is gone and the new one known."""
    old = api.pod("default", "p1")["metadata"]["uid"]
    new = api.add_pod(pod("p1"))["metadata"]["uid"]
    wait_until(lambda: watch.view("default", "p1", new))
    assert watch.view("default", "p1", old) is None
    assert old not in (watch.uids() or {old})


def test_a_static_pod_is_known_by_both_of_its_uids(api: ApiServer, watch: PodWatch) -> None:
    """The runtime sends the static pod's UID, the API has the mirror's: the first finds it, and neither counts as gone."""
    mirror = api.add_pod(pod("static-n1", annotations={MIRROR: "cafe01"}))["metadata"]["uid"]
    view = wait_until(lambda: watch.view("default", "static-n1", "cafe01"))
    assert view.uid == "cafe01"
    assert watch.view("default", "static-n1", mirror) is None
    assert {"cafe01", mirror} <= (watch.uids() or set())


def test_a_launcher_is_known_with_the_vm_that_owns_it(api: ApiServer, watch: PodWatch) -> None:
    """The UID of its VirtualMachineInstance is kept; other owners of pods are not, and a pod's UID in the API is."""
    owners = [
        {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "r-1"},
        {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "db", "uid": "vmi-1"},
    ]
    uid = api.add_pod(pod("virt-launcher-db-abcde", ownerReferences=owners))["metadata"]["uid"]
    view = wait_until(lambda: watch.view("default", "virt-launcher-db-abcde", uid))
    assert (view.machine_uid, view.api_uid) == ("vmi-1", uid)
    uid = api.add_pod(pod("other", ownerReferences=owners[:1]))["metadata"]["uid"]
    assert wait_until(lambda: watch.view("default", "other", uid)).machine_uid == ""
    mirror = api.add_pod(pod("static-n2", annotations={MIRROR: "cafe02"}))["metadata"]["uid"]
    assert wait_until(lambda: watch.view("default", "static-n2", "cafe02")).api_uid == mirror


def test_before_the_first_list_nothing_is_known(api: ApiServer, tmp_path: Path) -> None:
    """Neither a pod nor its absence is known; stopping a watch that never began succeeds."""
    watch = watch_of(api, tmp_path, PACE)
    assert (watch.synced, watch.fresh, watch.uids(), watch.get("default", "p1")) == (False, False, None, None)
    assert not watch.wait_synced(Deadline.after(0))
    assert watch.problem
    watch.stop()


def test_an_empty_list_proves_nothing(api: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong node name looks like a node without pods: no pod counts as gone, and the log has the name."""
    watch = synced(PodWatch(KubeClient(api.kubeconfig(tmp_path)).session, "n3.example", PACE))
    assert (watch.synced, watch.fresh, watch.uids()) == (True, True, None)
    assert "n3.example" in capsys.readouterr().err
    watch.stop()


def test_knowledge_grows_stale_without_a_word_from_the_server(api: ApiServer, tmp_path: Path) -> None:
    """Old knowledge proves no pod gone, but may still save a request. A bookmark renews it."""
    watch = synced(watch_of(api, tmp_path, dataclasses.replace(PACE, fresh_s=0.05)))
    wait_until(lambda: not watch.fresh)
    assert (watch.uids(), watch.synced) == (None, True)
    assert version(watch, "p1")
    api.add_pod(pod("new"))
    wait_until(lambda: watch.get("default", "new"))
    assert watch.uids() is None, "an event says nothing of those that are still to come"
    api.bookmark_s = 0.01
    api.close_watches()
    assert wait_until(watch.uids) == all_uids(api)
    watch.stop()


def test_an_answer_to_our_own_request_is_taken_over(api: ApiServer, watch: PodWatch) -> None:
    """The answer is used before the watch reports it. An older one, another pod's and an invalid one are not."""
    api.silent = True
    before = api.pod("default", "p1")
    api.change("default", "p1", {"metadata": {"annotations": {document.MAPPED_DIR: "/x/"}}})
    after = api.pod("default", "p1")
    watch.update(after)
    assert version(watch, "p1") == after["metadata"]["resourceVersion"]
    for wrong in (
        before,
        {**after, "metadata": {**after["metadata"], "uid": "another", "resourceVersion": "99999"}},
        {**after, "metadata": {**after["metadata"], "resourceVersion": "opaque"}},
        {**after, "metadata": {**after["metadata"], "resourceVersion": "9" * 5000}},
        {"metadata": {"name": "p1"}},
        {},
    ):
        watch.update(wrong)
        assert version(watch, "p1") == after["metadata"]["resourceVersion"]


def test_an_event_that_comes_late_replaces_nothing_newer(api: ApiServer, watch: PodWatch) -> None:
    """When the watch reports the first of two writes of ours, the answer to the second stays."""
    api.silent = True
    for value in ("/a/", "/b/"):
        api.change("default", "p1", {"metadata": {"annotations": {document.MAPPED_DIR: value}}})
    newest = api.pod("default", "p1")
    future = {**newest, "metadata": {**newest["metadata"], "resourceVersion": "5000"}}
    watch.update(future)
    api.silent = False
    api.add_pod(pod("after"))
    wait_until(lambda: watch.get("default", "after"))
    assert version(watch, "p1") == "5000"
    api.remove_pod("default", "p1")
    wait_until(lambda: not version(watch, "p1"))


def test_a_list_replaces_nothing_newer(api: ApiServer, watch: PodWatch) -> None:
    """A list that was made before our own write was answered does not replace the answer."""
    newest = api.pod("default", "p1")
    watch.update({**newest, "metadata": {**newest["metadata"], "resourceVersion": "5000"}})
    api.store.compact()
    api.add_pod(pod("after"))
    api.store.compact()
    api.close_watches()
    wait_until(lambda: watch.get("default", "after"))
    assert api.count("LIST") > 6
    assert version(watch, "p1") == "5000"


def test_an_answer_brings_no_pod_back(api: ApiServer, watch: PodWatch) -> None:
    """An answer that arrives after the event of the pod's end is dropped: it would keep the pod for ever."""
    answer = api.pod("default", "p1")
    api.remove_pod("default", "p1")
    wait_until(lambda: not version(watch, "p1"))
    watch.update(answer)
    assert watch.get("default", "p1") is None
    assert watch.uids() == all_uids(api)


@pytest.mark.parametrize(
    "odd",
    [{"annotations": {document.CONFIGURATION_DATA: "x" * KEPT_LIMIT}}, {"spec": {"volumes": 7}}, {"annotations": {"a": 1}}],
    ids=["long", "spec", "annotations"],
)
def test_a_pod_that_can_not_be_kept_is_still_there(api: ApiServer, watch: PodWatch, odd: dict[str, Any]) -> None:
    """A pod with too much text under our keys, or of unknown shape, exists, and is read when it is needed."""
    made = pod("odd", annotations=odd.get("annotations", {}))
    uid = api.add_pod({**made, "spec": {**SPEC, **odd.get("spec", {})}})["metadata"]["uid"]
    wait_until(lambda: uid in (watch.uids() or ()))
    assert watch.get("default", "odd") is None
    assert watch.view("default", "odd", uid) is None
    assert not watch.problem


@pytest.mark.parametrize("node", ["", "n1,metadata.name=x", "N1", "a b", "-"])
def test_a_node_name_that_is_none_is_refused(api: ApiServer, tmp_path: Path, node: str) -> None:
    """An invalid name of the node is refused: it is part of the request, and an empty one would ask for pods of no node."""
    with pytest.raises(InvalidConfig, match="node_name"):
        PodWatch(KubeClient(api.kubeconfig(tmp_path)).session, node)


def test_tls_serves_as_well(tmp_path: Path) -> None:
    """Events arrive over TLS, and stopping is as prompt."""
    with ApiServer(tls=tmp_path) as api:
        api.add_pod(pod("p1"))
        watch = synced(watch_of(api, tmp_path, PACE))
        api.add_pod(pod("p2"))
        wait_until(lambda: watch.get("default", "p2"))
        watch.stop()
        assert not watch.alive
        assert watch.get("default", "p2")


def test_annotations_that_decide_about_interfaces(api: ApiServer, tmp_path: Path) -> None:
    """Annotations about interfaces are kept, and their changes reported by namespace and name. Others change nothing."""
    told: list[tuple[str, str]] = []
    watch = PodWatch(KubeClient(api.kubeconfig(tmp_path)).session, "n1", PACE, lambda *key: told.append(key))
    synced(watch)
    noted = {"userspace/bandwidth": "{}", "podnet.blue.ovn.kubernetes.io/ingress_rate": "5", "ovn": "{}"}
    api.change("default", "p1", {"metadata": {"annotations": {"other": "x"}}})
    api.change("default", "p2", {"metadata": {"annotations": noted}})
    wait_until(lambda: told)
    assert (watch.get("default", "p2") or {})["metadata"]["annotations"] == noted
    assert set(told) == {("default", "p2")}
    watch.stop()
