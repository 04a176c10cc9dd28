"""The shim between a runtime and an agent: the bytes on the socket, its output, and what an agent can do to it."""

from __future__ import annotations

import os
import re
import socket
import time
from pathlib import Path
from typing import Self

import pytest

from tests.lab.node.agentless import (
    ANSWER_MAX,
    BODY_MAX,
    HEAD_END,
    NETWORK,
    NO_ANSWERS,
    RESULT,
    TROUBLE,
    Agent,
    Caller,
    answers,
    dribbles,
    finish,
    give_stdin,
    holds,
    knocks,
    read_request,
    refused,
    reply,
)
from tests.lab.switch.switch import wait_until
from userspace_cni.cni import protocol

TRAVELLING = tuple(protocol.VARIABLES)
EXPECTED_HEAD = """\
POST /api/v1/add HTTP/1.1
Host: userspace-cni
Userspace-Cni-Protocol: 1
Cni-Containerid: 0123456789ab
Cni-Netns: /run/netns/x
Cni-Ifname: net1
Cni-Args: A=%FF%20b;C=%22%25%C3%A9
Cni-Path: /opt/cni/bin
Cni-Netns-Override: true
Traceparent: 00-af
Tracestate: a=1
Baggage: k
Userspace-Cni-State-Dir: STATE
Content-Length: 54
Connection: close"""
CALLED = rb"Called-Boot-Id: ([0-9a-f-]{36})\r\nCalled-Boottime-Ns: ([0-9]+)\r\n"
"""The time of the call, which differs in each request."""
EXPECTED = EXPECTED_HEAD.replace("\n", "\r\n").encode() + HEAD_END + NETWORK


# -- the request --------------------------------------------------------------------------------------------------------------


def test_request_bytes(caller: Caller) -> None:
    """The bytes on the socket are the protocol's: a header per variable in its order, all but plain bytes percent-encoded."""
    before = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    with Agent(caller.socket, answers(200, RESULT)) as agent:
        caller.run(
            "ADD",
            CNI_ARGS=b'A=\xff b;C="%\xc3\xa9',
            CNI_NETNS_OVERRIDE="true",
            TRACEPARENT="00-af",
            TRACESTATE="a=1",
            BAGGAGE="k",
        )
        mark = re.search(CALLED, agent.request)
        assert mark
        assert mark[1].decode() == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        assert before < int(mark[2]) < time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        expected = EXPECTED.replace(b"STATE", str(caller.directory / "state").encode())
        assert agent.request.replace(mark[0], b"", 1) == expected


@pytest.mark.parametrize("verb", ["ADD", "DEL", "CHECK", "GC", "STATUS"])
def test_request_is_read_back(caller: Caller, verb: str) -> None:
    """The agent's own reader gets every byte that a variable and stdin can have, and the verb."""
    value = bytes(byte for byte in range(0x20, 0x100) if byte != 0x7F)
    with Agent(caller.socket, answers(200, b"{}")) as agent:
        caller.run(verb, value * 2, **dict.fromkeys(TRAVELLING, value))
        head, body = protocol.read_request(agent.request)
    assert body == value * 2
    assert protocol.environment(head) == {"CNI_COMMAND": verb} | dict.fromkeys(TRAVELLING, os.fsdecode(value))


def test_only_what_is_set_travels(caller: Caller) -> None:
    """Empty variables, other CNI_* and the rest of the runtime's environment are not sent."""
    secrets = {"CNI_SECRET": "x", "KUBECONFIG": "x", "HOME": "x", "HTTP_PROXY": "x", "cni_args": "x"}
    with Agent(caller.socket, answers(200)) as agent:
        caller.run("GC", CNI_CONTAINERID="", CNI_NETNS=None, CNI_IFNAME="", CNI_ARGS=None, **secrets)
        head, _ = protocol.read_request(agent.request)
    assert protocol.environment(head) == {"CNI_COMMAND": "GC", "CNI_PATH": "/opt/cni/bin"}
    added = {"called-boot-id", "called-boottime-ns", "userspace-cni-state-dir"}
    assert set(head.headers) == {"host", "userspace-cni-protocol", "cni-path", "content-length", "connection"} | added


def test_the_agent_that_is_meant(caller: Caller) -> None:
    """The state directory is sent, unless the environment names a socket alone; the run directory only when it names one."""
    state = str(caller.directory / "state")
    named = {"USERSPACE_CNI_RUN_DIR": "/run/ü", "USERSPACE_CNI_STATE_DIR": "/other"}
    by_socket = {"USERSPACE_CNI_SOCKET": str(caller.socket), "USERSPACE_CNI_STATE_DIR": None}
    with Agent(caller.socket, answers(200, RESULT)) as agent:
        caller.run("ADD")
        caller.run("ADD", USERSPACE_CNI_STATE_DIR=None, USERSPACE_CNI_SOCKET=None)
        caller.run("ADD", **named)
        caller.run("ADD", **by_socket)
        heads = [protocol.read_request(bytes(request))[0] for request in agent.received]
    assert [protocol.addressee(head) for head in heads] == [
        {"state_dir": state},
        {"state_dir": state},
        {"state_dir": "/other", "run_dir": "/run/ü"},
        {},
    ]


def test_all_that_travels_at_its_longest(caller: Caller) -> None:
    """The longest values fit the request, every byte of them encoded."""
    longest = {
        "USERSPACE_CNI_STATE_DIR": "/" + "%" * 248,
        "USERSPACE_CNI_RUN_DIR": "/" + "%" * 248,
    }
    others = sum(len(value) for name, value in caller.environ("ADD").items() if name in TRAVELLING and name != "CNI_ARGS")
    with Agent(caller.socket, answers(200, RESULT)) as agent:
        assert caller.run("ADD", CNI_ARGS="%" * (65536 - others), **longest).code == 0
        head, _ = protocol.read_request(agent.request)
    assert sorted(protocol.addressee(head).values()) == sorted(longest.values())


@pytest.mark.parametrize("size", [0, 1, BODY_MAX])
def test_stdin_of_any_size(caller: Caller, size: int) -> None:
    """Stdin is sent whole up to 4 MiB, through a socket that takes a part at a time."""
    stdin = os.urandom(1024) * (size // 1024) or b"x" * size
    with Agent(caller.socket, answers(200, RESULT)) as agent:
        assert caller.run("ADD", stdin).code == 0
        assert protocol.read_request(agent.request)[1] == stdin


def test_stdin_too_large(caller: Caller) -> None:
    """One byte more is 7, for DEL too, and nothing is sent."""
    with Agent(caller.socket, answers(200, RESULT)) as agent:
        for verb in ("ADD", "DEL"):
            with caller.start(verb) as process:
                give_stdin(process, b"x" * (BODY_MAX + 1))
                refused(finish(process, None), 7, "stdin is too large", str(BODY_MAX))
        assert agent.received == []
    assert caller.entries == []


# -- the answer ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("status", "code"), [(200, 0), (204, 0), (500, 1), (503, 1), (400, 1), (413, 1), (302, 1)])
def test_answer_is_printed(caller: Caller, status: int, code: int) -> None:
    """The body is stdout, byte for byte; 2xx exits 0 and everything else 1."""
    with Agent(caller.socket, answers(status, RESULT)):
        done = caller.run("ADD")
    assert (done.code, done.stdout) == (code, RESULT)


@pytest.mark.parametrize("verb", ["DEL", "CHECK", "GC", "STATUS"])
def test_empty_answer(caller: Caller, verb: str) -> None:
    """A verb other than ADD may succeed with an empty answer."""
    with Agent(caller.socket, answers(200)):
        done = caller.run(verb)
    assert (done.code, done.stdout, done.stderr) == (0, b"", "")


def test_empty_answer_to_add(caller: Caller) -> None:
    """An ADD with an empty answer fails."""
    with Agent(caller.socket, answers(200)):
        refused(caller.run("ADD"), 11, str(caller.socket), "answered nothing")


def test_answer_byte_by_byte(caller: Caller) -> None:
    """An answer may come in pieces of any size, cut anywhere."""
    answer = reply(200, RESULT)
    with Agent(caller.socket, dribbles(answer, len(answer))):
        assert caller.run("ADD").stdout == RESULT


def test_length_in_any_case(caller: Caller) -> None:
    """Header names match in upper and lower case; the shim does not wait for a server that keeps the connection open."""
    answer = b"HTTP/1.1 200 OK\r\nX-Content-Length: 9\r\ncontent-LENGTH:%d\r\n\r\n" % len(RESULT) + RESULT
    with Agent(caller.socket, holds(answer)):
        assert caller.run("ADD").stdout == RESULT


def test_huge_answer(caller: Caller) -> None:
    """An answer of 16 MiB is printed whole."""
    body = os.urandom(1 << 20).hex().encode() * 8
    assert len(body) == ANSWER_MAX
    with Agent(caller.socket, answers(200, body)):
        assert caller.run("CHECK").stdout == body


@pytest.mark.parametrize("kind", NO_ANSWERS)
def test_no_answer_to_add(caller: Caller, kind: str) -> None:
    """An answer that is not whole is 11 naming the socket, and no part of it is printed."""
    with Agent(caller.socket, NO_ANSWERS[kind]):
        refused(caller.run("ADD"), 11, str(caller.socket))


@pytest.mark.parametrize("kind", NO_ANSWERS)
def test_no_answer_to_del(caller: Caller, kind: str) -> None:
    """A DEL that got no whole answer is spooled: exit 0, nothing on stdout, one line on stderr that names socket and spool."""
    with Agent(caller.socket, NO_ANSWERS[kind]):
        done = caller.run("DEL")
    assert (done.code, done.stdout) == (0, b"")
    assert done.stderr.count("\n") == 1
    assert str(caller.socket) in done.stderr
    assert str(caller.spool) in done.stderr
    assert len(caller.entries) == 1


@pytest.mark.parametrize(("status", "spooled"), [(503, 1), (408, 1), (502, 1), (500, 0), (400, 0), (403, 0), (413, 0), (431, 0)])
def test_refusal_of_del(caller: Caller, status: int, spooled: int) -> None:
    """The answer to a DEL that the agent refused for good is printed; a DEL that the agent had no time for is spooled."""
    with Agent(caller.socket, answers(status, TROUBLE)):
        done = caller.run("DEL")
    assert (done.code, done.stdout) == ((0, b"") if spooled else (1, TROUBLE))
    assert len(caller.entries) == spooled


def test_answer_before_the_request_is_read(caller: Caller) -> None:
    """The answer of an agent that refuses a request by its head, and closes, is read."""

    def refuses(client: socket.socket) -> None:
        client.recv(10)
        client.sendall(reply(413, TROUBLE))

    with Agent(caller.socket, refuses):
        assert caller.run("ADD", b"x" * BODY_MAX).stdout == TROUBLE


# -- no agent -----------------------------------------------------------------------------------------------------------------


def away(caller: Caller, kind: str) -> str:
    """Make the socket what `kind` says; return the expected reason."""
    if kind == "left by a dead agent":
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(caller.socket))
        return "Connection refused"
    if kind == "a file":
        caller.socket.touch()
        return "Connection refused"
    if kind == "below a file":
        (caller.directory / "f").touch()
        caller.variables["USERSPACE_CNI_SOCKET"] = str(caller.directory / "f" / "s")
        return "Not a directory"
    return "path is absent"


@pytest.mark.parametrize("kind", ["absent", "left by a dead agent", "a file", "below a file"])
@pytest.mark.parametrize(("verb", "code"), [("ADD", 11), ("CHECK", 11), ("GC", 11), ("STATUS", 50)])
def test_agent_away(caller: Caller, kind: str, verb: str, code: int) -> None:
    """Without an agent a verb fails with its code, the socket and the reason, and what to look at."""
    reason = away(caller, kind)
    where = caller.variables.get("USERSPACE_CNI_SOCKET", str(caller.socket))
    refused(caller.run(verb), code, where, reason, "userspace-cni agent", "userspace-cni install")
    assert caller.entries == []


@pytest.mark.parametrize(("verb", "code"), [("ADD", 11), ("STATUS", 50)])
def test_silent_agent(impatient: Caller, verb: str, code: int) -> None:
    """The shim gives up an agent that never answers at the deadline, and closes the connection."""
    with Agent(impatient.socket, holds(b"HTTP/1.1 200 OK\r\n")) as agent:
        refused(impatient.run(verb), code, str(impatient.socket), "silent until the deadline")
        assert agent.ended.wait(60)


def test_silent_agent_amid_del(impatient: Caller) -> None:
    """A DEL whose agent never answers is spooled, with time left to do it."""
    with Agent(impatient.socket, holds()):
        done = impatient.run("DEL")
    assert (done.code, done.stdout) == (0, b"")
    assert len(impatient.entries) == 1


def test_agent_that_does_not_read(impatient: Caller) -> None:
    """The shim also gives up an agent that reads only a part of the request."""

    def stuck(client: socket.socket) -> None:
        client.recv(10)
        assert wait_until(lambda: impatient.entries)

    with Agent(impatient.socket, stuck):
        assert impatient.run("DEL", b"{" + b"x" * (BODY_MAX - 2) + b"}").code == 0


class FullBacklog:
    """A listener that accepts nothing and has no room."""

    def __init__(self, path: Path) -> None:
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen(0)
        self.waiting: list[socket.socket] = []
        try:
            while True:
                self.waiting.append(socket.socket(socket.AF_UNIX))
                self.waiting[-1].setblocking(False)
                self.waiting[-1].connect(str(path))
        except BlockingIOError:
            return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in [self.listener, *self.waiting]:
            each.close()


def test_full_backlog(impatient: Caller) -> None:
    """The shim gives up an agent that accepts no connection after a bounded time."""
    with FullBacklog(impatient.socket):
        refused(impatient.run("ADD"), 11, str(impatient.socket), "Resource temporarily unavailable")


def test_backlog_that_drains(caller: Caller) -> None:
    """The shim waits for an agent that accepts late."""
    with FullBacklog(caller.socket) as full, caller.start("ADD") as process:
        give_stdin(process)
        wait_until(lambda: knocks(process), what="the shim to find the backlog full")
        for _ in full.waiting[:-1]:
            full.listener.accept()[0].close()
        client, _ = full.listener.accept()
        with client:
            read_request(client)
            client.sendall(reply(200, RESULT))
        assert finish(process, None).stdout == RESULT
