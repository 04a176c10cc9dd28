"""Single requests about objects: what is sent, and how a server's refusals are reported."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.kube.apiserver import ApiServer, Fault
from tests.lab.kube.definitions import defined_server
from userspace_cni.base.errors import Conflict, InvalidConfig, ObjectRefused, Unavailable
from userspace_cni.kube.credentials import ApiAnswer
from userspace_cni.kube.object_requests import Objects
from userspace_cni.kube.pod_requests import KubeClient
from userspace_cni.kube.resources import LEASES, NODE_STATES, NODES, PROVIDER_NETWORKS, SUBNETS, VLANS

VLAN: dict[str, Any] = {"spec": {"id": 1, "provider": "net1"}}


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with defined_server() as started:
        yield started


@pytest.fixture
def objects(api: ApiServer, tmp_path: Path) -> Objects:
    return Objects(KubeClient(api.kubeconfig(tmp_path)).session)


def test_an_object_from_its_making_to_its_end(objects: Objects) -> None:
    """An object is made, read, changed, replaced and deleted. apiVersion, kind and name are added to what is sent."""
    made = objects.create(VLANS, "blue", VLAN)
    assert (made["kind"], made["metadata"]["name"], made["spec"]) == ("Vlan", "blue", VLAN["spec"])
    assert objects.get(VLANS, "blue") == made
    changed = objects.merge(VLANS, "blue", {"spec": {"id": 2}})
    replaced = objects.replace(VLANS, "blue", {**changed, "spec": {"id": 3, "provider": "net1"}})
    assert replaced["spec"]["id"] == 3
    assert objects.delete(VLANS, "blue", uid=made["metadata"]["uid"])
    assert not objects.delete(VLANS, "blue")
    assert objects.get(VLANS, "blue") is None


def test_another_writer_was_first(objects: Objects) -> None:
    """A taken name, an old version, another object's UID, and a field of another manager are each a Conflict."""
    made = objects.create(VLANS, "blue", VLAN)
    objects.apply(VLANS, "blue", {"spec": {"id": 5}}, manager="a")
    calls: list[Callable[[], object]] = [
        lambda: objects.create(VLANS, "blue", VLAN),
        lambda: objects.replace(VLANS, "blue", made),
        lambda: objects.merge(VLANS, "blue", {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"]}}),
        lambda: objects.delete(VLANS, "blue", uid="another"),
        lambda: objects.apply(VLANS, "blue", {"spec": {"id": 6}}, manager="b", force=False),
    ]
    for call in calls:
        with pytest.raises(Conflict):
            call()
    assert objects.apply(VLANS, "blue", {"spec": {"id": 6}}, manager="b")["spec"]["id"] == 6


def test_apply_makes_the_object_and_takes_back_what_it_drops(api: ApiServer, objects: Objects) -> None:
    """The same apply again writes nothing. An apply without a field removes the field, and leaves another manager's."""
    body = {"status": {"chassis": "c0ffee", "addresses": ["192.0.2.11"]}}
    objects.apply(NODE_STATES, "worker-1", body, manager="userspace-cni-agent")
    writes = api.objects("nodestates.userspace-cni.io").writes
    objects.apply(NODE_STATES, "worker-1", body, manager="userspace-cni-agent")
    assert api.objects("nodestates.userspace-cni.io").writes == writes
    objects.merge(NODE_STATES, "worker-1", {"metadata": {"labels": {"other": "x"}}})
    found = objects.apply(NODE_STATES, "worker-1", {"status": {"chassis": "c0ffee"}}, manager="userspace-cni-agent")
    assert (found["status"], found["metadata"]["labels"]) == ({"chassis": "c0ffee"}, {"other": "x"})


@pytest.mark.parametrize("odd", ["\U0001f600", "\x7f\x85\x9f", "\u2028\u2029 \ufeff", "\"\\\n\t\x00'", "é漢"])
def test_any_text_can_be_applied(objects: Objects, odd: str) -> None:
    """A server that reads the text as YAML gets the same text. Half a surrogate pair is refused."""
    made = objects.apply(VLANS, "blue", {"metadata": {"annotations": {"a": odd}}, **VLAN}, manager="a")
    assert made["metadata"]["annotations"] == {"a": odd}
    made = objects.apply(VLANS, "blue", {"metadata": {"annotations": {"a": f"{odd}\udcff"}}, **VLAN}, manager="a")
    assert made["metadata"]["annotations"] == {"a": f"{odd}?"}


def test_a_status_is_written_where_it_has_a_path(objects: Objects) -> None:
    """The status is written by its own path, and each condition belongs to its node."""
    objects.create(PROVIDER_NETWORKS, "net1", {"spec": {"defaultInterface": "eth1"}})
    for node in ("worker-1", "worker-2"):
        conditions = [{"node": node, "type": "Ready", "status": "True"}]
        objects.apply(PROVIDER_NETWORKS, "net1", {"status": {"conditions": conditions}}, manager=node, subresource="status")
    found = objects.merge(PROVIDER_NETWORKS, "net1", {"status": {"ready": True}}, subresource="status")
    assert [each["node"] for each in found["status"]["conditions"]] == ["worker-1", "worker-2"]
    assert found["status"]["ready"] is True


def test_all_objects_are_listed(api: ApiServer, objects: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    """All pages show one moment, also when the server forgets it between two pages. Labels select objects."""
    monkeypatch.setattr("userspace_cni.kube.object_requests.PAGE", 2)
    for number in range(5):
        objects.create(
            SUBNETS, f"s{number}", {"metadata": {"labels": {"odd": str(number % 2)}}, "spec": {"cidrBlock": "10.0.0.0/24"}}
        )
    api.faults.append(Fault("LIST", status=410, about="continue=", times=1))
    assert [each["metadata"]["name"] for each in objects.list(SUBNETS)] == [f"s{number}" for number in range(5)]
    assert [each["metadata"]["name"] for each in objects.list(SUBNETS, "odd=1")] == ["s1", "s3"]
    api.faults.append(Fault("LIST", status=410, about="continue="))
    with pytest.raises(Unavailable):
        objects.list(SUBNETS)


def test_leases_are_of_a_namespace(objects: Objects) -> None:
    """The path of a Lease has its namespace."""
    leases = LEASES.within("userspace-cni")
    made = objects.create(leases, "leader", {"spec": {"holderIdentity": "a"}})
    assert made["metadata"]["namespace"] == "userspace-cni"
    assert objects.replace(leases, "leader", {**made, "spec": {"holderIdentity": "b"}})["spec"] == {"holderIdentity": "b"}
    assert LEASES.path() != leases.path()


@pytest.mark.parametrize(
    ("status", "error", "words"),
    [
        (403, ObjectRefused, "the verb get on nodes"),
        (401, ObjectRefused, "not allowed"),
        (429, Unavailable, "429"),
        (503, Unavailable, "503"),
        (418, ObjectRefused, "unexpected answer 418"),
    ],
)
def test_what_a_server_answers(api: ApiServer, objects: Objects, status: int, error: type[Exception], words: str) -> None:
    """A passing failure is Unavailable. Other refusals are errors that name the right that the account needs."""
    api.faults.append(Fault(status=status))
    with pytest.raises(error, match=words):
        objects.get(NODES, "worker-1")


def test_what_is_not_there_and_what_is_not_valid(api: ApiServer, objects: Objects) -> None:
    """A missing object or resource is None when it is read. A write of one, or of what the schema does not allow, is refused."""
    assert objects.get(VLANS, "blue") is None
    with pytest.raises(ObjectRefused, match="no such object"):
        objects.merge(VLANS, "blue", {})
    with pytest.raises(ObjectRefused, match=r"not valid by the server's schema \(422\): Vlan is invalid: .*id"):
        objects.create(VLANS, "blue", {"spec": {"id": "x"}})
    api.faults.append(Fault(status=404))
    with pytest.raises(ObjectRefused, match="no such resource"):
        objects.list(VLANS)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            {"message": 'admission webhook "no.example" denied\n the request'},
            ': admission webhook "no.example" denied the request',
        ),
        ({"message": "x" * 5000}, f": {'x' * 1000}"),
        ({"message": " \n"}, ""),
        ({"message": 5}, ""),
        ({}, ""),
    ],
)
def test_what_a_server_says(body: dict[str, Any], said: str) -> None:
    """The error has the server's own words, in one line of limited length."""
    assert ApiAnswer(403, body).said == said


@pytest.mark.parametrize("name", ["", "../nodes", "A", "a/b", "a?b", "-", "x" * 254])
def test_a_name_that_is_none(api: ApiServer, objects: Objects, name: str) -> None:
    """No request is sent for an invalid name: it would lead to another path with our credentials."""
    with pytest.raises(InvalidConfig):
        objects.get(VLANS, name)
    with pytest.raises(InvalidConfig):
        objects.get(LEASES.within(name or ".."), "leader")
    assert api.requests == []
