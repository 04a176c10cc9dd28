"""The spool: calls while there is no agent, and what the next one does with them."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.agent.living import LiveNode, container, serving, spool_del
from tests.cni.spec import PORT, STRANGER, records, refused, row_of, succeeded, switch_of
from tests.lab.switch.switch import wait_until


def now() -> int:
    """CLOCK_BOOTTIME."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def test_without_an_agent(live: LiveNode, sandbox: str) -> None:
    """Only DEL succeeds, because it is spooled; ADD, CHECK and GC answer 11 and STATUS 50, naming the socket; nothing is done."""
    network = live.network()
    for verb in ("ADD", "CHECK", "GC"):
        refused(live.run(verb, network, sandbox), 11, live.socket)
    refused(live.run("STATUS", network), 50, live.socket)
    assert succeeded(live.run("VERSION", network))["supportedVersions"]
    assert live.spooled() == []
    succeeded(live.run("DEL", network, sandbox))
    assert len(live.spooled()) == 1
    assert live.leftovers() == {}
    live.start()
    assert live.spooled() == []
    live.await_clean()
    succeeded(live.run("STATUS", network))


@pytest.mark.parametrize("mode", ["client", "server"])
def test_a_spooled_del_is_carried_out_before_any_call(live: LiveNode, sandbox: str, mode: str) -> None:
    """The attachment of a spooled DEL is `deleting` before the agent accepts calls, and soon gone."""
    network = live.network("1.0.0", ipam=live.host_local())
    network["host"]["vhost"]["mode"] = mode
    live.start()
    succeeded(live.run("ADD", network, sandbox))
    live.kill()
    succeeded(live.run("DEL", network, sandbox))
    assert switch_of(live).ports("br-test") == [PORT]
    assert live.states() == ["ready"]
    live.start()
    assert live.spooled() == []
    assert "ready" not in live.states()
    live.await_clean()
    live.await_done("spooled-del", 1)


def test_add_behind_a_spooled_del(live: LiveNode, sandbox: str) -> None:
    """An ADD of the same name right after the start makes a new attachment, with one port and one lease, which stays."""
    network = live.network("1.0.0", ipam=live.host_local())
    live.start()
    succeeded(live.run("ADD", network, sandbox))
    before = row_of(live)
    live.kill()
    succeeded(live.run("DEL", network, sandbox))
    live.start()
    succeeded(live.run("ADD", network, sandbox))
    after = row_of(live)
    assert after["_uuid"] != before["_uuid"]
    live.tick(2)
    assert row_of(live) == after
    assert len(live.leftovers()["leases"]) == 1
    succeeded(live.run("DEL", network, sandbox))
    live.require_clean()


def test_a_newer_attachment_is_not_hurt(live: LiveNode, sandbox: str) -> None:
    """A DEL that is older than the ADD does not apply to it, whether the ADD found it in the spool or it came there later."""
    network, long_ago = live.network(), now()
    succeeded(live.run("DEL", network, sandbox))
    added = live.in_process("ADD", network, sandbox)
    assert added.code == 0, added.output
    assert live.spooled() == []
    before = row_of(live)
    entry = spool_del(live, network, long_ago)
    live.start()
    assert not entry.exists()
    live.tick(2)
    assert row_of(live) == before
    assert live.done("spooled-del") == 0
    succeeded(live.run("DEL", network, sandbox))
    live.require_clean()


def test_on_the_tick(live: LiveNode, sandbox: str) -> None:
    """A DEL that is spooled while an agent runs is carried out without a call or restart; other networks are not affected."""
    live.start()
    network, other = live.network(), live.network(name="other")
    succeeded(live.run("ADD", network, sandbox))
    succeeded(live.run("ADD", other, sandbox, ifname="net2"))
    spool_del(live, network, now())
    wait_until(lambda: not row_of(live), what="the port's end")
    wait_until(lambda: len(live.states()) == 1, what="the record's end")
    live.await_metric(0, "spool_entries")
    spool_del(live, network, now(), ifname="net2")
    wait_until(lambda: live.spooled() == [], what="an empty spool")
    live.tick(2)
    assert [record["ifname"] for record in records(live)] == ["net2"]
    succeeded(live.run("DEL", other, sandbox, ifname="net2"))
    live.await_clean()


def test_on_sighup(live: LiveNode, sandbox: str) -> None:
    """SIGHUP starts a pass, however far away the tick is."""
    live.settings["USERSPACE_CNI_TICK_S"] = "10000"
    live.start()
    succeeded(live.run("ADD", live.network(), sandbox))
    live.tick()
    spool_del(live, live.network(), now())
    os.kill(live.pid, signal.SIGHUP)
    live.await_clean()


@pytest.mark.parametrize("verb", ["ADD", "DEL"])
def test_the_plugin_in_process_carries_it_out_too(live: LiveNode, sandbox: str, verb: str) -> None:
    """Without an agent, the next in-process verb carries out spooled DELs, of its own container and of others."""
    network = live.network()
    live.start()
    for name in (STRANGER, container(1), container(2)):
        succeeded(live.run("ADD", network, sandbox, name))
    live.kill()
    for name in (container(1), container(2)):
        succeeded(live.run("DEL", network, sandbox, name))
    name = container(1) if verb == "ADD" else STRANGER
    answered = live.in_process(verb, network, sandbox, name)
    assert answered.code == 0, answered.output
    assert live.spooled() == []
    assert {record["container_id"] for record in records(live) if record["state"] == "ready"} == (
        {STRANGER, container(1)} if verb == "ADD" else set()
    )
    for name in (STRANGER, container(1)):
        assert live.in_process("DEL", network, sandbox, name).code == 0
    wait_until(lambda: live.in_process("DEL", network, sandbox, STRANGER).code == 0 and live.is_clean(), what="nothing left")


def test_what_is_no_entry(live: LiveNode, sandbox: str) -> None:
    """Garbage, a directory, a link, a fifo and a half-written file do not prevent DELs from being read.

    Invalid entries are moved aside.
    """
    network = live.network()
    live.start()
    succeeded(live.run("ADD", serving(live), sandbox))
    live.kill()
    succeeded(live.run("DEL", network, sandbox))
    (live.spool / "00000000000000000000-1-aaaaaaaa").write_bytes(b"POST /api/v1/del HTTP/1.1\r\n\r\n")
    (live.spool / "00000000000000000001-1-aaaaaaaa").mkdir()
    (live.spool / "00000000000000000002-1-aaaaaaaa").symlink_to("/etc/hostname")
    os.mkfifo(live.spool / "00000000000000000003-1-aaaaaaaa")
    (live.spool / "garbage").write_bytes(os.urandom(1000))
    (live.spool / ".tmp-00000000000000000004-1-aaaaaaaa").write_bytes(b"POST")
    live.start()
    live.await_clean()
    assert list(live.spool.iterdir()) == []
    assert len(list((live.state / "quarantine").iterdir())) == 5
    live.await_done("spooled-del", 1)
