"""docs/quick-start.md as it stands, on the node: its commands without Multus, from the agent to two pods that talk.

What comes before them, the switch and the image, the node has already.
"""

from __future__ import annotations

import shlex

import pytest

from tests.lab.cluster.cluster import Cluster
from tests.lab.cluster.shape import DEFAULT_NETWORK
from tests.lab.pages import ROOT, blocks
from tests.lab.switch.switch import wait_until

pytestmark = pytest.mark.timeout(600)  # the first test of a run starts the cluster
PAGE = ROOT / "docs" / "quick-start.md"
KUBECTL = "/usr/local/bin/kubectl"
SECONDS = 240
"""For what takes some seconds on a quiet machine."""
BEGINNINGS = ("kubectl apply -k ", "cat > /etc/cni/net.d/", "sed ", "agent=", "kubectl delete deployment ")
"""The commands in the order in which a user without Multus runs them."""


@pytest.fixture
def administered(clean: Cluster) -> Cluster:
    """A cluster whose node has kubectl."""
    kubectl = clean.path(KUBECTL)
    kubectl.write_text(f'#!/bin/sh\nexec {shlex.join(clean.control.kubectl_inside())} "$@"\n')
    kubectl.chmod(0o755)
    return clean


def run(cluster: Cluster, commands: str) -> str:
    """What the commands print, run by root on the node in this checkout; MachineError when one fails."""
    return cluster.node.machine.run("env", f"--chdir={ROOT}", "bash", "-e", "-o", "pipefail", "-c", commands, seconds=SECONDS)


def test_from_the_agent_to_two_pods_that_talk(administered: Cluster) -> None:
    """Each command ends with 0 and prints what the page says one should see; nothing is left at the end."""
    commands = [block.text for block in blocks(PAGE) if block.is_run]
    agent, network, pods, talk, away = sorted(
        commands, key=lambda text: [text.startswith(each) for each in BEGINNINGS].index(True)
    )
    assert "successfully rolled out" in run(administered, agent)
    run(administered, network)
    with administered.node.cri() as cri:
        wait_until(lambda: cri.networks() == [DEFAULT_NETWORK["name"], "tap"], what="containerd to read the page's network")
    assert 'deployment "tap" successfully rolled out' in run(administered, pods)
    *answers, head, first, second = run(administered, talk).splitlines()
    assert answers == ["200", "200"]
    assert head.startswith("POD ")
    for line in (first, second):
        assert line.startswith("default/tap-")
        assert {"up", "connected"} <= set(line.split())
    with administered.node.pods_removed():
        run(administered, away)
