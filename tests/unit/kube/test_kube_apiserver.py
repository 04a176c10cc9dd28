"""The API server for tests follows the real one's rules on which the code under test relies."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.lab.kube.apiserver import TOKEN, ApiServer, Fault
from tests.lab.switch.switch import wait_until

PODS = "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1"
POD = "/api/v1/namespaces/default/pods/app"
MERGE = "application/merge-patch+json"


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with ApiServer() as started:
        started.add_pod(
            {"metadata": {"name": "app"}, "spec": {"nodeName": "n1"}, "status": {"phase": "Running", "podIP": "10.0.0.1"}}
        )
        yield started


def call(api: ApiServer, method: str, path: str, body: Any = None, kind: str = MERGE, token: str = TOKEN) -> tuple[int, Any]:
    """Status code and decoded body."""
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=60)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": kind}
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def test_every_write_gives_a_new_resource_version(api: ApiServer) -> None:
    """A patch raises the version, and the next read gives this version."""
    before = api.pod("default", "app")["metadata"]["resourceVersion"]
    status, body = call(api, "PATCH", f"{POD}/status", {"metadata": {"annotations": {"a": "b"}}})
    assert status == 200
    assert int(body["metadata"]["resourceVersion"]) > int(before)
    assert call(api, "GET", POD)[1] == body


@pytest.mark.parametrize("method", ["PATCH", "PUT"])
@pytest.mark.parametrize(("field", "words"), [("uid", "Precondition failed: UID"), ("resourceVersion", "has been modified")])
def test_a_stale_version_or_another_uid_conflicts(api: ApiServer, method: str, field: str, words: str) -> None:
    """A PATCH or PUT with a stale version or another UID is answered 409, and nothing is changed."""
    pod = api.pod("default", "app")
    pod["metadata"][field] = "7"
    status, body = call(api, method, f"{POD}/status", pod)
    assert status == 409
    assert words in body["message"]


def test_a_put_of_status_without_status_wipes_it(api: ApiServer) -> None:
    """As in the real server: a body without `status` is answered 200 and the pod's status is gone."""
    pod = api.pod("default", "app")
    del pod["status"]
    pod["metadata"]["annotations"] = {"a": "b"}
    assert call(api, "PUT", f"{POD}/status", pod)[0] == 200
    assert api.pod("default", "app")["status"] == {}
    assert api.annotations("default", "app") == {"a": "b"}


def test_a_write_of_status_ignores_the_spec(api: ApiServer) -> None:
    """A write to /status takes annotations and status, and leaves the spec; a write elsewhere leaves the status."""
    change = {"metadata": {"annotations": {"a": "b"}}, "spec": {"nodeName": "n2"}, "status": {"phase": "Failed"}}
    call(api, "PATCH", f"{POD}/status", change)
    pod = api.pod("default", "app")
    assert (pod["spec"]["nodeName"], pod["status"]) == ("n1", {"phase": "Failed", "podIP": "10.0.0.1"})
    call(api, "PATCH", POD, {"status": {"phase": "Running"}})
    assert api.pod("default", "app")["status"]["phase"] == "Failed"


def test_a_merge_patch_removes_with_null(api: ApiServer) -> None:
    """As RFC 7386 says, null removes a key, and keys that are not named stay."""
    call(api, "PATCH", f"{POD}/status", {"metadata": {"annotations": {"a": "1", "b": "2"}}})
    call(api, "PATCH", f"{POD}/status", {"metadata": {"annotations": {"a": None}}})
    assert api.annotations("default", "app") == {"b": "2"}


def test_lists_are_selected_by_node(api: ApiServer) -> None:
    """With fieldSelector=spec.nodeName a list has the pods of one node, of all namespaces or of one."""
    api.add_pod({"metadata": {"name": "other", "namespace": "x"}, "spec": {"nodeName": "n2"}})
    names = [pod["metadata"]["name"] for pod in call(api, "GET", "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1")[1]["items"]]
    assert names == ["app"]
    assert len(call(api, "GET", "/api/v1/pods")[1]["items"]) == 2
    assert call(api, "GET", "/api/v1/namespaces/x/pods")[1]["items"][0]["metadata"]["name"] == "other"


def test_refusals_have_the_real_codes(api: ApiServer) -> None:
    """A wrong token gives 401, a missing object 404, a JSON patch 415, more than 256 KiB of annotations 422."""
    assert call(api, "GET", POD, token="wrong")[0] == 401
    assert call(api, "GET", POD + "x")[0] == 404
    assert call(api, "GET", "/apis")[0] == 404
    assert call(api, "PATCH", POD, {}, kind="application/json-patch+json")[0] == 415
    assert call(api, "PATCH", POD, {"metadata": {"annotations": {"a": "b" * 300_000}}})[0] == 422
    assert call(api, "PATCH", POD, {"metadata": {"annotations": {"a": 1}}})[0] == 400


def test_faults_are_used_up_per_verb(api: ApiServer) -> None:
    """A fault that is set for two GETs affects neither PATCH nor the third GET."""
    api.faults.append(Fault("GET", status=503, times=2))
    assert [call(api, "GET", POD)[0] for _ in range(3)] == [503, 503, 200]
    api.faults.append(Fault("PATCH", close=True))
    with pytest.raises(http.client.RemoteDisconnected):
        call(api, "PATCH", POD, {})


@contextmanager
def watching(api: ApiServer, options: str) -> Iterator[http.client.HTTPResponse]:
    """The answer to a watch of the pods of n1."""
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=60)
    connection.request("GET", f"{PODS}&watch=true{options}", headers={"Authorization": f"Bearer {TOKEN}"})
    try:
        yield connection.getresponse()
    finally:
        connection.close()


def events(answer: http.client.HTTPResponse, count: int) -> list[tuple[Any, ...]]:
    """Type, name (or code) and version of so many events."""
    found = [json.loads(answer.readline()) for _ in range(count)]
    return [
        (event["type"], thing.get("metadata", {}).get("name", thing.get("code")), thing["metadata"].get("resourceVersion"))
        for event in found
        for thing in [event["object"]]
    ]


def pod_on(node: str, name: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"nodeName": node}}


def test_a_list_is_one_moment_in_pages(api: ApiServer) -> None:
    """Pages of `limit` pods show the moment of the first page, without later changes. The items have no kind."""
    for number in range(4):
        api.add_pod(pod_on("n1", f"b{number}"))
    _, first = call(api, "GET", f"{PODS}&limit=2")
    api.add_pod(pod_on("n1", "zz"))
    _, second = call(api, "GET", f"{PODS}&limit=2&continue={first['metadata']['continue']}")
    _, third = call(api, "GET", f"{PODS}&limit=2&continue={second['metadata']['continue']}")
    names = [pod["metadata"]["name"] for page in (first, second, third) for pod in page["items"]]
    assert names == ["app", "b0", "b1", "b2", "b3"]
    assert len({page["metadata"]["resourceVersion"] for page in (first, second, third)}) == 1
    assert "continue" not in third["metadata"]
    assert "kind" not in first["items"][0]


def test_a_page_is_forgotten_with_the_history(api: ApiServer) -> None:
    """The rest of a list whose moment was compacted is answered 410."""
    api.add_pod(pod_on("n1", "b"))
    _, first = call(api, "GET", f"{PODS}&limit=1")
    api.store.compact()
    status, body = call(api, "GET", f"{PODS}&limit=1&continue={first['metadata']['continue']}")
    assert (status, body["code"], body["reason"]) == (410, 410, "Expired")


def test_a_watch_goes_on_from_a_version(api: ApiServer) -> None:
    """The watch gives every later change in order, as a client sees it that selects a node. A deletion has its own version."""
    start = api.store.version
    api.change("default", "app", {"metadata": {"labels": {"a": "b"}}})
    api.add_pod(pod_on("n2", "other"))
    with watching(api, f"&resourceVersion={start}") as answer:
        assert events(answer, 1) == [("MODIFIED", "app", str(start + 1))]
        api.change("default", "other", {"spec": {"nodeName": "n1"}})
        api.add_pod({"metadata": {"name": "app", "uid": "another"}, "spec": {"nodeName": "n1"}})
        api.remove_pod("default", "other")
        assert events(answer, 4) == [
            ("ADDED", "other", str(start + 3)),
            ("DELETED", "app", str(start + 4)),
            ("ADDED", "app", str(start + 5)),
            ("DELETED", "other", str(start + 6)),
        ]


def test_a_watch_without_a_version_begins_with_what_is_there(api: ApiServer) -> None:
    """The watch begins with an ADDED for each pod. The changes follow."""
    with watching(api, "") as answer:
        assert [kind for kind, name, _ in events(answer, 1) if name == "app"] == ["ADDED"]
        api.remove_pod("default", "app")
        assert [event[:2] for event in events(answer, 1)] == [("DELETED", "app")]


def test_a_deletion_with_grace_begins_and_ends(api: ApiServer) -> None:
    """DELETE sets deletionTimestamp, which is a change; the kubelet's DELETE without grace removes the pod."""
    with watching(api, f"&resourceVersion={api.store.version}") as answer:
        assert call(api, "DELETE", POD)[1]["metadata"]["deletionTimestamp"]
        assert call(api, "DELETE", POD, {"gracePeriodSeconds": 0})[0] == 200
        assert [event[:2] for event in events(answer, 2)] == [("MODIFIED", "app"), ("DELETED", "app")]
    assert call(api, "GET", POD)[0] == 404


def test_a_watch_ends_at_its_time_with_a_bookmark(api: ApiServer) -> None:
    """Bookmarks have only a version. They come regularly and at the end, and only when the client allows them."""
    api.bookmark_s = 0.2
    version = str(api.store.version)
    started = time.monotonic()
    with watching(api, f"&resourceVersion={version}&timeoutSeconds=1&allowWatchBookmarks=true") as answer:
        told = [json.loads(line) for line in answer]
    assert time.monotonic() - started > 0.9
    assert len(told) >= 2
    assert {event["type"] for event in told} == {"BOOKMARK"}
    assert {event["object"]["metadata"]["resourceVersion"] for event in told} == {version}
    with watching(api, f"&resourceVersion={version}&timeoutSeconds=1") as answer:
        assert answer.read() == b""


@pytest.mark.parametrize("in_stream", [True, False])
def test_a_forgotten_version_is_gone(api: ApiServer, in_stream: bool) -> None:
    """A forgotten version is answered 410: as an event of a watch, which then ends, or as the status."""
    version = api.store.version
    api.add_pod(pod_on("n1", "b"))
    api.store.compact()
    api.gone_in_stream = in_stream
    with watching(api, f"&resourceVersion={version}") as answer:
        assert answer.status == (200 if in_stream else 410)
        if in_stream:
            assert events(answer, 1) == [("ERROR", 410, None)]
            assert answer.read() == b""


def test_watches_meet_their_own_faults(api: ApiServer) -> None:
    """A fault for WATCH does not affect lists. Open watches can be closed, sent any text, and silenced."""
    api.faults.append(Fault("WATCH", status=429, times=1))
    assert call(api, "GET", PODS)[0] == 200
    with watching(api, "") as answer:
        assert answer.status == 429
    api.faults.append(Fault("WATCH", cut=10, times=1))
    with watching(api, "") as answer, pytest.raises(http.client.IncompleteRead):
        answer.read()
    with watching(api, f"&resourceVersion={api.store.version}") as answer:
        wait_until(lambda: api.watches == 1)
        api.say(b"anything\n")
        assert answer.readline() == b"anything\n"
        api.close_watches()
        with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
            answer.read()
    assert [api.count(verb) for verb in ("GET", "LIST", "WATCH")] == [0, 1, 3]


def test_a_server_comes_back_where_it_was(api: ApiServer) -> None:
    """After a stop and a start it has the same port and the same pods."""
    port = api.port
    api.stop()
    with pytest.raises(ConnectionRefusedError):
        http.client.HTTPConnection("127.0.0.1", port, timeout=60).connect()
    api.start()
    assert call(api, "GET", POD)[0] == 200
