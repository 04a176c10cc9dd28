"""Pods of two nodes on OVN in userspace, with ports that the controller made: they reach each other, whatever dies."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.lab.frames.exchanges import transfer
from tests.lab.frames.taps import echoes
from tests.lab.kube.apiserver import ApiServer
from tests.lab.kube.cluster_objects import node
from tests.lab.ovn.central import version
from tests.lab.ovn.two_chassis import LONGEST_GAP, NODES, Pinging, TwoChassis
from tests.lab.switch.switch import wait_until
from tests.lab.switch.veths import inside
from userspace_cni.base.back_off import BackOff
from userspace_cni.base.root import HERE
from userspace_cni.base.settings import Settings
from userspace_cni.controller.controller_metrics import ControllerMetrics
from userspace_cni.controller.port_service import PodPortKeeper, read_task
from userspace_cni.kube.kubeconfig import KubeconfigBounds
from userspace_cni.kube.list_watch import WatchTimes
from userspace_cni.kube.pod_requests import Clients

WATCHED = WatchTimes(page=100, back_off=BackOff(0.005, 0.02), confirm_s=0)
DEFAULTS = Settings()
CLEANUP = "ovn-cleanup-on-exit"
Record = Callable[[str, object], None]
KINDS = (("n1", True), ("n1", False), ("n2", True), ("n2", False))
"""Of each node a pod with a vhost-user port and one with a veth."""


@dataclass(frozen=True)
class RunningPod:
    """A pod of a node: its network namespace and its address."""

    netns: str
    node: str
    vhost: bool
    address: str


@dataclass(frozen=True)
class World:
    """The chassis, the API server, and the controller's part that keeps the ports."""

    ovn: TwoChassis
    api: ApiServer
    pods: tuple[RunningPod, ...]

    def pair(self, *, local: bool) -> tuple[RunningPod, RunningPod]:
        """A vhost-user pod, and a veth pod of its node or of the other one."""
        one = self.pods[0]
        return one, next(each for each in self.pods if not each.vhost and (each.node == one.node) is local)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """With two pods on each node."""
    with two_nodes(KINDS) as made:
        yield made


@contextmanager
def two_nodes(kinds: Sequence[tuple[str, bool]], settings: Settings = DEFAULTS) -> Iterator[World]:
    """Two nodes, joined by a router, with these pods: of each its node, and whether its port is a vhost-user port. `settings`:
    the controller's."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="ovn-")))
        ovn = stack.enter_context(TwoChassis(directory))
        ovn.nbctl("lr-add", "router")
        for number, name in enumerate(NODES, 1):
            add_switch(ovn, name, number)
        api = stack.enter_context(ApiServer())
        for name in NODES:
            api.add(node(name))
        session = Clients(KubeconfigBounds.of(Settings()), HERE, api.kubeconfig(directory)).of("").session
        task = read_task(replace(settings, ovn_nb=ovn.remote("nb")))
        kept = PodPortKeeper(session, task, lambda: True, ControllerMetrics(lambda: True, {}), watch_times=WATCHED)
        kept.start()
        stack.callback(kept.stop)
        pods = []
        for number, (name, _) in enumerate(kinds):
            api.add_pod({"metadata": {"name": f"p{number}"}, "spec": {"nodeName": name}, "status": {"phase": "Running"}})
        for number, (name, vhost) in enumerate(kinds):
            said = json.loads(str(wait_until(lambda number=number: api.annotations("default", f"p{number}").get("ovn"))))  # type: ignore[misc]
            uid = api.pod("default", f"p{number}")["metadata"]["uid"]
            made = ovn.pod(name, f"default_p{number}", uid, said["ip_address"], said["mac_address"], vhost=vhost)
            pod = stack.enter_context(made)
            way_out(pod, said["gateway_ip"])
            pods.append(RunningPod(pod, name, vhost, said["ip_address"].partition("/")[0]))
        yield World(ovn, api, tuple(pods))


def add_switch(ovn: TwoChassis, name: str, number: int) -> None:
    """A node's logical switch, and its way to the router."""
    ovn.nbctl("ls-add", name, "--", "set", "Logical_Switch", name, f"other_config:subnet=192.168.{number}.0/24")
    ovn.nbctl("lrp-add", "router", f"rtos-{name}", f"0a:58:c0:a8:0{number}:01", f"192.168.{number}.1/24")
    port = ("lsp-add", name, f"stor-{name}", "--", "lsp-set-type", f"stor-{name}", "router")
    ovn.nbctl(
        *port,
        "--",
        "lsp-set-addresses",
        f"stor-{name}",
        "router",
        "--",
        "lsp-set-options",
        f"stor-{name}",
        f"router-port=rtos-{name}",
    )


def way_out(pod: str, gateway: str) -> None:
    inside(pod, "ip", "route", "add", "default", "via", gateway)


def test_all_pods_reach_each_other(world: World) -> None:
    """Vhost-user and veth pods, of one node and of both, by ICMP and by TCP."""
    for source, target in permutations(world.pods, 2):
        wait_until(lambda source=source, target=target: echoes(source.netns, target.address), what=f"{source} -> {target}")  # type: ignore[misc]
        transfer(source.netns, target.netns, target.address, 1 << 20)


@contextmanager
def pinged(world: World, what: str, record: Record) -> Iterator[None]:
    """Pods of one node and of both answer before and after the block, and the longest time that none did is told."""
    (one, near), (_, far) = world.pair(local=True), world.pair(local=False)
    for pod in (near, far):
        wait_until(lambda pod=pod: echoes(one.netns, pod.address), what=f"{one} -> {pod}")  # type: ignore[misc]
    with Pinging(one.netns, near.address) as local, Pinging(one.netns, far.address) as cross:
        yield
        wait_until(lambda: world.ovn.nbctl("--timeout=60", "--wait=hv", "sync") == "", what="all chassis follow again")
    for kind, pinging in (("local", local), ("cross", cross)):
        record(f"{what}, {kind}: {LONGEST_GAP}", round(pinging.gap_s * 1000))
    assert all(echoes(one.netns, pod.address, seconds=60) for pod in (near, far))


def test_nothing_happens_under_traffic(world: World, record_property: Record) -> None:
    """What the echo requests themselves show, for comparison."""
    with pinged(world, "nothing", record_property):
        pass


@pytest.mark.parametrize("name", ["northd", "nb", "sb", "n1", "n2"])
def test_a_daemon_is_killed_under_traffic(world: World, name: str, record_property: Record) -> None:
    """Pods of one node and of both go on to answer; n1 and n2 are the nodes' controllers."""
    with pinged(world, f"{name} killed", record_property):
        world.ovn.kill(name)
        world.ovn.start(name)


@pytest.mark.parametrize("way", ["--restart", "", f"{CLEANUP}=false"])
def test_a_controller_ends_in_good_order_under_traffic(world: World, way: str, record_property: Record) -> None:
    """It takes its chassis away, unless the option, or from OVN 25.09 on the setting, says that it stays."""
    switch = world.ovn.switches["n1"]
    if CLEANUP in way:
        switch.vsctl("--no-wait", "set", "Open_vSwitch", ".", f"external_ids:{way}")
        world.ovn.nbctl("--wait=hv", "sync")  # the controller has seen it
    with pinged(world, f"n1 exit {way}".strip(), record_property):
        world.ovn.leave("n1", *([way] if way.startswith("--") else []))
        left = world.ovn.chassis()
        world.ovn.start("n1")
    switch.vsctl("--no-wait", "remove", "Open_vSwitch", ".", "external_ids", CLEANUP)
    assert ("n1" in left) is (way == "--restart" or (CLEANUP in way and version() >= "25.09"))


def test_a_switch_is_killed_under_traffic(world: World, record_property: Record) -> None:
    """Its ports, flows and tunnels come back with it."""
    switch = world.ovn.switches["n1"]
    with pinged(world, "ovs-vswitchd of n1 killed", record_property):
        switch.kill_vswitchd()
        switch.restart_vswitchd()
