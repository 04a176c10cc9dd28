"""A DPDK application at a port: what the agent tells of it, and that it gets its switch back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.agent.living import LiveNode, port_of
from tests.cni.spec import succeeded, switch_of
from tests.lab.pods import MAPPED_DIR, Pod
from tests.lab.switch import Switch, wait_until
from tests.lab.testpmd import MEMORY_MIB, eal_arguments, run_testpmd

CONNECT_S = 60
"""After its start the switch takes seconds for the memory of its first connection."""


@pytest.fixture(scope="module")
def switch() -> Iterator[Switch]:
    """A switch beside which hugepages are left for an application."""
    with Switch(environment={"PRIVATE_SWITCH_APP_PAGES": str(MEMORY_MIB // 2)}) as started:
        yield started


def is_connected(live: LiveNode) -> bool:
    """Whether the metrics say that the application is there and has agreed on its features."""
    port = {"bridge": "br-test", "port": port_of()}
    return live.metric("vhost_connected", **port) == live.metric("vhost_negotiated", **port) == 1


def test_the_application_gets_its_switch_back(live: LiveNode, sandbox: str) -> None:
    """Connected, the port is shown so; after a new database, and after a new ovs-vswitchd, the same application is again."""
    pod, network = Pod(), live.network("1.0.0", ipam=live.host_local())
    volume = live.empty_dir(pod.uid)
    live.start()
    succeeded(live.run("ADD", network, sandbox, CNI_ARGS=pod.args))
    assert not is_connected(live)
    eal = eal_arguments(sandbox, volume, "--dir", MAPPED_DIR)
    with run_testpmd(sandbox, volume, eal, "rxonly"):
        wait_until(lambda: is_connected(live), CONNECT_S, "the application connected")
        assert live.metric("ports", bridge="br-test", kind="dpdkvhostuserclient", link_state="up") == 1
        live.kill()
        live.start()
        assert is_connected(live)
        switch_of(live).recreate_database()
        wait_until(lambda: live.metric("ovsdb_reconnects_total") == 1, what="a new session")
        wait_until(lambda: live.done("again-port") == 1, what="the port made again")
        wait_until(lambda: is_connected(live), CONNECT_S, "the application connected again")
        switch_of(live).restart_vswitchd()
        wait_until(lambda: is_connected(live), CONNECT_S, "the application connected to the new daemon")
    wait_until(lambda: not is_connected(live), what="the application gone")
    succeeded(live.run("DEL", network, sandbox, CNI_ARGS=pod.args))
    assert live.is_clean()
