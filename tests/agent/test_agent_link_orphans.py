"""Ordinary pods without a record, or with parts deleted by hand: the agent and GC remove or repair what is left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.agent.living import LiveNode
from tests.agent.test_agent_crash_table import forget_record, mortal_sandbox
from tests.cni.spec import refused, succeeded, switch_of
from tests.lab.node.links import guards, host_ends, inside
from tests.lab.node.node import CONTAINER, Node
from tests.lab.switch.switch import wait_until

LIMITED = {"bandwidth": {"ingressRate": 8_000_000, "egressRate": 4_000_000}, "mirrors": [{"name": "ids"}]}


def podnet(node: Node) -> dict[str, Any]:
    """A network of ordinary pods with limits, sources of a mirror."""
    host = {"iftype": "veth", "bridge": {"bridgeName": "br-test"}}
    return {"cniVersion": "1.1.0", "name": "podnet", "type": "userspace", "host": host, **LIMITED}


def after_passes(live: LiveNode, condition: Callable[[], object], what: str) -> None:
    """Ask for passes until the condition is true."""

    def passed() -> bool:
        live.reconcile()
        return bool(condition())

    wait_until(passed, what=what)


def await_nothing(live: LiveNode) -> None:
    """Ask for passes until nothing is left."""
    after_passes(live, lambda: not live.leftovers(), "nothing is left")


def test_a_lost_record_and_a_gone_sandbox(live: LiveNode, sandbox: str) -> None:
    """Port and limits are found by marks and name of the port, the guard because nothing needs it."""
    live.start()
    with mortal_sandbox(sandbox) as (path, end):
        succeeded(live.run("ADD", podnet(live), path))
        forget_record(live)
        live.reconcile()
        assert len(host_ends(switch_of(live).netns)) == 1, "of a living sandbox nothing is removed"
        end()
        await_nothing(live)


def test_a_sandbox_that_is_gone(live: LiveNode, sandbox: str) -> None:
    """The link has gone with its namespace; without a DEL the agent removes the rest."""
    live.start()
    with mortal_sandbox(sandbox) as (path, end):
        succeeded(live.run("ADD", podnet(live), path))
        end()
        await_nothing(live)


def test_a_port_that_was_deleted(live: LiveNode, sandbox: str) -> None:
    """After `ovs-vsctl del-port`, which leaves rows of limits, the agent makes port and limits again, and no row twice."""
    live.start()
    network = podnet(live)
    result = succeeded(live.run("ADD", network, sandbox))
    switch, name = switch_of(live), result["interfaces"][0]["name"]
    switch.vsctl("del-port", name)
    after_passes(live, lambda: switch.port(name) and switch.port(name)["qos"], "the port and its limit")
    after_passes(live, lambda: len(switch.rows("QoS")) == len(switch.rows("Queue")) == 1, "no orphan")
    succeeded(live.run("CHECK", {**network, "prevResult": result}, sandbox))
    succeeded(live.run("DEL", network, sandbox))
    assert live.leftovers() == {}


def test_all_is_lost_but_what_the_switch_forgot(live: LiveNode, sandbox: str) -> None:
    """Rows of limits and a guard are removed that nothing refers to: port, record and link are gone."""
    live.start()
    with mortal_sandbox(sandbox) as (path, end):
        name = succeeded(live.run("ADD", podnet(live), path))["interfaces"][0]["name"]
        live.kill()
        forget_record(live)
        switch_of(live).vsctl("del-port", name)
        end()
    wait_until(lambda: not host_ends(switch_of(live).netns), what="the link's end")
    left = live.leftovers()
    assert (left["guards"], len(left["QoS"]), len(left["Queue"])) == ([name], 1, 1)
    live.start()
    after_passes(
        live, lambda: live.leftovers() == {"bridges": ["br-test"]}, "only the bridge is left, which goes with its next port"
    )


def test_guards_of_others_stay(live: LiveNode, sandbox: str) -> None:
    """A pass leaves another program's table and a living pod's guard alone, and makes that guard again when it was flushed."""
    live.start()
    place = switch_of(live).netns
    succeeded(live.run("ADD", podnet(live), sandbox))
    [guarded] = guards(place)
    inside(place, "nft", "add", "table", "netdev", "another")
    inside(place, "nft", "add", "chain", "netdev", "another", "c", "{ type filter hook ingress device lo priority 0; }")
    try:
        for table in inside(place, "nft", "list", "tables", "netdev").splitlines():
            if "userspace-cni" in table:
                inside(place, "nft", "delete", *table.split())
        after_passes(live, lambda: guards(place) == [guarded], "the guard")
        succeeded(live.run("DEL", podnet(live), sandbox))
        assert live.leftovers() == {}
        assert "another" in inside(place, "nft", "list", "tables")
    finally:
        inside(place, "nft", "delete", "table", "netdev", "another")


@pytest.mark.parametrize("verb", ["GC", "DEL and GC"])
def test_without_an_agent(node: Node, sandbox: str, verb: str) -> None:
    """With a lost record and a gone sandbox GC removes everything, and DEL all but the guard of the vanished link."""
    network = podnet(node)
    with mortal_sandbox(sandbox) as (path, end):
        name = succeeded(node.run("ADD", network, path))["interfaces"][0]["name"]
        for record in (node.state / "attachments").iterdir():
            record.unlink()
        end()
    wait_until(lambda: not host_ends(switch_of(node).netns), what="the link's end")
    if verb != "GC":
        succeeded(node.run("DEL", network))
        assert node.leftovers() == {"guards": [name]}
    succeeded(node.run("GC", {**network, "cni.dev/valid-attachments": []}, container="", ifname=""))
    assert node.leftovers() == {}


def test_a_record_that_was_put_aside(node: Node, sandbox: str) -> None:
    """A DEL whose record of a kernel link could not be read finds everything by its name."""
    network = podnet(node)
    result = succeeded(node.run("ADD", network, sandbox))
    [record] = (node.state / "attachments").iterdir()
    aside = node.state / "quarantine"
    aside.mkdir(exist_ok=True)
    record.rename(aside / f"attachments-{Path(record).name}.1")
    refused(node.run("CHECK", {**network, "prevResult": result}, sandbox), 102, CONTAINER)
    succeeded(node.run("DEL", network, sandbox))
    assert node.leftovers() == {}
