"""Items 83 to 87 of the specification's checklist: STATUS."""

from __future__ import annotations

import pytest

from tests.cni.spec import (
    away,
    ipam,
    paused_ovsdb,
    paused_vswitchd,
    read_only,
    refused,
    scripted,
    succeeded,
    switch_of,
    tree,
)
from tests.lab.node.node import Node
from tests.lab.switch.switch import wait_until


def test_083_ready_or_not(node: Node) -> None:
    """STATUS prints nothing when an ADD could be served, and is 50 when not, or 51 when running pods suffer, too."""
    succeeded(node.run("STATUS", node.network()))
    refused(node.run("STATUS", node.network(), **away(node)), 50, "no-such-db.sock")
    with paused_vswitchd(switch_of(node)):
        refused(node.run("STATUS", node.network()), 51, "ovs-vswitchd")
    succeeded(node.run("STATUS", node.network()))


def test_084_what_has_to_be_there(node: Node) -> None:
    """A bridge that cannot take the port, and a directory that cannot be written, are 50, which names them."""
    node.state.mkdir()
    node.short.mkdir()
    for directory in (node.state, node.short):
        with read_only(directory):
            refused(node.run("STATUS", node.network()), 50, str(directory))
    switch_of(node).vsctl("--no-wait", "add-br", "br-test", "--", "set", "Bridge", "br-test", "datapath_type=system")
    wait_until(lambda: node.run("STATUS", node.network()).status, what="an agent has heard of the bridge")
    refused(node.run("STATUS", node.network()), 50, "br-test", "netdev")
    switch_of(node).vsctl("--no-wait", "set", "Bridge", "br-test", "datapath_type=netdev")
    wait_until(lambda: node.run("STATUS", node.network()).status == 0, what="an agent has heard of the change")


def test_085_the_delegate(node: Node) -> None:
    """The STATUS of a delegate that knows it is run: 50 and 51 are returned, other failures as 50.

    Other delegates are not run.
    """
    delegate = scripted(node)
    network = node.network(ipam=ipam(delegate))
    succeeded(node.run("STATUS", network))
    assert delegate.commands() == ["VERSION", "STATUS"]
    for code, answered in ((50, 50), (51, 51), (11, 50), (999, 50)):
        delegate.tell("STATUS", answer={"code": code, "msg": "pool exhausted", "details": "10.0.0.0/8"}, exit=1)
        error = refused(node.run("STATUS", network), answered)
        assert (error["msg"], error["details"]) == ("pool exhausted", "10.0.0.0/8")
    delegate.tell("STATUS", stdout="no json", exit=2)
    refused(node.run("STATUS", network), 50, "scripted")
    delegate.tell("VERSION", answer={"cniVersion": "1.0.0", "supportedVersions": ["1.0.0"]})
    succeeded(node.run("STATUS", network))
    assert delegate.commands()[-1] == "VERSION"
    succeeded(node.run("STATUS", node.network(ipam=node.host_local())))


class TestPolling:
    """Item 86: runtimes call STATUS every few seconds, while they hold a lock and without a deadline."""

    @pytest.mark.parametrize("hung", ["ovsdb", "delegate"])
    def test_086_hangs_do_not_spread(self, node: Node, hung: str) -> None:
        """When OVSDB or the delegate hangs, STATUS ends with 50 at a deadline of its own, far below that of other verbs."""
        node.settings["USERSPACE_CNI_DEADLINE_S"] = "3600"
        delegate = scripted(node).tell("STATUS", hang=True)
        if hung == "delegate":
            refused(node.run("STATUS", node.network(ipam=ipam(delegate))), 50, "scripted")
            return
        with paused_ovsdb(switch_of(node)):
            refused(node.run("STATUS", node.network()), 50, "OVSDB")

    def test_086_nothing_is_written(self, node: Node) -> None:
        """STATUS changes no file and no row, whether it succeeds or fails."""
        files = tree(node.directory)
        succeeded(node.run("STATUS", node.network()))
        refused(node.run("STATUS", node.network(), **away(node)), 50)
        assert tree(node.directory) == files
        assert switch_of(node).bridges() == []


def test_087_only_advice(node: Node, sandbox: str) -> None:
    """ADD does not call STATUS first, and DEL works while STATUS fails."""
    delegate = scripted(node).tell("STATUS", answer={"code": 50, "msg": "not now"}, exit=1)
    network = node.network(ipam=ipam(delegate))
    succeeded(node.run("ADD", network, sandbox))
    refused(node.run("STATUS", network), 50)
    refused(node.run("STATUS", network, **away(node)), 50)
    succeeded(node.run("DEL", network, sandbox, **away(node)))
    assert [path.name for path in node.shared.iterdir()] == []
    succeeded(node.run("DEL", network, sandbox))
    assert node.leftovers() == {}
