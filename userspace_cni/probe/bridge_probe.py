"""Proves with a port and frames of its own whether a bridge moves frames.

Link state and `Interface.status` show whether an application is attached; only a frame proves that the switch's polling thread
and the bridge work. So each bridge gets a port for a moment, through which a frame goes and comes back. It must never attach to a
pod's own socket, which would cut the pod off, nor call a bridge dead for a fault of this process. A frame through the probe's
port proves nothing about a pod's own rings: for these see `list` and the application's counters.
"""

from __future__ import annotations

import errno
import select
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from userspace_cni.base.errors import DirectoryRefused, RecordRefused, Unavailable, UserspaceError
from userspace_cni.probe import histogram
from userspace_cni.probe.endpoints import ETHERTYPE, mac_bytes

if TYPE_CHECKING:
    from userspace_cni.fastpath.vhost.front_end import FrontEnd, FrontEndListener
    from userspace_cni.node.probes import ProbePort, ProbePorts
    from userspace_cni.switch.ovsdb.bridges import Bridge

STAGES: Final = ("port", "socket", "negotiation", "frame")
"""The switch opens the port; it connects to our socket; vhost-user is negotiated; the first frame is back."""
TIMEOUT_S: Final = 15.0
COUNT: Final = 32
_QUEUE: Final = 64
_FRAME_BYTES: Final = 60
_TRY_S: Final = 0.05
"""Seconds before the first frame is sent again: the port's first use has to wait for the switch's main thread."""
_LOST_S: Final = 0.25
_LOST_MAX: Final = 8
"""So many lost frames mean that the bridge moves none: a polling thread on a busy processor may rest for a second."""
_LOT: Final = 8
_SHORT: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.ENOSPC, errno.EDQUOT, errno.EROFS})
"""Errors that show that this process or host lacks a resource. They prove nothing about the bridge."""


@dataclass
class Stage:
    """One stage. `ok` is None when it was not reached, or could not be tried for a fault on our side (`problem`)."""

    stage: str
    ok: bool | None = None
    ms: float = 0.0
    problem: str = ""


@dataclass
class Verdict:
    """The result for one bridge. `times`: round trips in nanoseconds.

    `applications`: the attachments' ports by state, None while that is not known. `asked`: frames to time;
    `frames`: those of which it is known whether they came back.
    """

    bridge: str
    applications: dict[str, int] | None
    asked: int = COUNT
    stages: list[Stage] = field(default_factory=lambda: [Stage(name) for name in STAGES])
    frames: int = 0
    lost: int = 0
    times: list[int] = field(default_factory=list)
    seconds: float = 0.0
    memory_bytes: int = 0

    @classmethod
    def of(cls, bridge: Bridge, asked: int, *, stale: bool = False) -> Verdict:
        """The verdict before anything was tried. `stale`: ovs-vswitchd is silent, and what it said before is out of date."""
        counts = {"connected": bridge.connected, "waiting": bridge.waiting, "broken": bridge.broken}
        return cls(bridge.name, None if stale else counts, asked)

    @property
    def state(self) -> Literal["forwards", "dead", "unknown"]:
        """`unknown`: it could not be tried, or not to the end."""
        if any(stage.ok is False for stage in self.stages):
            return "dead"
        return "forwards" if all(stage.ok for stage in self.stages) else "unknown"

    @property
    def alive(self) -> bool:
        """Whether frames come back."""
        return self.state == "forwards"

    @property
    def problem(self) -> str:
        """The problem of the first failed stage; "" for none."""
        return next((f"{stage.stage}: {stage.problem}" for stage in self.stages if stage.problem), "")

    def to_json(self) -> dict[str, Any]:
        ordered = sorted(self.times)
        rtt = {"min_ns": ordered[0], "p50_ns": histogram.percentile(ordered, 0.5)} if ordered else None
        return {
            "bridge": self.bridge,
            "state": self.state,
            "alive": self.alive,
            "problem": self.problem,
            "stages": [asdict(stage) for stage in self.stages],
            "asked": self.asked,
            "frames": self.frames,
            "lost": self.lost,
            "rtt": rtt,
            "applications": self.applications,
            "seconds": round(self.seconds, 6),
            "memory_bytes": self.memory_bytes,
        }


class _StageFailed(Exception):
    """A stage did not succeed; its `problem` says why."""


@dataclass(frozen=True)
class ProbeOptions:
    """How a bridge is probed. `tell` is called with the progress."""

    timeout_s: float
    tell: Callable[[str], None] = lambda _: None


def probe(verdict: Verdict, ports: ProbePorts, course: ProbeOptions) -> None:
    """Probe the bridge with a port of its own and fill `verdict`, also when this ends with an exception."""
    began = time.monotonic()
    port: ProbePort | None = None
    try:
        with suppress(_StageFailed):
            with _failing(verdict.stages[1]):  # whose socket is in the directory that is made now
                port = ports.reserve(verdict.bridge)
            _go(port, ports, course, verdict)
    finally:
        verdict.seconds = time.monotonic() - began
        if port:
            with suppress(UserspaceError):  # `ports` tries once more at its end, and reports it then
                ports.unplug(port)
        verdict.seconds = time.monotonic() - began


def _go(port: ProbePort, ports: ProbePorts, course: ProbeOptions, verdict: Verdict) -> None:
    """Go through the stages; the front-end is detached at the end."""
    opened, connected, negotiated, carried = verdict.stages
    with _failing(connected):
        listener = _listener(port)
    with listener:
        with _timed(opened):
            ports.plug(port)  # the switch connects while it does that
        with _timed(connected):
            _await_connection(listener, course.timeout_s)
        with _timed(negotiated):
            front_end = listener.accept(course.timeout_s)
        with front_end:
            verdict.memory_bytes = front_end.memory_bytes
            with _timed(carried):
                ports.reflect(port)
                _first_frame(front_end, ports, port, course)
            with _failing(carried):
                _time_frames(front_end, ports, port, (verdict, course))


def _listener(port: ProbePort) -> FrontEndListener:
    """Listen on the port's socket, which has OVS's group, as its directory has."""
    from userspace_cni.fastpath.vhost.front_end import FrontEndListener, FrontEndOptions

    return FrontEndListener(port.socket, FrontEndOptions(queue_size=_QUEUE))


def _await_connection(listener: FrontEndListener, timeout_s: float) -> None:
    poller = select.poll()
    poller.register(listener.fileno(), select.POLLIN)
    if not poller.poll(timeout_s * 1000):
        raise Unavailable(
            f"the switch has not connected to {listener.path} within {timeout_s:g} s",
            "may it enter that directory? does it see it, if it runs in a container?",
        )


def _first_frame(front_end: FrontEnd, ports: ProbePorts, port: ProbePort, course: ProbeOptions) -> None:
    """Send frames until one is back."""
    from userspace_cni.fastpath.rings.generator import echo

    until = time.monotonic() + course.timeout_s
    while not echo(front_end.pairs[0], 1, frame=_frame(port), sleep=True, timeout_s=_TRY_S).nanoseconds:
        ports.heed()
        if failure := front_end.why_failed():
            raise failure
        if time.monotonic() > until:
            raise Unavailable(
                f"no frame has come back within {course.timeout_s:g} s, though vhost-user was agreed on",
                "ovs-appctl dpif-netdev/pmd-stats-show: does its thread poll? does a controller remove flows of others? "
                "with STP on the bridge, a new port forwards nothing for 30 s",
            )


def _time_frames(front_end: FrontEnd, ports: ProbePorts, port: ProbePort, of: tuple[Verdict, ProbeOptions]) -> None:
    """Time the round trips of the frames until the time is over. Raises what ended it, Unavailable when too many are lost."""
    from userspace_cni.fastpath.rings.generator import echo

    verdict, course = of
    until = time.monotonic() + course.timeout_s
    while verdict.frames < verdict.asked and time.monotonic() < until:
        ports.heed()
        found = echo(front_end.pairs[0], min(_LOT, verdict.asked - verdict.frames), frame=_frame(port), timeout_s=_LOST_S)
        verdict.frames += len(found.nanoseconds) + found.lost
        verdict.lost += found.lost
        verdict.times += found.nanoseconds
        course.tell(f"probing bridge {verdict.bridge}: {verdict.frames} of {verdict.asked} frames")
        if failure := front_end.why_failed():
            raise failure
        if verdict.lost >= _LOST_MAX:
            raise Unavailable(
                f"{verdict.lost} of {verdict.frames} frames have not come back, after the first one had",
                "does ovs-vswitchd hang? were flows deleted meanwhile? ovs-appctl dpif-netdev/pmd-stats-show",
            )


def _frame(port: ProbePort) -> bytes:
    """A frame from the port's address to itself: without the probe's flow, the bridge does not forward it."""
    mac = mac_bytes(port.mac)
    return (mac + mac + ETHERTYPE).ljust(_FRAME_BYTES, b"\0")


@contextmanager
def _timed(stage: Stage) -> Iterator[None]:
    began = time.monotonic()
    try:
        with _failing(stage):
            yield
        stage.ok = True
    finally:
        stage.ms = round((time.monotonic() - began) * 1000, 3)


@contextmanager
def _failing(stage: Stage) -> Iterator[None]:
    """Note an error in this block as that stage's."""
    from userspace_cni.fastpath.fastpath_errors import FastPathError

    try:
        yield
    except (UserspaceError, FastPathError, OSError) as error:
        stage.ok, stage.problem = None if _is_ours(error) else False, str(error)
        raise _StageFailed from error


def _is_ours(error: BaseException) -> bool:
    """Whether the error is a fault on our side (directories, sockets, memory, descriptors), not of the bridge."""
    from userspace_cni.fastpath.fastpath_errors import MemoryShort, SocketRefused

    if isinstance(error, DirectoryRefused | RecordRefused | MemoryShort | SocketRefused):
        return True
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__
    return cause is not None and (cause is error or cause.errno in _SHORT)
