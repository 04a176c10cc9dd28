"""The API server for tests follows the real one's rules for objects on which the code under test relies."""

from __future__ import annotations

import copy
import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.lab.kube.apiserver import TOKEN, ApiServer

APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
LIST = "/apis/example.io/v1/gardens"
CONDITIONS = {
    "type": "array",
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["node"],
    "items": {
        "type": "object",
        "required": ["node"],
        "properties": {"node": {"type": "string"}, "status": {"type": "string"}, "tries": {"type": "integer"}},
    },
}
SPEC = {
    "type": "object",
    "required": ["size"],
    "properties": {
        "size": {"type": "integer", "minimum": 1, "maximum": 9},
        "colour": {"type": "string", "enum": ["red", "blue"], "default": "red"},
        "path": {"type": "string", "pattern": "^/[a-z]+$", "maxLength": 8},
        "beds": {"type": "array", "items": {"type": "string"}, "maxItems": 3},
        "trees": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
        "notes": {"type": "object", "additionalProperties": {"type": "string"}},
    },
}


def definition(*, status: bool = True) -> dict[str, Any]:
    """The definition of a resource with everything that these tests need."""
    schema = {
        "type": "object",
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": SPEC,
            "status": {"type": "object", "properties": {"conditions": CONDITIONS, "ready": {"type": "boolean"}}},
        },
    }
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "gardens.example.io"},
        "spec": {
            "group": "example.io",
            "scope": "Cluster",
            "names": {"plural": "gardens", "singular": "garden", "kind": "Garden", "listKind": "GardenList"},
            "versions": [{**version, **({"subresources": {"status": {}}} if status else {})}],
        },
    }


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with ApiServer() as started:
        started.define(definition())
        yield started


def call(api: ApiServer, method: str, path: str, body: Any = None, kind: str = "application/json") -> tuple[int, Any]:
    """Status code and decoded body."""
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=60)
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": kind, "User-Agent": "tester/1"}
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def garden(name: str = "g", **parts: Any) -> dict[str, Any]:
    """An object as a client sends it."""
    return {"apiVersion": "example.io/v1", "kind": "Garden", "metadata": {"name": name, **parts.pop("metadata", {})}, **parts}


def made(api: ApiServer, **spec: Any) -> dict[str, Any]:
    status, body = call(api, "POST", LIST, garden(spec={"size": 1, **spec}))
    assert status == 201, body
    return dict(body)


def apply(api: ApiServer, manager: str, body: Any, options: str = "", part: str = "") -> tuple[int, Any]:
    return call(api, "PATCH", f"{LIST}/g{part}?fieldManager={manager}{options}", body, APPLY)


def owners(thing: Any) -> dict[str, Any]:
    return {each["manager"]: each["fieldsV1"] for each in thing["metadata"]["managedFields"]}


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({}, "spec.size: Required value"),
        ({"size": 10}, "less than or equal to 9"),
        ({"size": "1"}, "must be of type integer"),
        ({"size": True}, "must be of type integer"),
        ({"size": 1, "colour": "green"}, "Unsupported value"),
        ({"size": 1, "path": "/A"}, "should match"),
        ({"size": 1, "path": "/aaaaaaaaa"}, "no allowed length"),
        ({"size": 1, "beds": ["a", "b", "c", "d"]}, "no allowed items"),
        ({"size": 1, "trees": ["a", "a"]}, "Duplicate"),
        ({"size": 1, "notes": {"a": 1}}, "must be of type string"),
    ],
)
def test_what_the_schema_does_not_allow_is_refused(api: ApiServer, spec: dict[str, Any], words: str) -> None:
    """An object that the schema does not allow is answered 422 with the field, and is not stored."""
    status, body = call(api, "POST", LIST, garden(spec=spec))
    assert (status, words in body["message"]) == (422, True), body
    assert call(api, "GET", f"{LIST}/g")[0] == 404


def test_unknown_fields_are_pruned_or_refused(api: ApiServer) -> None:
    """Unknown fields are dropped silently, or answered 400 by name if the client asks for that. Defaults are filled in."""
    odd = garden(spec={"size": 1, "smell": "nice"}, colour="x")
    status, body = call(api, "POST", f"{LIST}?fieldValidation=Strict", odd)
    assert (status, "spec.smell" in body["message"]) == (400, True)
    body = call(api, "POST", LIST, odd)[1]
    assert body["spec"] == {"size": 1, "colour": "red"}
    assert "colour" not in body


def test_a_dry_run_stores_nothing(api: ApiServer) -> None:
    """A dry run is answered like the write, also where that is refused. Nothing is stored, and no watch gets an event."""
    body = garden(spec={"size": 1})
    status, answer = apply(api, "one", body, "&dryRun=All")
    assert (status, answer["spec"]["colour"], answer["metadata"].get("resourceVersion")) == (200, "red", None)
    assert call(api, "GET", f"{LIST}/g")[0] == 404
    stored = apply(api, "one", body)[1]
    before = api.objects("gardens.example.io").version
    answer = apply(api, "one", garden(spec={"size": 2}), "&dryRun=All")[1]
    assert (answer["spec"]["size"], answer["metadata"]["generation"]) == (2, 2)
    assert answer["metadata"]["resourceVersion"] == stored["metadata"]["resourceVersion"]
    assert apply(api, "one", garden(spec={"size": 10}), "&dryRun=All")[0] == 422
    assert apply(api, "two", garden(spec={"size": 2}), "&dryRun=All")[0] == 409
    assert apply(api, "one", body, "&dryRun=Some")[0] == 400
    assert call(api, "GET", f"{LIST}/g")[1] == stored
    assert (api.objects("gardens.example.io").version, api.objects("gardens.example.io").since(before)) == (before, [])


def test_a_write_with_an_old_version_conflicts(api: ApiServer) -> None:
    """PUT needs the version that was read. A merge patch is checked if it names a version. A name can be taken once."""
    first = made(api)
    assert call(api, "POST", LIST, garden(spec={"size": 1}))[0] == 409
    second = call(api, "PUT", f"{LIST}/g", {**first, "spec": {"size": 2}})[1]
    assert second["metadata"]["generation"] == 2
    assert call(api, "PUT", f"{LIST}/g", {**first, "spec": {"size": 3}})[0] == 409
    assert call(api, "PUT", f"{LIST}/g", garden(spec={"size": 3}))[0] == 422
    old = {"metadata": {"resourceVersion": first["metadata"]["resourceVersion"]}}
    assert call(api, "PATCH", f"{LIST}/g", old, MERGE)[0] == 409
    assert call(api, "PATCH", f"{LIST}/g", {"spec": {"size": 3}}, MERGE)[1]["spec"]["size"] == 3


def test_deleting_with_another_uid_conflicts(api: ApiServer) -> None:
    """Another UID is a conflict.

    Without that precondition the object goes, and one with finalizers goes with the last of them.
    """
    made(api)
    assert call(api, "DELETE", f"{LIST}/g", {"preconditions": {"uid": "another"}})[0] == 409
    assert call(api, "DELETE", f"{LIST}/g")[0] == 200
    assert call(api, "DELETE", f"{LIST}/g")[0] == 404
    call(api, "POST", LIST, garden(spec={"size": 1}, metadata={"finalizers": ["a/b"]}))
    assert "deletionTimestamp" in call(api, "DELETE", f"{LIST}/g")[1]["metadata"]
    assert call(api, "GET", f"{LIST}/g")[0] == 200
    call(api, "PATCH", f"{LIST}/g", {"metadata": {"finalizers": None}}, MERGE)
    assert call(api, "GET", f"{LIST}/g")[0] == 404


def test_each_path_writes_its_own_part(api: ApiServer) -> None:
    """With a status subresource an object has two paths, and each writes its own part. Without one there is no second path."""
    assert "status" not in made(api)
    body = call(api, "PATCH", f"{LIST}/g/status", {"spec": {"size": 5}, "status": {"ready": True}}, MERGE)[1]
    assert (body["spec"]["size"], body["status"], body["metadata"]["generation"]) == (1, {"ready": True}, 1)
    body = call(api, "PATCH", f"{LIST}/g", {"spec": {"size": 5}, "status": {"ready": False}}, MERGE)[1]
    assert (body["spec"]["size"], body["status"]) == (5, {"ready": True})
    with ApiServer() as other:
        other.define(definition(status=False))
        body = call(other, "POST", LIST, garden(spec={"size": 1}, status={"ready": True}))[1]
        assert body["status"] == {"ready": True}
        assert call(other, "PATCH", f"{LIST}/g/status", {}, MERGE)[0] == 404


def test_a_write_that_changes_nothing_gives_no_version(api: ApiServer) -> None:
    """An apply, patch or PUT without a change gives no version, and watches get nothing."""
    store = api.objects("gardens.example.io")
    made(api)
    assert apply(api, "a", garden(spec={"size": 1, "path": "/x"}))[0] == 200
    before, writes = store.get("", "g"), store.writes
    assert apply(api, "a", garden(spec={"size": 1, "path": "/x"}))[1] == before
    assert call(api, "PATCH", f"{LIST}/g", {"spec": {"size": 1}}, MERGE)[1] == before
    assert call(api, "PUT", f"{LIST}/g", before)[1] == before
    assert store.writes == writes


def test_apply_owns_its_fields_and_removes_what_it_drops(api: ApiServer) -> None:
    """An apply leaves other owners' fields, also single items of a list that is a map, and removes those that only it owned."""
    made(api)
    one = garden(status={"conditions": [{"node": "n1", "status": "True", "tries": 2}]})
    two = garden(status={"conditions": [{"node": "n2", "status": "False"}], "ready": True})
    apply(api, "one", one, part="/status")
    body = apply(api, "two", two, part="/status")[1]
    assert [each["node"] for each in body["status"]["conditions"]] == ["n1", "n2"]
    one["status"]["conditions"][0].pop("tries")
    body = apply(api, "one", one, part="/status")[1]
    assert body["status"]["conditions"][0] == {"node": "n1", "status": "True"}
    assert set(owners(body)["one"]["f:status"]["f:conditions"]) == {'k:{"node":"n1"}'}
    body = apply(api, "one", garden(status={}), part="/status")[1]
    assert body["status"] == {"conditions": [{"node": "n2", "status": "False"}], "ready": True}
    status, body = apply(api, "two", garden(status={"ready": True}), part="/status")
    assert (status, "must be of type array" in body["message"]) == (422, True), "the last item leaves null, no empty list"


def test_apply_conflicts_unless_it_is_forced(api: ApiServer) -> None:
    """Another manager's field with another value gives 409. Managers share equal values. With force the field changes its
    owner."""
    apply(api, "one", garden(spec={"size": 1, "trees": ["oak"]}))
    status, body = apply(api, "two", garden(spec={"size": 2}))
    assert (status, "one" in body["message"]) == (409, True)
    assert apply(api, "two", garden(spec={"size": 1, "trees": ["elm"]}))[1]["spec"]["trees"] == ["oak", "elm"]
    body = apply(api, "two", garden(spec={"size": 2}), "&force=true")[1]
    assert (body["spec"]["size"], body["spec"]["trees"]) == (2, ["oak"])
    assert "f:size" not in owners(body)["one"]["f:spec"]
    assert owners(body)["two"] == {"f:spec": {"f:size": {}}}


def test_a_lasting_change_by_another_takes_the_field_away(api: ApiServer) -> None:
    """A patch of a field that was applied makes the patcher its owner, and the next apply without force a conflict."""
    apply(api, "one", garden(spec={"size": 1, "beds": ["a"]}))
    body = call(api, "PATCH", f"{LIST}/g", {"spec": {"beds": ["b"]}}, MERGE)[1]
    assert owners(body) == {"one": {"f:spec": {"f:size": {}}}, "tester": {"f:spec": {"f:beds": {}}}}
    assert apply(api, "one", garden(spec={"size": 1, "beds": ["a"]}))[0] == 409
    assert apply(api, "one", garden(spec={"size": 1}))[1]["spec"]["beds"] == ["b"]


def test_apply_needs_a_manager_and_makes_the_object(api: ApiServer) -> None:
    """An apply without fieldManager is answered 422. A missing object cannot be applied with a uid, nor can its /status."""
    assert call(api, "PATCH", f"{LIST}/g", garden(spec={"size": 1}), APPLY)[0] == 422
    assert apply(api, "one", garden(status={"ready": True}), part="/status")[0] == 404
    assert apply(api, "one", garden(spec={"size": 1}, metadata={"uid": "another"}))[0] == 409
    assert apply(api, "one", garden(spec={"size": 1}))[1]["metadata"]["generation"] == 1
    assert apply(api, "one", garden(spec={"size": 1}, metadata={"managedFields": []}))[0] == 400


def test_objects_are_selected_by_name_and_label(api: ApiServer) -> None:
    """Objects are selected by name and label, and listed in pages of one moment. An undefined resource is answered 404."""
    for name in "abc":
        api.add(garden(name, spec={"size": 1}, metadata={"labels": {"turn": name}}))
    assert [each["metadata"]["name"] for each in call(api, "GET", f"{LIST}?labelSelector=turn%3Db")[1]["items"]] == ["b"]
    assert [each["kind"] for each in call(api, "GET", f"{LIST}?fieldSelector=metadata.name%3Dc")[1]["items"]] == ["Garden"]
    page = call(api, "GET", f"{LIST}?limit=2")[1]
    api.add(garden("d", spec={"size": 1}))
    rest = call(api, "GET", f"{LIST}?limit=2&continue={page['metadata']['continue']}")[1]
    assert [each["metadata"]["name"] for each in (*page["items"], *rest["items"])] == ["a", "b", "c"]
    assert call(api, "GET", "/apis/example.io/v1/houses")[0] == 404


def test_a_definition_that_a_server_would_refuse_is_refused() -> None:
    """Refused are: a schema without a type, a list as a map by an optional key, and an unknown field that is required."""
    api = ApiServer()
    for path, change in [(("size",), {"description": "x"}), (("beds", "items"), {}), ((), {**SPEC, "required": ["gone"]})]:
        broken = copy.deepcopy(definition())
        schema = broken["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        if not path:
            schema["properties"]["spec"] = change
        else:
            at = schema["properties"]["spec"]["properties"]
            for name in path[:-1]:
                at = at[name]
            at[path[-1]] = change
        with pytest.raises(AssertionError):
            api.define(broken)
