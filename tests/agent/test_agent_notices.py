"""What others remove under a running agent is made again at once, by
notices of OVSDB and the kernel: these tests have no tick.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.agent.living import LiveNode, container, port_of, serving
from tests.agent.test_agent_crash_table import RESTART_S, add_bridge, open_ports, rows_of
from tests.agent.test_agent_links import attach
from tests.agent.test_agent_network import ADDRESS, TABLE, Kept, kept
from tests.cni.spec import succeeded, switch_of
from tests.lab.network.gateways import everything
from tests.lab.node.links import guards, host_ends, inside
from tests.lab.switch.switch import Switch, wait_until

NEVER_S = 100_000.0
GATEWAY = """
[[gateway]]
bridge = "br-net1"
addresses = ["10.56.0.1/24"]
masquerade = true
routes = [{dst = "10.58.0.0/16", gw = "192.0.2.1"}]
sole = true
"""
EGRESS = 'egress_gateway = {via = "192.0.2.1", table = 1042, priority = 1042}\n'
__all__ = ["kept"]  # a fixture


@pytest.fixture(scope="module")
def switch() -> Iterator[Switch]:
    """A switch that these tests take apart."""
    with Switch() as started:
        yield started


@pytest.fixture
def alone(live: LiveNode) -> LiveNode:
    """A node whose agent has made its first pass, and makes no other by itself."""
    live.settings["USERSPACE_CNI_TICK_S"] = str(NEVER_S)
    live.start()
    live.tick()
    return live


def test_an_administrators_bridge_comes_back(alone: LiveNode, sandbox: str) -> None:
    """Its ports come back with it, after a pass under an empty database has found it missing."""
    switch, theirs = switch_of(alone), alone.network()
    theirs["host"]["bridge"]["bridgeName"] = "br-admin"
    add_bridge(switch, "br-admin")
    succeeded(alone.run("ADD", theirs, sandbox))
    before, names = rows_of(switch), open_ports(switch)
    switch.recreate_database()

    def misses_it() -> bool:
        """One pass may come before the database has answered in full, and no tick makes another."""
        alone.tick()
        return "bridge br-admin is missing" in alone.log.read_text()

    try:
        wait_until(misses_it, RESTART_S, "the pass that misses the bridge")
    except AssertionError as error:
        raise AssertionError(f"{error}; the agent's log: {alone.log.read_text()[-8000:]}") from error
    add_bridge(switch, "br-admin")
    wait_until(lambda: open_ports(switch) == names, what="the port on their bridge")
    assert rows_of(switch) == before
    succeeded(alone.run("DEL", theirs, sandbox))
    assert switch.bridges() == ["br-admin"]


def test_ports_are_deleted_by_hand(alone: LiveNode, sandbox: str) -> None:
    """Ports of both modes, one by one and with their bridge, come back.

    A port that the switch could not open is asked for again.
    """
    switch = switch_of(alone)
    succeeded(alone.run("ADD", alone.network(), sandbox))
    succeeded(alone.run("ADD", serving(alone), sandbox, container(1)))
    before = open_ports(switch)
    for command in (
        ["del-port", port_of()],
        ["del-port", port_of(container(1))],
        ["del-br", "br-test"],
        ["set", "Interface", port_of(), "ofport=-1", "error=failed"],
    ):
        switch.vsctl("--no-wait", *command)
        wait_until(lambda: open_ports(switch) == before, what=f"the ports after {command[0]}")
    succeeded(alone.run("DEL", alone.network(), sandbox))
    succeeded(alone.run("DEL", serving(alone), sandbox, container(1)))
    alone.require_clean()


def test_links_and_guards_go(alone: LiveNode, sandbox: str) -> None:
    """A host end that is deleted, in the pod or at the switch, or set down; a single guard, and all tables of nftables."""
    there, pod = switch_of(alone).netns, attach(alone, 1, sandbox)
    assert guards(there) == [pod.host]
    for place, command in (
        (there, ["ip", "link", "delete", pod.host]),
        (sandbox, ["ip", "link", "delete", "eth0"]),
        (there, ["ip", "link", "set", pod.host, "down"]),
        (there, ["nft", "delete", "chain", "netdev", table(there), pod.host]),
        (there, ["nft", "add", "table", "netdev", table(there), "{ flags dormant; }"]),
        (there, ["nft", "flush", "ruleset"]),
    ):
        inside(place, *command)
        wait_until(pod.is_whole, what=f"a good CHECK after {' '.join(command)}")
    assert guards(there) == list(host_ends(there)) == [pod.host]
    pod.detach()
    alone.require_clean()


def table(there: str) -> str:
    """The name of the agent's table of guards."""
    listed = inside(there, "nft", "list", "tables").splitlines()
    return next(line.split()[2] for line in listed if line.startswith("table netdev userspace-cni-"))


def test_what_the_node_has_of_its_own_goes(kept: Kept) -> None:
    """Addresses, routes, policy rules, address translation, links, ports and the bridge of an uplink and its gateways."""
    kept.live.settings |= {"USERSPACE_CNI_TICK_S": str(NEVER_S), "PATH": f"{os.defpath}:/usr/sbin"}  # nft(8) is there
    kept.live.start()
    there = kept.wire.node
    second = GATEWAY.replace("10.56", "10.57").replace("10.58", "10.59").replace("masquerade = true", 'port = "gw2"')
    kept.spec(TABLE + GATEWAY + second + EGRESS)
    wait_until(lambda: [each["ready"] for each in kept.specs().values()] == [True] * 4, what="the uplink and its gateways")
    before = everything(there)
    for command in (
        ["ip", "address", "delete", "10.56.0.1/24", "dev", "br-net1-gw"],
        ["ip", "link", "set", "gw2", "down"],
        ["ip", "route", "delete", "10.58.0.0/16"],
        ["ip", "route", "flush", "table", "1042"],
        ["ip", "rule", "delete", "priority", "1042"],
        ["nft", "flush", "ruleset"],
        ["ip", "link", "delete", "gw2"],
    ):
        kept.wire.on_node(*command)
        wait_until(lambda: everything(there) == before, what=f"all of it after {' '.join(command)}")
    for command in (["del-port", "nic0"], ["del-port", "gw2"], ["del-br", "br-net1"]):
        kept.switch.vsctl("--no-wait", *command)
        wait_until(lambda: kept.wire.answers(ADDRESS) and everything(there) == before, what=f"all of it after {command}")
        wait_until(lambda: {"nic0", "gw2"} <= set(kept.switch.ports("br-net1")), what=f"the ports after {command}")
