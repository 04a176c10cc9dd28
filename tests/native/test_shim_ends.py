"""The shim's stdin, stdout and stderr in every state, an ADD whose answer does not reach the runtime, and signals."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.lab.node.agentless import (
    NETWORK,
    RESULT,
    TROUBLE,
    Agent,
    Caller,
    Done,
    answers,
    finish,
    full_pipe,
    give_stdin,
    holds,
    refused,
    resets,
    waits,
)
from tests.lab.switch.switch import wait_until
from userspace_cni.cni import protocol


def without(caller: Caller, verb: str, closed: str) -> Done:
    """Run the shim with these descriptors closed, as `<&- >&-` in a shell's command."""
    command = ["sh", "-c", f'exec "$0" {closed}', caller.program]
    with subprocess.Popen(command, env=caller.environ(verb), stdin=-1, stdout=-1, stderr=-1) as process:
        give_stdin(process)
        return finish(process, None)


@pytest.mark.parametrize("verb", ["ADD", "DEL"])
def test_closed_stdin(caller: Caller, verb: str) -> None:
    """Without stdin the answer is 5, and nothing is sent or spooled."""
    with Agent(caller.socket, answers(200, RESULT)) as agent:
        refused(without(caller, verb, "<&-"), 5, "stdin", "Bad file descriptor")
        assert agent.received == []
    assert caller.entries == []


def test_stdin_that_is_a_directory(caller: Caller) -> None:
    """Stdin that cannot be read is 5."""
    stdin = os.open("/", os.O_RDONLY)
    try:
        with caller.start("ADD", stdin=stdin) as process:
            refused(finish(process, None), 5, "Is a directory")
    finally:
        os.close(stdin)


def test_stdin_of_nothing(caller: Caller) -> None:
    """Stdin of /dev/null is an empty configuration, which the agent refuses."""
    with Agent(caller.socket, answers(500, TROUBLE)) as agent, caller.start("ADD", stdin=subprocess.DEVNULL) as process:
        assert finish(process, None).stdout == TROUBLE
        assert agent.request.endswith(b"Content-Length: 0\r\nConnection: close\r\n\r\n")


def test_stdin_without_end(impatient: Caller) -> None:
    """A runtime that does not close stdin gets 5 at the deadline, for DEL too: there is no whole request to keep."""
    for verb in ("ADD", "DEL"):
        with impatient.start(verb) as process:
            assert process.stdin
            process.stdin.write(NETWORK)
            process.stdin.flush()
            assert process.wait(60) == 1
            assert process.stdout
            assert json.loads(process.stdout.read())["code"] == 5
    assert impatient.entries == []


def test_closed_stdout_and_stderr(caller: Caller) -> None:
    """With stdout and stderr closed nothing lands in the socket but the requests: the ADD, and the DEL that undoes it."""
    with Agent(caller.socket, answers(200, RESULT)) as agent:
        assert without(caller, "ADD", ">&- 2>&-").code == 1
        add, delete = (protocol.read_request(bytes(each)) for each in agent.received)
    assert (add[0].verb, delete[0].verb) == ("ADD", "DEL")
    assert add[1] == delete[1] == NETWORK


def test_all_closed(caller: Caller) -> None:
    """With nothing open it exits 1, and touches nothing."""
    with Agent(caller.socket, answers(200, RESULT)) as agent:
        assert without(caller, "ADD", "<&- >&- 2>&-").code == 1
        assert agent.received == []


def test_full_stderr(caller: Caller) -> None:
    """A stderr that no process reads does not delay a call."""
    reader, writer = full_pipe()
    with reader, writer:
        process = subprocess.Popen(
            [caller.program], env=caller.environ("ADD"), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=writer
        )
        with process:
            assert process.wait(60) == 1
            assert process.stdout
            assert json.loads(process.stdout.read())["code"] == 11


# -- an ADD whose answer does not arrive ----------------------------------------------------------------------------------------


def undone(agent: Agent) -> None:
    """The agent got an ADD, and then a DEL with the same variables and stdin."""
    add, delete = (protocol.read_request(bytes(each)) for each in agent.received)
    assert (add[0].verb, delete[0].verb) == ("ADD", "DEL")
    assert protocol.environment(add[0]) | {"CNI_COMMAND": "DEL"} == protocol.environment(delete[0])
    assert add[1] == delete[1] == NETWORK


def test_full_device_as_stdout(caller: Caller) -> None:
    """An ADD whose result does not fit on stdout is undone."""
    with Agent(caller.socket, answers(200, RESULT)) as agent, Path("/dev/full").open("wb") as full:
        with caller.start("ADD", stdout=full) as process:
            done = finish(process)
        assert done.code == 1
        assert "No space left" in done.stderr
        undone(agent)


def test_stdout_without_a_reader(caller: Caller) -> None:
    """An ADD whose runtime is gone is undone; its other verbs only fail."""
    reader, writer = os.pipe()
    os.close(reader)
    with Agent(caller.socket, answers(200, RESULT)) as agent, os.fdopen(writer, "wb") as broken:
        with caller.start("ADD", stdout=broken) as process:
            assert finish(process).code == 1
        undone(agent)
        with caller.start("CHECK", stdout=broken) as process:
            assert finish(process).code == 1
        with caller.start("VERSION", stdout=broken) as process:
            assert finish(process).code == 1
        assert len(agent.received) == 3


def test_refused_add_is_not_undone(caller: Caller) -> None:
    """A refused ADD is not undone by a DEL: the agent has undone it itself."""
    with Agent(caller.socket, answers(500, TROUBLE)) as agent, Path("/dev/full").open("wb") as full:
        with caller.start("ADD", stdout=full) as process:
            assert finish(process).code == 1
        assert len(agent.received) == 1


def test_stdout_that_is_never_read(impatient: Caller) -> None:
    """A runtime that reads nothing is given up at the deadline: the ADD's DEL is spooled, and no byte of an error follows."""
    reader, writer = full_pipe()
    with Agent(impatient.socket, answers(200, RESULT), resets), reader, writer:
        with impatient.start("ADD", stdout=writer) as process:
            assert finish(process).code == 1
        assert len(impatient.entries) == 1
        writer.close()
        assert set(reader.read()) == {ord("x")}


def test_undo_without_an_agent(caller: Caller) -> None:
    """When the agent dies after its answer to ADD, the DEL that undoes it is spooled."""
    with Agent(caller.socket, answers(200, RESULT), resets) as agent, Path("/dev/full").open("wb") as full:
        with caller.start("ADD", stdout=full) as process:
            assert finish(process).code == 1
        assert len(agent.received) == 2
    assert len(caller.entries) == 1
    head, body = protocol.read_request(caller.entries[0].read_bytes())
    assert (head.verb, body) == ("DEL", NETWORK)


def test_undo_that_is_refused(caller: Caller) -> None:
    """When the DEL that undoes an ADD is refused, stderr says so."""
    with Agent(caller.socket, answers(200, RESULT), answers(500, TROUBLE)), Path("/dev/full").open("wb") as full:
        with caller.start("ADD", stdout=full) as process:
            done = finish(process)
        assert "not undone" in done.stderr
    assert caller.entries == []


# -- signals ------------------------------------------------------------------------------------------------------------------


@contextmanager
def disposition(number: int, action: Any) -> Iterator[None]:
    """Start children with this signal ignored, or not: the process that started the tests may have ignored it."""
    before = signal.signal(number, action)
    try:
        yield
    finally:
        signal.signal(number, before)


def signalled(caller: Caller, verb: str, number: int) -> Done:
    """Send a signal to a call once the agent has its request."""
    with disposition(number, signal.default_int_handler), Agent(caller.socket, holds()) as agent, caller.start(verb) as process:
        give_stdin(process)
        wait_until(lambda: agent.received and agent.received[0].endswith(NETWORK), what="the request")
        process.send_signal(number)
        done = finish(process, None)
        assert agent.ended.wait(60)
    return done


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_stopped_add(caller: Caller, number: int) -> None:
    """An ADD that is told to stop closes its connection, which the agent notices, and answers 11."""
    refused(signalled(caller, "ADD", number), 11, f"signal {int(number)}")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_stopped_del(caller: Caller, number: int) -> None:
    """A DEL that is told to stop is spooled first."""
    done = signalled(caller, "DEL", number)
    assert (done.code, done.stdout) == (0, b"")
    assert len(caller.entries) == 1


def test_ignored_signal(caller: Caller) -> None:
    """A signal that the runtime ignores, as under nohup, is ignored here too."""
    with disposition(signal.SIGHUP, signal.SIG_IGN), Agent(caller.socket, answers(200, RESULT)), caller.start("ADD") as process:
        wait_until(partial(waits, process), what="the shim to wait")
        process.send_signal(signal.SIGHUP)
        assert finish(process).stdout == RESULT


def test_stopped_before_stdin_ended(caller: Caller) -> None:
    """A call that is told to stop before it has its input answers 11; there is nothing to spool."""
    for verb in ("ADD", "DEL"):
        with caller.start(verb) as process:
            wait_until(partial(waits, process), what="the shim to wait")
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 1
            assert process.stdout
            assert json.loads(process.stdout.read())["code"] == 11
    assert caller.entries == []


def test_killed_add(caller: Caller) -> None:
    """An ADD that is killed closes its connection."""
    with Agent(caller.socket, holds()) as agent, caller.start("ADD") as process:
        give_stdin(process)
        wait_until(lambda: agent.received and agent.received[0].endswith(NETWORK), what="the request")
        process.kill()
        assert agent.ended.wait(60)


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize(
    "value", [b"web", b"a\nlevel=error", b'x" msg="forged', b"\x1b[31m\xff\xc3", b"a=b c", b"\\", b"n" * 9000, b"\x01" * 9000]
)
def test_no_value_forges_a_line(caller: Caller, form: str, value: bytes) -> None:
    """Each line has time, verb, pod, container and interface, and is one line of printable ASCII, whatever the pod's name is."""
    args = b"IgnoreUnknown=1;K8S_POD_NAMESPACE=blue;K8S_POD_NAME=" + value
    done = caller.run("DEL", CNI_ARGS=args, CNI_IFNAME=b"net1", USERSPACE_CNI_LOG_FORMAT=form)
    [line] = done.stderr.splitlines()
    assert line.isascii()
    assert line.isprintable()
    assert len(line) < 4096
    if form == "json":
        told = json.loads(line)
    else:
        found = list(re.finditer(r'([a-z]+)=("(?:[^"\\]|\\.)*"|[^ "=\\]+)(?: |$)', line))
        assert "".join(each[0] for each in found) == line
        told = {each[1]: json.loads(each[2]) if each[2].startswith('"') else each[2] for each in found}
    assert list(told) == ["time", "level", "msg", "verb", "pod", "container", "interface", "details"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", told["time"])
    assert (told["level"], told["verb"], told["interface"]) == ("error" if done.code else "warning", "DEL", "net1")
    assert told["pod"].startswith("blue/")
    assert ("CNI_ARGS holds a control character" in told["msg"]) == (done.code == 1)  # they are told of, and refused
    if value == b"web":
        assert told["pod"] == "blue/web"
