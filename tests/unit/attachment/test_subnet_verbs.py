"""Networks that name a Subnet, through the verbs: the IPAM plugin gets the
configuration of the lease, also when the Subnet has changed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.lab.node.world import World
from tests.unit.attachment.test_spool import drain, put
from tests.unit.attachment.test_verbs import CONTAINER, NOTHING, call, leftovers, listing
from userspace_cni.attachment.steps import Lease, Step
from userspace_cni.base.subnets import Placement, place, read_subnet

KEYS: dict[str, Any] = {"subnet": "pods", "ipam": {"type": "host-local"}}


def given(cidr: str) -> Placement:
    return place(read_subnet("pods", {"cidrBlock": cidr, "bridge": "br-pods"}), (None, ""), ())


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, subnet=given("10.56.0.0/24"))


def ipam_of(stdin: str) -> Any:
    return json.loads(stdin)["ipam"]["ranges"][0][0]["subnet"]


@pytest.fixture
def undone(world: World) -> list[Lease]:
    leases: list[Lease] = []

    def watch(point: str, step: Step) -> None:
        if point == "before undo" and isinstance(step, Lease):
            leases.append(step)

    world.fault = watch
    return leases


def test_what_leased_releases(world: World, undone: list[Lease]) -> None:
    """CHECK and DEL use the configuration with which ADD leased, whatever became of the Subnet; the record has it."""
    code, result = call(world, "ADD", **KEYS)
    assert code == 0
    [record] = world.journal.records()
    assert record.port
    assert record.port.bridge == "br-pods"
    [lease] = [step for step in record.steps if isinstance(step, Lease)]
    assert (lease.subnet, ipam_of(lease.stdin)) == ("pods", "10.56.0.0/24")
    world.subnet = given("10.99.0.0/24")
    assert call(world, "CHECK", **KEYS, prevResult=result) == (0, None)
    assert ipam_of(world.given[-1].decode()) == "10.56.0.0/24"
    valid = listing([{"containerID": CONTAINER, "ifname": "net1"}])
    assert call(world, "GC", **KEYS, **valid) == (0, None)
    assert world.forwarded == ["CHECK"]  # other networks may have leases of the Subnet, too
    assert call(world, "DEL", **KEYS) == (0, None)
    assert [ipam_of(each.stdin) for each in undone] == ["10.56.0.0/24"]
    assert leftovers(world) == NOTHING


def test_without_a_record(world: World, undone: list[Lease]) -> None:
    """DEL without a record needs no Subnet either, at once and from the spool: host-local releases by container."""
    world.subnet = None
    assert call(world, "DEL", **KEYS) == (0, None)
    stdin = json.dumps({"cniVersion": "1.1.0", "name": "n", "type": "userspace", **KEYS}).encode()
    put(world, 1, container=CONTAINER, stdin=stdin)
    drain(world)
    [record] = world.journal.records()
    [lease] = [step for step in record.steps if isinstance(step, Lease)]
    assert [ipam_of(each) for each in (undone[0].stdin, lease.stdin)] == ["192.0.2.0/24"] * 2
    assert json.loads(lease.stdin)["ipam"]["dataDir"] == "/leases"
