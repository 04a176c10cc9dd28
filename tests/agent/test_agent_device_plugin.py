"""The device plugin as the kubelet sees it: what it reports of bridges, and what comes back after which death."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from tests.agent.living import LiveNode
from tests.cni.spec import succeeded, switch_of
from tests.lab.kube.apiserver import ApiServer, Fault
from tests.lab.kube.kubelet import Kubelet
from tests.lab.switch.switch import Switch, wait_until

RESOURCE = "userspace-cni.io/br-dev"


@pytest.fixture(scope="module")
def switch() -> Iterator[Switch]:
    with Switch() as started:
        yield started


@pytest.fixture
def kubelet(live: LiveNode) -> Iterator[Kubelet]:
    """The node's kubelet, not started yet, to which an agent will offer two devices for each bridge, br-dev among them."""
    live.settings["USERSPACE_CNI_DEVICES_PER_BRIDGE"] = "2"
    make(live, "br-dev")
    kubelet = Kubelet(live.kubelet)
    yield kubelet
    kubelet.kill()


def make(live: LiveNode, bridge: str, datapath: str = "netdev") -> None:
    switch_of(live).vsctl("add-br", bridge, "--", "set", "Bridge", bridge, f"datapath_type={datapath}")


def said(live: LiveNode, text: str) -> int:
    """How often the agent's log has it."""
    return live.log.read_text().count(text)


def test_which_bridges_have_devices(live: LiveNode, kubelet: Kubelet, sandbox: str) -> None:
    """An administrator's netdev bridges have devices; ours, the kernel's, and one whose name no resource can have do not.

    The log says so once.
    """
    for bridge, datapath in (("br-dev_", "netdev"), ("br-kernel", "system"), ("br-b.2", "netdev")):
        make(live, bridge, datapath)
    kubelet.start()
    live.start()
    succeeded(live.run("ADD", live.network(), sandbox))
    kubelet.await_health("userspace-cni.io/br-b.2", "Healthy")
    kubelet.await_health(RESOURCE, "Healthy")
    live.tick(2)
    assert set(kubelet.registered) == {RESOURCE, "userspace-cni.io/br-b.2"}
    assert set(kubelet.offered(RESOURCE)) == {"br-dev-0", "br-dev-1"}
    wait_until(lambda: live.metric("device_bridges") == 2, what="both to be watched")
    assert said(live, "its name cannot be part of a resource's") == 1
    with pytest.raises(grpc.RpcError) as refused:
        kubelet.allocate(RESOURCE, "br-dev-2")
    assert "has no such device" in str(refused.value)
    assert live.metric("device_allocations_total", outcome="failed") == 1


def test_devices_do_not_wait_for_the_api_server(live: LiveNode, kubelet: Kubelet, sandbox: str) -> None:
    """A new agent, as after a boot, offers and allocates devices while it waits for the API server; only ADD waits."""
    with ApiServer() as api, ThreadPoolExecutor() as threads:
        live.follow(api)
        api.faults.append(Fault("LIST", status=503))
        kubelet.start()
        starting = threads.submit(live.start, START_S=60)
        try:
            kubelet.await_health(RESOURCE, "Healthy")
            kubelet.give("blue/app", RESOURCE, "br-dev-1")
            assert not starting.done()
            adding = threads.submit(live.run, "ADD", live.network(), sandbox)
        finally:
            api.faults.clear()
        starting.result(60)
        succeeded(adding.result(60))


def test_health_follows_the_datapath(live: LiveNode, kubelet: Kubelet) -> None:
    """Devices are unhealthy while ovs-vswitchd is dead.

    Those of a removed bridge become so and are withdrawn until it is back.
    """
    switch = switch_of(live)
    kubelet.start()
    live.start()
    kubelet.await_health(RESOURCE, "Healthy")
    switch.kill_vswitchd()
    kubelet.await_health(RESOURCE, "Unhealthy")
    switch.restart_vswitchd()
    kubelet.await_health(RESOURCE, "Healthy")
    assert kubelet.registered[RESOURCE] == 1
    switch.restart_ovsdb()
    live.tick()
    assert kubelet.health(RESOURCE) == {"Healthy"}
    assert (kubelet.registered[RESOURCE], len(kubelet.lists[RESOURCE])) == (1, 3)
    switch.vsctl("del-br", "br-dev")
    wait_until(lambda: kubelet.ended == [RESOURCE], what="the end of the list")
    assert kubelet.health(RESOURCE) == {"Unhealthy"}
    wait_until(lambda: not list(kubelet.plugins.glob("userspace-cni-*")), what="its socket gone")
    make(live, "br-dev")
    kubelet.await_health(RESOURCE, "Healthy")
    assert kubelet.registered[RESOURCE] == 2


def test_a_kubelet_that_comes_late_and_goes(live: LiveNode, kubelet: Kubelet) -> None:
    """An agent is ready without a kubelet; each kubelet that starts or restarts gets the devices once."""
    live.start()
    wait_until(lambda: said(live, "the agent waits for it") == 1, what="a line")
    assert live.page("/readyz")[0] == 200
    for times in (1, 2, 3):
        kubelet.start()
        wait_until(lambda: kubelet.registered.get(RESOURCE) == times, what=f"registration {times}")  # noqa: B023 - called at once
        wait_until(lambda: live.metric("device_bridges") == 1, what="a list that is watched")
        kubelet.kill()
        wait_until(lambda: live.metric("device_bridges") == 0, what="a list that is not watched")
    assert live.page("/healthz")[0] == 200
    assert live.end() == 0


def test_a_kubelet_that_refuses(live: LiveNode, kubelet: Kubelet) -> None:
    """A refused registration is tried again after growing pauses and logged once; the metric counts each."""
    kubelet.refuses = "no such version"
    kubelet.start()
    live.start()
    wait_until(lambda: live.metric("device_registrations_total", outcome="failed") >= 2, what="two tries")
    assert said(live, "no such version") == 1
    kubelet.refuses = ""
    kubelet.await_health(RESOURCE, "Healthy")
    live.await_metric(1, "device_registrations_total", outcome="ok")


def test_agents_one_after_the_other(live: LiveNode, other: LiveNode, kubelet: Kubelet) -> None:
    """A second agent of other directories does not take the kubelet's devices from the first, but takes them over after it."""
    other.settings |= {"USERSPACE_CNI_KUBELET_DIR": str(live.kubelet), "USERSPACE_CNI_DEVICES_PER_BRIDGE": "4"}
    kubelet.start()
    live.start()
    kubelet.await_health(RESOURCE, "Healthy")
    other.start()
    wait_until(lambda: said(other, "another agent offers devices") == 1, what="a line")
    other.tick(2)
    assert kubelet.registered == {RESOURCE: 1}
    live.kill()
    wait_until(lambda: len(kubelet.offered(RESOURCE)) == 4, what="the second agent's devices")
    live.start()
    wait_until(lambda: said(live, "another agent offers devices") == 1, what="a line")
    assert said(other, "another agent offers devices") == 1
    assert other.metric("device_bridges") == 1


def test_the_sockets_are_the_agents_own(live: LiveNode, kubelet: Kubelet) -> None:
    """The next agent replaces the dead socket of a killed one; an agent that ends removes its own."""
    kubelet.start()
    live.start()
    kubelet.await_health(RESOURCE, "Healthy")
    live.kill()
    [left] = kubelet.plugins.glob("userspace-cni-*")
    assert left == Path(kubelet.plugins, "userspace-cni-br-dev.sock")
    live.start()
    wait_until(lambda: kubelet.registered[RESOURCE] == 2, what="a second registration")
    assert live.end() == 0
    assert not left.exists()
