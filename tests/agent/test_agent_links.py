"""Ordinary pods under faults of the switch, its database, their links and their guards. Their traffic comes back by itself.

Each test has pods whose host ends the switch opens in different ways, because different things are lost: a socket, a program in
the driver, or DPDK's own device.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from tests.agent.living import LiveNode, container
from tests.agent.test_agent_crash_table import RESTART_S, mortal_sandbox
from tests.agent.test_agent_switch_killed import paused
from tests.cni.spec import records, succeeded, switch_of
from tests.lab.frames.taps import echoes
from tests.lab.node.links import addresses, guards, host_ends, inside
from tests.lab.runtimes.runtime import netns
from tests.lab.switch.switch import Switch, wait_until

KINDS = ("system", "afxdp", "af_packet")
HEALED_S = 60
GUARDED = ("system", "af_packet")


@pytest.fixture(scope="module")
def switch() -> Iterator[Switch]:
    with Switch() as started:
        yield started


def podnet(live: LiveNode, port: str) -> dict[str, Any]:
    """A network of ordinary pods whose host ends are opened in this way."""
    host = {"iftype": "veth", "port": port, "bridge": {"bridgeName": "br-test"}}
    return {"cniVersion": "1.0.0", "name": "podnet", "type": "userspace", "host": host, "ipam": live.host_local()}


@dataclass(frozen=True)
class Attached:
    """One pod, as its ADD answered."""

    live: LiveNode
    port: str
    container: str
    netns: str
    result: dict[str, Any]

    @property
    def host(self) -> str:
        return str(self.result["interfaces"][0]["name"])

    @property
    def address(self) -> str:
        """Without the prefix length."""
        return str(self.result["ips"][0]["address"]).partition("/")[0]

    def is_whole(self) -> bool:
        """Whether CHECK passes."""
        stdin = {**podnet(self.live, self.port), "prevResult": self.result}
        return self.live.run("CHECK", stdin, self.netns, self.container, "eth0").status == 0

    def detach(self) -> None:
        succeeded(self.live.run("DEL", podnet(self.live, self.port), self.netns, self.container, "eth0"))


def attach(live: LiveNode, number: int, path: str, port: str = "system") -> Attached:
    result = succeeded(live.run("ADD", podnet(live, port), path, container(number), "eth0"))
    return Attached(live, port, container(number), path, result)


@pytest.fixture
def pods(live: LiveNode) -> Iterator[list[Attached]]:
    """A pod of each kind, which reach each other, under an agent; at the end their DELs have to leave nothing."""
    live.start()
    with ExitStack() as stack:
        made = [attach(live, number, stack.enter_context(netns()), port) for number, port in enumerate(KINDS)]
        await_traffic(made)
        yield made
        for each in made:
            each.detach()
        live.require_clean()
        there = switch_of(live).netns
        assert (host_ends(there), guards(there)) == ({}, [])


def await_traffic(pods: list[Attached]) -> None:
    """Wait until each pod reaches each of the others."""
    for one in pods:
        for other in pods:
            if one is not other:
                wait_until(lambda: echoes(one.netns, other.address), HEALED_S, f"an echo of {other.port} to {one.port}")  # noqa: B023


def is_done(place: str, arguments: list[str]) -> bool:
    """Whether ip(8) succeeded: AF_XDP keeps a link, and so its name, for a moment after it was deleted."""
    return subprocess.run(["nsenter", f"--net={place}", "ip", *arguments], capture_output=True, check=False).returncode == 0


def guarded(pods: list[Attached]) -> list[str]:
    """The host ends that need a guard."""
    return sorted(each.host for each in pods if each.port in GUARDED)


def test_the_switch_dies(live: LiveNode, pods: list[Attached]) -> None:
    """Killed and started, ovs-vswitchd opens the host ends again by itself; the agent makes nothing anew."""
    switch = switch_of(live)
    before = host_ends(switch.netns)
    switch.kill_vswitchd()
    assert not any(echoes(pods[0].netns, each.address, seconds=0.1) for each in pods[1:])
    switch.restart_vswitchd()
    await_traffic(pods)
    assert {name: each["ifindex"] for name, each in host_ends(switch.netns).items()} == {
        name: each["ifindex"] for name, each in before.items()
    }
    assert live.done("again-link") == 0
    wait_until(lambda: all(each.is_whole() for each in pods), RESTART_S, "a good CHECK of each")


def test_the_database_is_made_anew(live: LiveNode, pods: list[Attached]) -> None:
    """Under an empty database the agent makes the ports again; links and guards were never gone."""
    kept = records(live)
    switch_of(live).recreate_database()
    await_traffic(pods)
    assert guards(switch_of(live).netns) == guarded(pods)
    assert live.done("again-link") == 0
    wait_until(lambda: all(each.is_whole() for each in pods), RESTART_S, "a good CHECK of each")
    assert [each["container_id"] for each in records(live)] == [each["container_id"] for each in kept]


def test_links_are_deleted(live: LiveNode, pods: list[Attached]) -> None:
    """A link that is deleted at either end is made again with its addresses, and its port opened anew."""
    there = switch_of(live).netns
    for each in pods[:2]:
        inside(there, "ip", "link", "del", each.host)
    inside(pods[2].netns, "ip", "link", "del", "eth0")
    await_traffic(pods)
    assert [addresses(each.netns, "eth0") for each in pods] == [[f"{each.address}/24"] for each in pods]
    wait_until(lambda: all(each.is_whole() for each in pods), RESTART_S, "a good CHECK of each")


def test_links_are_made_anew_by_hand(live: LiveNode, pods: list[Attached]) -> None:
    """A link that was made anew with the same name and mark is another link: OVSDB
    shows no error, the agent sees its index, and frames pass.
    """
    there = switch_of(live).netns
    before = host_ends(there)
    with paused(live):
        for each in pods:
            [_, link] = each.result["interfaces"]
            inside(there, "ip", "link", "del", each.host)
            make = ["link", "add", each.host, "type", "veth", "peer", "name", "eth0", "address", link["mac"], "netns", each.netns]
            wait_until(lambda make=make: is_done(there, make), what=f"the name {each.host}")  # type: ignore[misc]
            end = before[each.host]
            inside(there, "ip", "link", "set", each.host, "alias", end["ifalias"], "address", end["address"], "up")
            inside(each.netns, "ip", "address", "add", f"{each.address}/24", "dev", "eth0")
            inside(each.netns, "ip", "link", "set", "eth0", "up")
            inside(each.netns, "ethtool", "-K", "eth0", "tx", "off")
        assert not any(echoes(pods[0].netns, each.address, seconds=0.2) for each in pods[1:])
    await_traffic(pods)


def test_guards_are_flushed(live: LiveNode, pods: list[Attached]) -> None:
    """The agent's next pass makes guards again that another program flushed; no frame is lost meanwhile."""
    there = switch_of(live).netns
    assert guards(there) == guarded(pods)
    inside(there, "nft", "flush", "ruleset")
    wait_until(lambda: guards(there) == guarded(pods), HEALED_S, "the guards")
    await_traffic(pods)
    assert all(each.is_whole() for each in pods)


@pytest.mark.parametrize("port", KINDS)
def test_a_namespace_is_deleted(live: LiveNode, sandbox: str, port: str) -> None:
    """Everything of a pod whose namespace is gone is removed without a DEL, and its name is free for another pod at once."""
    live.start()
    there = switch_of(live).netns
    other = attach(live, 1, sandbox)
    with mortal_sandbox(sandbox) as (path, end):
        gone = attach(live, 2, path, port)
        await_traffic([other, gone])
        end()
    wait_until(lambda: len(records(live)) == 1, HEALED_S, "the end of the attachment")
    assert (switch_of(live).ports("br-test"), list(host_ends(there)), guards(there)) == ([other.host],) * 3
    with netns() as path:
        again = attach(live, 2, path, port)
        assert again.host == gone.host
        await_traffic([other, again])
        again.detach()
    other.detach()
    live.require_clean()
