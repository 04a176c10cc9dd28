"""Items 88 to 95 of the specification's checklist: GC."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

import pytest

from tests.cni.spec import (
    OTHER,
    PORT,
    finish,
    ipam,
    paused_vswitchd,
    records,
    refused,
    row_of,
    scripted,
    start,
    succeeded,
    switch_of,
)
from tests.lab.node.node import CONTAINER, Node
from tests.lab.runtimes.runtime import Runtime, netns
from tests.lab.switch.switch import wait_until

KEY, FORMER_KEY = "cni.dev/valid-attachments", "cni.dev/attachments"
KEPT = {"containerID": CONTAINER, "ifname": "net1"}


def collect(node: Node, valid: Any, **keys: Any) -> dict[str, Any]:
    """The configuration of a GC with a list of valid attachments."""
    return {**node.network(**keys), KEY: valid}


def attach(node: Node, sandbox: str, *interfaces: tuple[str, str], **keys: Any) -> None:
    for container, ifname in interfaces:
        succeeded(node.run("ADD", node.network(**keys), sandbox, container=container, ifname=ifname))


def ports(node: Node) -> list[str]:
    """The names of all ports on the tests' bridge."""
    return sorted(switch_of(node).ports("br-test")) if switch_of(node).bridges() else []


class TestList:
    """Item 88: the list of valid attachments."""

    def test_088_both_names_of_the_key(self, node: Node, sandbox: str) -> None:
        """GC removes what is not listed; the key's former name counts only where the present one is missing."""
        attach(node, sandbox, (CONTAINER, "net1"), (CONTAINER, "net2"), (OTHER, "net1"))
        succeeded(node.run("GC", collect(node, [KEPT, {"containerID": OTHER, "ifname": "net1"}])))
        assert ports(node) == sorted([PORT, f"{OTHER[:12]}-net1"])
        succeeded(node.run("GC", {**node.network(), FORMER_KEY: [KEPT]}))
        assert ports(node) == [PORT]
        succeeded(node.run("GC", {**node.network(), KEY: [KEPT], FORMER_KEY: []}))
        assert ports(node) == [PORT]
        succeeded(node.run("GC", {**node.network(), KEY: [], FORMER_KEY: [KEPT]}))
        assert node.leftovers() == {}

    def test_088_entries_of_another_shape(self, node: Node, sandbox: str) -> None:
        """A value that is no list, or an entry that is no attachment, is 7, and nothing is removed."""
        attach(node, sandbox, (CONTAINER, "net1"))
        before = node.leftovers()
        wrong: list[Any] = [{}, "x", 7, [None], ["x"], [{}], [{"containerID": OTHER}], [{"containerID": "", "ifname": "net1"}]]
        wrong += [[{"containerID": OTHER, "ifname": 1}], [KEPT, {"containerId": OTHER, "ifName": "net1"}]]
        for valid in wrong:
            refused(node.run("GC", collect(node, valid)), 7, KEY)
        assert node.leftovers() == before
        succeeded(node.run("DEL", node.network(), sandbox))


def test_089_null(node: Node, sandbox: str) -> None:
    """null is the empty list: CRI-O sends it for a network without pods, and GC removes everything of that network."""
    attach(node, sandbox, (CONTAINER, "net1"), (OTHER, "net1"))
    succeeded(node.run("GC", collect(node, None)))
    assert node.leftovers() == {}


def test_090_no_list_at_all(node: Node, sandbox: str) -> None:
    """GC without the key is 7, removes nothing and runs no delegate: a wrong guess would cut off running VMs."""
    delegate = scripted(node)
    attach(node, sandbox, (CONTAINER, "net1"), ipam=ipam(delegate))
    before = node.leftovers()
    refused(node.run("GC", node.network(ipam=ipam(delegate))), 7, KEY)
    assert node.leftovers() == before
    assert delegate.commands() == ["ADD"]
    succeeded(node.run("DEL", node.network(), sandbox))


def test_091_only_what_is_ours_and_of_this_network(node: Node) -> None:
    """Other networks, ports without our marks, and another installation's stay; the namespace may be gone."""
    switch = switch_of(node)
    with netns() as gone:
        attach(node, gone, (CONTAINER, "net1"))
        attach(node, gone, (OTHER, "net1"), name="another")
    switch.vsctl("add-port", "br-test", "by-hand", "--", "set", "Interface", "by-hand", "type=dpdkvhostuserclient")
    foreign = [f"external_ids:{key}={value}" for key, value in _marks("stranger").items()]
    theirs = ["add-port", "br-test", "theirs", "--", "set", "Interface", "theirs", "type=dpdkvhostuserclient"]
    switch.vsctl(*theirs, *foreign, "--", "set", "Port", "theirs", *foreign)
    succeeded(node.run("GC", collect(node, [])))
    assert ports(node) == sorted([f"{OTHER[:12]}-net1", "by-hand", "theirs"])
    succeeded(node.run("DEL", node.network(name="another"), container=OTHER))
    assert ports(node) == ["by-hand", "theirs"]


def _marks(store: str) -> dict[str, str]:
    names = {"container-id": "c" * 64, "network": "net", "ifname": "net9"}
    return {"owner": "userspace-cni", "schema": "1", "store": store, **names}


def test_091_rows_without_a_record(node: Node, sandbox: str) -> None:
    """A port with our marks whose record is lost is removed unless it is listed, with everything that its attachment held."""
    attach(node, sandbox, (CONTAINER, "net1"))
    (record,) = (node.state / "attachments").iterdir()
    record.unlink()
    succeeded(node.run("GC", collect(node, [KEPT])))
    assert ports(node) == [PORT]
    succeeded(node.run("GC", collect(node, [])))
    assert node.leftovers() == {}


def test_092_errors_do_not_end_it(node: Node, sandbox: str) -> None:
    """GC tries every stale attachment, reports failures at the end as 100 or more, and a later run finishes it."""
    delegate = scripted(node)
    attach(node, sandbox, (CONTAINER, "net1"), (OTHER, "net1"), ipam=ipam(delegate))
    attach(node, sandbox, (OTHER, "net2"))
    delegate.tell("DEL", answer={"code": 130, "msg": "disk gone"}, exit=1)
    error = refused(node.run("GC", collect(node, [])), 110, "disk gone")
    assert error["details"].count("disk gone") == 2
    assert node.leftovers().keys() == {"records"}
    delegate.tell("DEL")
    succeeded(node.run("GC", collect(node, [])))
    assert node.leftovers() == {}
    succeeded(node.run("GC", collect(node, [])))


def test_093_the_delegate_is_told(node: Node, bare_node: Node) -> None:
    """GC runs a delegate that knows it with unchanged stdin, even when OVS could not be reached; its error is returned."""
    for each, code in ((node, None), (bare_node, 11)):
        delegate = scripted(each)
        stdin = json.dumps(collect(each, [KEPT], ipam=ipam(delegate)), indent=1).encode()
        assert each.run("GC", stdin, TRACEPARENT="00-1-2-01").code == code
        told = delegate.calls()[-1]
        assert (told["command"], told["stdin"].encode(), told["env"]["TRACEPARENT"]) == ("GC", stdin, "00-1-2-01")
    delegate = scripted(node, "broken").tell("GC", answer={"code": 140, "msg": "no"}, exit=1)
    assert refused(node.run("GC", collect(node, [], ipam=ipam(delegate))), 140)["msg"] == "no"
    older = scripted(node, "older").tell("VERSION", answer={"cniVersion": "1.0.0", "supportedVersions": ["1.0.0"]})
    succeeded(node.run("GC", collect(node, [], ipam=ipam(older))))
    assert older.commands() == ["VERSION"]


def test_094_an_add_in_flight(node: Node, sandbox: str) -> None:
    """What another process is attaching at this moment is left alone, listed or not, and its ADD succeeds."""
    stdin = json.dumps(node.network()).encode()
    with ExitStack() as stack:
        with paused_vswitchd(switch_of(node)):
            process = stack.enter_context(start(node, node.variables("ADD", sandbox), stdin))
            wait_until(lambda: switch_of(node).port(PORT), what="the port is in OVSDB")
            succeeded(node.run("GC", collect(node, [])))
            assert row_of(node)
            assert [record["state"] for record in records(node)] == ["applying"]
        assert succeeded(finish(process, "ADD"))["interfaces"]
    succeeded(node.run("DEL", stdin, sandbox))
    assert node.leftovers() == {}


@pytest.mark.parametrize("with_key", [True, False])
def test_095_as_libcni_calls_it(node: Node, sandbox: str, with_key: bool) -> None:
    """libcni sends DEL for its cached attachments, then GC with both keys.

    A list of all networks, as Multus sends it, does no harm.
    """
    conf_dir = node.directory / "net.d"
    conf_dir.mkdir()
    (conf_dir / "net.conflist").write_text(json.dumps({"cniVersion": "1.1.0", "name": "net", "plugins": [node.network()]}))
    runtime = Runtime(conf_dir, [node.bin], node.directory / "cache", node.variables("ADD"))
    for ifname in ("net1", "net2"):
        runtime.add("net", CONTAINER, sandbox, ifname)
    succeeded(node.run("ADD", node.network(), sandbox, container=OTHER, ifname="uncached"))
    valid = [(CONTAINER, "net1"), (CONTAINER, "eth0"), ("f" * 64, "net2")]
    if with_key:
        runtime.gc("net", valid)
        assert ports(node) == [PORT]
        assert _verbs(runtime.calls) == ["ADD", "ADD", "DEL", "GC"]
    else:
        with pytest.raises(ExceptionGroup, match="gc"):
            runtime.gc("net", valid, with_key=False)
        assert ports(node) == sorted([PORT, f"{OTHER[:12]}-uncached"])
    runtime.gc("net", None)
    assert node.leftovers() == {}


def _verbs(calls: Iterable[Any]) -> list[str]:
    return [str(made.command) for made in calls]
