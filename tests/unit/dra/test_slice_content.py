"""What a node's ResourceSlices say of its bridges, for servers with and without the newer fields."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from userspace_cni.dra.slice_content import (
    TAINT,
    PoolBridge,
    ServerAbilities,
    device_health,
    read_abilities,
    said_specs,
    slice_name,
    slice_specs,
    trial_specs,
)

ALL = ServerAbilities(shared=True, taints=True)
SHARED = ServerAbilities(shared=True)
TAINTS = ServerAbilities(taints=True)
NONE = ServerAbilities()
BRIDGE = PoolBridge("br0", healthy=True, room=4, free=4, resource="userspace-cni.io/br0", datapath="netdev")


def devices(*bridges: PoolBridge, abilities: ServerAbilities = ALL) -> list[dict[str, Any]]:
    return [device for spec in slice_specs("n1", bridges, abilities) for device in spec["devices"]]


def names(*bridges: PoolBridge, abilities: ServerAbilities) -> list[str]:
    return [each["name"] for each in devices(*bridges, abilities=abilities)]


def test_a_shared_bridge() -> None:
    """One device that may be allocated many times; each allocation takes one port of its capacity."""
    [spec] = slice_specs("n1", [replace(BRIDGE, numa=1, mtu=9000, vlans="10,20-29")], ALL)
    assert spec == {
        "driver": "userspace-cni.io",
        "nodeName": "n1",
        "pool": {"name": "n1", "resourceSliceCount": 1},
        "devices": [
            {
                "name": "br0",
                "allowMultipleAllocations": True,
                "capacity": {"ports": {"value": "4", "requestPolicy": {"default": "1", "validValues": ["1"]}}},
                "attributes": {
                    "bridge": {"string": "br0"},
                    "datapath": {"string": "netdev"},
                    "vlans": {"string": "10,20-29"},
                    "k8s.cni.cncf.io/resourceName": {"string": "userspace-cni.io/br0"},
                    "k8s.cni.cncf.io/deviceID": {"string": "br0"},
                    "mtu": {"int": 9000},
                    "resource.kubernetes.io/numaNode": {"int": 1},
                },
            }
        ],
    }


def test_what_is_not_known_is_not_said() -> None:
    """Neither an MTU nor a NUMA node; of a text only what the API takes, which counts bytes."""
    bare = PoolBridge("br0", healthy=True, room=1, free=1, vlans=",".join(map(str, range(100, 140, 2))))
    [device] = devices(bare)
    assert device["attributes"] == {"bridge": {"string": "br0"}}
    [device] = devices(replace(bare, vlans="1" * 64))
    assert device["attributes"]["vlans"] == {"string": "1" * 64}


def test_counted_devices() -> None:
    """Without consumable capacity a bridge is as many devices as there is room, each with its own ID for Multus."""
    found = devices(BRIDGE, replace(BRIDGE, name="br1", room=1, free=1), abilities=NONE)
    assert [each["name"] for each in found] == ["br0-0", "br0-1", "br0-2", "br0-3", "br1-0"]
    assert [each["attributes"]["k8s.cni.cncf.io/deviceID"]["string"] for each in found] == [each["name"] for each in found]
    assert not any("allowMultipleAllocations" in each or "capacity" in each for each in found)


def test_room_that_pods_have_taken() -> None:
    """The capacity shrinks; of counted devices those that claims have stay, and of the others those with low numbers."""
    [device] = devices(replace(BRIDGE, free=1))
    assert device["capacity"]["ports"]["value"] == "1"
    assert names(replace(BRIDGE, free=0), abilities=SHARED) == []
    assert names(replace(BRIDGE, free=2), abilities=NONE) == ["br0-0", "br0-1"]
    assert names(replace(BRIDGE, free=2, claimed=("br0-3",)), abilities=NONE) == ["br0-0", "br0-3"]
    assert names(replace(BRIDGE, free=1, claimed=("br0-2", "br0-3")), abilities=NONE) == ["br0-2", "br0-3"]
    assert names(replace(BRIDGE, room=1, free=2, claimed=("br0-7",)), abilities=NONE) == ["br0-0", "br0-7"]
    assert names(replace(BRIDGE, free=3, claimed=("br0", "br0")), abilities=NONE) == ["br0-0"]


@pytest.mark.parametrize("abilities", [ALL, TAINTS])
def test_a_dead_switch_taints(abilities: ServerAbilities) -> None:
    """Each device has the taint while the switch is dead, and no other."""
    for device in devices(replace(BRIDGE, healthy=False), abilities=abilities):
        assert device["taints"] == [{"key": TAINT, "value": "dead", "effect": "NoSchedule"}]
    assert not any("taints" in device for device in devices(BRIDGE, abilities=abilities))


@pytest.mark.parametrize("abilities", [SHARED, NONE])
def test_a_dead_switch_without_taints(abilities: ServerAbilities) -> None:
    """Its bridges are left out, and the pool stays, with one slice."""
    dead, alive = replace(BRIDGE, healthy=False), replace(BRIDGE, name="br1", room=1, free=1)
    assert all(name.startswith("br1") for name in names(dead, alive, abilities=abilities))
    [spec] = slice_specs("n1", [dead], abilities)
    assert spec["devices"] == []
    assert spec["pool"]["resourceSliceCount"] == 1


@pytest.mark.parametrize(("abilities", "most"), [(NONE, 128), (TAINTS, 64)])
def test_devices_of_many_slices(abilities: ServerAbilities, most: int) -> None:
    """A slice has no more devices than the API takes; each says of how many slices the pool is."""
    bridges = [replace(BRIDGE, name=f"br{number}", room=100, free=100) for number in range(3)]
    specs = slice_specs("n1", bridges, abilities)
    assert [len(spec["devices"]) for spec in specs] == [most] * (300 // most) + [300 % most]
    assert {spec["pool"]["resourceSliceCount"] for spec in specs} == {len(specs)}
    assert len({device["name"] for spec in specs for device in spec["devices"]}) == 300


def test_names_of_slices() -> None:
    """By node and number; a long name of a node is cut, and two nodes never have one in common."""
    assert slice_name("n1.example", 0) == "n1.example-userspace-cni-0"
    long = [f"{'a' * 63}.{'b' * 63}.{'c' * 63}.{'d' * 60}{end}" for end in "ef"]
    found = [slice_name(node, 9999) for node in long]
    assert len(set(found)) == 2
    assert all(len(name) <= 253 for name in found)


@pytest.mark.parametrize("abilities", [ALL, SHARED, TAINTS, NONE])
def test_what_a_server_has(abilities: ServerAbilities) -> None:
    """Follows from what it keeps of a slice with all of it."""
    spec = trial_specs("n1")
    [device] = spec["devices"]
    if not abilities.shared:
        del device["allowMultipleAllocations"], device["capacity"]["ports"]["requestPolicy"]
    if not abilities.taints:
        del device["taints"]
    assert read_abilities(spec) == abilities


def test_what_the_server_adds() -> None:
    """The generation and a taint's time are no differences."""
    [spec] = slice_specs("n1", [replace(BRIDGE, healthy=False)], ALL)
    kept = {**spec, "pool": {**spec["pool"], "generation": 7}, "devices": [dict(each) for each in spec["devices"]]}
    kept["devices"][0]["taints"] = [{**kept["devices"][0]["taints"][0], "timeAdded": "2026-01-01T00:00:00Z"}]
    assert said_specs([{"spec": kept}]) == [spec]


def test_health() -> None:
    """Each device's by its name, also while it is left out of the slices."""
    dead = replace(BRIDGE, name="br1", healthy=False, room=2, free=0, claimed=("br1-1",))
    assert device_health([BRIDGE, dead], shared=True) == {"br0": True, "br1": False}
    assert device_health([replace(BRIDGE, room=1, free=1), dead], shared=False) == {"br0-0": True, "br1-1": False}
