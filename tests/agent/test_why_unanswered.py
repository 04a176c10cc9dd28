"""`why` where a question is not answered: what it says of that, and how it ends."""

from __future__ import annotations

from tests.lab.breaking.breakable_node import breakable
from tests.lab.breaking.breaks_of_the_network import define
from tests.lab.kube.apiserver import Fault
from tests.lab.switch.switch import Switch

DEFINITIONS = "/network-attachment-definitions"


def test_a_definition_that_may_not_be_read(switch: Switch) -> None:
    """A right that may be left out is no question; a server that fails is one that could not be asked, which is exit code 3."""
    with breakable(switch, "plain") as node:
        pod = node.pods["plain"]
        define(node, pod)
        node.api.faults.append(Fault("GET", status=403, about=DEFINITIONS))
        done = node.command("why", pod.name)
        assert (done.returncode, "Could not be asked" in done.stdout) == (0, False), done.stdout
        assert "network definition" not in done.stdout
        node.api.faults[:] = [Fault("GET", status=500, about=DEFINITIONS)]
        done = node.command("why", pod.name)
        assert done.returncode == 3, done.stdout
        assert "Could not be asked: the network's definition, because" in done.stdout
        assert "Nothing wrong was found." in done.stdout


def test_another_pod_of_the_name(switch: Switch) -> None:
    """What the annotations of a later pod of the same name ask for is nothing of this attachment's."""
    with breakable(switch, "plain") as node:
        pod = node.pods["plain"]
        node.kill_agent()
        asked = {"metadata": {"uid": "another", "annotations": {"userspace/bandwidth": '{"net1": {"ingressRate": "fast"}}'}}}
        node.api.change("default", pod.name, asked)
        done = node.command("why", pod.name)
        assert ("agent has died" in done.stdout, "annotations" in done.stdout) == (True, False), done.stdout
