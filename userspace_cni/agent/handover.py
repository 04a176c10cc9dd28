"""Hands a call of the plugin as a process to the agent that serves the same directories: one connection, and no imports.

A Python process that serves a call itself spends nine tenths of its time on imports. Where an agent serves the same state and run
directory, it has all of them, and the switch's rows; so a call is sent to it as the shim sends it, before anything else of the
program is imported. Where none serves, or it refuses what means another agent, this process serves the call.

It must never have both serve an ADD: the agent's is undone when its answer is not taken, and could be taken for the other's. An
agent serves what it has received whole, so the last byte is kept back until it has read all others; where it does not, as one
that is stopped, it never has the whole. From that byte on the call is the agent's: when no answer comes, it may be served or not.
(One sign tells that it is not: a connection is reset, and not ended, when it is closed with bytes unread.)

It must import nothing that costs: not `socket`, whose enums cost as much as all that is done here, nor `typing`.
"""

from __future__ import annotations

import fcntl
import os
import sys
import termios
import time
from _socket import AF_UNIX, SO_PEERCRED, SOCK_CLOEXEC, SOCK_STREAM, SOL_SOCKET
from _socket import socket as Socket  # noqa: N812 -- a class

from userspace_cni.base.whereabouts import PREFIX, Whereabouts, whereabouts
from userspace_cni.cni.wire import (
    ADDRESSEE,
    BODY_MAX,
    BOOT_ID,
    BOOTTIME_NS,
    HEAD_MAX,
    VERBS_BY_TARGET,
    Answer,
    encoded,
    read_answer,
    request_bytes,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Final

PATIENCE_S: Final = 42.0
"""What the agent is waited for: more than its own 40 s, as the shim's."""
STATUS_S: Final = 10.0
"""The same for STATUS, for which runtimes hold everything else up."""
TAKEN_S: Final = 5.0
"""In which an agent that lives reads a request, however many callers it has: as long as the shim knocks."""
_NAP_S: Final = 0.0001
_NAP_MAX_S: Final = 0.01
_CHUNK: Final = 1 << 18
_BOOT_ID_FILE: Final = "/proc/sys/kernel/random/boot_id"
_TARGETS: Final[Mapping[str, str]] = {verb: target for target, verb in VERBS_BY_TARGET.items()}


class NotServed(Exception):
    """The agent has not begun this call and never will; the text names it and says why."""


class Unanswered(Exception):
    """The agent has the call and does not answer; the text names it and says how."""


class Called:
    """When this process was called: the boot, "" where the kernel does not say, and CLOCK_BOOTTIME in nanoseconds."""

    __slots__ = ("boot_id", "boottime_ns")

    def __init__(self) -> None:
        self.boottime_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        try:
            with open(_BOOT_ID_FILE, "rb") as file:  # noqa: PTH123 -- pathlib costs 3 ms
                self.boot_id = file.read().strip().decode()
        except (OSError, ValueError):
            self.boot_id = ""


def hand_over(environ: Mapping[str, str], read_stdin: Callable[[], bytes | None], called: Called) -> Answer | None:
    """Have the agent serve this call: its answer, whose body is for stdout; the call has succeeded with a status below 300.

    None where no agent serves, or the call is none for it. `read_stdin`, which returns None when it cannot, is asked when there
    is an agent. Raises NotServed, Unanswered.
    """
    verb = environ.get("CNI_COMMAND", "")
    target = _TARGETS.get(verb)
    meant = whereabouts(environ) if target and not environ.get(f"{PREFIX}DELEGATED") else None
    agent = _connected(meant.socket) if meant else None
    if target is None or meant is None or agent is None:
        return None
    try:
        _require_ours(agent)
        stdin = read_stdin()
        if stdin is None or len(stdin) > BODY_MAX:
            return None
        raw = request_bytes(target, environ, stdin, extra=_extra(meant, called))
        if len(raw) - len(stdin) > HEAD_MAX:
            return None
        _send(agent, raw)
        answer = _answer(agent, STATUS_S if verb == "STATUS" else PATIENCE_S)
        _require_result(answer, verb)
        return answer
    except (NotServed, Unanswered) as error:
        raise type(error)(f"the agent on {meant.socket} {error}") from None
    finally:
        agent.close()  # an agent that works for us undoes an ADD


def _connected(path: str) -> Socket | None:
    """A connection to the listener there; None where there is none, or one that has more callers than it takes."""
    try:
        agent = Socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC)
    except OSError:
        return None
    agent.settimeout(TAKEN_S)  # with a time limit a full queue is an error at once
    try:
        agent.connect(path)
    except OSError:
        agent.close()
        return None
    return agent


def _require_ours(agent: Socket) -> None:
    """Raise NotServed when another user listens: what he says would be told as root's word."""
    uid = int.from_bytes(agent.getsockopt(SOL_SOCKET, SO_PEERCRED, 12)[4:8], sys.byteorder)
    if uid not in (0, os.geteuid()):
        raise NotServed(f"is user {uid}'s")


def _extra(meant: Whereabouts, called: Called) -> dict[str, str]:
    """The headers that say which agent is meant, and when this process was called."""
    extra = {header: encoded(getattr(meant, key)) for key, header in ADDRESSEE.items()}
    return extra | ({BOOT_ID: called.boot_id, BOOTTIME_NS: str(called.boottime_ns)} if called.boot_id else {})


def _send(agent: Socket, raw: bytes) -> None:
    """Send the request, its last byte when all others are read. Raises NotServed: the agent then never has the whole."""
    nap, until = _NAP_S, time.monotonic() + TAKEN_S
    try:
        agent.sendall(raw[:-1])
        while any(fcntl.ioctl(agent.fileno(), termios.TIOCOUTQ, bytes(4))):
            if time.monotonic() > until:
                raise TimeoutError
            time.sleep(nap)
            nap = min(2 * nap, _NAP_MAX_S)
        agent.sendall(raw[-1:])
    except TimeoutError:
        raise NotServed(f"does not read what it is sent within {TAKEN_S:g} s") from None
    except OSError as error:
        raise NotServed(f"took no whole request: {error.strerror}") from None


def _answer(agent: Socket, seconds: float) -> Answer:
    """What the agent says. Raises NotServed, Unanswered."""
    received, until = bytearray(), time.monotonic() + seconds
    while True:
        try:
            agent.settimeout(max(until - time.monotonic(), _NAP_S))
            chunk = agent.recv(_CHUNK)
        except TimeoutError:
            raise Unanswered("was silent until the deadline") from None
        except ConnectionResetError:  # it was closed with our last byte unread
            raise NotServed("closed the connection before it had the request") from None
        if not chunk:
            raise Unanswered("closed the connection before it had answered")
        received += chunk
        try:
            answer = read_answer(received)
        except ValueError as error:
            raise Unanswered(f"says what is no answer: {error}") from None
        if answer:
            return answer


def _require_result(answer: Answer, verb: str) -> None:
    """Raise NotServed for a refusal by which no verb has run (`protocol.status_of`), Unanswered for what is no result."""
    if 400 <= answer.status < 500 or answer.status == 503:
        raise NotServed(f"refuses the call with HTTP status {answer.status}")
    if not answer.body and (answer.status >= 300 or verb == "ADD"):
        raise Unanswered("answered nothing")
