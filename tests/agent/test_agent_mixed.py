"""Many calls at once, by the shim and in-process: one succeeds per attachment, they share transactions, and nothing is left."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest

from tests.agent.living import LiveNode, container, port_of, serving
from tests.cni.spec import OTHER, finish, paused_vswitchd, records, refused, row_of, start, succeeded, switch_of
from tests.lab.node.agent import get, value_of
from tests.lab.node.node import CONTAINER
from tests.lab.runtimes.runtime import Call
from tests.lab.switch.switch import wait_until

T = TypeVar("T")
BURST = 20
"""How many calls at once: a busy machine runs so many IPAM plugins within the 42 s for which a caller waits."""
GROUPS = "userspace_cni_ovsdb_group_size"


def at_once(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Make all calls at the same time."""
    with ThreadPoolExecutor(len(calls)) as threads:
        return [future.result() for future in [threads.submit(call) for call in calls]]


def by_turns(live: LiveNode, verb: str, network: dict[str, Any], netns: str, names: Sequence[str]) -> list[Call]:
    """One call for each name at the same time, every other one in-process."""

    def one(number: int, name: str) -> Call:
        run = live.run_standalone if number % 2 else live.run
        return run(verb, network, netns, name)

    return at_once([lambda number=number, name=name: one(number, name) for number, name in enumerate(names)])  # type: ignore[misc]


@pytest.mark.parametrize("mode", ["client", "server"])
def test_different_containers(live: LiveNode, sandbox: str, mode: str) -> None:
    """Twenty ADDs, half of them in-process, succeed with different addresses; so do twenty DELs, with the halves exchanged."""
    live.start()
    network = live.network("1.0.0", ipam=live.host_local())
    network["host"]["vhost"]["mode"] = mode
    names = [container(number) for number in range(20)]
    results = [succeeded(call) for call in by_turns(live, "ADD", network, sandbox, names)]
    assert len({result["ips"][0]["address"] for result in results}) == 20
    assert switch_of(live).ports("br-test") == [port_of(name) for name in names]
    assert set(live.states()) == {"ready"}
    live.tick()
    assert live.metric("reconcile_actions_total") == 0
    for call in by_turns(live, "DEL", network, sandbox, [*names[1:], names[0]]):
        succeeded(call)
    live.require_clean()


def test_one_container(live: LiveNode, sandbox: str) -> None:
    """Of ten ADDs of one name exactly one succeeds and the others say that it is attached; ten DELs at once all succeed."""
    live.start()
    network = live.network("1.0.0", ipam=live.host_local())
    answers = by_turns(live, "ADD", network, sandbox, [CONTAINER] * 10)
    assert Counter(answer.status for answer in answers) == {0: 1, 1: 9}
    for answer in answers:
        if answer.status:
            refused(answer, 101, "attached already")
    assert switch_of(live).ports("br-test") == [port_of()]
    assert len(live.leftovers()["leases"]) == len(live.states()) == 1
    for answer in by_turns(live, "DEL", network, sandbox, [CONTAINER] * 10):
        succeeded(answer)
    live.require_clean()


def test_adds_and_dels_of_the_same_names(live: LiveNode, sandbox: str) -> None:
    """ADDs and DELs of three names at once, by both ways: each attachment is
    complete or absent afterwards, and a last DEL leaves nothing.
    """
    live.start()
    network = live.network("1.0.0", ipam=live.host_local())
    names = [container(number) for number in range(3)]
    wanted = [(verb, name) for name in names for verb in ("ADD", "DEL", "ADD", "DEL")]

    def one(number: int, verb: str, name: str) -> Call:
        return (live.run_standalone if number % 3 == 0 else live.run)(verb, network, sandbox, name)

    answers = at_once([lambda each=each: one(each[0], *each[1]) for each in enumerate(wanted)])  # type: ignore[misc]
    assert all(answer.status == 0 or answer.code == 101 for answer in answers), [answer.stdout for answer in answers]
    live.tick()
    ready = [record["container_id"] for record in records(live) if record["state"] == "ready"]
    assert len(live.states()) == len(ready) == len(live.leftovers().get("leases", []))
    bridges = switch_of(live).bridges()
    assert (switch_of(live).ports("br-test") if bridges else []) == [port_of(name) for name in ready]
    for name in names:
        succeeded(live.run("DEL", network, sandbox, name))
    live.require_clean()


def test_each_detaches_what_the_other_attached(live: LiveNode, sandbox: str) -> None:
    """CHECK and DEL work by either way, whichever made the attachment, and GC by one way collects both's."""
    live.start()
    networks = (live.network(), serving(live))
    for network in networks:
        for adds, deletes in ((live.run, live.run_standalone), (live.run_standalone, live.run)):
            result = succeeded(adds("ADD", network, sandbox))
            refused(deletes("ADD", network, sandbox), 101)
            wait_until(lambda: row_of(live), what="the port")
            succeeded(deletes("CHECK", {**network, "prevResult": result}, sandbox))
            succeeded(deletes("DEL", network, sandbox))
            live.require_clean()
    for verb in (live.run, live.run_standalone):
        succeeded(live.run("ADD", networks[0], sandbox))
        succeeded(live.run_standalone("ADD", networks[0], sandbox, OTHER))
        succeeded(verb("GC", {**networks[0], "cni.dev/valid-attachments": []}))
        live.require_clean()


def test_dead_calls_in_process_are_finished_by_the_agent(live: LiveNode, sandbox: str) -> None:
    """The agent's next pass undoes an in-process ADD that was killed while the switch hangs, but not before its death."""
    live.start()
    with paused_vswitchd(switch_of(live)):
        alone = live.variables("ADD", sandbox, USERSPACE_CNI_HAND_OVER="false")
        process = start(live, alone, json.dumps(live.network()).encode(), executable=live.standalone)
        wait_until(lambda: switch_of(live).bridges(), what="the port's rows")
        assert live.reconcile() == {}
        assert live.states() == ["applying"]
        process.kill()
        finish(process, "ADD")
        live.await_clean()
    live.await_done("removed-unfinished", 1)


def test_burst(live: LiveNode, sandbox: str) -> None:
    """Twenty pods at once get their own ports and addresses in shared transactions; so do twenty DELs."""
    live.start()
    network = live.network("1.0.0", ipam=live.host_local())
    names = [container(number) for number in range(BURST)]
    added = at_once([lambda name=name: live.run("ADD", network, sandbox, name) for name in names])  # type: ignore[misc]
    results = [succeeded(call) for call in added]
    assert len({result["ips"][0]["address"] for result in results}) == BURST
    assert len({result["interfaces"][0]["mac"] for result in results}) == BURST
    rows = switch_of(live).rows("Interface", "type=dpdkvhostuserclient")
    assert len({row["options"]["vhost-server-path"] for row in rows}) == BURST
    assert len({row["ofport"] for row in rows}) == BURST
    exposition = get(live.socket, "/metrics")[1].decode()
    assert value_of(exposition, f"{GROUPS}_sum") == BURST
    assert value_of(exposition, f"{GROUPS}_count") < BURST
    live.await_served(ADD=BURST)
    for call in at_once([lambda name=name: live.run("DEL", network, sandbox, name) for name in names]):  # type: ignore[misc]
        succeeded(call)
    live.require_clean()
    live.tick()
    assert live.metric("reconcile_actions_total") == 0


def test_burst_with_bad_ones(live: LiveNode, sandbox: str) -> None:
    """A bridge of another datapath type, and a taken name, fail only the calls that ask for them."""
    switch = switch_of(live)
    switch.vsctl("--no-wait", "add-br", "br-kernel", "--", "set", "Bridge", "br-kernel", "datapath_type=system")
    switch.vsctl("--no-wait", "add-br", "br-other", "--", "set", "Bridge", "br-other", "datapath_type=netdev")
    taken = port_of(container(7))
    switch.vsctl("--no-wait", "add-port", "br-other", taken, "--", "set", "Interface", taken, "type=dummy")
    live.start()
    network, kernel = live.network("1.0.0", ipam=live.host_local()), live.network("1.0.0", ipam=live.host_local())
    kernel["host"]["bridge"]["bridgeName"] = "br-kernel"
    names = [container(number) for number in range(20)]

    def add(name: str) -> Call:
        return live.run("ADD", kernel if name == names[3] else network, sandbox, name)

    answers = dict(zip(names, at_once([lambda name=name: add(name) for name in names]), strict=True))  # type: ignore[misc]
    refused(answers.pop(names[3]), 104, "br-kernel", "datapath_type")
    refused(answers.pop(names[7]), 105, taken)
    for answer in answers.values():
        succeeded(answer)
    assert switch.ports("br-test") == [port_of(name) for name in answers]
    assert len(live.leftovers()["leases"]) == len(answers)
    for name in names:
        succeeded(live.run("DEL", network, sandbox, name))
    assert switch.ports("br-other") == [taken]
    assert (records(live), live.spooled()) == ([], [])
