"""Whether ovs-vswitchd lives, asked of itself.

OVSDB can not tell: after a kill -9 nothing in it changes. So this speaks to the daemon's control socket, the one of ovs-appctl
(JSON-RPC 1.0, one request per connection). It must never wait longer than it was told to, and never take "no answer" for "dead":
ovs-vswitchd is silent for seconds while it allocates memory for its first port.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import Unavailable
from userspace_cni.base.threads import start

ANSWER_SECONDS = 0.5
GLANCE_SECONDS = 0.03
"""What ovs-vswitchd gets to answer when it is asked regularly anyway, and a silent moment of it proves nothing."""
_LAST_LOOK_S = 0.05
"""What it gets to answer when the deadline has passed and only the reason is still to be found."""
_RECENT_S = 0.5
"""How long an answer serves all who wonder at the same time."""
_CONTROL_SOCKET = re.compile(r"ovs-vswitchd.*\.(\d+)\.ctl")
_REQUEST = json.dumps({"id": 0, "method": "version", "params": []}).encode()


@dataclass(frozen=True)
class Liveness:
    """What is known of ovs-vswitchd, and from what.

    `dead` is proven; `silent` is connected without an answer in time; `unknown` can not be found out from here. `pid` is the
    daemon's own, from the name of the socket, and `born` when it made the socket, in nanoseconds of the file system's clock: a
    daemon in a container may have the same pid for ever. None and 0 while there is no socket.
    """

    state: Literal["alive", "dead", "silent", "unknown"]
    reason: str
    pid: int | None = None
    born: int = 0


class Daemon:
    """The ovs-vswitchd of `rundir`, and as what it was seen last; `ovsdb`: our remote. Safe to use from several threads."""

    def __init__(self, ovsdb: str, rundir: str) -> None:
        self.rundir = rundir
        self.seen: Liveness | None = None
        """What it said when it was last watched."""
        self._ovsdb = ovsdb
        self._asking = threading.Lock()
        self._seen_at = 0.0

    @property
    def name(self) -> str:
        """Which daemon was seen last: another one has another name."""
        return f"{self.seen.pid} {self.seen.born}" if self.seen else ""

    def ask(self, deadline: Deadline) -> Liveness:
        """Whether it lives, which takes half a second at most."""
        return ask(self._ovsdb, self.rundir, min(max(deadline.remaining(), _LAST_LOOK_S), ANSWER_SECONDS))

    def watch(self) -> Liveness:
        """Ask whether it lives, for up to 500 ms, and remember it. Another `pid` or `born` than before is another daemon."""
        seen = ask(self._ovsdb, self.rundir)
        self.seen, self._seen_at = seen, time.monotonic()
        return seen

    def recent(self, deadline: Deadline) -> Liveness:
        """As `ask`, asked once for all who wonder at the same time."""
        with self._asking:
            if self.seen is None or time.monotonic() - self._seen_at > _RECENT_S:
                self.seen = self.ask(deadline)
                self._seen_at = time.monotonic()
            return self.seen

    def peek(self) -> Liveness:
        """What it says at once."""
        return ask(self._ovsdb, self.rundir, GLANCE_SECONDS)

    def glance(self) -> Liveness:
        """What it says at once; when it is silent, what it said when it was last watched."""
        now = self.peek()
        return self.seen if now.state == "silent" and self.seen is not None else now


class Lifeline:
    """A connection to the control socket that is held and never used: it ends with the daemon, and `ended` is told at once.

    Between two looks at it a daemon may have died, and the next one have bound its sockets and died too.
    """

    def __init__(self, rundir: str, ended: Callable[[], None]) -> None:
        self._rundir = rundir
        self._ended = ended
        self._lock = threading.Lock()
        self._held: socket.socket | None = None

    def hold(self) -> None:
        """Hold a connection unless one is held. A daemon that is starting, and does not answer yet, has its socket already.

        Raises Unavailable when no thread can wait for its end.
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
        """End it; `ended` is not told."""
        with self._lock:
            held, self._held = self._held, None
        if held is not None:
            with contextlib.suppress(OSError):
                held.shutdown(socket.SHUT_RDWR)

    def _await_end(self, held: socket.socket) -> None:
        with held, contextlib.suppress(OSError):
            held.recv(1)  # nothing was asked, so that only the end can come
        with self._lock:
            ended = self._held is held
            if ended:
                self._held = None
        if ended:
            self._ended()


def _connected(rundir: str) -> socket.socket | None:
    """A connection to the first control socket that takes one."""
    with contextlib.suppress(OSError):
        for path in sorted(path for path in Path(rundir).iterdir() if _CONTROL_SOCKET.fullmatch(path.name)):
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


def ask(ovsdb: str, rundir: str, seconds: float = ANSWER_SECONDS) -> Liveness:
    """Whether the ovs-vswitchd of `rundir` (its OVS_RUNDIR) answers within `seconds`; `ovsdb`: our remote. Never raises."""
    if not ovsdb.startswith("unix:"):
        return Liveness("unknown", f"the database is remote ({ovsdb}), so ovs-vswitchd is too")
    try:
        sockets = [path for path in Path(rundir).iterdir() if _CONTROL_SOCKET.fullmatch(path.name)]
        same_place = Path(ovsdb.removeprefix("unix:")).resolve().parent == Path(rundir).resolve()
    except OSError as error:
        return Liveness("unknown", f"{rundir} can not be read: {error.strerror}")
    if sockets:
        return _worst_but_alive(_identified(path, time.monotonic() + seconds) for path in sorted(sockets))
    if same_place:
        return Liveness("dead", f"no control socket ovs-vswitchd.PID.ctl in {rundir}, where the database is")
    return Liveness("unknown", f"no control socket ovs-vswitchd.PID.ctl in {rundir}; is setting ovs_rundir right?")


def _worst_but_alive(answers: Iterable[Liveness]) -> Liveness:
    """One living daemon is enough (sockets of dead ones stay behind); nothing is dead while another may live."""
    order = ("alive", "silent", "unknown", "dead")
    return min(answers, key=lambda answer: order.index(answer.state))


def _identified(path: Path, end: float) -> Liveness:
    answer, born = _ask_one(path, end), 0
    with contextlib.suppress(OSError):
        born = path.stat().st_mtime_ns
    name = _CONTROL_SOCKET.fullmatch(path.name)
    return replace(answer, pid=int(name[1]) if name else None, born=born)


def _ask_one(path: Path, end: float) -> Liveness:
    try:
        with socket.socket(socket.AF_UNIX) as control:
            control.settimeout(max(0.001, end - time.monotonic()))
            control.connect(str(path))
            control.sendall(_REQUEST)
            return _answer(control, path, end)
    except (ConnectionError, FileNotFoundError) as error:
        return Liveness("dead", f"{path}: {error.strerror}")
    except (TimeoutError, BlockingIOError):
        return Liveness("silent", f"{path}: no answer in time")
    except OSError as error:
        return Liveness("unknown", f"{path}: {error.strerror or error}")


def _answer(control: socket.socket, path: Path, end: float) -> Liveness:
    received = b""
    while time.monotonic() < end:
        control.settimeout(max(0.001, end - time.monotonic()))
        data = control.recv(4096)
        if not data:
            return Liveness("dead", f"{path}: closed without an answer")
        received += data
        try:
            answer = json.loads(received)
        except ValueError:
            continue
        version = answer.get("result") if isinstance(answer, dict) else None
        return Liveness("alive", str(version).partition("\n")[0])
    return Liveness("silent", f"{path}: no answer in time")
