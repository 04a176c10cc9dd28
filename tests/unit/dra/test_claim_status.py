"""The status of a claim's devices."""

from __future__ import annotations

from typing import Any

from tests.lab.node.ports import port_with
from tests.unit.dra.claim_samples import claim, result
from userspace_cni.attachment.records import Record, State
from userspace_cni.dra.claim_objects import SeenClaim, read_claim
from userspace_cni.dra.claim_status import device_statuses, find_shared, says_the_same
from userspace_cni.dra.device_names import DRIVER

NOW, LATER = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"
PORT = port_with(bridge="br0", name="p", interface_type="dpdkvhostuserclient", server_path="/s", mac="02:00:00:00:00:01")


def record(number: int = 0, state: State = "ready") -> Record:
    return Record(state, "c", "_u1", f"net{number}", pod_namespace="blue", pod_name="app", pod_uid="uid-app", steps=(PORT,))


def seen(*results: Any, pods: tuple[str, ...] = ("app",), devices: list[dict[str, Any]] | None = None) -> SeenClaim:
    return read_claim(claim(*results, pods=pods, devices=devices or []), DRIVER)


def test_each_device() -> None:
    """Interface and MAC of each device, by the key that the API has for it."""
    [first, second] = device_statuses(seen(result(), result(shareID="s")), [record(), record(1)], NOW)
    assert first["networkData"] == {"interfaceName": "net0", "hardwareAddress": "02:00:00:00:00:01"}
    assert "shareID" not in first
    assert (second["driver"], second["pool"], second["device"], second["shareID"]) == (DRIVER, "n1", "br0", "s")
    assert [(each["type"], each["status"]) for each in first["conditions"]] == [("Ready", "True"), ("Exclusive", "True")]


def test_a_device_that_is_allocated_twice() -> None:
    """Without a share both allocations have one key, of which the server takes one entry."""
    [told, other] = device_statuses(seen(result(), result(), result(shareID="s")), [record(n) for n in range(3)], NOW)
    assert [each["networkData"]["interfaceName"] for each in (told, other)] == ["net0", "net2"]


def test_nothing_new_is_not_written() -> None:
    """A condition keeps its time while its status is the same; what the server adds is no difference."""
    wanted = device_statuses(seen(result()), [record()], NOW)
    there = seen(result(), devices=[{**wanted[0], "networkData": {**wanted[0]["networkData"], "ips": []}}])
    again = device_statuses(there, [record()], LATER)
    assert again == wanted
    assert says_the_same(there, again)
    assert not says_the_same(seen(result()), wanted)


def test_a_second_consumer() -> None:
    """It is a condition of the claim, since when it is so."""
    wanted = device_statuses(seen(result()), [record()], NOW)
    shared = seen(result(), pods=("app", "other"), devices=wanted)
    [device] = device_statuses(shared, [record()], LATER)
    ready, exclusive = device["conditions"]
    assert (ready["lastTransitionTime"], exclusive["lastTransitionTime"]) == (NOW, LATER)
    assert (exclusive["status"], exclusive["reason"]) == ("False", "SeveralConsumers")
    assert "pod app, and other may use it" in exclusive["message"]
    assert not says_the_same(shared, [device])
    found = find_shared(shared, [record()])
    assert found
    assert [each.name for each in found.others] == ["other"]


def test_another_drivers_devices() -> None:
    """Devices of other drivers are neither compared nor written."""
    wanted = device_statuses(seen(result()), [record()], NOW)
    other = {"driver": "gpu.example.com", "pool": "n1", "device": "gpu0"}
    assert says_the_same(seen(result(), devices=[other, *wanted]), wanted)


def test_while_it_is_made() -> None:
    """Nothing is said of a claim while one of its devices is being made; one that is being removed is not ready."""
    two = seen(result(), result(shareID="s"))
    assert device_statuses(two, [record(), record(1, "applying")], NOW) == []
    [first, second] = device_statuses(two, [record(), record(1, "deleting")], NOW)
    assert [each["conditions"][0]["status"] for each in (first, second)] == ["True", "False"]
