"""CHECK, STATUS and the commands that only look report what the switch says of ports, and never make a probe."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cni.spec import PORT, succeeded, switch_of
from tests.lab.node.forked_node import run_command
from tests.lab.node.node import Node
from tests.lab.switch.switch import wait_until
from userspace_cni.fastpath.vhost.front_end import FrontEnd, FrontEndListener, FrontEndOptions

OPTIONS = FrontEndOptions(queue_size=64)


class Attachment:
    """One attachment of a node, from ADD to DEL."""

    def __init__(self, node: Node, sandbox: str, mode: str) -> None:
        self.node = node
        self._sandbox = sandbox
        self._network = node.network(name="net")
        self._network["host"] |= {"mtu": 1400, "vhost": {"mode": mode}}
        self._result = succeeded(node.run("ADD", self._network, sandbox))
        self.socket = self.listed()["socket"]["host"]

    def check(self) -> None:
        """CHECK and STATUS find nothing wrong."""
        succeeded(self.node.run("CHECK", {**self._network, "prevResult": self._result}, self._sandbox))
        succeeded(self.node.run("STATUS", self._network))

    def delete(self) -> None:
        succeeded(self.node.run("DEL", self._network, self._sandbox))

    def listed(self) -> Any:
        [listed] = told(self.node, "list")
        return listed

    def says(self, state: str) -> bool:
        """Whether this is what the switch reports of the port's application."""
        status = switch_of(self.node).interface(PORT)["status"]
        return bool(status) and status.get("status") == state


def told(node: Node, *arguments: str, code: int | None = None) -> Any:
    """The JSON of a command, which has to end with `code` if that is given."""
    done = run_command(node.environ, *arguments, "--json")
    assert code in (None, done.returncode), (done.stdout, done.stderr)
    return json.loads(done.stdout)


@pytest.fixture(params=["client", "server"])
def attachment(node: Node, sandbox: str, request: pytest.FixtureRequest) -> Iterator[Attachment]:
    """An attachment in each role of OVS."""
    made = Attachment(node, sandbox, request.param)
    yield made
    made.delete()
    assert node.leftovers() == {}


def front_end(attachment: Attachment) -> tuple[FrontEnd, list[FrontEndListener]]:
    """The application of the attachment, as the role of its port wants it."""
    if attachment.listed()["role"] == "client":
        return FrontEnd.connect(attachment.socket, OPTIONS), []
    listener = FrontEndListener(attachment.socket, OPTIONS)
    return listener.accept(), [listener]


def test_an_application_comes_and_goes(attachment: Attachment) -> None:
    """The application's state is shown and is no error; looking does not disconnect an application."""
    attachment.check()
    assert attachment.listed()["vhost"]["state"] == "disconnected"
    assert told(attachment.node, "status")["applications"] == {"connected": 0, "waiting": 1, "broken": 0}
    application, listeners = front_end(attachment)
    with application:
        wait_until(lambda: attachment.says("connected"))
        attachment.check()
        listed = attachment.listed()
        assert (listed["vhost"]["state"], listed["link_state"], listed["problems"]) == ("connected", "up", [])
        assert told(attachment.node, "check", code=0)["drifts"] == []
        assert told(attachment.node, "status")["applications"] == {"connected": 1, "waiting": 0, "broken": 0}
        assert application.is_alive()
        assert attachment.says("connected")
    for each in listeners:
        each.close()
    wait_until(lambda: attachment.says("disconnected"))
    attachment.check()
    assert attachment.listed()["problems"] == []


def test_looking_writes_nothing(attachment: Attachment) -> None:
    """CHECK, STATUS and the commands that look make no port, bridge or directory, and commit nothing to the database."""
    switch, database = switch_of(attachment.node), Path(switch_of(attachment.node).dir, "conf.db")
    before = (database.stat().st_size, switch.bridges(), sorted(attachment.node.short.glob("*")))
    attachment.check()
    for command in ("status", "check", "list"):
        told(attachment.node, command)
    assert (database.stat().st_size, switch.bridges(), sorted(attachment.node.short.glob("*"))) == before


def test_a_port_that_is_not_open(node: Node, sandbox: str) -> None:
    """A port that ovs-vswitchd could not open is a finding of `status`, and `list` has ovs-vswitchd's own words."""
    attachment = Attachment(node, sandbox, "client")
    switch_of(node).vsctl("--no-wait", "set", "Interface", PORT, "type=nosuchtype")
    wait_until(lambda: switch_of(node).interface(PORT)["error"])
    found = told(node, "status", code=1)
    assert found["applications"] == {"connected": 0, "waiting": 0, "broken": 1}
    assert [finding for finding in found["findings"] if finding.startswith("applications: ")]
    assert "nosuchtype" in attachment.listed()["error"] or "could not open" in attachment.listed()["error"]
    switch_of(node).vsctl("set", "Interface", PORT, "type=dpdkvhostuserclient")
    attachment.delete()
