"""What survives what, for devices of claims: each death, loss and return leaves no pod stuck and nothing behind."""

from __future__ import annotations

import copy
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.agent.living import LiveNode
from tests.cni.spec import paused_vswitchd, switch_of
from tests.lab.dra.claiming_node import BRIDGE, ClaimingNode, claiming
from tests.lab.dra.plugin_registry import KubeletError
from tests.lab.kube.apiserver import Fault
from tests.lab.switch.switch import wait_until
from userspace_cni.attachment.journal import Journal
from userspace_cni.dra.device_names import DRIVER
from userspace_cni.linux.boot import boot_id


@pytest.fixture
def node(live: LiveNode) -> Iterator[ClaimingNode]:
    """The node, whose agent runs."""
    with claiming(live) as made:
        made.start()
        yield made


def test_agent_and_kubelet_start_again(node: ClaimingNode) -> None:
    """A claim is the same port after each of them was killed, however often it is prepared, until its pod has ended."""
    pod = node.pod()
    node.claim("c", pod)
    node.kubelet.admit(pod, "c")
    before, told = node.port(), node.kubelet.cdi_devices(pod)
    assert (before["ofport"] > 0, before["error"], len(told)) == (True, [], 1)
    node.live.kill()
    node.live.start()
    node.kubelet.admit(pod, "c")
    assert node.kubelet.called("NodePrepareResources") == 1
    node.kubelet.restart()
    node.kubelet.admit(pod, "c")
    assert node.kubelet.called("NodePrepareResources") == 2
    assert (node.port(), node.kubelet.cdi_devices(pod)) == (before, told)
    node.live.kill()
    node.live.start()
    node.kubelet.end(pod)
    node.require_nothing_left()


def test_reboot(node: ClaimingNode) -> None:
    """After a reboot the agent makes all anew before the kubelet asks; then the pod is prepared again, and ends."""
    pod = node.pod()
    node.claim("c", pod, BRIDGE, BRIDGE)
    node.kubelet.admit(pod, "c")
    files, told = node.cdi_files(), node.kubelet.cdi_devices(pod)
    node.reboot()
    node.live.start()
    node.await_prepared(2)
    node.kubelet.start()
    assert (node.cdi_files(), node.kubelet.cdi_devices(pod)) == (files, told)
    node.kubelet.admit(pod, "c")
    assert (node.cdi_files(), node.kubelet.cdi_devices(pod), len(node.ports())) == (files, told, 2)
    node.kubelet.end(pod)
    node.require_nothing_left()


def test_reboot_after_which_the_pod_is_gone(node: ClaimingNode) -> None:
    """What was deleted while the node was down is unprepared by the kubelet's first look, before or after the agent's."""
    pod = node.pod()
    node.claim("c", pod)
    node.kubelet.admit(pod, "c")
    node.reboot()
    node.scheduler.delete("c")
    node.api.remove_pod(pod.namespace, pod.name)
    node.kubelet.start()
    node.live.start()
    node.kubelet.await_driver(DRIVER)
    node.kubelet.reconcile()
    node.require_nothing_left()


def test_a_lost_cdi_directory(node: ClaimingNode) -> None:
    """The runtime finds the device again although its files are gone: the agent writes them before the kubelet asks."""
    pod = node.pod()
    node.claim("c", pod)
    node.kubelet.admit(pod, "c")
    files = {path.name: path.read_text() for path in node.live.cdi.iterdir()}
    shutil.rmtree(node.live.cdi)
    wait_until(lambda: node.cdi_files() == sorted(files), what="the files to be there again")
    assert {path.name: path.read_text() for path in node.live.cdi.iterdir()} == files
    assert node.kubelet.called("NodePrepareResources") == 1
    node.kubelet.end(pod)
    node.require_nothing_left()


@pytest.mark.parametrize("remembered", [True, False], ids=["known to the kubelet", "forgotten by the kubelet"])
def test_a_claim_that_is_deleted_while_the_agent_is_away(node: ClaimingNode, remembered: bool) -> None:
    """Its port goes: by the kubelet's call, which names a claim that is no longer there; or without any call."""
    pod = node.pod()
    node.claim("c", pod)
    node.kubelet.admit(pod, "c")
    node.live.kill()
    node.scheduler.delete("c")
    node.api.remove_pod(pod.namespace, pod.name)
    with pytest.raises(KubeletError):
        node.kubelet.reconcile()
    if not remembered:
        node.kubelet.close()
        node.kubelet.checkpoint.unlink()
        node.kubelet.start()
    node.live.start()
    node.kubelet.await_driver(DRIVER)
    if remembered:
        node.kubelet.reconcile()
    else:
        wait_until(lambda: not node.ports() and not node.cdi_files(), what="the agent to find that the claim is gone")
        node.live.tick()
    node.require_nothing_left()


def test_all_but_files_is_lost(node: ClaimingNode) -> None:
    """Where record, port and the kubelet's memory are lost, files and directory go with their claim, and not before."""
    pods = [node.pod("gone"), node.pod("there")]
    gone, _ = (node.claim(f"of-{pod.name}", pod) for pod in pods)
    node.kubelet.admit(pods[0], "of-gone")
    node.kubelet.admit(pods[1], "of-there")
    node.live.kill()
    node.kubelet.close()
    node.kubelet.checkpoint.unlink()
    journal = Journal(str(node.live.state), f"{node.live.directory}/run", print, boot_id)
    for record in journal.records():
        journal.drop(record)
    for name in node.ports():
        switch_of(node.live).vsctl("del-port", name)
    node.scheduler.delete("of-gone")
    node.kubelet.start()
    node.live.start()
    directories = Path(node.live.environ["USERSPACE_CNI_RUN_DIR"]) / "claims"
    assert list(directories.glob("*-0"))
    wait_until(lambda: not list(directories.glob(f"{gone}-*")), what="the agent to remove what is left of the claim that is gone")
    [left] = node.cdi_files()
    assert gone not in left
    node.kubelet.await_driver(DRIVER)
    node.kubelet.admit(pods[1], "of-there")
    node.kubelet.end(pods[1])
    node.live.tick()
    node.require_nothing_left()


def test_a_read_only_directory_of_cdi_files(node: ClaimingNode) -> None:
    """A file that cannot be removed keeps no pod: the rest of the claim goes, and the file as soon as that is possible."""
    pod = node.pod()
    node.claim("c", pod)
    node.kubelet.admit(pod, "c")
    with read_only(node.live.cdi):
        node.kubelet.end(pod)
        assert (node.ports(), len(node.cdi_files())) == ([], 1)
    wait_until(lambda: not node.cdi_files(), what="the file to be removed")
    node.live.tick()
    node.require_nothing_left()


@contextmanager
def read_only(directory: Path) -> Iterator[None]:
    """The directory, which the agent sees, takes no writes."""
    subprocess.run(["mount", "--bind", directory, directory], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", directory], check=True)
        yield
    finally:
        subprocess.run(["umount", directory], check=True)


def test_a_hung_switch(node: ClaimingNode) -> None:
    """While ovs-vswitchd does nothing the kubelet is told so, what has ended is unprepared; the next try succeeds."""
    node.live.end()
    node.live.settings["USERSPACE_CNI_DEADLINE_S"] = "6"
    node.start()
    pod = node.pod()
    node.claim("c", pod)
    with paused_vswitchd(switch_of(node.live)):
        with pytest.raises(KubeletError, match="ovs-vswitchd"):
            node.kubelet.prepare(pod, "c")
        assert node.cdi_files() == []
    node.kubelet.admit(pod, "c")
    with paused_vswitchd(switch_of(node.live)):
        node.kubelet.end(pod)
    node.require_nothing_left()


def test_the_api_server_is_away(node: ClaimingNode) -> None:
    """A claim that cannot be read is prepared by a later try; what is prepared needs no API server."""
    pod = node.pod()
    node.claim("c", pod)
    node.api.faults.append(Fault("GET", status=503, about="/resourceclaims/"))
    with pytest.raises(KubeletError, match="503"):
        node.kubelet.prepare(pod, "c")
    node.api.faults.clear()
    node.kubelet.admit(pod, "c")
    told = node.kubelet.cdi_devices(pod)
    node.kubelet.restart()
    node.api.faults.append(Fault(status=503))
    node.kubelet.admit(pod, "c")
    assert (node.kubelet.called("NodePrepareResources"), node.kubelet.cdi_devices(pod)) == (3, told)
    node.kubelet.end(pod)
    node.require_nothing_left()
    node.api.faults.clear()


def test_a_part_of_a_claim_is_left(node: ClaimingNode) -> None:
    """While the API server is away a claim of which one device is lost is not answered with the others: the kubelet would take
    them for all."""
    pod = node.pod()
    node.claim("c", pod, BRIDGE, BRIDGE)
    node.kubelet.admit(pod, "c")
    told = node.kubelet.cdi_devices(pod)
    node.live.kill()
    journal = Journal(str(node.live.state), f"{node.live.directory}/run", print, boot_id)
    journal.drop(next(each for each in journal.records() if each.ifname == "net1"))
    node.live.start()
    node.kubelet.restart()
    node.kubelet.await_driver(DRIVER)
    node.api.faults.append(Fault("GET", status=503, about="/resourceclaims/"))
    with pytest.raises(KubeletError, match="503"):
        node.kubelet.prepare(pod, "c")
    node.api.faults.clear()
    node.kubelet.admit(pod, "c")
    assert (node.kubelet.cdi_devices(pod), len(node.ports())) == (told, 2)
    node.kubelet.end(pod)
    node.require_nothing_left()


def test_a_kubelet_that_knows_v1beta1_alone(node: ClaimingNode) -> None:
    """A kubelet of Kubernetes 1.32 and 1.33 has claims prepared and unprepared, too."""
    node.kubelet.close()
    node.kubelet.versions = ("v1beta1",)
    node.kubelet.start()
    pod = node.pod()
    node.claim("c", pod)
    node.kubelet.await_driver(DRIVER)
    node.kubelet.admit(pod, "c")
    node.kubelet.end(pod)
    assert {each.version for each in node.kubelet.calls} == {"v1beta1"}
    node.require_nothing_left()


def test_a_claim_made_again_under_its_name(node: ClaimingNode) -> None:
    """A claim of the same name with another UID is another claim: the first one's device is not the second one's."""
    first, second = node.pod("a"), node.pod("b")
    node.claim("c", first)
    node.kubelet.admit(first, "c")
    told = node.kubelet.cdi_devices(first)
    node.scheduler.delete("c")
    node.claim("c", second)
    with pytest.raises(KubeletError, match="old ResourceClaim with same name c"):
        node.kubelet.prepare(second, "c")
    node.kubelet.end(first)
    node.kubelet.admit(second, "c")
    assert node.kubelet.cdi_devices(second) != told
    node.kubelet.end(second)
    node.require_nothing_left()


def test_agents_one_after_the_other(node: ClaimingNode) -> None:
    """While an agent is replaced by the next one no pod is stuck: it is prepared by one of them, and ended by the other."""
    first, second, third = (node.pod(name) for name in ("a", "b", "c"))
    for pod in (first, second, third):
        node.claim(f"of-{pod.name}", pod)
    node.kubelet.admit(first, "of-a")
    with next_agent(node.live) as following, ThreadPoolExecutor() as threads:
        node.kubelet.admit(second, "of-b")
        admitted = threads.submit(node.kubelet.admit, third, "of-c")
        assert node.live.end() == 0
        admitted.result(60)
        for pod in (first, second, third):
            node.kubelet.end(pod)
        assert len({each.endpoint for each in node.kubelet.calls}) == 2
        node.require_nothing_left()
        assert following.end() == 0
    wait_until(lambda: not node.kubelet.registry.instances(DRIVER), what="the end of the last instance")


@contextmanager
def next_agent(live: LiveNode) -> Iterator[LiveNode]:
    """A second agent of the same node, which waits for the end of the first."""
    following = copy.copy(live)
    following._process = None
    following.start()
    try:
        yield following
    finally:
        following.close()
