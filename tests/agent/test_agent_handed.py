"""A plugin as a process that hands its calls to a real agent: whatever happens to either, nothing is left or lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.agent.living import LiveNode, container, port_of
from tests.cni.spec import finish, held, ipam, paused_vswitchd, refused, row_of, scripted, start, succeeded, switch_of
from tests.lab.node.node import CONTAINER
from tests.lab.switch.switch import FOR_EVER_S, pause, wait_until

ITSELF = "this process serves the call itself"
BURST = 20
"""How many calls at once: a busy machine runs so many IPAM plugins within the 42 s for which a caller waits."""


def test_every_verb(live: LiveNode, sandbox: str) -> None:
    """The agent serves all five; the answers are those of the shim, byte by byte."""
    live.start()
    network = live.network()
    first = live.run_handed("ADD", network, sandbox)
    result = succeeded(first)
    for wrong in (network, network | {"host": {"engine": "vpp"}}):
        assert live.run_handed("ADD", wrong, sandbox).stdout == live.run("ADD", wrong, sandbox).stdout
    succeeded(live.run_handed("CHECK", {**network, "prevResult": result}, sandbox))
    succeeded(live.run_handed("STATUS", network))
    succeeded(live.run_handed("DEL", network, sandbox))
    live.require_clean()
    assert live.run("ADD", network, sandbox).stdout == first.stdout
    succeeded(live.run_handed("GC", {**network, "cni.dev/valid-attachments": []}))
    live.require_clean()
    live.await_served(ADD=6, CHECK=1, STATUS=1, DEL=1, GC=1)


def test_warnings_reach_the_caller(live: LiveNode, sandbox: str) -> None:
    """The agent's warnings about a call are on the stderr of the process that handed it over, with the call's name."""
    live.start()
    network = live.network() | {"colour": "blue"}
    call = live.run_handed("ADD", network, sandbox)
    succeeded(call)
    [line] = [line for line in call.stderr.decode().splitlines() if "colour" in line]
    assert "level=warning" in line
    assert "unknown and ignored" in line
    assert line.endswith(f" network={network['name']}")
    assert f"container={CONTAINER}" in line
    succeeded(live.run_handed("DEL", network, sandbox))
    live.await_served(ADD=1, DEL=1)


def test_many_at_once(live: LiveNode, sandbox: str) -> None:
    """Twenty pods at once, and their DELs: the agent serves every one."""
    live.settings["USERSPACE_CNI_DEADLINE_S"] = str(FOR_EVER_S)  # so many IPAM plugins at once take long on a busy machine
    live.start()
    network = live.network("1.0.0", ipam=live.host_local())
    names = [container(number) for number in range(BURST)]
    for verb in ("ADD", "DEL"):
        with ThreadPoolExecutor(BURST) as threads:
            calls = list(threads.map(lambda name, verb=verb: live.run_handed(verb, network, sandbox, name), names))
        assert [call.status for call in calls] == [0] * BURST, [call.stdout for call in calls if call.status]
        assert [call.stderr for call in calls if ITSELF in call.stderr.decode()] == []
        live.await_served(**{verb: BURST})
    live.require_clean()


def test_without_an_agent(live: LiveNode, sandbox: str) -> None:
    """Before an agent has started and after one was killed the process attaches and detaches.

    The next agent finds nothing wrong.
    """
    network = live.network()
    succeeded(live.run_handed("ADD", network, sandbox))
    live.start().kill()
    succeeded(live.run_handed("DEL", network, sandbox))
    succeeded(live.run_handed("ADD", network, sandbox))
    live.start()
    live.tick()
    assert live.metric("reconcile_actions_total") == 0
    succeeded(live.run_handed("DEL", network, sandbox))
    live.require_clean()
    live.await_served(ADD=0, DEL=1)


def test_an_agent_of_other_directories(live: LiveNode, other: LiveNode, sandbox: str) -> None:
    """A process whose socket leads to another's agent attaches with its own records and locks, as without an agent."""
    other.start()
    led = {"USERSPACE_CNI_SOCKET": other.socket}
    call = live.run_handed("ADD", live.network(), sandbox, **led)
    succeeded(call)
    assert ITSELF in call.stderr.decode()
    assert other.socket in call.stderr.decode()
    assert (live.states(), other.states()) == (["ready"], [])
    for directory in ("STATE_DIR", "RUN_DIR"):
        half = {f"USERSPACE_CNI_{directory}": other.environ[f"USERSPACE_CNI_{directory}"], **led}
        assert ITSELF in live.run_handed("CHECK", live.network(), sandbox, container(1), **half).stderr.decode()
    succeeded(live.run_handed("DEL", live.network(), sandbox, **led))
    live.require_clean()
    other.require_clean()
    other.await_served(ADD=0, DEL=0)


def test_a_link_to_the_directories(live: LiveNode, sandbox: str) -> None:
    """Another path to the agent's directories means the same agent."""
    live.start()
    link = live.directory / "link"
    link.symlink_to(live.directory)
    spelled = {"USERSPACE_CNI_STATE_DIR": f"{link}/state/", "USERSPACE_CNI_RUN_DIR": f"{link}//run"}
    succeeded(live.run_handed("ADD", live.network(), sandbox, **spelled))
    succeeded(live.run_handed("DEL", live.network(), sandbox, **spelled))
    live.await_served(ADD=1, DEL=1)
    live.require_clean()


def test_an_agent_that_is_stopped(live: LiveNode, sandbox: str) -> None:
    """While an agent has SIGSTOP the process serves the call itself.

    When the agent continues it does nothing for withdrawn calls.
    """
    live.start()
    network = live.network()
    pause(live.pid)
    try:
        call = live.run_handed("ADD", network, sandbox)
    finally:
        os.kill(live.pid, signal.SIGCONT)
    succeeded(call)
    assert "does not read" in call.stderr.decode()
    attached = row_of(live)
    live.tick(2)
    live.await_served(ADD=0)
    # a pass that came before the copy of OVSDB was up to date has made the port that is there once more, and nothing else
    assert live.metric("reconcile_actions_total") == live.done("again-port")
    assert (row_of(live), live.states()) == (attached, ["ready"])
    succeeded(live.run_handed("DEL", network, sandbox))
    live.require_clean()


@pytest.mark.parametrize("until", ["before port", "after port", "after writing ready"])
def test_the_agent_is_killed_amid_add(live: LiveNode, sandbox: str, until: str) -> None:
    """The ADD is answered with 11, because it may be done; the runtime's DEL, which the process serves, leaves nothing."""
    network = live.network("1.0.0", ipam=live.host_local())
    live.start(until=until)
    refused(live.run_handed("ADD", network, sandbox), 11, live.socket)
    live.await_death()
    assert len(live.states()) == 1
    succeeded(live.run_handed("DEL", network, sandbox))
    live.require_clean()
    succeeded(live.run_handed("ADD", network, sandbox))
    succeeded(live.run_handed("DEL", network, sandbox))
    live.require_clean()


@pytest.mark.parametrize("until", ["before undo port", "after undo port"])
def test_the_agent_is_killed_amid_del(live: LiveNode, sandbox: str, until: str) -> None:
    """The process finishes the DEL, and answers success."""
    network = live.network("1.0.0", ipam=live.host_local())
    live.start(until=until)
    succeeded(live.run_handed("ADD", network, sandbox))
    call = live.run_handed("DEL", network, sandbox)
    succeeded(call)
    assert ITSELF in call.stderr.decode()
    live.await_death()
    live.require_clean()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_process_is_stopped_amid_add(live: LiveNode, sandbox: str, number: signal.Signals) -> None:
    """The agent sees the end of the connection and undoes the ADD; a runtime that ended the process gets 11."""
    live.start()
    with paused_vswitchd(switch_of(live)):
        process = start(live, live.variables("ADD", sandbox), json.dumps(live.network()).encode(), executable=live.standalone)
        wait_until(lambda: live.states() == ["applying"], what="an ADD under way")
        process.send_signal(number)
        call = finish(process, "ADD")
    if number == signal.SIGTERM:
        refused(call, 11, "SIGTERM")
    else:
        assert call.status == -number
    live.await_clean()


def test_an_agent_that_is_stopping(live: LiveNode, sandbox: str) -> None:
    """When an agent drains and has removed its socket, the process serves calls at once.

    Calls that the agent has are answered.
    """
    live.start()
    delegate = scripted(live)
    with held(delegate, "ADD", answer={"cniVersion": "1.1.0", "ips": [{"address": "10.9.9.9/24"}]}) as running:
        process = start(
            live,
            live.variables("ADD", sandbox),
            json.dumps(live.network(ipam=ipam(delegate))).encode(),
            executable=live.standalone,
        )
        running()
        live.ask_to_end()
        wait_until(lambda: not Path(live.socket).exists(), what="the agent to take its socket away")
        succeeded(live.run_handed("ADD", live.network(), sandbox, container(2)))
    finish(process, "ADD")
    assert live.await_end() == 0
    succeeded(live.run_handed("DEL", live.network(ipam=ipam(delegate)), sandbox))
    succeeded(live.run_handed("DEL", live.network(), sandbox, container(2)))
    live.require_clean()


def test_an_add_whose_answer_cannot_be_written(live: LiveNode, sandbox: str) -> None:
    """When stdout cannot be written, the agent undoes the ADD."""
    live.start()
    with Path("/dev/full").open("wb") as full:
        environ = live.variables("ADD", sandbox)
        process = start(live, environ, json.dumps(live.network()).encode(), executable=live.standalone, stdout=full)
        assert finish(process, "ADD").status == 1
    live.require_clean()
    live.await_served(ADD=1, DEL=1)


def test_another_users_socket(live: LiveNode, sandbox: str) -> None:
    """Nothing is sent to a listener of another user: the process serves the call, and names the user."""
    for directory in (live.directory.parent, live.directory):
        directory.chmod(0o755)
    place = live.directory / "theirs"
    place.mkdir(mode=0o777)
    place.chmod(0o777)
    path = str(place / "s")
    script = (
        "import socket,sys; s=socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(); print(flush=True); "
        "c,_=s.accept(); print(len(c.recv(9999)))"
    )
    argv = ["/usr/bin/python3", "-I", "-c", script, path]
    with subprocess.Popen(argv, user=65534, group=65534, stdout=subprocess.PIPE) as theirs:
        assert theirs.stdout
        theirs.stdout.readline()
        call = live.run_handed("ADD", live.network(), sandbox, USERSPACE_CNI_SOCKET=path)
        assert theirs.stdout.read() == b"0\n"
    succeeded(call)
    assert "user 65534" in call.stderr.decode()
    succeeded(live.run_handed("DEL", live.network(), sandbox))
    live.require_clean()


def test_one_container_from_all_sides(live: LiveNode, sandbox: str) -> None:
    """When ADDs of one name come at once, by the shim, handed over and in-process, exactly one succeeds."""
    live.start()
    network = live.network("1.0.0", ipam=live.host_local())
    ways = [live.run, live.run_handed, live.run_standalone] * 3
    with ThreadPoolExecutor(len(ways)) as threads:
        calls = list(threads.map(lambda run: run("ADD", network, sandbox, CONTAINER), ways))
    assert sorted(call.code or 0 for call in calls) == [0] + [101] * 8
    assert switch_of(live).ports("br-test") == [port_of()]
    succeeded(live.run_handed("DEL", network, sandbox))
    live.require_clean()
