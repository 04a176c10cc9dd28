"""Callers that die, close, stall or send nonsense: an ADD whose result was lost is undone, and no other caller is affected."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from tests.agent.living import LiveNode, container, port_of, request
from tests.cni.spec import PORT, finish, kill, paused_vswitchd, row_of, start, succeeded, switch_of
from tests.lab.node.front import answer_on
from tests.lab.switch.switch import pause, wait_until

IDLE = 1000
FLOOD = b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 50000
UNDONE = "an ADD whose caller has gone is undone"


@contextmanager
def connected(live: LiveNode, raw: bytes = b"") -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(60)
        peer.connect(live.socket)
        peer.sendall(raw)
        yield peer


def attached(live: LiveNode) -> bool:
    """Whether the record says that the attachment is complete."""
    return live.states() == ["ready"]


def test_shim_is_killed(live: LiveNode, sandbox: str) -> None:
    """The runtime kills its plugin while the switch works: the ADD that succeeds later is undone."""
    live.start()
    network = live.network("1.0.0", ipam=live.host_local())
    with paused_vswitchd(switch_of(live)):
        process = start(live, live.variables("ADD", sandbox), json.dumps(network).encode())
        wait_until(lambda: switch_of(live).bridges(), what="the port's rows")
        kill(process)
    wait_until(lambda: UNDONE in live.log.read_text(), what="the agent's line")
    live.await_clean()


def test_nobody_reads_the_shims_output(live: LiveNode, sandbox: str) -> None:
    """When the shim cannot print a result, it undoes the ADD by a DEL of its own, before it ends."""
    live.start()
    network = live.network("1.0.0", ipam=live.host_local())
    process = start(live, live.variables("ADD", sandbox), json.dumps(network).encode())
    assert process.stdout
    process.stdout.close()
    process.stdout = None
    assert finish(process, "ADD").status != 0
    live.await_clean()
    with full_device() as full:
        failed = start(live, live.variables("ADD", sandbox), json.dumps(network).encode(), stdout=full)
        assert finish(failed, "ADD").status != 0
    live.await_clean()


@contextmanager
def full_device() -> Iterator[int]:
    """A descriptor on which every write fails."""
    fd = os.open("/dev/full", os.O_WRONLY)
    try:
        yield fd
    finally:
        os.close(fd)


def test_half_closed(live: LiveNode, sandbox: str) -> None:
    """A client that closes its writing side after the request still gets its answer, and the attachment stays."""
    live.start()
    with connected(live, request(live, "ADD", live.network(), sandbox)) as peer:
        peer.shutdown(socket.SHUT_WR)
        reply = answer_on(peer)
    assert reply.status == 200
    assert json.loads(reply.body)["interfaces"][0]["sandbox"] == sandbox
    live.tick()
    assert attached(live)
    succeeded(live.run("DEL", live.network(), sandbox))
    live.require_clean()


@pytest.mark.parametrize("read", [0, 1, 100])
def test_an_answer_that_is_not_read_to_its_end(live: LiveNode, sandbox: str, read: int) -> None:
    """A caller that closes with part of the answer unread has no result: the attachment is undone."""
    live.start()
    with connected(live, request(live, "ADD", live.network(), sandbox)) as peer:
        wait_until(lambda: attached(live), what="a ready record")
        assert len(peer.recv(read)) == read
    live.await_clean()
    assert UNDONE in live.log.read_text()


def test_closed_while_the_switch_works(live: LiveNode, sandbox: str) -> None:
    """Twenty callers that hang up while their ADD runs leave nothing."""
    live.start()
    with paused_vswitchd(switch_of(live)), ExitStack() as peers:
        for number in range(20):
            name = container(number)
            peers.enter_context(connected(live, request(live, "ADD", live.network(), sandbox, name)))
        wait_until(lambda: len(live.states()) == 20, what="twenty ADDs under way")
        wait_until(lambda: switch_of(live).bridges(), what="rows")
    live.await_clean()


def test_what_came_after_the_lost_one_is_not_hurt(live: LiveNode, sandbox: str) -> None:
    """When the loss of an answer is noticed only after a DEL and a new ADD of the same name, the new attachment stays."""
    live.start()
    network = live.network()
    with connected(live, request(live, "ADD", network, sandbox)):
        wait_until(lambda: attached(live), what="a ready record")
        first = row_of(live)
        succeeded(live.run("DEL", network, sandbox))
        succeeded(live.run("ADD", network, sandbox))
        second = row_of(live)
        assert second["_uuid"] != first["_uuid"]
    wait_until(lambda: UNDONE in live.log.read_text(), what="the agent's line")
    live.tick(2)
    assert row_of(live) == second
    assert attached(live)
    succeeded(live.run("DEL", network, sandbox))
    live.require_clean()


def test_hostile_peers(live: LiveNode, sandbox: str) -> None:
    """Idle connections, a slow writer, garbage, many headers and another protocol do not affect the shim's callers."""
    live.start()
    network = live.network()
    whole = request(live, "ADD", network, sandbox, container(99))
    with ExitStack() as peers:
        idle = [peers.enter_context(connected(live)) for _ in range(IDLE)]
        slow = peers.enter_context(connected(live))
        wait_until(lambda: live.metric("connections") > IDLE, what="all connections")
        for number in range(8):
            slow.sendall(whole[number : number + 1])
            with connected(live, os.urandom(4096) + b"\r\n\r\n") as garbage, connected(live, FLOOD) as flood:
                peers.enter_context(connected(live, os.urandom(4096)))
                succeeded(live.run("ADD", network, sandbox, container(number)))
                assert answer_on(garbage).status == 400
                assert answer_on(flood).status == 431
            other = whole.replace(b"Userspace-Cni-Protocol: 1", b"Userspace-Cni-Protocol: 7")
            with connected(live, other) as newer:
                reply = answer_on(newer)
            assert (reply.status, json.loads(reply.body)["code"]) == (400, 111)
            assert live.page("/healthz")[0] == 200
        assert switch_of(live).ports("br-test") == [port_of(container(number)) for number in range(8)]
        idle[0].sendall(request(live, "DEL", network, sandbox, container(0)))
        assert answer_on(idle[0]).status == 200
        for number in range(8):
            succeeded(live.run("DEL", network, sandbox, container(number)))
    live.require_clean()
    wait_until(lambda: live.metric("connections") < 10, what="the end of the connections")
    assert live.end() == 0


def test_another_user(live: LiveNode, sandbox: str) -> None:
    """A process of another user that can reach the socket is answered 403, and nothing is done for it."""
    live.start()
    path = live.directory / "run" / "agent.sock"
    for each in (*path.parents[:3], path):
        each.chmod(0o777)
    raw = request(live, "ADD", live.network(), sandbox)
    script = "import socket,sys; s=socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); print(s.recv(9999).decode())"
    done = subprocess.run(
        ["/usr/bin/python3", "-I", "-c", script, str(path)], user=65534, group=65534, capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith("HTTP/1.1 403 "), done.stderr
    assert raw
    assert live.leftovers() == {}
    assert PORT not in live.log.read_text()


def test_a_del_whose_caller_is_dead_is_served_late(live: LiveNode, sandbox: str) -> None:
    """A DEL that waits in the agent's socket, its caller dead, does not undo an ADD that was called after it."""
    live.start()
    stdin = json.dumps(live.network()).encode()
    for _ in range(5):
        pause(live.pid)
        try:
            late = start(live, live.variables("DEL", sandbox), stdin)
            wait_until(partial(_has_sent, late.pid), what="the DEL to be in the agent's socket")
            kill(late)
            adding = start(live, live.variables("ADD", sandbox), stdin)
        finally:
            os.kill(live.pid, signal.SIGCONT)
        succeeded(finish(adding, "ADD"))
        wait_until(lambda: live.metric("workers_busy") == 0, what="the late DEL to be served")
        assert live.states() == ["ready"]
        succeeded(live.run("DEL", live.network(), sandbox))
    live.require_clean()


def _has_sent(pid: int) -> bool:
    """Whether the process waits on a socket: its request is in the kernel then."""
    with suppress(OSError):
        names = [str(each.readlink()) for each in Path(f"/proc/{pid}/fd").iterdir()]
        return any(name.startswith("socket:") for name in names) and "poll" in Path(f"/proc/{pid}/wchan").read_text()
    return False
