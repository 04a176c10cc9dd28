"""Speaks to ovn-controller over its control socket.

It is asked what it knows of a logical port, because OVSDB shows that one is not installed, not why; and to recompute all flows.
"""

from __future__ import annotations

import re
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import Unavailable
from userspace_cni.switch.vswitchd import ANSWER_SECONDS, NoAnswer, call

_SOCKET: Final = re.compile(r"ovn-controller\.\d+\.ctl")
_BINDING: Final = re.compile(r"^name: \[(.*)\], OVS interface name : \[(.*)\], num binding lports : \[(\d+)\]$", re.MULTILINE)
"""A line of debug/dump-local-bindings (OVN 21.03 and later)."""


@dataclass(frozen=True)
class ControllerWord:
    """What ovn-controller says. `connection`: of the southbound database, "" where it gave no answer, for the reason `silence`.

    `knows_port`: whether it knows a logical port of the name that this node's interface may be.
    """

    connection: str = ""
    silence: str = ""
    knows_port: bool = False


def ask_controller(rundir: str, logical_port: str, deadline: Deadline) -> ControllerWord:
    """Ask the ovn-controller of `rundir` (its OVN_RUNDIR), for half a second at most. Never raises."""
    try:
        sockets = _sockets(rundir)
    except OSError as error:
        return ControllerWord(silence=f"{rundir} cannot be read: {error.strerror}")
    end = time.monotonic() + min(ANSWER_SECONDS, deadline.remaining())
    silence = f"there is no control socket ovn-controller.PID.ctl in {rundir}"
    for path in sockets:
        try:
            connection = str(call(path, "connection-status", (), end).get("result")).strip()
            bindings = str(call(path, "debug/dump-local-bindings", (), end).get("result"))
        except NoAnswer as error:
            silence = str(error)
            continue
        counts = {name: int(count) for name, _, count in _BINDING.findall(bindings)}
        return ControllerWord(connection, knows_port=counts.get(logical_port, 0) > 0)
    return ControllerWord(silence=silence)


def read_controller_version(rundir: str, deadline: Deadline) -> str:
    """`ovn-controller 22.03.3`, for half a second at most; "" without an answer. Never raises."""
    end = time.monotonic() + min(ANSWER_SECONDS, deadline.remaining())
    try:
        for path in _sockets(rundir):
            with suppress(NoAnswer):
                return str(call(path, "version", (), end).get("result")).partition("\n")[0]
    except OSError:
        pass
    return ""


def ask_to_recompute(rundir: str, deadline: Deadline) -> None:
    """Have the ovn-controller of `rundir` compute all logical flows anew, and not only what has changed. Raises Unavailable.

    It does so after its answer.
    """
    silence = f"there is no control socket ovn-controller.PID.ctl in {rundir}"
    end = time.monotonic() + deadline.remaining()
    try:
        for path in _sockets(rundir):
            try:
                answer = call(path, "inc-engine/recompute", (), end)
            except NoAnswer as error:
                silence = str(error)
                continue
            if not answer.get("error"):
                return
            silence = f"{path}: {str(answer['error']).strip()}"
    except OSError as error:
        silence = f"{rundir} cannot be read: {error.strerror}"
    raise Unavailable(
        f"asking ovn-controller to recompute: {silence}", "does it run here? see the setting ovn_rundir, and its log"
    )


def _sockets(rundir: str) -> list[Path]:
    """The control sockets; an ovn-controller that was killed has left its own. Raises OSError."""
    return sorted(path for path in Path(rundir).iterdir() if _SOCKET.fullmatch(path.name))
