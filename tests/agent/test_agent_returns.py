"""The agent is killed, stopped or replaced while ADDs come: they wait for the next one, and each is served exactly once."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest

from tests.agent.living import LiveNode, container
from tests.cni.spec import finish, paused_ovsdb, start, succeeded, switch_of
from tests.lab.node.agentless import PLAIN, build, filled, knocks
from tests.lab.switch.switch import pause, wait_until
from userspace_cni.base.settings import load

ADDS = 6


@pytest.fixture
def waiting(live: LiveNode, tmp_path: Path) -> LiveNode:
    """A node whose shim waits for an agent so long that a busy machine does not matter."""
    shim = build(tmp_path / "shim", *PLAIN, "-DRETURN_MS=30000")
    Path(live.plugin).write_bytes(filled(Path(shim).read_bytes(), load(live.environ)))
    return live


def adding(live: LiveNode, sandbox: str, count: int = ADDS) -> list[subprocess.Popen[bytes]]:
    """So many ADDs, of one container each, which wait for an agent."""
    stdin = json.dumps(live.network()).encode()
    processes = [start(live, live.variables("ADD", sandbox, container(number)), stdin) for number in range(count)]
    wait_until(lambda: all(knocks(each) for each in processes), what="the shims to wait")
    return processes


def require_served_once(live: LiveNode, sandbox: str, processes: list[subprocess.Popen[bytes]]) -> None:
    """Each ADD is answered, this agent has served each, none twice, and each DEL leaves nothing."""
    for process in processes:
        succeeded(finish(process, "ADD"))
    live.await_served(ADD=len(processes))
    assert len(switch_of(live).ports("br-test")) == len(processes)
    assert live.states() == ["ready"] * len(processes)
    for number in range(len(processes)):
        succeeded(live.run("DEL", live.network(), sandbox, container(number)))
    live.require_clean()


@pytest.mark.parametrize("how", ["kill", "end"])
def test_started_again_while_adds_wait(waiting: LiveNode, sandbox: str, how: str) -> None:
    """The second agent serves ADDs that come between two agents."""
    waiting.start()
    if how == "kill":
        waiting.kill()
    else:
        waiting.end()
    processes = adding(waiting, sandbox)
    waiting.start()
    require_served_once(waiting, sandbox, processes)


def test_killed_after_it_was_stopped(waiting: LiveNode, sandbox: str) -> None:
    """ADDs that a stopped agent never read are sent to the next one, once the first is killed."""
    waiting.start()
    pause(waiting.pid)
    processes = adding(waiting, sandbox)
    waiting.kill()
    waiting.start()
    require_served_once(waiting, sandbox, processes)


def test_stopped_for_a_while(waiting: LiveNode, sandbox: str) -> None:
    """After SIGCONT an agent serves the ADDs that came while it was stopped."""
    waiting.start()
    pause(waiting.pid)
    processes = adding(waiting, sandbox)
    os.kill(waiting.pid, signal.SIGCONT)
    require_served_once(waiting, sandbox, processes)


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_its_socket_is_not_in_place(waiting: LiveNode, sandbox: str, how: str) -> None:
    """While the agent's socket is missing or replaced by a dead one, ADDs wait until the agent has made it again."""
    waiting.start()
    pause(waiting.pid)
    Path(waiting.socket).unlink()
    if how == "replaced":
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(waiting.socket)
    processes = adding(waiting, sandbox)
    os.kill(waiting.pid, signal.SIGCONT)
    require_served_once(waiting, sandbox, processes)


def test_while_it_starts(waiting: LiveNode, sandbox: str) -> None:
    """An agent that still waits for the switch accepts calls: an ADD waits behind the DELs of the spool."""
    network, name = waiting.network(), container(0)
    waiting.start()
    succeeded(waiting.run("ADD", network, sandbox, name))
    waiting.kill()
    succeeded(waiting.run("DEL", network, sandbox, name))
    Path(waiting.socket).unlink()
    starting = Thread(target=waiting.start)
    with paused_ovsdb(switch_of(waiting)):
        starting.start()
        wait_until(lambda: Path(waiting.socket).is_socket(), what="the agent to listen")
        [process] = adding(waiting, sandbox, 1)
        assert waiting.log.read_text().count("the agent serves") == 1
    starting.join()
    succeeded(finish(process, "ADD"))
    assert (waiting.spooled(), waiting.states()) == ([], ["ready"])
    succeeded(waiting.run("DEL", network, sandbox, name))
    waiting.require_clean()


def test_a_start_that_fails(waiting: LiveNode, sandbox: str) -> None:
    """An agent that cannot start leaves no socket, and calls that had connected wait for the next one."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        waiting.start()
        waiting.end()
        processes = adding(waiting, sandbox, 1)
        argv = [sys.executable, "-m", "userspace_cni", "agent"]
        environ = {**os.environ, **waiting.environ, "USERSPACE_CNI_METRICS_LISTEN": listen}
        assert subprocess.run(argv, env=environ, capture_output=True, check=False).returncode == 3
    assert not Path(waiting.socket).exists()
    waiting.start()
    require_served_once(waiting, sandbox, processes)
