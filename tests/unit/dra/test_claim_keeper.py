"""How long devices of another boot keep the kubelet waiting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.lab.node.world import World
from userspace_cni.attachment import claims
from userspace_cni.attachment.claims import ClaimOwner, DeviceWish
from userspace_cni.attachment.steps import ClaimFile
from userspace_cni.base.deadline import Deadline
from userspace_cni.dra.claim_keeper import ClaimKeeper


def test_made_anew_in_time(tmp_path: Path) -> None:
    """No device is begun after the time that the call has; the next call goes on."""
    world = World(tmp_path)
    wishes = [DeviceWish(number, {"number": number}, lambda: (ClaimFile("/cdi", "u1.json", "{}"),)) for number in range(2)]
    claims.prepare(ClaimOwner("blue", "c", "u1"), wishes, world, lambda calls: [call() for call in calls], Deadline.after(60))
    world.boot = "boot-2"
    node: Any = world
    keeper = ClaimKeeper(node, node, None)
    keeper.renew(0.0)
    assert {each.boot_id for each in world.journal.records()} == {"boot-1"}
    keeper.renew()
    assert {each.boot_id for each in world.journal.records()} == {"boot-2"}
