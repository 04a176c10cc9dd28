"""DEL killed at every point, and a node that reboots: the next DEL finishes it, and so do the calls of others."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.cni.spec import succeeded, switch_of
from tests.crash.victims import ANOTHER, Stillness, Victim, apart, around
from tests.lab.node.node import Node, mounts_below
from tests.lab.node.stored import live
from userspace_cni.attachment.journal import Journal
from userspace_cni.linux.boot import boot_id

POINTS = {
    "client": [
        *around("writing deleting", "undo config-file", "undo device-info", "undo port"),
        *around("undo pod-mount", "undo socket-file", "undo directory", "writing holders"),
        *around("undo lease", "dropping the record"),
    ],
    "server": [
        *around("writing deleting", "undo config-file", "undo device-info", "undo placed-socket", "undo port"),
        *around("undo directory", "writing holders", "undo lease", "dropping the record"),
    ],
    "veth": [
        *around("writing deleting", "undo announcement", "undo port", "undo shaper", "undo link", "undo guard"),
        *around("undo lease", "dropping the record"),
    ],
}
POINTS["kubevirt"] = [point for point in POINTS["client"] if "config-file" not in point]
OF_SERVER_MODE = around("undo placed-socket", "undo port")
OF_VMS = ["after undo pod-mount", "before undo directory", "after undo directory"]
OF_VETHS = around("undo port", "undo shaper", "undo link", "undo guard")
CASES = [
    *(("client", point) for point in apart(POINTS["client"])),
    *(("server", point) for point in apart(OF_SERVER_MODE)),
    *(("kubevirt", point) for point in apart(OF_VMS)),
    *(("veth", point) for point in apart(OF_VETHS)),
]


@pytest.mark.parametrize("mode", POINTS)
def test_all_points_are_known(node: Node, sandbox: str, mode: str) -> None:
    """DEL passes exactly the points at which it is killed below, and does nothing between those of which one is left out."""
    victim, watch = Victim(node, sandbox, mode), Stillness(node)
    assert victim.call("ADD").code == 0
    assert victim.call("DEL", watch).code == 0
    assert (watch.passed, watch.broken) == (POINTS[mode], [])
    assert victim.leftovers() == {}


@pytest.mark.parametrize(("mode", "point"), CASES)
def test_then_del(node: Node, sandbox: str, mode: str, point: str) -> None:
    """SIGKILL at the point, then DEL: it succeeds and nothing is left."""
    victim = Victim(node, sandbox, mode)
    assert victim.call("ADD").code == 0
    victim.kill("DEL", point)
    victim.delete()


@pytest.mark.parametrize(("mode", "point"), [case for case in CASES if case[1] != "before writing deleting"])
def test_then_calls_of_others(node: Node, sandbox: str, mode: str, point: str) -> None:
    """SIGKILL at the point and no other DEL: calls for another container finish it, and nothing is left of either."""
    victim = Victim(node, sandbox, mode)
    assert victim.call("ADD").code == 0
    victim.kill("DEL", point)
    victim.forget()


@pytest.mark.parametrize("way", [Victim.collect, Victim.reconcile], ids=["GC", "agent"])
@pytest.mark.parametrize("point", ["after writing deleting", *(point for point in OF_VETHS if point.startswith("after"))])
def test_then_collected(node: Node, sandbox: str, point: str, way: Callable[[Victim], None]) -> None:
    """SIGKILL amid a DEL of a kernel link and no other DEL: GC finishes it, and so does the agent's next pass."""
    victim = Victim(node, sandbox, "veth")
    assert victim.call("ADD").code == 0
    victim.kill("DEL", point)
    way(victim)


@pytest.mark.parametrize("how", ["DEL", "calls of others"])
def test_reboot(node: Node, sandbox: str, how: str) -> None:
    """After a reboot rows and records are there, mounts and locks are not: a DEL, or any other call, removes the rest."""
    victim = Victim(node, sandbox)
    assert victim.call("ADD").code == 0
    journal = Journal(str(node.state), f"{node.directory}/run", print, boot_id)
    [record] = journal.records()
    journal.write(replace(record, boot_id="00000000-0000-4000-8000-000000000000"))
    for mount in mounts_below(node.directory):
        subprocess.run(["umount", mount], check=True)
    assert len(switch_of(node).ports("br-test")) == 1
    if how == "DEL":
        victim.delete()
    else:
        victim.forget()


def test_reboot_then_the_same_name(node: Node, sandbox: str) -> None:
    """A runtime that uses the same container ID after a reboot is served: the old attachment is undone first."""
    victim = Victim(node, sandbox)
    assert victim.call("ADD").code == 0
    journal = Journal(str(node.state), f"{node.directory}/run", print, boot_id)
    [record] = journal.records()
    journal.write(replace(record, boot_id="00000000-0000-4000-8000-000000000000"))
    assert victim.call("ADD").code == 0
    assert len(switch_of(node).ports("br-test")) == len(node.leftovers()["leases"]) == 1
    victim.delete()


def test_rows_of_another_boot_without_a_record(node: Node, sandbox: str) -> None:
    """A row that a power cut brought back, its record forgotten, is removed before the first ADD of the boot."""
    succeeded(node.run("ADD", node.network(), sandbox))
    switch = switch_of(node)
    [port] = switch.ports("br-test")
    for table in ("Port", "Interface"):
        switch.vsctl("set", table, port, "external_ids:boot-id=00000000-0000-4000-8000-000000000000")
    for path in [*(node.state / "attachments").iterdir(), *live(node.directory / "run", "settled")]:
        path.unlink()
    succeeded(node.run("ADD", node.network(), sandbox, ANOTHER))
    assert switch.ports("br-test") == [f"{ANOTHER[:12]}-net1"]
    succeeded(node.run("DEL", node.network(), sandbox, ANOTHER))
    assert switch.bridges() == []
