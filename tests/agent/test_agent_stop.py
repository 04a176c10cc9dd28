"""When the agent is told to end, running calls finish or are undone, and the next agent finds nothing to repair."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.agent.living import LiveNode, container
from tests.cni.spec import finish, held, ipam, paused_vswitchd, refused, row_of, scripted, start, succeeded, switch_of
from tests.lab.node.agent import GIVES_UP_SOON, Agent, install_shim
from tests.lab.node.node import Node
from tests.lab.switch.switch import FOR_EVER_S, wait_until

TGKILL = 234
"""The system call that sends a signal to one thread; no library wraps it."""
SOON_S = 0.3
"""How long an ending agent waits for a call that, as the test knows, hangs."""


def ended(live: LiveNode) -> None:
    """The agent ends in an orderly way, and its socket is gone."""
    assert live.end() == 0
    assert not os.path.lexists(live.socket)


def test_idle(live: LiveNode, sandbox: str) -> None:
    """An agent without work ends at once, also on two signals together, and its ports stay."""
    live.start()
    succeeded(live.run("ADD", live.network(), sandbox))
    before = row_of(live)
    os.kill(live.pid, signal.SIGSTOP)  # it is told both before it can have ended
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCONT):
        os.kill(live.pid, number)
    assert live.await_end() == 0
    assert not os.path.lexists(live.socket)
    assert row_of(live) == before
    live.start()
    assert row_of(live) == before
    succeeded(live.run("DEL", live.network(), sandbox))
    ended(live)
    live.require_clean()


def test_whichever_thread_is_given_the_signal(live: LiveNode) -> None:
    """The kernel may deliver the signal to any thread, such as one that starts an IPAM plugin: the agent ends all the same."""
    live.start()
    others = [int(task.name) for task in Path(f"/proc/{live.pid}/task").iterdir() if int(task.name) != live.pid]
    assert ctypes.CDLL(None).syscall(TGKILL, live.pid, others[0], signal.SIGTERM) == 0
    code = live.await_end()
    assert code == 0, live.log.read_text()[-8000:]


def test_with_an_add_that_comes_to_its_end(live: LiveNode, sandbox: str) -> None:
    """An ADD that takes a moment more is answered and stays, also when the agent is told to end a second time.

    No other call is accepted meanwhile.
    """
    live.start(FINISH_S=FOR_EVER_S)
    with paused_vswitchd(switch_of(live)):
        process = start(live, live.variables("ADD", sandbox), json.dumps(live.network()).encode())
        wait_until(lambda: switch_of(live).bridges(), what="the port's rows")
        live.ask_to_end()
        wait_until(lambda: not os.path.lexists(live.socket), what="no socket")
        refused(live.run("STATUS", live.network()), 50, live.socket)
        refused(live.run("GC", {**live.network(), "cni.dev/valid-attachments": []}), 11, live.socket)
        live.ask_to_end()
    succeeded(finish(process, "ADD"))
    assert live.await_end() == 0
    assert not os.path.lexists(live.socket)
    before = row_of(live)
    assert live.states() == ["ready"]
    live.start()
    live.tick()
    assert row_of(live) == before
    succeeded(live.run("DEL", live.network(), sandbox))
    live.require_clean()


@pytest.mark.parametrize("mode", ["client", "server"])
def test_with_an_add_that_does_not(live: LiveNode, sandbox: str, mode: str) -> None:
    """ADDs that wait for a hanging switch are ended with 11, and the next agent leaves nothing of them."""
    live.settings["USERSPACE_CNI_DEADLINE_S"] = str(FOR_EVER_S)
    live.start(FINISH_S=SOON_S)
    network = live.network("1.0.0", ipam=live.host_local())
    network["host"]["vhost"]["mode"] = mode
    names = [container(number) for number in range(5)]
    with paused_vswitchd(switch_of(live)):
        stdin = json.dumps(network).encode()
        processes = [start(live, live.variables("ADD", sandbox, name), stdin) for name in names]
        wait_until(lambda: len(switch_of(live).bridges() and switch_of(live).ports("br-test")) == 5, what="the ports' rows")
        ended(live)
        for process in processes:
            refused(finish(process, "ADD"), 11)
        live.start()
        live.await_clean()


def test_with_verbs_in_the_ipam_plugin(live: LiveNode, sandbox: str) -> None:
    """A hanging IPAM plugin does not delay the end any longer; the DEL is spooled, and the next agent finishes both."""
    live.settings["USERSPACE_CNI_DEADLINE_S"] = str(FOR_EVER_S)
    live.start(FINISH_S=SOON_S)
    adding, deleting = scripted(live, "adding"), scripted(live, "deleting")
    old = live.network(ipam=ipam(deleting))
    new = live.network(ipam=ipam(adding))
    succeeded(live.run("ADD", old, sandbox, container(1)))
    with held(adding, "ADD", answer={}) as in_add, held(deleting, "DEL") as in_del:
        add = start(live, live.variables("ADD", sandbox, container(2)), json.dumps(new).encode())
        delete = start(live, live.variables("DEL", sandbox, container(1)), json.dumps(old).encode())
        in_add()
        in_del()
        ended(live)
        refused(finish(add, "ADD"), 11)
        succeeded(finish(delete, "DEL"))
    live.start()
    live.await_clean()


def test_second_agent(node: Node) -> None:
    """A second agent of the same socket says so and exits with 3; the first one goes on, and ends by SIGINT."""
    install_shim(node)
    first = Agent(node).start()
    try:
        argv = [sys.executable, "-c", GIVES_UP_SOON]
        again = subprocess.run(argv, env={**os.environ, **node.environ}, capture_output=True, text=True, timeout=60, check=False)
        assert again.returncode == 3
        assert f"another one serves {first.socket} (process {first.pid})" in again.stderr
        assert again.stderr.count("waiting for another process to end") == 1
        assert "Traceback" not in again.stderr
        assert first.get("/healthz")[0] == 200
        assert node.run("STATUS", node.network()).status == 0
        assert first.stop(signal.SIGINT) == 0
    finally:
        first.close()
    assert not Path(first.socket).exists()


def test_an_agent_after_another(node: Node) -> None:
    """An agent that is started while the former one ends replaces it; told to stop before that, it ends in an orderly way."""
    install_shim(node)
    first = Agent(node).start()
    second, third = Agent(node), Agent(node)
    try:
        third.start(wait=False)
        wait_until(lambda: "waiting for another process" in third.log.read_text(), what="the third one to say what it waits for")
        second.start(wait=False)
        assert third.stop() == 0
        assert first.stop() == 0
        wait_until(second.answers, what="the second one to serve")
        assert second.get("/healthz")[0] == 200
        assert node.run("STATUS", node.network()).status == 0
    finally:
        for agent in (first, second, third):
            agent.close()


def test_a_socket_that_can_not_be(node: Node) -> None:
    """An agent whose socket's place is taken by a file says so and exits with 2; the file stays."""
    run = node.directory / "run"
    run.mkdir(mode=0o700)
    (run / "agent.sock").write_text("mine")
    argv = [sys.executable, "-m", "userspace_cni", "agent"]
    done = subprocess.run(argv, env={**os.environ, **node.environ}, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert f"{run}/agent.sock: something else is in its place" in done.stderr
    assert "Traceback" not in done.stderr
    assert (run / "agent.sock").read_text() == "mine"
