"""Claims and slices of devices on the API server for tests follow the published rules on which a driver relies."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.lab.kube.apiserver import TOKEN, ApiServer
from tests.lab.kube.objectstore import Write
from tests.lab.kube.resource_definitions import (
    CLAIMS,
    SLICES,
    WITHOUT_CAPACITY,
    WITHOUT_TAINTS,
    define_resources,
)
from tests.lab.kube.store import Refusal

VERSION = "resource.k8s.io/v1"
DEVICE = {"driver": "userspace-cni.io", "pool": "n1", "device": "br-blue"}


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with ApiServer() as started:
        define_resources(started)
        yield started


def claim(**status: Any) -> dict[str, Any]:
    request = {"name": "net", "exactly": {"deviceClassName": "br-blue"}}
    spec = {"devices": {"requests": [request]}}
    return {"apiVersion": VERSION, "kind": "ResourceClaim", "metadata": {"name": "c"}, "spec": spec, "status": status}


def offered(name: str, on: str, **device: Any) -> dict[str, Any]:
    spec = {
        "driver": DEVICE["driver"],
        "nodeName": on,
        "pool": {"name": on, "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "br-blue", **device}],
    }
    return {"apiVersion": VERSION, "kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec}


def told(share: str, name: str, manager: str) -> tuple[dict[str, Any], Write]:
    """What a driver applies of one device, and how."""
    devices = [{**DEVICE, "shareID": share, "networkData": {"interfaceName": name}}]
    thing = {"apiVersion": VERSION, "kind": "ResourceClaim", "metadata": {"name": "c"}, "status": {"devices": devices}}
    return thing, Write(manager, "status", strict=True)


def test_one_device_shared_by_two_requests(api: ApiServer) -> None:
    """Drivers apply what they know of a device by its share: neither takes the other's entry away."""
    api.add(claim(), "blue")
    claims = api.objects(CLAIMS)
    for share, name in (("a", "net1"), ("b", "net2")):
        thing, write = told(share, name, f"driver-{share}")
        claims.apply("blue", "c", thing, write)
    devices = claims.read("blue", "c")["status"]["devices"]
    assert {each["shareID"]: each["networkData"]["interfaceName"] for each in devices} == {"a": "net1", "b": "net2"}


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ({"reservedFor": [{"resource": "pods", "name": "p"}]}, "uid: Required value"),
        ({"devices": [{"driver": "x", "pool": "p"}]}, "device: Required value"),
        ({"devices": [{**DEVICE, "networkData": {"ips": [str(number) for number in range(17)]}}]}, "no allowed items"),
        ({"devices": [{**DEVICE, "device": "br_blue"}]}, "should match"),
        ({"devices": [DEVICE, DEVICE]}, "Duplicate value"),
    ],
)
def test_what_a_status_must_not_have(api: ApiServer, status: dict[str, Any], words: str) -> None:
    """A status that the real server refuses is refused here."""
    with pytest.raises(Refusal, match=words):
        api.add(claim(**status), "blue")


def test_slices_of_one_node(api: ApiServer) -> None:
    """Slices are listed by their node and driver, and the list's items do not name their kind, as those of built-in kinds."""
    for number, on in enumerate(("n1", "n2", "n1")):
        api.add(offered(f"s{number}", on))
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=60)
    path = "/apis/resource.k8s.io/v1/resourceslices?fieldSelector=spec.nodeName%3Dn1,spec.driver%3Duserspace-cni.io"
    connection.request("GET", path, headers={"Authorization": f"Bearer {TOKEN}"})
    items = json.loads(connection.getresponse().read())["items"]
    connection.close()
    assert [each["metadata"]["name"] for each in items] == ["s0", "s2"]
    assert all("kind" not in each for each in items)


def test_a_server_without_gates(api: ApiServer) -> None:
    """A server whose gates are off stores a slice without the fields that they bring, and says nothing."""
    define_resources(api, WITHOUT_CAPACITY | WITHOUT_TAINTS)
    taint = {"key": "userspace-cni.io/switch", "effect": "NoSchedule"}
    device = {"allowMultipleAllocations": True, "taints": [taint], "capacity": {"ports": {"value": "8"}}}
    sent = offered("s", "n1", **device)
    stored = api.objects(SLICES).create("", sent, Write("driver"))["spec"]["devices"]
    assert stored == [{"name": "br-blue", "capacity": {"ports": {"value": "8"}}}]
