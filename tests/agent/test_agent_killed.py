"""After the agent is killed, the next one undoes or finishes what it was doing, and what it had done stays."""

from __future__ import annotations

import json
from contextlib import ExitStack

import pytest

from tests.agent.living import LiveNode, container, port_of, serving
from tests.cni.spec import (
    finish,
    held,
    ipam,
    paused_ovsdb,
    paused_vswitchd,
    records,
    refused,
    scripted,
    start,
    succeeded,
    switch_of,
)
from tests.crash.test_kill_add import CASES as ADD_CASES
from tests.crash.test_kill_add import POINTS as ADD_POINTS
from tests.crash.test_kill_del import CASES as DEL_CASES
from tests.crash.test_kill_del import POINTS as DEL_POINTS
from tests.crash.victims import Victim, apart
from tests.lab.switch.switch import FOR_EVER_S, wait_until


@pytest.mark.parametrize("mode", ["client", "server"])
def test_amid_add_in_the_switch(live: LiveNode, sandbox: str, mode: str) -> None:
    """Killed while the switch works: ADD answers 11, and the next agent removes what is there before the switch continues."""
    network = live.network("1.0.0", ipam=live.host_local())
    network["host"]["vhost"]["mode"] = mode
    live.start()
    with paused_vswitchd(switch_of(live)):
        process = start(live, live.variables("ADD", sandbox), json.dumps(network).encode())
        wait_until(lambda: switch_of(live).bridges(), what="the port's rows")
        live.kill()
        refused(finish(process, "ADD"), 11, live.socket)
        assert live.states() == ["applying"]
        live.start()
        live.await_clean()
    live.await_done("removed-unfinished", 1)
    succeeded(live.run("ADD", network, sandbox))
    succeeded(live.run("DEL", network, sandbox))
    live.require_clean()


def test_amid_add_in_the_ipam_plugin(live: LiveNode, sandbox: str) -> None:
    """Killed while the IPAM plugin works: the container is left alone until that ends, and then the lease is released."""
    delegate = scripted(live)
    network = live.network(ipam=ipam(delegate))
    live.start()
    with held(delegate, "ADD", answer={}) as running:
        process = start(live, live.variables("ADD", sandbox), json.dumps(network).encode())
        running()
        live.kill()
        refused(finish(process, "ADD"), 11, live.socket)
        live.start()
        live.tick(2)
        assert live.states() == ["pending"]
        assert "DEL" not in delegate.commands()
    live.await_clean()
    assert delegate.commands()[-1] == "DEL"


@pytest.mark.parametrize("where", ["switch", "ipam"])
def test_amid_del(live: LiveNode, sandbox: str, where: str) -> None:
    """The DEL is spooled and succeeds, and the next agent finishes it."""
    delegate = scripted(live)
    network = live.network(ipam=ipam(delegate))
    live.start()
    succeeded(live.run("ADD", network, sandbox))
    with ExitStack() as obstacle:
        if where == "ipam":
            running = obstacle.enter_context(held(delegate, "DEL"))
        else:
            obstacle.enter_context(paused_ovsdb(switch_of(live)))
        process = start(live, live.variables("DEL", sandbox), json.dumps(network).encode())
        wait_until(lambda: live.states() == ["deleting"], what="a record that says deleting")
        if where == "ipam":
            running()
        live.kill()
        succeeded(finish(process, "DEL"))
        assert len(live.spooled()) == 1
    live.start()
    live.await_clean()


@pytest.mark.parametrize("how", ["kill", "end"])
def test_ports_do_not_notice(live: LiveNode, sandbox: str, how: str) -> None:
    """Ports, sockets and mounts of running pods are the same after the agent's death or end, and the next one serves them."""
    networks = {"net1": live.network("1.0.0", ipam=live.host_local()), "net2": serving(live)}
    live.start()
    results = {ifname: succeeded(live.run("ADD", network, sandbox, ifname=ifname)) for ifname, network in networks.items()}

    def state() -> object:
        rows = [
            {key: row[key] for key in ("_uuid", "name", "options", "external_ids", "ofport", "link_resets", "link_state")}
            for row in sorted(switch_of(live).rows("Interface"), key=lambda row: str(row["name"]))
        ]
        return rows, live.leftovers(), records(live), [path.lstat().st_ino for path in sorted(live.shared.rglob("*"))]

    before = state()
    if how == "kill":
        live.kill()
        assert live.directory.joinpath("run/agent.sock").is_socket()
    else:
        assert live.end() == 0
    refused(live.run("STATUS", live.network()), 50, live.socket)
    live.start()
    live.tick(2)
    assert state() == before
    assert live.metric("reconcile_actions_total") == 0
    for ifname, network in networks.items():
        checked = {**network, "cniVersion": "1.0.0", "prevResult": {**results[ifname], "cniVersion": "1.0.0"}}
        succeeded(live.run("CHECK", checked, sandbox, ifname=ifname))
        succeeded(live.run("DEL", network, sandbox, ifname=ifname))
    live.require_clean()


@pytest.mark.parametrize("mode", ["client", "server"])
def test_killed_at_any_point_of_add(live: LiveNode, sandbox: str, mode: str) -> None:
    """After a process died before or after any step, one pass of the agent undoes what it left."""
    victim = Victim(live, sandbox, mode)
    live.start(TURN_S=FOR_EVER_S)
    for point in apart(ADD_POINTS[mode]):
        victim.kill("ADD", point)
        if point == "after writing ready":
            victim.delete()
        live.tick()
        assert victim.leftovers() == {}, point


@pytest.mark.parametrize("mode", ["client", "server"])
def test_killed_at_any_point_of_del(live: LiveNode, sandbox: str, mode: str) -> None:
    """After a process died before or after any step, one pass of the agent finishes the DEL."""
    victim = Victim(live, sandbox, mode)
    live.start(TURN_S=FOR_EVER_S)
    for point in apart(DEL_POINTS[mode]):
        assert victim.call("ADD").code == 0
        victim.kill("DEL", point)
        if point == "before writing deleting":
            victim.delete()
        live.tick()
        assert victim.leftovers() == {}, point


@pytest.mark.parametrize("verb", ["ADD", "DEL"])
def test_between_any_two_steps(live: LiveNode, sandbox: str, verb: str) -> None:
    """Killed at any point of a verb: ADD answers 11 and DEL is spooled, and the next agent leaves nothing of either."""
    for mode, point in ADD_CASES if verb == "ADD" else DEL_CASES:
        victim = Victim(live, sandbox, mode)
        if verb == "DEL":
            assert victim.call("ADD").code == 0
        live.start(until=point)
        answered = live.run(verb, victim.network, sandbox, CNI_ARGS=victim.args)
        live.await_death()
        if verb == "DEL":
            succeeded(answered)
        else:
            refused(answered, 11, live.socket)
        if point == "after writing ready":
            succeeded(live.run("DEL", victim.network, sandbox))
        live.start(TURN_S=FOR_EVER_S)
        live.tick()
        assert (victim.leftovers(), live.spooled()) == ({}, []), (mode, point)
        assert live.end() == 0


def test_half_written_files(live: LiveNode, sandbox: str) -> None:
    """Temporary files of a killed agent beside records, lists of holders and DELs are removed at the next start."""
    live.start()
    succeeded(live.run("ADD", live.network(), sandbox))
    live.kill()
    succeeded(live.run("DEL", live.network(), sandbox))
    [states] = (live.directory / "run" / "live").iterdir()
    half = [states / "states" / ".localdb-1-0", states / "places" / ".localdb-1-0", live.spool / ".tmp-1-1-0"]
    half.append(live.state / "attachments" / ".localdb-1-0")
    for path in half:
        path.write_text("{")
    live.start()
    live.await_clean()
    assert not any(path.exists() for path in half)


def test_amid_many(live: LiveNode, sandbox: str) -> None:
    """Of twenty running ADDs none succeeds, and the next agent leaves exactly the ports that were there before."""
    network = live.network()
    live.start()
    succeeded(live.run("ADD", network, sandbox))
    with paused_vswitchd(switch_of(live)):
        names = [container(number) for number in range(20)]
        stdin = json.dumps(network).encode()
        processes = [start(live, live.variables("ADD", sandbox, name), stdin) for name in names]
        wait_until(lambda: len(live.states()) == 21 and len(switch_of(live).ports("br-test")) > 1, what="the ADDs under way")
        live.kill()
        for process in processes:
            refused(finish(process, "ADD"), 11)
        live.start()
        wait_until(lambda: switch_of(live).ports("br-test") == [port_of()], what="the one port that was answered for")
    wait_until(lambda: len(live.states()) == 1, what="one record")
    succeeded(live.run("DEL", network, sandbox))
    live.require_clean()
