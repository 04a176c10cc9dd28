"""Lists of the API that are answered 200 and are untrue take nothing from a node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.followed import ADDRESS, Followed
from tests.agent.living import LiveNode
from tests.lab.kube.cluster_objects import node, ours
from tests.lab.kube.definitions import defined_server
from tests.lab.kube.false_lists import LACKING, NO_LISTS, have_listed_again, list_falsely
from tests.lab.network.outside import wired
from tests.lab.node.forked_node import run_command
from tests.lab.switch.switch import wait_until

NETWORKS = "provider-networks.userspace-cni.io"
SUBNETS = "subnets.userspace-cni.io"
FOLLOWED = (NETWORKS, "vlans.userspace-cni.io", SUBNETS, "nodes")
FALSE = {**LACKING, "of another kind": NO_LISTS["of another kind"]}
TWO_LISTS_S = 60.0
"""Seconds within which what is really gone is removed, when no event says so."""


class Uplink(Followed):
    """A node n1 with a NIC whose addresses have moved to br-net1, and a trunk with VLAN 100, both by objects."""

    def state(self) -> tuple[str, list[int]]:
        """The link that has the node's address, and the VLANs of the uplink."""
        return self.place(), self.trunks()

    def lists(self) -> dict[str, int]:
        """How often each kind was listed."""
        paths = [request.path for request in self.api.requests if request.verb == "LIST"]
        return {title: sum(f"/{title.partition('.')[0]}?" in path for path in paths) for title in FOLLOWED}

    def have_been_listed_twice(self, before: dict[str, int]) -> bool:
        """Whether each kind was listed since then: falsely, and truly.

        There is no Subnet, so an empty list of them is believed.
        """
        return all(times >= before[title] + (1 if title == SUBNETS else 2) for title, times in self.lists().items())

    def list_falsely_everywhere(self, falsify: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """Answer the next list of each kind in this way."""
        for title in FOLLOWED:
            list_falsely(self.api, self.api.objects(title), f"/{title.partition('.')[0]}?", falsify)


@pytest.fixture
def uplink(live: LiveNode) -> Iterator[Uplink]:
    """The uplink, ready; what is left is undone at the end."""
    assert live.switch
    with wired(live.switch.netns) as wire, defined_server() as api:
        api.add(node("n1", ADDRESS))
        api.add(ours("ProviderNetwork", "net1", defaultInterface="nic0", moveAddresses="primary"))
        api.add(ours("Vlan", "blue", id=100, provider="net1"))
        found = Uplink(live, wire, api)
        live.start()
        wait_until(lambda: found.spec().get("ready"), what="the uplink")
        assert found.state() == ("br-net1", [0, 100])
        yield found
        live.close()
        done = run_command(live.environ, "uninstall", "--force", f"--bin-dir={Path(live.plugin).parent}")
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("falsify", FALSE.values(), ids=list(FALSE))
def test_a_false_list_takes_nothing_away(uplink: Uplink, falsify: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """All kinds are listed falsely, to a running agent and as the first lists of the next one.

    Uplink, addresses and trunk stay until the true lists have come, and after them.
    """
    api, live = uplink.api, uplink.live
    lists = uplink.lists()
    uplink.list_falsely_everywhere(falsify)
    for title in FOLLOWED:
        have_listed_again(api, f"/{title.partition('.')[0]}?")
    stays(uplink, lambda: uplink.have_been_listed_twice(lists))
    live.kill()
    lists = uplink.lists()
    uplink.list_falsely_everywhere(falsify)
    live.start()
    stays(uplink, lambda: uplink.have_been_listed_twice(lists) and uplink.spec().get("source") == "objects")
    wait_until(lambda: uplink.spec().get("ready"))
    assert uplink.state() == ("br-net1", [0, 100])


def stays(uplink: Uplink, until: Callable[[], Any]) -> None:
    """Assert that the uplink is unchanged at each of many looks, until a condition is true."""

    def looked() -> Any:
        assert uplink.state() == ("br-net1", [0, 100])
        return until()

    wait_until(looked, TWO_LISTS_S, "the next list of each kind")


def test_what_is_gone_goes(uplink: Uplink) -> None:
    """The last Vlan goes by its event, and the trunk gets no wider.

    A ProviderNetwork that was deleted without an agent goes by two lists.
    """
    api, live = uplink.api, uplink.live
    api.objects("vlans.userspace-cni.io").remove("", "blue")
    wait_until(lambda: uplink.state() == ("br-net1", [0]), what="the trunk without it")
    live.kill()
    api.objects(NETWORKS).remove("", "net1")
    live.start()
    wait_until(lambda: uplink.state()[0] == "nic0", TWO_LISTS_S, "the address is back on the NIC")
    assert uplink.wire.answers(ADDRESS)
    wait_until(lambda: not uplink.switch.rows("Bridge"), what="no bridge")
