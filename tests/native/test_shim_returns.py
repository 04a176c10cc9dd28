"""An agent that has ended and comes back: which verbs wait for it, for how long, and when none waits."""

from __future__ import annotations

import re
import resource
import signal
import socket

import pytest

from tests.lab.node.agentless import (
    BODY_MAX,
    NETWORK,
    RESULT,
    Agent,
    Caller,
    Done,
    answers,
    finish,
    give_stdin,
    knocks,
    refused,
    resets,
)
from tests.lab.switch.switch import wait_until

HOW = ("ended", "was killed")
"""How the former agent has ended: it removes its socket, or leaves a dead one. The lock's file stays."""
WAITED_MS = 2900
"""A shim that waits longer for an agent to come back."""


def left_by_an_agent(caller: Caller, how: str) -> None:
    """Make what an agent leaves that ended in this way."""
    lock(caller)
    if how == "was killed":
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(caller.socket))


def lock(caller: Caller) -> None:
    """The file of the lock of the agent's socket."""
    caller.socket.with_name(f"{caller.socket.name}.lock").touch()


def waited_ms(done: Done) -> int:
    """For how long the shim tried to connect, according to its own output."""
    found = re.search(r"connecting for (\d+) ms", done.stdout.decode() + done.stderr)
    assert found, done
    return int(found[1])


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("verb", ["ADD", "CHECK"])
def test_an_agent_that_comes_back(caller: Caller, verb: str, how: str) -> None:
    """ADD and CHECK wait for an agent that is restarted, and it gets one request."""
    left_by_an_agent(caller, how)
    with caller.start(verb) as process:
        give_stdin(process)
        wait_until(lambda: knocks(process), what="the shim to be refused")
        caller.socket.unlink(missing_ok=True)
        with Agent(caller.socket, answers(200, RESULT)) as agent:
            assert finish(process, None).stdout == RESULT
            assert agent.request


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("verb", ["ADD", "CHECK"])
def test_an_agent_that_does_not(impatient: Caller, verb: str, how: str) -> None:
    """After the time of a restart the answer is 11 with the reason; waiting costs almost no processor time."""
    left_by_an_agent(impatient, how)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = impatient.run(verb)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    refused(done, 11, "path is absent" if how == "ended" else "Connection refused")
    assert waited_ms(done) >= 500
    assert used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime < 0.3


@pytest.mark.parametrize(("verb", "code"), [("GC", 11), ("STATUS", 50)])
def test_verbs_that_do_not_wait(caller: Caller, verb: str, code: int) -> None:
    """GC and STATUS fail at once."""
    left_by_an_agent(caller, "was killed")
    done = caller.run(verb)
    refused(done, code, "Connection refused")
    assert waited_ms(done) < WAITED_MS


def test_del_does_not_wait(caller: Caller) -> None:
    """A DEL is spooled at once: it is done when the agent comes back."""
    left_by_an_agent(caller, "was killed")
    done = caller.run("DEL")
    assert (done.code, done.stdout, len(caller.entries)) == (0, b"", 1)
    assert waited_ms(done) < WAITED_MS


def test_where_no_agent_was(caller: Caller) -> None:
    """If there was no agent since the boot, no verb waits, whatever is at the socket's path."""
    done = caller.run("ADD")
    refused(done, 11, "path is absent")
    assert waited_ms(done) < WAITED_MS
    left_by_an_agent(caller, "was killed")
    caller.socket.with_name(f"{caller.socket.name}.lock").unlink()
    assert waited_ms(caller.run("ADD")) < WAITED_MS


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stopped_while_it_waits(caller: Caller, number: int) -> None:
    """A signal ends the waiting."""
    left_by_an_agent(caller, "ended")
    before = signal.signal(number, signal.default_int_handler)  # it may have been ignored when the tests were started
    try:
        with caller.start("ADD") as process:
            give_stdin(process)
            wait_until(lambda: knocks(process), what="the shim to be refused")
            process.send_signal(number)
            refused(finish(process, None), 11, f"signal {int(number)}")
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("size", [len(NETWORK), BODY_MAX], ids=["small", "more than fits into the socket"])
@pytest.mark.parametrize("verb", ["ADD", "CHECK"])
def test_an_agent_that_never_had_the_request(caller: Caller, verb: str, size: int) -> None:
    """A connection that was closed with bytes of the request unread or unsent is opened once more, and not a third time."""
    with Agent(caller.socket, resets, answers(200, RESULT)) as agent:
        assert caller.run(verb, NETWORK.ljust(size)).stdout == RESULT
        assert len(agent.received) == 2
    caller.socket.unlink()
    with Agent(caller.socket, resets) as agent:
        refused(caller.run(verb), 11, "broke the connection")
        assert len(agent.received) == 2


def test_killed_with_a_call_in_its_queue(caller: Caller) -> None:
    """A call that waited to be accepted by an agent that was stopped and killed is served by the next one."""
    lock(caller)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(caller.socket))
    listener.listen()
    with caller.start("ADD") as process:
        give_stdin(process)
        wait_until(lambda: knocks(process), what="the shim to wait for an answer")
        listener.close()
        caller.socket.unlink()
        with Agent(caller.socket, answers(200, RESULT)) as agent:
            assert finish(process, None).stdout == RESULT
            assert agent.request
