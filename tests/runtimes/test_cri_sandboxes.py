"""The paths of pods' network namespaces, from a real containerd.

The pods are Debian's bridge plugin's: nothing of ours made them, and there is no switch.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.lab.kube.pods import Pod
from tests.lab.node.node import Node
from tests.lab.runtimes.containerd import Containerd
from tests.lab.runtimes.containerd_host import shared_mounts
from tests.lab.switch.switch import pause
from tests.runtimes.seen import conflist, debian_bridge
from userspace_cni.base.errors import Unavailable
from userspace_cni.base.root import HostRoot
from userspace_cni.base.settings import Settings
from userspace_cni.host.runtimes.cni_cache import CniCache, Sandbox
from userspace_cni.host.runtimes.cri import Cri

MANY = 12


@pytest.fixture
def runtime_node(bare_node: Node) -> Iterator[Node]:
    """A node whose pods are not ours."""
    with shared_mounts(bare_node.directory.parent):
        yield bare_node


@pytest.fixture
def started(runtime_node: Node, containerd: Containerd) -> Containerd:
    """A containerd whose pods are on Debian's bridge."""
    containerd.start(conflist(debian_bridge(runtime_node)))
    return containerd


@pytest.fixture
def asked(started: Containerd) -> Cri:
    """The tested function, with a host process's view."""
    return Cri(f"{started.directory}/containerd.sock")


def told_by_files(*sandboxes: str) -> list[Sandbox]:
    """What libcni's files say of these."""
    cache = CniCache(Settings().cni_cache_dir)
    return sorted((each for each in cache.sandboxes() if each.id in sandboxes), key=lambda each: each.id)


def told(cri: Cri) -> list[Sandbox]:
    return sorted(cri.sandboxes(), key=lambda each: each.id)


@contextmanager
def stopped(argument: str) -> Iterator[None]:
    """SIGSTOP for the one process that has this argument."""
    arguments = {path.parent: path.read_bytes().split(b"\0") for path in Path("/proc").glob("[0-9]*/cmdline")}
    [found] = [int(path.name) for path, argv in arguments.items() if argument.encode() in argv]
    pause(found)
    try:
        yield
    finally:
        os.kill(found, signal.SIGCONT)


def test_pods_of_a_real_runtime(started: Containerd, asked: Cri) -> None:
    """A pod on a bridge has the path and uid of its files; one on the node's network, or an ended one, is left out."""
    pod = Pod("web-0", "shop")
    sandbox = started.cri.run(pod)
    started.cri.run(Pod("proxy", host_network=True))
    [found] = asked.sandboxes()
    assert (found.id, found.namespace, found.name, found.uid) == (sandbox, "shop", "web-0", pod.uid)
    assert [found] == told_by_files(sandbox)
    assert "eth0" in started.host.links(found.path)
    started.cri.stop(sandbox)
    assert asked.sandboxes() == []
    started.cri.remove(sandbox)
    assert (asked.sandboxes(), asked.unreadable) == ([], 0)


def test_a_pod_that_was_made_again(started: Containerd, asked: Cri) -> None:
    """Of a pod's sandboxes the ready one is returned; the socket is found below another root, too."""
    pod = Pod()
    first = started.cri.run(pod)
    started.cri.stop(first)
    second = started.cri.run(pod, attempt=1)
    inside = Cri(f"/{started.directory.name}/containerd.sock", HostRoot(str(started.directory.parent)))
    assert [each.id for each in asked.sandboxes()] == [each.id for each in inside.sandboxes([pod.uid])] == [second]
    assert asked.sandboxes() == told_by_files(first, second)


def test_many_pods(started: Containerd, asked: Cri) -> None:
    """All are returned, with the values of their files; or the wanted ones alone."""
    pods = [Pod(f"app-{number}") for number in range(MANY)]
    sandboxes = [started.cri.run(pod) for pod in pods]
    assert told(asked) == told_by_files(*sandboxes)
    assert {each.uid for each in asked.sandboxes()} == {pod.uid for pod in pods}
    assert {each.id for each in asked.sandboxes([pods[3].uid, pods[7].uid, "of-another-node"])} == {sandboxes[3], sandboxes[7]}
    assert asked.sandboxes([]) == []


def test_a_shim_that_hangs(started: Containerd, asked: Cri) -> None:
    """A stopped shim of one pod does not affect the others; that pod is counted, unless containerd answers without the shim.

    containerd abandons a shim when the call's own time is over, which is when the caller gives up, too.
    """
    sandbox, hanging = (started.cri.run(Pod(name)) for name in ("good", "bad"))
    with stopped(hanging):
        found = {each.id for each in asked.sandboxes()}
        assert sandbox in found
        assert len(found - {sandbox}) + asked.unreadable == 1
    assert told(asked) == told_by_files(sandbox, hanging)


def test_a_runtime_that_is_killed(started: Containerd, asked: Cri) -> None:
    """It is Unavailable until it runs again; then its pods are returned as before."""
    sandbox = started.cri.run(Pod())
    started.kill()
    with pytest.raises(Unavailable, match=r"containerd\.sock.*UNAVAILABLE.*setting cri_socket"):
        asked.sandboxes()
    started.start()
    assert asked.sandboxes() == told_by_files(sandbox)
