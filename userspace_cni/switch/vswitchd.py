"""Asks ovs-vswitchd whether it lives, and what it does.

OVSDB does not show it: after a kill -9 nothing in it changes, nor does it say what ovs-vswitchd cannot do. So this module speaks
to the daemon's control socket, the one of ovs-appctl (JSON-RPC 1.0, one request per connection). It must never wait longer than
the caller allows, and never take "no answer" for "dead": ovs-vswitchd is silent for seconds while it allocates memory for its
first port, and for one when it ends a polling thread.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import SwitchRefused, Unavailable
from userspace_cni.base.threads import start

ANSWER_SECONDS = 0.5
JUDGED_SECONDS = 2.0
"""The time for an answer where silence has consequences: with DPDK 24.11 and later ovs-vswitchd is silent for a second when a
polling thread ends, as it does with its last port."""
GLANCE_SECONDS = 0.03
"""The time for an answer of ovs-vswitchd when it is asked regularly too, so that a silent moment proves nothing."""
_LAST_ASK_S = 0.05
"""The time for an answer when the deadline has passed and only the reason is missing."""
_RECENT_S = 0.5
"""How long one answer serves all callers."""
State = Literal["alive", "dead", "silent", "unknown"]
_ANSWER_MAX = 16 << 20
"""Bytes of an answer that are read."""
_CONTROL_SOCKET = re.compile(r"ovs-vswitchd.*\.(\d+)\.ctl")


class NoAnswer(Exception):
    """The control socket gave none; `state` says what that means of the daemon, as Liveness.state does."""

    def __init__(self, state: State, reason: str) -> None:
        super().__init__(reason)
        self.state = state
        self.reason = reason


@dataclass(frozen=True)
class DaemonLiveness:
    """Whether ovs-vswitchd lives, with the reason.

    `dead`: proven; `silent`: it took the connection and did not answer in time; `unknown`: out of this process's reach. `pid` is
    the daemon's own, from the name of the socket, and `born` when it made the socket, in nanoseconds of the file system's clock:
    a daemon in a container may have the same pid after each restart. None and 0 while there is no socket.
    """

    state: State
    reason: str
    pid: int | None = None
    born: int = 0

    @property
    def process(self) -> str:
        """Names the process that lives: another one has another name. "" unless it is alive."""
        return f"pid {self.pid}, since {self.born}" if self.pid and self.state == "alive" else ""


class Daemon:
    """The ovs-vswitchd of `rundir`, and its last known state; `ovsdb`: our remote. Safe to use from several threads."""

    def __init__(self, ovsdb: str, rundir: str) -> None:
        self.rundir = rundir
        self.seen: DaemonLiveness | None = None
        """The result of the last `watch` or `ask_shared`."""
        self._ovsdb = ovsdb
        self._asking = threading.Lock()
        self._seen_at = 0.0

    @property
    def name(self) -> str:
        """The identity of the daemon that was seen last: another daemon has another name."""
        return f"{self.seen.pid} {self.seen.born}" if self.seen else ""

    def ask(self, deadline: Deadline, longest: float = ANSWER_SECONDS) -> DaemonLiveness:
        """Ask whether it lives; takes `longest` seconds at most."""
        return ask(self._ovsdb, self.rundir, min(max(deadline.remaining(), _LAST_ASK_S), longest))

    def watch(self) -> DaemonLiveness:
        """Ask whether it lives, for up to 2 s, and remember it. Another `pid` or `born` than before is another daemon."""
        seen = ask(self._ovsdb, self.rundir, JUDGED_SECONDS)
        self.seen, self._seen_at = seen, time.monotonic()
        return seen

    def ask_shared(self, deadline: Deadline) -> DaemonLiveness:
        """As `ask`, but callers at the same time share one answer."""
        with self._asking:
            if self.seen is None or time.monotonic() - self._seen_at > _RECENT_S:
                self.seen = self.ask(deadline)
                self._seen_at = time.monotonic()
            return self.seen

    def run_command(self, method: str, *params: str, deadline: Deadline) -> str:
        """The answer to a command of ovs-appctl(8). Raises Unavailable without one, SwitchRefused with the daemon's own error."""
        failures: list[NoAnswer] = []
        for path in _control_sockets(self.rundir):
            try:
                answer = call(path, method, params, time.monotonic() + deadline.require(f"ovs-appctl {method}"))
            except NoAnswer as error:
                failures.append(error)
                continue
            if answer.get("error"):
                raise SwitchRefused(f"ovs-vswitchd, {' '.join((method, *params))}: {answer['error']}", "see its log")
            return str(answer.get("result"))
        reason = " | ".join(map(str, failures)) or f"no control socket ovs-vswitchd.PID.ctl in {self.rundir}"
        raise Unavailable(f"ovs-vswitchd, {' '.join((method, *params))}: {reason}", "is it running? is setting ovs_rundir right?")

    def peek(self) -> DaemonLiveness:
        """Ask whether it lives, for 30 ms."""
        return ask(self._ovsdb, self.rundir, GLANCE_SECONDS)

    def glance(self) -> DaemonLiveness:
        """As `peek`; when it is silent, the result of the last `watch`."""
        now = self.peek()
        return self.seen if now.state == "silent" and self.seen is not None else now


class DaemonLifeline:
    """A connection to the control socket that is never used: it ends with the daemon, and then `ended` is called at once.

    Polling is not enough: between two looks a daemon may die, and the next one may bind its sockets and die too.
    """

    def __init__(self, rundir: str, ended: Callable[[], None]) -> None:
        self._rundir = rundir
        self._ended = ended
        self._lock = threading.Lock()
        self._held: socket.socket | None = None

    def hold(self) -> None:
        """Open the connection unless one is open. A starting daemon has its socket before it answers.

        Raises Unavailable when no thread can be started to wait for the end.
        """
        with self._lock:
            if self._held is not None:
                return
            held = _connected(self._rundir)
            if held is None:
                return
            thread = threading.Thread(target=self._await_end, args=(held,), name="lifeline", daemon=True)
            try:
                start(thread, "watching ovs-vswitchd")
            except Unavailable:
                held.close()
                raise
            self._held = held

    def let_go(self) -> None:
        """Close the connection; `ended` is not called."""
        with self._lock:
            held, self._held = self._held, None
        if held is not None:
            with contextlib.suppress(OSError):
                held.shutdown(socket.SHUT_RDWR)

    def _await_end(self, held: socket.socket) -> None:
        with held, contextlib.suppress(OSError):
            held.recv(1)  # no request was sent, so only the end can come
        with self._lock:
            ended = self._held is held
            if ended:
                self._held = None
        if ended:
            self._ended()


def _connected(rundir: str) -> socket.socket | None:
    """A connection to the first control socket that accepts one."""
    with contextlib.suppress(OSError):
        for path in _control_sockets(rundir):
            control = socket.socket(socket.AF_UNIX)
            try:
                control.settimeout(ANSWER_SECONDS)
                control.connect(str(path))
            except OSError:
                control.close()
                continue
            control.settimeout(None)
            return control
    return None


def _control_sockets(rundir: str) -> list[Path]:
    """The control sockets of daemons that live, or that were killed. None where the directory cannot be read."""
    try:
        return sorted(path for path in Path(rundir).iterdir() if _CONTROL_SOCKET.fullmatch(path.name))
    except OSError:
        return []


def ask(ovsdb: str, rundir: str, seconds: float = ANSWER_SECONDS) -> DaemonLiveness:
    """Whether the ovs-vswitchd of `rundir` (its OVS_RUNDIR) answers within `seconds`; `ovsdb`: our remote. Never raises."""
    if not ovsdb.startswith("unix:"):
        return DaemonLiveness("unknown", f"the database is remote ({ovsdb}), so ovs-vswitchd is too")
    try:
        sockets = [path for path in Path(rundir).iterdir() if _CONTROL_SOCKET.fullmatch(path.name)]
        same_place = Path(ovsdb.removeprefix("unix:")).resolve().parent == Path(rundir).resolve()
    except OSError as error:
        return DaemonLiveness("unknown", f"{rundir} cannot be read: {error.strerror}")
    if sockets:
        return _liveliest(_identified(path, time.monotonic() + seconds) for path in sorted(sockets))
    if same_place:
        return DaemonLiveness("dead", f"no control socket ovs-vswitchd.PID.ctl in {rundir}, where the database is")
    return DaemonLiveness("unknown", f"no control socket ovs-vswitchd.PID.ctl in {rundir}; is setting ovs_rundir right?")


def _liveliest(answers: Iterable[DaemonLiveness]) -> DaemonLiveness:
    """The answer of a living daemon, else of one that may live: dead daemons leave their sockets behind."""
    order = ("alive", "silent", "unknown", "dead")
    return min(answers, key=lambda answer: order.index(answer.state))


def _identified(path: Path, end: float) -> DaemonLiveness:
    answer, born = _ask_one(path, end), 0
    with contextlib.suppress(OSError):
        born = path.stat().st_mtime_ns
    name = _CONTROL_SOCKET.fullmatch(path.name)
    return replace(answer, pid=int(name[1]) if name else None, born=born)


def _ask_one(path: Path, end: float) -> DaemonLiveness:
    try:
        answer = call(path, "version", (), end)
    except NoAnswer as error:
        return DaemonLiveness(error.state, error.reason)
    return DaemonLiveness("alive", str(answer.get("result")).partition("\n")[0])


def call(path: Path, method: str, params: Sequence[str], end: float) -> dict[str, Any]:
    """The answer of the daemon at `path` by `end` (monotonic). Raises NoAnswer."""
    request = json.dumps({"id": 0, "method": method, "params": list(params)}).encode()
    try:
        with socket.socket(socket.AF_UNIX) as control:
            control.settimeout(max(0.001, end - time.monotonic()))
            control.connect(str(path))
            control.sendall(request)
            return _answer(control, path, end)
    except (ConnectionError, FileNotFoundError) as error:
        raise NoAnswer("dead", f"{path}: {error.strerror}") from error
    except (TimeoutError, BlockingIOError) as error:
        raise NoAnswer("silent", f"{path}: no answer in time") from error
    except OSError as error:
        raise NoAnswer("unknown", f"{path}: {error.strerror or error}") from error


def _answer(control: socket.socket, path: Path, end: float) -> dict[str, Any]:
    received = bytearray()
    while time.monotonic() < end:
        control.settimeout(max(0.001, end - time.monotonic()))
        data = control.recv(65536)
        if not data:
            raise NoAnswer("dead", f"{path}: closed without an answer")
        received += data
        if len(received) > _ANSWER_MAX:
            raise NoAnswer("unknown", f"{path}: an answer of more than {_ANSWER_MAX} bytes")
        if not data.rstrip().endswith(b"}"):
            continue
        try:
            answer = json.loads(received)
        except ValueError:
            continue
        return answer if isinstance(answer, dict) else {}
    raise NoAnswer("silent", f"{path}: no answer in time")
