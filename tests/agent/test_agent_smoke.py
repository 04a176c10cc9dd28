"""The shortest test of shim, agent and switch together."""

from __future__ import annotations

import json

from tests.lab.node.agent import running
from tests.lab.node.node import Node


def test_attach_and_detach(node: Node, sandbox: str) -> None:
    """ADD through shim and agent makes the port, DEL removes everything, and the agent stops in an orderly way."""
    with running(node) as agent:
        added = node.run("ADD", node.network(), sandbox)
        assert (added.status, node.switch and len(node.switch.ports("br-test"))) == (0, 1), added.stdout
        assert node.run("STATUS", node.network()).status == 0
        assert node.run("DEL", node.network(), sandbox).status == 0
        assert node.leftovers() == {}
        assert agent.stop() == 0


def test_the_log_as_json(node: Node, sandbox: str) -> None:
    """With the setting each line of the agent is an object, and those of a call say which pod and network it is about."""
    args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=blue;K8S_POD_NAME=a\xa0b;K8S_POD_INFRA_CONTAINER_ID=x"
    with running(node, USERSPACE_CNI_LOG_FORMAT="json") as agent:
        assert node.run("ADD", node.network(), sandbox).status == 0
        assert node.run("ADD", node.network(), sandbox, CNI_ARGS=args).document["code"]
        assert node.run("DEL", node.network(), sandbox).status == 0
        assert agent.stop() == 0
    told = [json.loads(line) for line in agent.log.read_text().splitlines()]
    [failed] = [each for each in told if each["level"] == "error"]
    assert {key: failed[key] for key in ("verb", "pod", "network", "interface")} == {
        "verb": "ADD",
        "pod": "blue/a\xa0b",
        "network": node.network()["name"],
        "interface": "net1",
    }
    assert [each["msg"] for each in told if "pid" in each] == ["the agent serves"]
    assert all(each["time"].endswith("Z") for each in told)
