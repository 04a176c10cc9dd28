"""The API server for tests keeps the real one's rules: what is pinned here is what the code under test relies on."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.lab.apiserver import TOKEN, ApiServer, Fault

POD = "/api/v1/namespaces/default/pods/app"
MERGE = "application/merge-patch+json"


@pytest.fixture
def api() -> Iterator[ApiServer]:
    """A server with one pod."""
    with ApiServer() as started:
        started.add_pod(
            {"metadata": {"name": "app"}, "spec": {"nodeName": "n1"}, "status": {"phase": "Running", "podIP": "10.0.0.1"}}
        )
        yield started


def call(api: ApiServer, method: str, path: str, body: Any = None, kind: str = MERGE, token: str = TOKEN) -> tuple[int, Any]:
    """Status code and decoded body."""
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=10)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": kind}
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def test_every_write_gives_a_new_resource_version(api: ApiServer) -> None:
    """A version grows with a patch and belongs to the object that is read next."""
    before = api.pod("default", "app")["metadata"]["resourceVersion"]
    status, body = call(api, "PATCH", f"{POD}/status", {"metadata": {"annotations": {"a": "b"}}})
    assert status == 200
    assert int(body["metadata"]["resourceVersion"]) > int(before)
    assert call(api, "GET", POD)[1] == body


@pytest.mark.parametrize("method", ["PATCH", "PUT"])
@pytest.mark.parametrize(("field", "words"), [("uid", "Precondition failed: UID"), ("resourceVersion", "has been modified")])
def test_a_stale_version_or_another_uid_conflicts(api: ApiServer, method: str, field: str, words: str) -> None:
    """409, nothing changed, for PATCH and PUT alike."""
    pod = api.pod("default", "app")
    pod["metadata"][field] = "7"
    status, body = call(api, method, f"{POD}/status", pod)
    assert status == 409
    assert words in body["message"]


def test_a_put_of_status_without_status_wipes_it(api: ApiServer) -> None:
    """The trap: a body that lacks `status` is answered 200 and the pod's status is gone."""
    pod = api.pod("default", "app")
    del pod["status"]
    pod["metadata"]["annotations"] = {"a": "b"}
    assert call(api, "PUT", f"{POD}/status", pod)[0] == 200
    assert api.pod("default", "app")["status"] == {}
    assert api.annotations("default", "app") == {"a": "b"}


def test_a_write_of_status_ignores_the_spec(api: ApiServer) -> None:
    """Annotations and status are taken, the spec stays; the other way round without the subresource."""
    change = {"metadata": {"annotations": {"a": "b"}}, "spec": {"nodeName": "n2"}, "status": {"phase": "Failed"}}
    call(api, "PATCH", f"{POD}/status", change)
    pod = api.pod("default", "app")
    assert (pod["spec"]["nodeName"], pod["status"]) == ("n1", {"phase": "Failed", "podIP": "10.0.0.1"})
    call(api, "PATCH", POD, {"status": {"phase": "Running"}})
    assert api.pod("default", "app")["status"]["phase"] == "Failed"


def test_a_merge_patch_removes_with_null(api: ApiServer) -> None:
    """RFC 7386: null takes a key away, and what is not named stays."""
    call(api, "PATCH", f"{POD}/status", {"metadata": {"annotations": {"a": "1", "b": "2"}}})
    call(api, "PATCH", f"{POD}/status", {"metadata": {"annotations": {"a": None}}})
    assert api.annotations("default", "app") == {"b": "2"}


def test_lists_are_selected_by_node(api: ApiServer) -> None:
    """fieldSelector=spec.nodeName gives the pods of one node, over all namespaces or in one."""
    api.add_pod({"metadata": {"name": "other", "namespace": "x"}, "spec": {"nodeName": "n2"}})
    names = [pod["metadata"]["name"] for pod in call(api, "GET", "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1")[1]["items"]]
    assert names == ["app"]
    assert len(call(api, "GET", "/api/v1/pods")[1]["items"]) == 2
    assert call(api, "GET", "/api/v1/namespaces/x/pods")[1]["items"][0]["metadata"]["name"] == "other"


def test_refusals_have_the_real_codes(api: ApiServer) -> None:
    """401 for a wrong token, 404 for what is not there, 415 for a JSON patch, 422 for annotations of more than 256 KiB."""
    assert call(api, "GET", POD, token="wrong")[0] == 401
    assert call(api, "GET", POD + "x")[0] == 404
    assert call(api, "GET", "/apis")[0] == 404
    assert call(api, "PATCH", POD, {}, kind="application/json-patch+json")[0] == 415
    assert call(api, "PATCH", POD, {"metadata": {"annotations": {"a": "b" * 300_000}}})[0] == 422
    assert call(api, "PATCH", POD, {"metadata": {"annotations": {"a": 1}}})[0] == 400


def test_faults_are_used_up_per_verb(api: ApiServer) -> None:
    """A fault for GET, twice, leaves PATCH and the third GET alone."""
    api.faults.append(Fault("GET", status=503, times=2))
    assert [call(api, "GET", POD)[0] for _ in range(3)] == [503, 503, 200]
    api.faults.append(Fault("PATCH", close=True))
    with pytest.raises(http.client.RemoteDisconnected):
        call(api, "PATCH", POD, {})
