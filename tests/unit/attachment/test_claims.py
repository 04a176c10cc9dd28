"""Claims of devices as folds over steps, on a node in memory that fails at each step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.lab.node.ports import port_with
from tests.lab.node.world import World, no_fault
from userspace_cni.attachment import claims, cleanup
from userspace_cni.attachment.claims import ClaimOwner, DeviceWish
from userspace_cni.attachment.steps import ClaimDirectory, ClaimFile, Step
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import StepFailed

OWNER = ClaimOwner("blue", "c", "u1", "app", "uid-app")
MARKS = {"container-id": "_u1", "network": "c", "boot-id": "boot-1"}


def one_by_one(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    return [call() for call in calls]


def wish(number: int, said: Mapping[str, Any] | None = None, name: str = "p") -> DeviceWish:
    """A device with the steps of a real one, in short."""
    path = f"/claims/u1-{number}"
    marks = {**MARKS, "ifname": f"net{number}"}
    port = port_with(
        bridge="br0", name=f"{name}{number}", interface_type="dpdkvhostuserclient", server_path=f"/s{number}", marks=marks
    )
    steps: tuple[Step, ...] = (ClaimDirectory(path, "/claims"), port, ClaimFile("/cdi", f"u1-{number}.json", "{}"))
    return DeviceWish(number, said or {"device": "br0"}, lambda: steps)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def prepare(world: World, *wishes: DeviceWish, owner: ClaimOwner = OWNER) -> None:
    claims.prepare(owner, wishes, world, one_by_one, Deadline.after(60))


def unprepare(world: World) -> None:
    claims.unprepare("u1", world, lambda _: {}, Deadline.after(60))


def test_a_claim(world: World) -> None:
    """All its devices are true, and nothing after it is unprepared, also when that is repeated."""
    prepare(world, wish(0), wish(1))
    assert world.true == {
        *("directory:/claims/u1-0", "port:p0", "claim-file:u1-0.json"),
        *("directory:/claims/u1-1", "port:p1", "claim-file:u1-1.json"),
    }
    assert {(each.key, each.owner, each.state) for each in world.journal.records()} == {
        ("_u1@net0", "claim", "ready"),
        ("_u1@net1", "claim", "ready"),
    }
    unprepare(world)
    unprepare(world)
    assert (world.true, world.journal.records()) == (set(), [])


@pytest.mark.parametrize("when", ["before apply", "after apply", "while waiting"])
def test_a_step_fails(world: World, when: str) -> None:
    """A claim of which any step of any device fails leaves nothing, and the next call succeeds."""
    for failing in ("directory:/claims/u1-1", "p1", "u1-1.json"):

        def fault(at: str, step: Step, failing: str = failing) -> None:
            name = step.resource.key if step.resource else getattr(step, "name", "")
            if at == when and name == failing:
                raise StepFailed(f"{failing} cannot be", "a remedy")

        world.fault = fault
        with pytest.raises(StepFailed, match="cannot be; a remedy"):
            prepare(world, wish(0), wish(1))
        assert (world.true, world.journal.records()) == (set(), []), failing
        world.fault = no_fault
        prepare(world, wish(0), wish(1))
        unprepare(world)
        assert world.true == set()


def test_a_device_that_was_there_stays(world: World) -> None:
    """When another device of the claim fails, one that was prepared before is left as it is."""
    prepare(world, wish(0))

    def fault(at: str, step: Step) -> None:
        if at == "after apply" and getattr(step, "name", "") == "p1":
            raise StepFailed("p1 cannot be")

    world.fault = fault
    with pytest.raises(StepFailed):
        prepare(world, wish(0), wish(1))
    assert [each.ifname for each in world.journal.records()] == ["net0"]
    assert "port:p0" in world.true


def test_the_record_of_a_device_is_lost(world: World) -> None:
    """What is recorded of a claim's later devices is undone although an earlier one has no record any more."""
    prepare(world, wish(0), wish(1), wish(2))
    [_, first, _] = sorted(world.journal.records(), key=lambda each: each.ifname)
    world.journal.drop(first)
    unprepare(world)
    assert world.journal.records() == []
    assert not {"port:p0", "port:p2"} & world.true


def test_asked_again(world: World) -> None:
    """The same claim makes nothing anew, but what is lost; for another pod, or another allocation, the device is made anew."""
    prepare(world, wish(0))
    [before] = world.journal.records()
    prepare(world, wish(0))
    assert world.journal.records() == [before]
    world.true.discard("port:p0")
    prepare(world, wish(0))
    assert "port:p0" in world.true
    assert world.journal.records() == [before]
    prepare(world, wish(0, {"device": "br1"}, name="q"))
    assert {"port:p0", "port:q0"} & world.true == {"port:q0"}
    prepare(world, wish(0, {"device": "br1"}, name="q"), owner=ClaimOwner("blue", "c", "u1", "next", "uid-next"))
    assert [each.pod_name for each in world.journal.records()] == ["next"]


def test_fewer_devices(world: World) -> None:
    """A claim that has fewer devices now loses the others."""
    prepare(world, wish(0), wish(1), wish(2))
    prepare(world, wish(0))
    assert [each.ifname for each in world.journal.records()] == ["net0"]
    assert "port:p2" not in world.true


def test_fewer_devices_after_a_death(world: World) -> None:
    """Where one died while it removed the former devices, a later one goes, too, although one before it is gone already."""
    prepare(world, wish(0), wish(1), wish(2))
    record = world.journal.read("_u1", "net1")
    assert record
    world.journal.drop(record)
    prepare(world, wish(0))
    assert [each.key for each in world.journal.records()] == ["_u1@net0"]
    assert "port:p2" not in world.true


def test_another_boot(world: World) -> None:
    """Nothing undoes a claim of another boot, for the kubelet may not ask again: it is made anew from its record."""
    prepare(world, wish(0))
    world.boot = "boot-2"
    world.true.clear()
    cleanup.settle(world.store, world.driver, world.switch, world.sandboxes, Deadline.after(60))
    cleanup.finish(world.store, world.driver, Deadline.after(60))
    [record] = world.journal.records()
    assert record.boot_id == "boot-1"
    assert claims.make_anew(record, world)
    [record] = world.journal.records()
    assert (record.boot_id, record.state) == ("boot-2", "ready")
    assert record.port
    assert record.port.marks["boot-id"] == "boot-2"
    assert world.true == {"directory:/claims/u1-0", "port:p0", "claim-file:u1-0.json"}
    unprepare(world)
    assert world.true == set()
