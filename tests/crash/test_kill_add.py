"""ADD killed at every point: the runtime's DEL removes what it left, and without a DEL other calls do."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from tests.cni.spec import finish, paused_vswitchd, refused, start, switch_of
from tests.crash.victims import Stillness, Victim, apart, around
from tests.lab.node.node import Node
from tests.lab.switch.switch import wait_until

POINTS = {
    "client": [
        *around("writing pending", "lease", "writing applying", "writing holders", "directory", "socket-file", "pod-mount"),
        *around("port", "device-info", "config-file"),
        *around("rest of port", "writing ready"),
    ],
    "server": [
        *around("writing pending", "lease", "writing applying", "writing holders", "directory", "port", "rest of port"),
        *around("placed-socket", "device-info", "config-file", "writing ready"),
    ],
    "veth": [
        *around("writing pending", "lease", "writing applying", "guard", "link", "shaper", "port", "rest of port"),
        *around("announcement", "writing ready"),
    ],
}
POINTS["kubevirt"] = [point for point in POINTS["client"] if "config-file" not in point]
OF_SERVER_MODE = around("port", "rest of port", "placed-socket")
OF_VMS = ["before directory", "after directory", "after pod-mount", "after writing ready"]
OF_VETHS = around("guard", "link", "shaper", "port", "rest of port", "announcement")
CASES = [
    *(("client", point) for point in apart(POINTS["client"])),
    *(("server", point) for point in apart(OF_SERVER_MODE)),
    *(("kubevirt", point) for point in OF_VMS),
    *(("veth", point) for point in apart(OF_VETHS)),
]


@pytest.mark.parametrize("mode", POINTS)
def test_all_points_are_known(node: Node, sandbox: str, mode: str) -> None:
    """ADD passes exactly the points at which it is killed below, and does nothing between those of which one is left out."""
    victim, watch = Victim(node, sandbox, mode), Stillness(node)
    assert victim.call("ADD", watch).code == 0
    assert (watch.passed, watch.broken) == (POINTS[mode], [])
    victim.delete()


@pytest.mark.parametrize(("mode", "point"), CASES)
def test_then_del(node: Node, sandbox: str, mode: str, point: str) -> None:
    """SIGKILL at the point, then DEL: it succeeds and nothing is left."""
    victim = Victim(node, sandbox, mode)
    victim.kill("ADD", point)
    victim.delete()


@pytest.mark.parametrize(("mode", "point"), [case for case in CASES if case[1] != "after writing ready"])
def test_then_calls_of_others(node: Node, sandbox: str, mode: str, point: str) -> None:
    """SIGKILL at the point and no DEL: calls for another container finish it, and nothing is left of either."""
    victim = Victim(node, sandbox, mode)
    victim.kill("ADD", point)
    victim.forget()


@pytest.mark.parametrize("way", [Victim.collect, Victim.reconcile], ids=["GC", "agent"])
@pytest.mark.parametrize("point", [point for point in OF_VETHS if point.startswith("after")])
def test_then_collected(node: Node, sandbox: str, point: str, way: Callable[[Victim], None]) -> None:
    """SIGKILL amid an ADD of a kernel link and no DEL: GC finishes it, and so does the agent's next pass."""
    victim = Victim(node, sandbox, "veth")
    victim.kill("ADD", point)
    way(victim)


AGAIN = [
    *(("client", point) for point in ("after lease", "after pod-mount", "after port", "before writing ready")),
    *(("veth", point) for point in ("after guard", "after link", "after port")),
]


@pytest.mark.parametrize(("mode", "point"), AGAIN)
def test_then_add_again(node: Node, sandbox: str, mode: str, point: str) -> None:
    """SIGKILL at the point, then ADD of the same interface: it starts over and succeeds, with one port and one lease."""
    victim = Victim(node, sandbox, mode)
    victim.kill("ADD", point)
    assert victim.call("ADD").code == 0
    assert len(switch_of(node).ports("br-test")) == len(node.leftovers()["leases"]) == 1
    victim.delete()


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT], ids=lambda sign: sign.name)
def test_signal_amid_add(node: Node, sandbox: str, sign: signal.Signals) -> None:
    """A signal while ADD waits for ovs-vswitchd: everything is undone, and the answer is 11 naming the signal."""
    victim = Victim(node, sandbox)
    with paused_vswitchd(switch_of(node)):
        process = start(node, node.variables("ADD", sandbox), victim.network)
        wait_until(lambda: "br-test" in node.leftovers().get("bridges", []), what="the port's rows")
        process.send_signal(sign)
        refused(finish(process, "ADD"), 11, f"stopped by {sign.name}")
        assert victim.leftovers() == {}
    assert victim.call("ADD").code == 0
    victim.delete()


def test_second_signal_does_not_stop_the_undoing(node: Node, sandbox: str) -> None:
    """A runtime that sends SIGTERM again and again gets one answer, and nothing is left."""
    victim = Victim(node, sandbox)
    with paused_vswitchd(switch_of(node)):
        process = start(node, node.variables("ADD", sandbox), victim.network)
        wait_until(lambda: "br-test" in node.leftovers().get("bridges", []), what="the port's rows")
        while process.poll() is None:
            process.send_signal(signal.SIGTERM)
        refused(finish(process, "ADD"), 11, "stopped by SIGTERM")
    assert victim.leftovers() == {}
