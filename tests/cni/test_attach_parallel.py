"""Many calls at once, each a process of its own: on one bridge, in one directory, for one container."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.cni.spec import succeeded, switch_of
from tests.lab.kube.apiserver import ApiServer
from tests.lab.kube.pods import Pod
from tests.lab.node.node import CONTAINER, Node
from tests.lab.runtimes.runtime import Call

MANY = 50


def container(number: int) -> str:
    """A container ID; the first twelve characters differ."""
    return f"{number:012x}" + "e" * 52


def at_once(work: Callable[[int], Call], numbers: Iterable[int]) -> list[dict[str, Any]]:
    listed = list(numbers)
    with ThreadPoolExecutor(len(listed)) as pool:
        return [succeeded(call) for call in pool.map(work, listed)]


def ports_of(numbers: Iterable[int]) -> list[str]:
    return sorted(f"{container(number)[:12]}-net1" for number in numbers)


@pytest.mark.parametrize("mode", ["client", "server"])
def test_eight_at_once_on_a_missing_bridge(node: Node, sandbox: str, mode: str) -> None:
    """Eight ADDs make one bridge and eight ports; eight DELs leave neither. Twice, so that the bridge is made anew."""
    network = node.network("1.0.0", ipam=node.host_local())
    network["host"]["vhost"]["mode"] = mode
    for _ in range(2):
        results = at_once(lambda number: node.run("ADD", network, sandbox, container(number)), range(8))
        assert len({result["ips"][0]["address"] for result in results}) == 8
        assert len({result["interfaces"][0]["mac"] for result in results}) == 8
        assert switch_of(node).ports("br-test") == ports_of(range(8))
        assert [bridge["datapath_type"] for bridge in switch_of(node).rows("Bridge")] == ["netdev"]
        at_once(lambda number: node.run("DEL", network, sandbox, container(number)), range(8))
        assert node.leftovers() == {}


def test_many_at_once(node: Node, sandbox: str) -> None:
    """Spec item 102: fifty ADDs at once all succeed; so do fifty DELs amid other ADDs, and in the end nothing is left."""
    network = node.network("1.0.0", ipam=node.host_local())
    first, others = range(MANY), range(MANY, MANY + 10)
    at_once(lambda number: node.run("ADD", network, sandbox, container(number)), first)
    assert switch_of(node).ports("br-test") == ports_of(first)
    at_once(lambda number: node.run("DEL" if number in first else "ADD", network, sandbox, container(number)), range(MANY + 10))
    assert switch_of(node).ports("br-test") == ports_of(others)
    assert len(node.leftovers()["leases"]) == len(node.leftovers()["records"]) == len(others)
    at_once(lambda number: node.run("DEL", network, sandbox, container(number)), others)
    assert node.leftovers() == {}


def test_an_administrators_bridge_stays(node: Node, sandbox: str) -> None:
    """A bridge that existed before gets all ports, loses them again, and is unchanged in the end."""
    switch = switch_of(node)
    switch.vsctl("add-br", "br-test", "--", "set", "bridge", "br-test", "datapath_type=netdev", "external_ids:who=admin")
    before = switch.bridge("br-test")
    at_once(lambda number: node.run("ADD", node.network(), sandbox, container(number)), range(8))
    assert switch.ports("br-test") == ports_of(range(8))
    at_once(lambda number: node.run("DEL", node.network(), sandbox, container(number)), range(8))
    after = switch.bridge("br-test")
    assert {key: after[key] for key in ("_uuid", "ports", "external_ids")} == {
        key: before[key] for key in ("_uuid", "ports", "external_ids")
    }
    switch.vsctl("del-br", "br-test")
    assert node.leftovers() == {}


def test_interfaces_of_one_container(node: Node, sandbox: str, api: ApiServer) -> None:
    """Six interfaces of one pod attached at once share one directory and one mount, and
    have six ports and six entries in its note; DELs remove all.
    """
    pod = Pod(volume={"emptyDir": {}})
    pod.create(api)
    node.empty_dir(pod.uid)
    network = node.network("1.0.0", ipam=node.host_local(), kubeconfig=api.kubeconfig(node.directory))
    calls = range(1, 7)
    for verb in ("ADD", "DEL"):
        at_once(lambda n, verb=verb: node.run(verb, network, sandbox, ifname=f"net{n}", CNI_ARGS=pod.args), calls)  # type: ignore[misc]
        if verb == "ADD":
            assert switch_of(node).ports("br-test") == [f"{CONTAINER[:12]}-net{number}" for number in calls]
            assert len(node.leftovers()["mounts"]) == 1
            assert sorted(entry["ifName"] for entry in pod.entries(api)) == [f"net{number}" for number in calls]
    assert node.leftovers() == {}
    assert pod.annotations(api) == {}


def test_the_same_call_twice_at_once(node: Node, sandbox: str) -> None:
    """Of two ADDs of one interface at once one succeeds and the other is refused with 101; two DELs at once both succeed."""
    network = node.network("1.0.0", ipam=node.host_local())
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda _: node.run("ADD", network, sandbox), range(2)))
    assert sorted((call.status, call.code) for call in both if call.status) == [(1, 101)]
    assert len(switch_of(node).ports("br-test")) == len(node.leftovers()["leases"]) == 1
    at_once(lambda _: node.run("DEL", network, sandbox), range(2))
    assert node.leftovers() == {}
