"""docs/quick-start.md as it stands, on the node: its commands without Multus, from the agent to two pods that talk.

What comes before them, the switch and the image, the node has already.
"""

from __future__ import annotations

import re
import shlex

import pytest

from tests.lab.cluster.cluster import Cluster
from tests.lab.cluster.shape import DEFAULT_NETWORK
from tests.lab.pages import ROOT, blocks
from tests.lab.samples import check_page
from tests.lab.switch.switch import wait_until

pytestmark = pytest.mark.timeout(600)  # the first test of a run starts the cluster
PAGE = ROOT / "docs" / "quick-start.md"
KUBECTL = "/usr/local/bin/kubectl"
SECONDS = 240
"""For what takes some seconds on a quiet machine."""
POD = re.compile(r"default/(tap-[\w-]+)")
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


def as_on_the_page(listed: str) -> str:
    """What the fifth command prints, with the page's names of pods and containers, and of the interface that Multus makes."""
    shown = POD.findall(PAGE.read_text())
    for name, other in zip(dict.fromkeys(POD.findall(listed)), shown, strict=True):
        listed = listed.replace(name, other)
    return re.sub(r"\b[0-9a-f]{12}-eth1\b", "1f0c7a3b9d42-eth1", listed).replace("eth1", "net1")


def test_from_the_agent_to_two_pods_that_talk(administered: Cluster) -> None:
    """Each command ends with 0 and prints what the page says one should see; nothing is left at the end."""
    commands = [block for block in blocks(PAGE) if block.is_run]
    agent, network, pods, talk, away = sorted(
        commands, key=lambda block: [block.text.startswith(each) for each in BEGINNINGS].index(True)
    )
    printed = {agent.place: run(administered, agent.text)}
    run(administered, network.text)
    with administered.node.cri() as cri:
        wait_until(lambda: cri.networks() == [DEFAULT_NETWORK["name"], "tap"], what="containerd to read the page's network")
    printed[pods.place] = run(administered, pods.text)
    listed = run(administered, talk.text)
    with administered.node.pods_removed():
        run(administered, away.text)
    check_page(PAGE, {**printed, talk.place: as_on_the_page(listed)})
