"""containerd is killed during the life of a sandbox, and started again with the state that it had saved."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from tests.cni.spec import held, succeeded
from tests.lab.kube.pods import Pod
from tests.lab.node.node import Node
from tests.lab.runtimes.containerd import Containerd
from tests.lab.runtimes.cri import CriError
from tests.lab.switch.switch import wait_until
from tests.runtimes.seen import VERSION, addressed, attached, conflist, listed, namespace_of, port_of, ports, witness

KEY = "cni.dev/valid-attachments"


@contextmanager
def killed_amid_add(containerd: Containerd, pod: Pod, *plugins: dict[str, Any]) -> Iterator[str]:
    """A sandbox whose runtime was killed after our ADD and before it saved the result, and started again; the sandbox's ID."""
    later = witness(containerd.host, "later")
    cri = containerd.start(conflist(*plugins, listed(later)))
    with ThreadPoolExecutor(1) as pool, held(later, "ADD", answer={"cniVersion": VERSION}) as inside:
        running = pool.submit(cri.run, pod)
        inside()
        [call] = later.calls()
        containerd.kill()
        with pytest.raises(CriError):
            running.result()
    containerd.start(conflist(*plugins))
    yield call["env"]["CNI_CONTAINERID"]


def test_killed_before_it_saved_our_result(runtime_node: Node, containerd: Containerd) -> None:
    """containerd, killed between our ADD and saving its result, knows the sandbox; nothing is left once its pod has another.

    Up to 1.6 StopPodSandbox is a DEL without prevResult. A newer one sends none without a result, and the agent cleans up.
    """
    pod = Pod()
    watched = witness(containerd.host)
    with killed_amid_add(containerd, pod, listed(watched), addressed(runtime_node)) as lost:
        row = attached(runtime_node, lost)
        assert containerd.cri.sandboxes() == [lost]
        assert watched.commands() == ["ADD"]
        containerd.cri.stop(lost)
    for deleted in watched.calls()[1:]:
        assert (deleted["command"], deleted["env"]["CNI_NETNS"]) == ("DEL", namespace_of(row))
        assert "prevResult" not in json.loads(deleted["stdin"])
        assert runtime_node.leftovers() == {}
    again = containerd.cri.run(pod, attempt=1)
    wait_until(lambda: ports(runtime_node) == {port_of(again)}, what="the end of what was attached to the lost sandbox")
    for sandbox in (lost, again):
        containerd.cri.stop(sandbox)
        containerd.cri.remove(sandbox)
    assert containerd.cri.sandboxes() == []
    assert runtime_node.leftovers() == {}


def test_killed_and_collected(runtime_node: Node, containerd: Containerd) -> None:
    """GC with the list of living attachments removes the lost one before the runtime does, whose late DEL does no harm."""
    pod = Pod()
    with killed_amid_add(containerd, pod, addressed(runtime_node)) as lost:
        again = containerd.cri.run(pod, attempt=1)
        assert ports(runtime_node) == {port_of(lost), port_of(again)}
        living = [{"containerID": again, "ifname": "eth0"}]
        succeeded(runtime_node.run("GC", {**addressed(runtime_node), KEY: living}))
        assert ports(runtime_node) == {port_of(again)}
        containerd.cri.stop(lost)
        containerd.cri.remove(lost)
    attached(runtime_node, again)
    containerd.cri.stop(again)
    assert runtime_node.leftovers() == {}


def test_killed_after_it_saved_our_result(runtime_node: Node, containerd: Containerd) -> None:
    """A sandbox outlives its runtime: the attachment is unchanged, and the restarted runtime can remove it."""
    cri = containerd.start(conflist(addressed(runtime_node)))
    sandbox = cri.run(Pod())
    row = attached(runtime_node, sandbox)
    containerd.kill()
    cri = containerd.start()
    assert cri.status(sandbox).ready
    assert attached(runtime_node, sandbox)["_uuid"] == row["_uuid"]
    cri.stop(sandbox)
    assert runtime_node.leftovers() == {}
    cri.remove(sandbox)


def test_killed_amid_delete(runtime_node: Node, containerd: Containerd) -> None:
    """containerd, killed after our DEL, repeats the DEL when it is back, which finds nothing to do."""
    watched = witness(containerd.host)
    cri = containerd.start(conflist(listed(watched), addressed(runtime_node)))
    sandbox = cri.run(Pod())
    with ThreadPoolExecutor(1) as pool, held(watched, "DEL") as inside:
        running = pool.submit(cri.stop, sandbox)
        inside()
        assert runtime_node.leftovers() == {}
        containerd.kill()
        with pytest.raises(CriError):
            running.result()
    cri = containerd.start()
    cri.stop(sandbox)
    cri.remove(sandbox)
    assert watched.commands() == ["ADD", "DEL", "DEL", "DEL"]
    assert runtime_node.leftovers() == {}
    assert cri.sandboxes() == []
