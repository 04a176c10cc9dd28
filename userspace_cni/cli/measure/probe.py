"""`probe`: whether bridges move frames, proven with a port and frames of its own.

Passive facts (link state, `Interface.status`) tell whether somebody is attached; only a frame proves that the switch's polling
thread and the bridge work. So each bridge gets a port for a moment, through which a frame goes and comes back. It must never
attach to a pod's own socket: that would cut the pod off, nor call a bridge dead for a fault of its own. What a frame through the
probe's port does not prove are the pod's own rings; `list` and the application's counters tell of these.
"""

from __future__ import annotations

import errno
import select
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from userspace_cni.base.errors import DirectoryRefused, RecordRefused, Unavailable, UserspaceError
from userspace_cni.cli import view
from userspace_cni.cli.measure.ends import MAKING
from userspace_cni.cli.measure.seconds import Seconds
from userspace_cni.cli.site import FOUND, INTERRUPTED, UNREACHABLE, NodeCommand, open_site
from userspace_cni.cli.view import Cell, Column
from userspace_cni.probe import histogram

if TYPE_CHECKING:
    from userspace_cni.dataplane.ovsdb.bridges import Bridge
    from userspace_cni.fastpath.vhost.front_end import FrontEnd, Listener
    from userspace_cni.node.probes import ProbePort, ProbePorts

STAGES: Final = ("port", "socket", "negotiation", "frame")
"""The switch opens the port; it connects to our socket; vhost-user is agreed on; the first frame is back."""
TIMEOUT_S: Final = 15.0
COUNT: Final = 32
_QUEUE: Final = 64
_FRAME_BYTES: Final = 60
_ETHERTYPE: Final = bytes.fromhex("88b5")
"""IEEE 802, local experimental: nobody else takes notice of such a frame."""
_TRY_S: Final = 0.05
"""What the first frame gets before it is sent again: the port's first use has to wait for the switch's main thread."""
_LOST_S: Final = 0.25
_LOST_MAX: Final = 8
_LOT: Final = 8
_COLUMNS: Final = (
    Column("BRIDGE"),
    Column("DATAPATH"),
    Column("PORT", rank=1),
    Column("SOCKET", rank=4),
    Column("NEGOTIATION", rank=5),
    Column("FRAME", rank=3),
    Column("RTT MIN", rank=7),
    Column("RTT P50"),
    Column("FRAMES", rank=6),
    Column("APPLICATIONS", rank=2),
    Column("TIME", rank=8),
)
"""On 80 columns there is room for PORT, which costs most, and for APPLICATIONS, whatever the bridge's name is."""
_SHORT: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.ENOSPC, errno.EDQUOT, errno.EROFS})
"""What this process or this host lacks, and says nothing of the bridge."""
_STYLES: Final = {"forwards": "green", "dead": "red", "unknown": "yellow"}


@dataclass
class Stage:
    """One stage. `ok` is None for one that was not come to, or could not be tried for a fault of ours, which `problem` tells."""

    stage: str
    ok: bool | None = None
    ms: float = 0.0
    problem: str = ""


@dataclass
class Verdict:
    """What was found of one bridge. Times of `rtt` in nanoseconds; `applications` counts what the attachments' ports say.

    `asked`: how many frames were to be timed; `frames` is of how many it is known whether they came back.
    """

    bridge: str
    applications: dict[str, int]
    asked: int = COUNT
    stages: list[Stage] = field(default_factory=lambda: [Stage(name) for name in STAGES])
    frames: int = 0
    lost: int = 0
    times: list[int] = field(default_factory=list)
    seconds: float = 0.0
    memory_bytes: int = 0

    @classmethod
    def of(cls, bridge: Bridge, asked: int) -> Verdict:
        """What is known before anything was tried."""
        counts = {"connected": bridge.connected, "waiting": bridge.waiting, "broken": bridge.broken}
        return cls(bridge.name, counts, asked)

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
        """What the first failed stage says; "" for none."""
        return next((f"{stage.stage}: {stage.problem}" for stage in self.stages if stage.problem), "")

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
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


class _Failed(Exception):
    """A stage did not succeed, and says why."""


@click.command("probe", cls=NodeCommand, short_help="Prove that bridges move frames.")
@click.argument("bridges", nargs=-1, metavar="[BRIDGE]...")
@click.option("--timeout", "timeout_s", type=Seconds(0.1, 3600), default=TIMEOUT_S, metavar="SECONDS",
              show_default=True, help="What each stage may take.")  # fmt: skip
@click.option("--count", type=click.IntRange(1, 1_000_000), default=COUNT, metavar="N", show_default=True,
              help="How many frames are timed, one after the other.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="As a JSON object.")
@click.pass_context
def probe_command(ctx: click.Context, bridges: tuple[str, ...], timeout_s: float, count: int, as_json: bool) -> None:
    """Prove that bridges move frames: those named, or all for vhost-user ports.

    Each gets a port of its own for a moment, on which a frame is sent that the switch is told to send back: it proves that the
    switch opens ports, connects to sockets, agrees on vhost-user and forwards. No port of a pod is touched; how many of them have
    an application connected is told beside it, and none is a fault. Nothing stays behind, and what a killed run left is removed.

    With --json: `bridges`, each with `state` (forwards, dead or unknown), `alive`, `problem`, `stages` (`ok` is null for one that
    was not come to, `ms`, `problem`), `rtt` (`min_ns`, `p50_ns`; null without frames), `asked`, `frames` and `lost`,
    `applications` (`connected`, `waiting`, `broken`), `seconds` and `memory_bytes`; `removed`, what killed runs had left;
    `interrupted`, whether a signal ended it; and `seconds` of all.

    Exit code: 0 when all bridges forward, 1 when one does not, 2 for one that is not there or not for vhost-user ports, 3 when
    the switch cannot be reached, or a bridge could not be tried for a fault on this side, as by another user than root.
    """
    # All that is heavy at once, so that times are those of the switch.
    from userspace_cni.fastpath.rings import generator  # noqa: F401
    from userspace_cni.fastpath.vhost import front_end  # noqa: F401
    from userspace_cni.node import probes  # noqa: F401

    site, began = open_site(ctx), time.monotonic()
    site.require_root(MAKING)
    verdicts: list[Verdict] = []
    removed: list[str] = []
    interrupted = False
    try:
        with view.progress("asking the switch") as tell, site.probe_ports("probe", timeout_s=timeout_s) as ports:
            ports.connect()
            chosen = _chosen(ports, bridges)
            removed += ports.adopt()
            for number, bridge in enumerate(chosen, 1):
                tell(f"probing bridge {bridge.name} ({number} of {len(chosen)})")
                verdicts.append(Verdict.of(bridge, count))
                probe(verdicts[-1], ports, Course(timeout_s, tell))
            ports.heed()
    except KeyboardInterrupt:
        if not verdicts:
            raise
        interrupted = True
    if as_json:
        found = {"bridges": [each.to_json() for each in verdicts], "removed": removed, "interrupted": interrupted}
        view.show_json({**found, "seconds": round(time.monotonic() - began, 6)})
    else:
        _show(verdicts, removed)
    ctx.exit(INTERRUPTED if interrupted else _code(verdicts))


def _code(verdicts: Sequence[Verdict]) -> int:
    states = {each.state for each in verdicts}
    return FOUND if "dead" in states else UNREACHABLE if "unknown" in states else 0


@dataclass(frozen=True)
class Course:
    """How a bridge is probed. `tell` is told what is being done."""

    timeout_s: float
    tell: Callable[[str], None] = lambda _: None


def probe(verdict: Verdict, ports: ProbePorts, course: Course) -> None:
    """Put into `verdict` what a frame through a port of its own tells of the bridge, also when this ends with an exception."""
    began = time.monotonic()
    port: ProbePort | None = None
    try:
        with suppress(_Failed):
            with _failing(verdict.stages[1]):  # whose socket is in the directory that is made now
                port = ports.reserve(verdict.bridge)
            _go(port, ports, course, verdict)
    finally:
        verdict.seconds = time.monotonic() - began
        if port:
            with suppress(UserspaceError):  # it is tried once more at the end, and told then
                ports.unplug(port)
        verdict.seconds = time.monotonic() - began


def _go(port: ProbePort, ports: ProbePorts, course: Course, verdict: Verdict) -> None:
    """Through the stages; the front-end is detached when this ends."""
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


def _listener(port: ProbePort) -> Listener:
    """On the port's socket, which is of OVS's group, as its directory is."""
    from userspace_cni.fastpath.vhost.front_end import FrontEndOptions, Listener

    return Listener(port.socket, FrontEndOptions(queue_size=_QUEUE))


def _await_connection(listener: Listener, timeout_s: float) -> None:
    poller = select.poll()
    poller.register(listener.fileno(), select.POLLIN)
    if not poller.poll(timeout_s * 1000):
        raise Unavailable(
            f"the switch has not connected to {listener.path} within {timeout_s:g} s",
            "may it enter that directory? does it see it, if it runs in a container?",
        )


def _first_frame(front_end: FrontEnd, ports: ProbePorts, port: ProbePort, course: Course) -> None:
    """Until one is back."""
    from userspace_cni.fastpath.rings.generator import echo

    until = time.monotonic() + course.timeout_s
    while not echo(front_end.pairs[0], 1, frame=_frame(port), sleep=True, timeout_s=_TRY_S).nanoseconds:
        ports.heed()
        if failure := front_end.failed():
            raise failure
        if time.monotonic() > until:
            raise Unavailable(
                f"no frame has come back within {course.timeout_s:g} s, though vhost-user was agreed on",
                "ovs-appctl dpif-netdev/pmd-stats-show: does its thread poll? does a controller remove flows of others? "
                "with STP on the bridge, a new port forwards nothing for 30 s",
            )


def _time_frames(front_end: FrontEnd, ports: ProbePorts, port: ProbePort, of: tuple[Verdict, Course]) -> None:
    """The round trips of so many frames, unless time is over. Raises what ended it, and Unavailable when too many are lost."""
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
        if failure := front_end.failed():
            raise failure
        if verdict.lost >= _LOST_MAX or not verdict.times:
            raise Unavailable(
                f"{verdict.lost} of {verdict.frames} frames have not come back, after the first one had",
                "does ovs-vswitchd hang? were flows deleted meanwhile? ovs-appctl dpif-netdev/pmd-stats-show",
            )


def _frame(port: ProbePort) -> bytes:
    """From the port's address to itself: should the flow be missing, the bridge would send it nowhere."""
    mac = bytes.fromhex(port.mac.replace(":", ""))
    return (mac + mac + _ETHERTYPE).ljust(_FRAME_BYTES, b"\0")


@contextmanager
def _timed(stage: Stage) -> Iterator[None]:
    """This block is that stage."""
    began = time.monotonic()
    try:
        with _failing(stage):
            yield
        stage.ok = True
    finally:
        stage.ms = round((time.monotonic() - began) * 1000, 3)


@contextmanager
def _failing(stage: Stage) -> Iterator[None]:
    """An error in this block is that stage's."""
    from userspace_cni.fastpath.errors import FastPathError

    try:
        yield
    except (UserspaceError, FastPathError, OSError) as error:
        stage.ok, stage.problem = None if _is_ours(error) else False, str(error)
        raise _Failed from error


def _is_ours(error: BaseException) -> bool:
    """Whether the error is a fault on this side, that says nothing of the bridge: directories, sockets, memory, descriptors."""
    from userspace_cni.fastpath.errors import MemoryShort, SocketRefused

    if isinstance(error, DirectoryRefused | RecordRefused | MemoryShort | SocketRefused):
        return True
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__
    return cause is not None and (cause is error or cause.errno in _SHORT)


def _chosen(ports: ProbePorts, names: Sequence[str]) -> list[Bridge]:
    """The bridges named, each once, or all that can have vhost-user ports."""
    if not names:
        return [bridge for bridge in ports.bridges() if bridge.has_vhost]
    return [ports.require_bridge(name) for name in dict.fromkeys(names)]


def _show(verdicts: Sequence[Verdict], removed: Sequence[str]) -> None:
    for name in removed:
        view.note(f"removed what a killed run had left: {name}")
    if not verdicts:
        view.note("no bridge is for vhost-user ports (datapath_type netdev); the first attachment makes one")
        return
    view.show_table(_COLUMNS, [_row(verdict) for verdict in verdicts])
    for verdict in verdicts:
        if verdict.problem:
            view.say(Cell(verdict.bridge, f"bold {_STYLES[verdict.state]}"), ": ", verdict.problem)
        elif verdict.frames < verdict.asked:
            view.note(f"{verdict.bridge}: {verdict.frames} of {verdict.asked} frames were timed when it was ended")


def _row(verdict: Verdict) -> list[Cell | str]:
    ordered = sorted(verdict.times)
    times = [ordered[0], histogram.percentile(ordered, 0.5)] if ordered else []
    shown: list[Cell | str] = [view.spelled(histogram.shown(time_ns)) for time_ns in times] or ["-", "-"]
    came_back = f"{verdict.frames - verdict.lost}/{verdict.frames}" if verdict.frames else "-"
    return [
        verdict.bridge,
        Cell(verdict.state, _STYLES[verdict.state]),
        *map(_stage_cell, verdict.stages),
        *shown,
        Cell(came_back, "red" if verdict.lost else ""),
        _applications(verdict.applications),
        f"{verdict.seconds * 1000:.0f} ms",
    ]


def _stage_cell(stage: Stage) -> Cell:
    if stage.ok is None:
        return Cell("-", "dim")
    return Cell(f"{stage.ms:.{0 if stage.ms >= 10 else 1}f} ms", "green") if stage.ok else Cell("failed", "red")


def _applications(counts: dict[str, int]) -> str:
    """How many of the attachments have their application connected."""
    of = sum(counts.values())
    broken = f", {counts['broken']} broken" if counts["broken"] else ""
    return f"{counts['connected']} of {of}{broken}" if of else "none attached"
