"""A DPDK application at a port: what the agent reports of it, and that it is
connected again after the death of the switch or its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.agent.living import LiveNode, port_of
from tests.cni.spec import row_of, succeeded, switch_of
from tests.cni.test_cli_node import cli, decoded
from tests.lab.frames.testpmd import MEMORY_MIB, eal_arguments, run_testpmd
from tests.lab.kube.pods import MAPPED_DIR, Pod
from tests.lab.switch.switch import Switch, wait_until

CONNECT_S = 60
"""After its start the switch takes seconds to get the memory for its first connection."""


@pytest.fixture(scope="module")
def switch() -> Iterator[Switch]:
    """A switch that leaves hugepages for an application."""
    with Switch(environment={"PRIVATE_SWITCH_APP_PAGES": str(MEMORY_MIB // 2)}) as started:
        yield started


def is_connected(live: LiveNode) -> bool:
    """Whether the metrics say that the application is connected and has agreed on its features."""
    port = {"bridge": "br-test", "port": port_of()}
    return live.metric("vhost_connected", **port) == live.metric("vhost_negotiated", **port) == 1


def frames(live: LiveNode) -> int:
    """Packets that this ovs-vswitchd has got from the application at this port.

    Its own count: ovs-vswitchd 3.1 may leave Interface.status at `disconnected` when the application is there so early that it
    connects while the port is being made, so that nothing in OVSDB tells of the connection.
    """
    shown = switch_of(live).appctl("dpctl/show", "--statistics")
    facts = shown.partition(f": {port_of()} ")[2].partition("  port ")[0]
    found = re.search(r"RX packets:(\d+)", facts)
    return int(found[1]) if found else 0


def test_the_application_gets_its_switch_back(live: LiveNode, sandbox: str) -> None:
    """A connected port is shown so; after a new database, and after a new ovs-vswitchd, frames flow again."""
    pod, network = Pod(), live.network("1.0.0", ipam=live.host_local())
    volume = live.empty_dir(pod.uid)
    live.start()
    succeeded(live.run("ADD", network, sandbox, CNI_ARGS=pod.args))
    assert not is_connected(live)
    eal = eal_arguments(sandbox, volume, "--dir", MAPPED_DIR)
    with run_testpmd(sandbox, volume, eal, "txonly"):
        wait_until(lambda: is_connected(live), CONNECT_S, "the application connected")
        wait_until(lambda: frames(live), CONNECT_S, "its frames")
        assert live.metric("ports", bridge="br-test", kind="dpdkvhostuserclient", link_state="up") == 1
        live.kill()
        live.start()
        assert is_connected(live)
        switch_of(live).recreate_database()
        live.await_done("again-port", 1)
        wait_until(lambda: row_of(live).get("ofport"), what="the port open again")
        wait_until(lambda: frames(live), CONNECT_S, "its frames at the port that was made again")
        switch_of(live).restart_vswitchd()
        wait_until(lambda: frames(live), CONNECT_S, "its frames at the new daemon")
    wait_until(lambda: not is_connected(live), what="the application gone")
    succeeded(live.run("DEL", network, sandbox, CNI_ARGS=pod.args))
    live.require_clean()


def flowing(live: LiveNode) -> bool:
    """Whether frames of this application arrive, not only of an earlier one."""
    before = frames(live)
    return bool(before) and wait_until(lambda: frames(live) > before, what="more frames")


def test_an_application_that_was_killed_gets_its_network_back(live: LiveNode, sandbox: str) -> None:
    """Its dead socket is removed as soon as OVS reports the end of the connection, and the next application can start."""
    live.settings["USERSPACE_CNI_TICK_S"] = "10000"
    pod, network = Pod(), live.network()
    volume = live.empty_dir(pod.uid)
    live.start()
    succeeded(live.run("ADD", network, sandbox, CNI_ARGS=pod.args))
    path = volume / port_of()
    eal = eal_arguments(sandbox, volume, "--dir", MAPPED_DIR)
    for _ in range(3):
        with run_testpmd(sandbox, volume, eal, "txonly"):
            wait_until(lambda: frames(live), CONNECT_S, "its frames")
            assert flowing(live)
            wait_until(lambda: is_connected(live), CONNECT_S, "the application connected")
            live.tick()
            assert path.is_socket()
        wait_until(lambda: not path.exists(), what="the end of the dead socket")
    live.await_done("again-socket-file", 3)
    succeeded(live.run("DEL", network, sandbox, CNI_ARGS=pod.args))
    live.require_clean()


def test_a_dead_socket_without_an_agent(live: LiveNode, sandbox: str) -> None:
    """CHECK and `check` report it; the reader in the pod removes it before the application starts again, and so does `gc`."""
    pod, network = Pod(), live.network()
    volume = live.empty_dir(pod.uid)
    live.start()
    result = succeeded(live.run("ADD", network, sandbox, CNI_ARGS=pod.args))
    live.kill()
    path = volume / port_of()
    checked = {**network, "prevResult": result}
    assert live.run_standalone("CHECK", checked, sandbox).status == 0
    for way in ("reader", "gc"):
        eal = eal_arguments(sandbox, volume, "--dir", MAPPED_DIR)
        with run_testpmd(sandbox, volume, eal, "txonly"):
            wait_until(lambda: flowing(live), CONNECT_S, "its frames")
            assert live.run_standalone("CHECK", checked, sandbox).status == 0
            assert [each["socket_dead"] for each in decoded(live, "list")] == [False]
        assert path.is_socket()
        assert live.run_standalone("CHECK", checked, sandbox).status == 1
        assert [drift["found"] for drift in decoded(live, "check", code=1)["drifts"]] == ["a dead socket"]
        assert [each["socket_dead"] for each in decoded(live, "list", code=1)] == [True]
        assert "dead: no process has it" in cli(live, "show", pod.name, code=1).stdout
        if way == "gc":
            cli(live, "gc")
        else:
            eal_arguments(sandbox, volume, "--dir", MAPPED_DIR)
        assert not path.exists()
        assert live.run_standalone("CHECK", checked, sandbox).status == 0
    live.start()
    succeeded(live.run("DEL", network, sandbox, CNI_ARGS=pod.args))
    live.require_clean()
