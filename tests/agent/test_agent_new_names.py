"""Server mode after two deaths of ovs-vswitchd that no agent saw: the third daemon has met dead sockets, and lives on.

Each test has a switch of its own: under such a daemon no port may have a name again at which it has failed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import pytest

from tests.agent.living import LiveNode, container, port_of, serving
from tests.agent.test_agent_crash_table import RESTART_S, connects, open_ports
from tests.agent.test_agent_switch_killed import paused, placed, source
from tests.cni.spec import records, succeeded, switch_of
from tests.lab.switch.switch import Switch, wait_until
from userspace_cni.attachment.renaming import rename_spoiled
from userspace_cni.attachment.steps import OvsPort, PortRef
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import Unavailable
from userspace_cni.base.settings import load
from userspace_cni.node.local import LocalNode
from userspace_cni.node.switch_sockets import SwitchSockets


@pytest.fixture
def switch() -> Iterator[Switch]:
    """A switch that one test kills."""
    with Switch() as started:
        yield started


def crash_twice(switch: Switch) -> int:
    """Kill two daemons one after the other; the process of the third, which has met dead sockets and opens no port."""
    for _ in range(2):
        switch.kill_vswitchd()
        switch.restart_vswitchd()
    wait_until(lambda: open_ports(switch) == [], RESTART_S, "ports that failed")
    return switch.vswitchd_pid


def harmed(switch: Switch) -> list[str]:
    """What the daemons say of descriptors that were closed under them."""
    return [line for line in (switch.dir / "ovs-vswitchd.log").read_text().splitlines() if "Bad file descriptor" in line]


def test_crashes_that_no_agent_saw(live: LiveNode, sandbox: str) -> None:
    """Under a daemon that has met dead sockets the ports are made under other names, at once and all together: it lives on, its
    other ports, too, and pods have their sockets under the names that they know."""
    switch, names = switch_of(live), [container(number) for number in range(4)]
    live.start()
    limits = {"ingressRate": 8_000_000, "ingressBurst": 800_000, "egressRate": 8_000_000, "egressBurst": 800_000}
    network = serving(live, bandwidth=limits)
    results = [succeeded(live.run("ADD", network, sandbox, name)) for name in names[:3]]
    before = {name: columns(switch, port_of(name)) for name in names[:3]}
    with paused(live):
        daemon = crash_twice(switch)
    wait_until(lambda: all(connects(placed(live, name)) for name in names[:3]), RESTART_S, "the sockets")
    assert (switch.vswitchd_pid, harmed(switch)) == (daemon, [])
    assert {name: columns(switch, port) for name, port in zip(names, open_ports(switch), strict=False)} == before
    wait_until(lambda: not any(source(live, name).exists() for name in names), what="the end of the dead sockets")
    for name, result in zip(names, results, strict=False):
        told = {**network, "prevResult": result}
        wait_until(lambda: live.run("CHECK", told, sandbox, name).status == 0, what="a good CHECK")  # noqa: B023
    assert len(switch.rows("QoS")) == 3
    live.await_done("renamed-port", 3)
    live.tick(2)
    live.await_done("renamed-port", 3)
    for call in (live.run, live.run_standalone):
        succeeded(call("DEL", network, sandbox, names[0]))
        succeeded(call("ADD", network, sandbox, names[0]))
    succeeded(live.run("ADD", serving(live), sandbox, names[3]))
    assert all(connects(placed(live, name)) for name in names)
    assert (switch.vswitchd_pid, harmed(switch)) == (daemon, [])
    switch.restart_vswitchd()
    wait_until(lambda: all(connects(placed(live, name)) for name in names), RESTART_S, "the sockets of the next daemon")
    for name in names:
        succeeded(live.run("DEL", serving(live), sandbox, name))
    assert (switch.bridges(), switch.rows("QoS"), harmed(switch)) == ([], [], [])
    succeeded(live.run("ADD", serving(live), sandbox, names[0]))
    assert open_ports(switch) == [port_of(names[0])]  # under another daemon the usual name is free
    succeeded(live.run("DEL", serving(live), sandbox, names[0]))
    live.require_clean()


def columns(switch: Switch, port: str) -> dict[str, Any]:
    """What a port is to be, but for its name."""
    row = switch.port(port)
    return {column: row[column] for column in ("external_ids", "tag", "trunks", "vlan_mode")}


@pytest.mark.parametrize("end", ["before", "after"])
@pytest.mark.parametrize("then", ["an agent", "DEL"])
def test_an_end_amid_new_names(live: LiveNode, sandbox: str, monkeypatch: pytest.MonkeyPatch, end: str, then: str) -> None:
    """Before the one transaction or after it, what the record says leads to both ports: the next agent finishes it, DEL without
    one leaves nothing."""
    switch, names = switch_of(live), [container(number) for number in range(2)]
    live.start()
    for name in names:
        succeeded(live.run("ADD", serving(live), sandbox, name))
    live.kill()
    daemon = crash_twice(switch)
    real = SwitchSockets.replace

    def replace(self: SwitchSockets, pairs: Sequence[tuple[PortRef, OvsPort]], deadline: Deadline) -> None:
        if end == "after":
            real(self, pairs, deadline)
        raise Unavailable("the end")

    with monkeypatch.context() as patched, closing(LocalNode(load(live.environ), {}, resident=True)) as node:
        patched.setattr(SwitchSockets, "replace", replace)
        node.connect(Deadline.after(5))
        rename_spoiled(node, lambda _: None)
    assert [len([step for step in record["steps"] if step["step"] == "port"]) for record in records(live)] == [2, 2]
    if then == "an agent":
        live.start()
        wait_until(lambda: all(connects(placed(live, name)) for name in names), RESTART_S, "the sockets")
        wait_until(lambda: not any(source(live, name).exists() for name in names), what="the end of the dead sockets")
        live.kill()
    for name in names:
        succeeded(live.run_standalone("DEL", serving(live), sandbox, name))
    assert (switch.bridges(), switch.vswitchd_pid) == ([], daemon)
    live.require_clean()
