"""Hands a call of the plugin as a process to the agent that serves the same directories: one connection, and few imports.

A Python process that serves a call itself spends nine tenths of its time on imports. An agent of the same state and run directory
has imported everything and holds the switch's rows. So the call is sent to it, as the shim does, before anything else of the
program is imported. This process serves the call where no agent serves, or the agent refuses a call for another agent.

Both must never serve one ADD: the agent undoes an ADD whose answer is not taken, which could then undo this process's. An agent
serves a request once it is whole, so the last byte is sent only after the agent has read all others; an agent that is stopped
thus never has the whole request. After that byte, a call without an answer may have been served or not. Only a connection that
is reset, not ended, shows that it was not: the kernel does that when it is closed with bytes unread.

It must import nothing slow: neither `socket`, whose enums cost as much as everything else here, nor `typing`.
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
    AgentAnswer,
    encode_value,
    read_answer,
    request_bytes,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Final

PATIENCE_S: Final = 42.0
"""Seconds to wait for the answer: more than the agent's own 40 s, and as long as the shim waits."""
STATUS_S: Final = 10.0
"""The same for STATUS: runtimes do nothing else meanwhile."""
TAKEN_S: Final = 5.0
"""Seconds in which a live agent reads a request, however many callers it has: as long as the shim tries to connect."""
_NAP_S: Final = 0.0001
_NAP_MAX_S: Final = 0.01
_CHUNK: Final = 1 << 18
_BOOT_ID_FILE: Final = "/proc/sys/kernel/random/boot_id"
_TARGETS: Final[Mapping[str, str]] = {verb: target for target, verb in VERBS_BY_TARGET.items()}


class NotServed(Exception):
    """The agent has not begun this call and never will; the text names it and says why."""


class Unanswered(Exception):
    """The agent has the call and does not answer; the text names it and says how."""


class ProcessCalled:
    """When this process was called: the boot ("" where the kernel does not say), and CLOCK_BOOTTIME in nanoseconds."""

    __slots__ = ("boot_id", "boottime_ns")

    def __init__(self) -> None:
        self.boottime_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        try:
            with open(_BOOT_ID_FILE, "rb") as file:  # noqa: PTH123 -- pathlib costs 3 ms
                self.boot_id = file.read().strip().decode()
        except (OSError, ValueError):
            self.boot_id = ""


def hand_over(environ: Mapping[str, str], read_stdin: Callable[[], bytes | None], called: ProcessCalled) -> AgentAnswer | None:
    """Have the agent serve this call. Returns its answer: the body is for stdout, a status below 300 means success.

    None where no agent serves, or the call is not for an agent. `read_stdin` is called when there is an agent, and returns None
    when it fails. Raises NotServed, Unanswered.
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
        agent.close()  # an agent that is still serving our ADD undoes it


def _connected(path: str) -> Socket | None:
    """Connect to the listener there; None where there is none, or its queue is full."""
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
    """Raise NotServed when another user listens: we would pass on that user's answer as root's."""
    uid = int.from_bytes(agent.getsockopt(SOL_SOCKET, SO_PEERCRED, 12)[4:8], sys.byteorder)
    if uid not in (0, os.geteuid()):
        raise NotServed(f"is user {uid}'s")


def _extra(meant: Whereabouts, called: ProcessCalled) -> dict[str, str]:
    """The headers that say which agent the call is for, and when this process was called."""
    extra = {header: encode_value(getattr(meant, key)) for key, header in ADDRESSEE.items()}
    return extra | ({BOOT_ID: called.boot_id, BOOTTIME_NS: str(called.boottime_ns)} if called.boot_id else {})


def _send(agent: Socket, raw: bytes) -> None:
    """Send the request, its last byte when all others are read. Raises NotServed, when the agent never has it whole."""
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
        raise NotServed(f"did not take the whole request: {error.strerror}") from None


def _answer(agent: Socket, seconds: float) -> AgentAnswer:
    """Receive the agent's answer. Raises NotServed, Unanswered."""
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
            raise Unanswered(f"sent an invalid answer: {error}") from None
        if answer:
            return answer


def _require_result(answer: AgentAnswer, verb: str) -> None:
    """Raise NotServed for an answer that says that no verb has run (`protocol.status_of`), Unanswered for an empty one."""
    if 400 <= answer.status < 500 or answer.status == 503:
        raise NotServed(f"refuses the call with HTTP status {answer.status}")
    if not answer.body and (answer.status >= 300 or verb == "ADD"):
        raise Unanswered("answered nothing")
