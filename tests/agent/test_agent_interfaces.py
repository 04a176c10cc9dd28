"""Interfaces of one container at once: each has a lock of its own, and what they share is made once and removed with the last."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.agent.living import LiveNode, port_of
from tests.cni.spec import finish, paused_vswitchd, refused, start, succeeded, switch_of
from tests.crash.test_kill_add import POINTS as ADD_POINTS
from tests.crash.test_kill_del import POINTS as DEL_POINTS
from tests.crash.victims import apart
from tests.lab.switch.switch import FOR_EVER_S, wait_until

EIGHT = [f"net{number}" for number in range(1, 9)]
KINDS = {"client": "vhostuser", "veth": "veth"}


def network_of(live: LiveNode, mode: str) -> dict[str, Any]:
    """A network with addresses, and what a pod's link can have beside its port; all interfaces of it share a directory."""
    network = live.network("1.0.0", ipam=live.host_local())
    if mode == "veth":
        network["host"] = {"iftype": "veth", "bridge": network["host"]["bridge"]}
        network |= {"bandwidth": {"ingressRate": 8_000_000, "egressRate": 4_000_000}}
    return network


def begun(
    live: LiveNode, verb: str, network: dict[str, Any], sandbox: str, ifnames: Iterable[str] = EIGHT
) -> dict[str, subprocess.Popen[bytes]]:
    """Calls for these interfaces, all under way."""
    stdin = json.dumps(network).encode()
    return {each: start(live, live.variables(verb, sandbox, ifname=each), stdin) for each in ifnames}


def points_of(points: list[str]) -> list[str]:
    """Those that a call of `network_of` passes."""
    return [point for point in apart(points) if not point.endswith(("device-info", "config-file"))]


def test_no_interface_waits_for_another(live: LiveNode, sandbox: str) -> None:
    """While ovs-vswitchd opens nothing, eight ADDs of a container have their rows, a DEL of another of its interfaces ends, and a
    DEL of one of the eight waits for its ADD."""
    network = live.network()
    live.start()
    succeeded(live.run("ADD", network, sandbox, ifname="net0"))
    with paused_vswitchd(switch_of(live)):
        added = begun(live, "ADD", network, sandbox)
        ports = {port_of(ifname=each) for each in EIGHT}
        wait_until(lambda: ports <= set(switch_of(live).ports("br-test")), what="the rows of all eight")
        succeeded(live.run("DEL", network, sandbox, ifname="net0"))
        deleted = begun(live, "DEL", network, sandbox, ["net8"])["net8"]
        wait_until(lambda: live.metric("workers_busy") == len(EIGHT) + 1, what="the DEL of the eighth to be under way")
        assert live.states() == ["applying"] * len(EIGHT)
        assert deleted.poll() is None
    for process in added.values():
        succeeded(finish(process, "ADD"))
    succeeded(finish(deleted, "DEL"))
    assert set(switch_of(live).ports("br-test")) == ports - {port_of(ifname="net8")}
    for process in begun(live, "DEL", network, sandbox).values():
        succeeded(finish(process, "DEL"))
    live.require_clean()


@pytest.mark.parametrize("mode", KINDS)
def test_killed_amid_eight_adds(live: LiveNode, sandbox: str, mode: str) -> None:
    """Killed as soon as one of eight ADDs comes to a point: all answer 11; the next agent, and DEL of what was recorded as ready,
    leave nothing."""
    network = network_of(live, mode)
    for point in points_of(ADD_POINTS[mode]):
        live.start(until=point)
        processes = begun(live, "ADD", network, sandbox)
        live.await_death()
        for process in processes.values():
            refused(finish(process, "ADD"), 11)
        live.start(TURN_S=FOR_EVER_S)
        for each in EIGHT if point == "after writing ready" else ():
            succeeded(live.run("DEL", network, sandbox, ifname=each))
        live.await_clean()  # a pass leaves alone what an IPAM plugin of the killed agent has the lock of
        assert live.end() == 0


@pytest.mark.parametrize("mode", KINDS)
def test_killed_amid_eight_dels(live: LiveNode, sandbox: str, mode: str) -> None:
    """Killed as soon as one of eight DELs comes to a point: all succeed, and the next agent leaves nothing."""
    network = network_of(live, mode)
    for point in points_of(DEL_POINTS[mode]):
        live.start(TURN_S=FOR_EVER_S)
        for process in begun(live, "ADD", network, sandbox).values():
            succeeded(finish(process, "ADD"))
        assert live.end() == 0
        live.start(until=point)
        processes = begun(live, "DEL", network, sandbox)
        live.await_death()
        for process in processes.values():
            succeeded(finish(process, "DEL"))
        live.start(TURN_S=FOR_EVER_S)
        live.await_clean()  # a pass leaves alone what an IPAM plugin of the killed agent has the lock of
        assert live.end() == 0


def test_agent_and_processes_at_once(live: LiveNode, sandbox: str) -> None:
    """An agent and processes without it attach and detach interfaces of one container in any order, also the same one at once:
    each answer is kept, and nothing is left."""
    network = network_of(live, "client")
    live.start()

    def cycle(number: int) -> None:
        ifname = EIGHT[number % 3]
        first, second = (live.run, live.run_standalone) if number % 2 else (live.run_standalone, live.run)
        added = first("ADD", network, sandbox, ifname=ifname)
        if added.status:
            assert "is attached already" in added.document["msg"] or added.document["code"] == 11, added.document
        succeeded(second("DEL", network, sandbox, ifname=ifname))

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(cycle, range(12)))
    live.await_clean()
