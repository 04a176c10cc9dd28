"""A VM's interfaces behind an agent: what launcher pods leave without a DEL, and what is counted at their ports."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.agent.living import LiveNode, container
from tests.agent.test_agent_crash_table import forget_record, mortal_sandbox, sweep_another
from tests.cni.spec import paused_ovsdb, row_of, succeeded, switch_of
from tests.lab.guests.vm_pods import IFNAME, LauncherPod, vm_network
from tests.lab.node.agent import get, value_of
from tests.lab.switch.switch import wait_until
from userspace_cni.fastpath.vhost.front_end import FrontEnd, FrontEndListener
from userspace_cni.pod import launcher

COUNTED_S = 60
"""ovs-vswitchd takes seconds to get the memory for its first connection."""
FRAME = bytes.fromhex("ffffffffffff") + bytes.fromhex("02000000000188b5") + bytes(46)
"""A broadcast frame with an EtherType for local experiments."""
SENT = 50


def port_of(number: int) -> str:
    """The port of that container's interface."""
    return f"{container(number)[:12]}-{IFNAME}"


def attach(live: LiveNode, pod: LauncherPod, number: int, sandbox: str) -> None:
    """ADD for the launcher pod's interface."""
    pod.public(live)
    succeeded(live.run("ADD", vm_network(live), sandbox, container(number), IFNAME, CNI_ARGS=pod.args))


def detach(live: LiveNode, pod: LauncherPod, number: int, sandbox: str) -> None:
    succeeded(live.run("DEL", vm_network(live), sandbox, container(number), IFNAME, CNI_ARGS=pod.args))


@pytest.mark.parametrize("record", ["kept", "lost"])
def test_source_pod_vanishes(live: LiveNode, sandbox: str, record: str) -> None:
    """When a migration's source without a DEL is proven gone, its port, mount and record are removed, and the target's stay."""
    live.start()
    source, target = LauncherPod(), LauncherPod(random="x9z2q")
    attach(live, target, 2, sandbox)
    with mortal_sandbox(sandbox) as (path, end):
        attach(live, source, 1, path)
        before = row_of(live, port_of(2))
        if record == "lost":
            forget_record(live, container(1))
        end()
    sweep_another(live, sandbox)
    assert sorted(switch_of(live).ports("br-test")) == [port_of(1), port_of(2)]
    shutil.rmtree(live.kubelet / "pods" / source.uid)
    wait_until(lambda: switch_of(live).ports("br-test") == [port_of(2)], what="the end of the source's port")
    live.await_done(f"removed-{'sandbox-gone' if record == 'kept' else 'record-lost'}", 2 if record == "kept" else 1)
    assert row_of(live, port_of(2)) == before
    assert len(live.leftovers()["mounts"]) == len(live.leftovers()["records"]) == 1
    assert target.directory(live).is_dir()
    assert [path.name for path in (live.kubelet / "pods").iterdir()] == [target.uid]
    detach(live, target, 2, sandbox)
    live.require_clean()


def test_lost_parts_of_a_vm_come_back(live: LiveNode, sandbox: str) -> None:
    """Port and mount of a running VM are made again as they were, with their marks."""
    live.start()
    pod = LauncherPod()
    attach(live, pod, 1, sandbox)
    before = {key: value for key, value in row_of(live, port_of(1)).items() if key in ("name", "options", "external_ids")}
    switch_of(live).recreate_database()
    wait_until(lambda: row_of(live, port_of(1)).get("ofport"), COUNTED_S, "the port open again")
    assert {key: row_of(live, port_of(1))[key] for key in before} == before
    assert before["external_ids"]["vm-name"] == "vm-1"
    detach(live, pod, 1, sandbox)
    live.require_clean()


@contextmanager
def applications(live: LiveNode, *numbers: int) -> Iterator[list[FrontEnd]]:
    """An application at each port in QEMU's role: it makes the socket, and OVS connects."""
    with ExitStack() as stack:
        listeners = []
        for number in numbers:
            path = row_of(live, port_of(number))["options"]["vhost-server-path"]
            listeners.append(stack.enter_context(FrontEndListener(path)))
        yield [stack.enter_context(listener.accept()) for listener in listeners]


def counted(live: LiveNode, name: str, pod: LauncherPod) -> float:
    """A counter of the VM's interface, as Prometheus reads it."""
    labels = {"bridge": "br-test", "namespace": "default", "network": "net", "interface": IFNAME, "vm": pod.machine}
    text = get(live.socket, "/metrics")[1].decode()
    return value_of(text, f"userspace_cni_port_{name}_total", pod=pod.name, **labels)


def test_traffic_of_vms(live: LiveNode, sandbox: str) -> None:
    """Frames from one VM to another are counted at both ports under the VMs' names.

    While the switch hangs only these series are missing; a hung database costs none.
    """
    live.start()
    pods = LauncherPod(), LauncherPod("vm-2")
    for number, pod in enumerate(pods, 1):
        attach(live, pod, number, sandbox)
    assert counted(live, "rx_packets", pods[0]) == 0
    with applications(live, 1, 2) as (sender, receiver):

        def arrives() -> bool:
            sender.pairs[0].send_frames([FRAME] * SENT)
            return len(receiver.pairs[0].receive_frames()) > 0

        wait_until(arrives, COUNTED_S, "frames at the other VM")
        wait_until(lambda: counted(live, "rx_packets", pods[0]) >= SENT, COUNTED_S, "the sender's counter")
        wait_until(lambda: counted(live, "tx_packets", pods[1]) > 0, COUNTED_S, "the receiver's counter")
        assert counted(live, "rx_bytes", pods[0]) >= SENT * len(FRAME)
        assert counted(live, "tx_bytes", pods[1]) >= len(FRAME)
        assert counted(live, "rx_packets", pods[1]) == counted(live, "tx_packets", pods[0]) == 0
        with paused_ovsdb(switch_of(live)):
            assert counted(live, "rx_packets", pods[0]) >= SENT
        switch_of(live).pause_vswitchd()
        try:
            text = get(live.socket, "/metrics")[1].decode()
            assert value_of(text, "userspace_cni_build_info") == 1
            assert "userspace_cni_port_rx" not in text
        finally:
            switch_of(live).resume_vswitchd()
        assert counted(live, "rx_packets", pods[0]) >= SENT
    for number, pod in enumerate(pods, 1):
        detach(live, pod, number, sandbox)
    live.require_clean()


def test_list_names_the_vm(live: LiveNode, sandbox: str) -> None:
    """The agent's page of attachments says whose interface it is, and where QEMU makes its socket."""
    live.start()
    pod = LauncherPod()
    attach(live, pod, 1, sandbox)
    [shown] = live.page("/api/v1/attachments")[1]
    assert (shown["vm"], shown["name"], shown["role"]) == ("vm-1", f"default/{pod.name}/{IFNAME}", "server")
    assert shown["socket"]["host"] == f"{pod.directory(live)}/{launcher.socket_file(IFNAME)}"
    detach(live, pod, 1, sandbox)
