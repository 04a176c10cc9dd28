"""What a ResourceClaim says to the driver."""

from __future__ import annotations

import json

import pytest

from tests.unit.dra.claim_samples import claim, config, result
from userspace_cni.base.errors import InvalidConfig, Undecodable
from userspace_cni.dra.claim_objects import POD_CLAIM, ClaimConsumer, read_claim
from userspace_cni.dra.device_names import DRIVER


def test_devices_of_ours() -> None:
    """Devices of other drivers are left out, and ours keep their place among ours."""
    raw = claim(result("gpu", driver="gpu.example.com"), result("a"), result("b/fast", "br1-0", shareID="s"))
    first, second = read_claim(raw, DRIVER).devices
    assert (first.number, first.request, first.device, first.share) == (0, "a", "br0", "")
    assert (second.number, second.request, second.device, second.share) == (1, "b/fast", "br1-0", "s")


def test_which_parameters_are_for_a_request() -> None:
    """Those of our driver that name no request, it, or that of which it is a subrequest; the class's first."""
    configs = [
        config("FromClaim", ["a"], host={"mtu": 1}),
        config("FromClass", host={"mtu": 2}),
        config("FromClaim", ["b"], host={"mtu": 3}),
        config("FromClaim", ["b/slow"], host={"mtu": 4}),
        config("FromClaim", driver="gpu.example.com", host={"mtu": 5}),
    ]
    devices = read_claim(claim(result("a"), result("b/fast"), configs=configs), DRIVER).devices
    found = [[(each.source, each.value["host"]["mtu"]) for each in device.parameters] for device in devices]
    assert found == [[("FromClass", 2), ("FromClaim", 1)], [("FromClass", 2), ("FromClaim", 3)]]


def test_what_is_recorded_of_parameters() -> None:
    """It differs with what they say, and is short however long they are: a tenant writes them."""
    long = [config("FromClaim", host={"bridge": {"vlanId": 7}}, mirrors=["x" * 10_000]) for _ in range(32)]
    [before] = read_claim(claim(result("a"), configs=long), DRIVER).devices
    [after] = read_claim(claim(result("a"), configs=[*long[1:], config("FromClass", host={"mtu": 1})]), DRIVER).devices
    [again] = read_claim(claim(result("a"), configs=long), DRIVER).devices
    assert before.said == again.said != after.said
    assert len(json.dumps(before.said)) < 200


def test_who_uses_it() -> None:
    """Name and UID of each consumer, and how the pod calls a claim of a template."""
    raw = claim(result(), pods=["app", "other"])
    raw["metadata"]["annotations"] = {POD_CLAIM: "net"}
    seen = read_claim(raw, DRIVER)
    assert seen.consumers == (ClaimConsumer("pods", "app", "uid-app"), ClaimConsumer("pods", "other", "uid-other"))
    assert seen.pod_claim == "net"


def test_on_which_node() -> None:
    """A claim is of a node as long as one of its devices is in the node's pool."""
    seen = read_claim(claim(result(), result(driver="gpu.example.com", pool="n2")), DRIVER)
    assert seen.is_of("n1")
    assert not seen.is_of("n2")
    assert not read_claim(claim(), DRIVER).is_of("n1")


def test_not_allocated() -> None:
    """A claim without a status has no devices and no consumers."""
    seen = read_claim({"metadata": {"name": "c", "namespace": "blue", "uid": "u1"}, "spec": {}}, DRIVER)
    assert (seen.devices, seen.consumers) == ((), ())


def test_what_the_server_would_not_have_taken() -> None:
    """More devices than a claim can have, another source, values of other types and, in an annotation that it does not check, a
    path instead of a name are refused."""
    with pytest.raises(InvalidConfig, match="has 33 devices"):
        read_claim(claim(*[result()] * 33), DRIVER)
    with pytest.raises(InvalidConfig, match="from 'FromPod'"):
        read_claim(claim(result(), configs=[config("FromPod")]), DRIVER)
    with pytest.raises(Undecodable, match="results"):
        read_claim({"metadata": {}, "status": {"allocation": {"devices": {"results": ["x"]}}}}, DRIVER)
    for name in ("../../data", "a/b", "a" * 64, "a\n"):
        raw = claim(result())
        raw["metadata"]["annotations"] = {POD_CLAIM: name}
        with pytest.raises(InvalidConfig, match="which is no name of a claim in a pod"):
            read_claim(raw, DRIVER)
