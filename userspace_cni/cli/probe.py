"""`probe`: whether bridges move frames, proven with a port and frames of its own.

Passive facts (link state, `Interface.status`) tell whether somebody is attached; only a frame proves that the switch's polling
thread and the bridge work. So each bridge gets a port for a moment, through which a frame goes and comes back. It must never
attach to a pod's own socket: that would cut the pod off. What a frame through the probe's port does not prove are the pod's own
rings; `list` and the application's counters tell of these.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

import click

from userspace_cni.cli import histogram, view
from userspace_cni.cli.site import FOUND, USAGE, NodeCommand, Refused, open_site
from userspace_cni.cli.view import Cell, Column
from userspace_cni.errors import Unavailable, UserspaceError

if TYPE_CHECKING:
    from userspace_cni.fastpath.front_end import FrontEnd, Listener
    from userspace_cni.fastpath.queue_pair import QueuePair
    from userspace_cni.probes import Bridge, TestPort, TestPorts

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
    *(Column(stage.upper(), rank=2) for stage in STAGES),
    Column("RTT MIN", rank=1),
    Column("RTT P50"),
    Column("FRAMES", rank=1),
    Column("APPLICATIONS", rank=3),
    Column("TIME", rank=4),
)


@dataclass
class Stage:
    """One stage. `ok` is None for one that was not come to."""

    stage: str
    ok: bool | None = None
    ms: float = 0.0
    problem: str = ""


@dataclass
class Verdict:
    """What was found of one bridge. Times of `rtt` in nanoseconds; `applications` counts what the attachments' ports say."""

    bridge: str
    applications: dict[str, int]
    stages: list[Stage] = field(default_factory=lambda: [Stage(name) for name in STAGES])
    frames: int = 0
    lost: int = 0
    times: list[int] = field(default_factory=list)
    seconds: float = 0.0
    memory_bytes: int = 0

    @property
    def alive(self) -> bool:
        """Whether a frame has come back."""
        return all(stage.ok for stage in self.stages)

    @property
    def problem(self) -> str:
        """What the first failed stage says; "" for none."""
        return next((f"{stage.stage}: {stage.problem}" for stage in self.stages if stage.ok is False), "")

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        ordered = sorted(self.times)
        rtt = {"min_ns": ordered[0], "p50_ns": histogram.percentile(ordered, 0.5)} if ordered else None
        return {
            "bridge": self.bridge,
            "alive": self.alive,
            "problem": self.problem,
            "stages": [asdict(stage) for stage in self.stages],
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
@click.option("--timeout", "timeout_s", type=click.FloatRange(0.1, 3600), default=TIMEOUT_S, metavar="SECONDS",
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

    With --json: `bridges`, each with `alive`, `problem`, `stages` (`ok` is null for one that was not come to, `ms`, `problem`),
    `rtt` (`min_ns`, `p50_ns`; null without frames), `frames` and `lost`, `applications` (`connected`, `waiting`, `broken`),
    `seconds` and `memory_bytes`; `removed`, what killed runs had left; and `seconds` of all.

    Exit code: 0 when all bridges forward, 1 when one does not, 2 for one that is not there or not for vhost-user ports, 3 when
    the switch can not be reached.
    """
    # All that is heavy at once, so that times are those of the switch.
    from userspace_cni.fastpath import front_end, generator  # noqa: F401
    from userspace_cni.probes import TestPorts

    site, began = open_site(ctx), time.monotonic()
    with view.progress("asking the switch") as tell, TestPorts(site.settings, "probe", timeout_s=timeout_s) as ports:
        ports.connect()
        chosen = _chosen(ports.bridges(), bridges)
        removed = ports.adopt()
        verdicts = []
        for number, bridge in enumerate(chosen, 1):
            tell(f"probing bridge {bridge.name} ({number} of {len(chosen)})")
            verdicts.append(probe(bridge, ports, Course(timeout_s, count, tell)))
    if as_json:
        found = {"bridges": [each.to_json() for each in verdicts], "removed": removed}
        view.show_json({**found, "seconds": round(time.monotonic() - began, 6)})
    else:
        _show(verdicts, removed)
    if not all(each.alive for each in verdicts):
        ctx.exit(FOUND)


@dataclass(frozen=True)
class Course:
    """How a bridge is probed. `tell` is told what is being done."""

    timeout_s: float
    count: int
    tell: Callable[[str], None] = lambda _: None


def probe(bridge: Bridge, ports: TestPorts, course: Course) -> Verdict:
    """What a frame through a port of its own tells of the bridge. Raises what making the port's directory raises."""
    applications = {"connected": bridge.connected, "waiting": bridge.waiting, "broken": bridge.broken}
    verdict = Verdict(bridge.name, applications)
    began = time.monotonic()
    port = ports.reserve(bridge.name)
    try:
        with suppress(_Failed):
            _go(port, ports, course, verdict)
    finally:
        with suppress(UserspaceError):  # it is tried once more at the end, and told then
            ports.unplug(port)
    verdict.seconds = time.monotonic() - began
    return verdict


def _go(port: TestPort, ports: TestPorts, course: Course, verdict: Verdict) -> None:
    """Through the stages; the front-end is detached when this ends."""
    from userspace_cni.fastpath.front_end import FrontEndOptions, Listener

    opened, connected, negotiated, carried = verdict.stages
    with Listener(port.socket, FrontEndOptions(queue_size=_QUEUE)) as listener:  # of OVS's group, as its directory is
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
                _first_frame(front_end, port, course)
            _time_frames(front_end.pairs[0], port, course, verdict)
            if not verdict.times:
                carried.ok, carried.problem = False, f"after the first frame, none of {verdict.frames} came back"


def _await_connection(listener: Listener, timeout_s: float) -> None:
    poller = select.poll()
    poller.register(listener.fileno(), select.POLLIN)
    if not poller.poll(timeout_s * 1000):
        raise Unavailable(
            f"the switch has not connected to {listener.path} within {timeout_s:g} s",
            "may it enter that directory? does it see it, if it runs in a container?",
        )


def _first_frame(front_end: FrontEnd, port: TestPort, course: Course) -> None:
    """Until one is back."""
    from userspace_cni.fastpath.generator import echo

    until = time.monotonic() + course.timeout_s
    while not echo(front_end.pairs[0], 1, frame=_frame(port), sleep=True, timeout_s=_TRY_S).nanoseconds:
        if failure := front_end.failed():
            raise failure
        if time.monotonic() > until:
            raise Unavailable(
                f"no frame has come back within {course.timeout_s:g} s, though vhost-user was agreed on",
                "ovs-appctl dpif-netdev/pmd-stats-show: does its thread poll? does a controller remove flows of others? "
                "with STP on the bridge, a new port forwards nothing for 30 s",
            )


def _time_frames(pair: QueuePair, port: TestPort, course: Course, verdict: Verdict) -> None:
    """The round trips of so many frames, unless too many are lost or time is over."""
    from userspace_cni.fastpath.errors import FastPathError
    from userspace_cni.fastpath.generator import echo

    until = time.monotonic() + course.timeout_s
    with suppress(FastPathError):  # that the switch went away amid it shows as frames that are missing
        while verdict.frames < course.count and verdict.lost < _LOST_MAX and time.monotonic() < until:
            lot = min(_LOT, course.count - verdict.frames)
            found = echo(pair, lot, frame=_frame(port), timeout_s=_LOST_S)
            verdict.frames += lot
            verdict.lost += found.lost
            verdict.times += found.nanoseconds
            course.tell(f"probing bridge {verdict.bridge}: {verdict.frames} of {course.count} frames")


def _frame(port: TestPort) -> bytes:
    """From the port's address to itself: should the flow be missing, the bridge would send it nowhere."""
    mac = bytes.fromhex(port.mac.replace(":", ""))
    return (mac + mac + _ETHERTYPE).ljust(_FRAME_BYTES, b"\0")


@contextmanager
def _timed(stage: Stage) -> Iterator[None]:
    """This block is that stage."""
    from userspace_cni.fastpath.errors import FastPathError

    began = time.monotonic()
    try:
        yield
    except (UserspaceError, FastPathError) as error:
        stage.ok, stage.problem = False, str(error)
        raise _Failed from error
    else:
        stage.ok = True
    finally:
        stage.ms = round((time.monotonic() - began) * 1000, 3)


def _chosen(found: Sequence[Bridge], names: Sequence[str]) -> list[Bridge]:
    """The bridges named, each once, or all that can have vhost-user ports."""
    if not names:
        return [bridge for bridge in found if bridge.has_vhost]
    known = {bridge.name: bridge for bridge in found}
    for name in names:
        if name not in known:
            raise Refused(f"there is no bridge {name}; there are: {view.joined(sorted(known), 'none')}", USAGE)
        if not known[name].has_vhost:
            kind = known[name].datapath or "system (the default)"
            raise Refused(f"bridge {name} has datapath_type {kind}, and vhost-user ports need netdev", USAGE)
    return [known[name] for name in dict.fromkeys(names)]


def _show(verdicts: Sequence[Verdict], removed: Sequence[str]) -> None:
    for name in removed:
        view.note(f"removed what a killed run had left: {name}")
    if not verdicts:
        view.note("no bridge is for vhost-user ports (datapath_type netdev); the first attachment makes one")
        return
    view.show_table(_COLUMNS, [_row(verdict) for verdict in verdicts])
    for verdict in verdicts:
        if verdict.problem:
            view.say(Cell(verdict.bridge, "bold red"), ": ", verdict.problem)


def _row(verdict: Verdict) -> list[Cell | str]:
    ordered = sorted(verdict.times)
    times = [ordered[0], histogram.percentile(ordered, 0.5)] if ordered else []
    shown: list[Cell | str] = [view.spelled(histogram.shown(time_ns)) for time_ns in times] or ["-", "-"]
    came_back = f"{verdict.frames - verdict.lost}/{verdict.frames}" if verdict.frames else "-"
    return [
        verdict.bridge,
        Cell("forwards", "green") if verdict.alive else Cell("dead", "red"),
        *map(_stage_cell, verdict.stages),
        *shown,
        Cell(came_back, "red" if verdict.lost else ""),
        _applications(verdict.applications),
        f"{verdict.seconds * 1000:.0f} ms",
    ]


def _stage_cell(stage: Stage) -> Cell:
    if stage.ok is None:
        return Cell("-", "dim")
    return Cell(f"{stage.ms:.1f} ms", "green") if stage.ok else Cell("failed", "red")


def _applications(counts: dict[str, int]) -> str:
    told = [f"{counts['connected']} connected", f"{counts['waiting']} not"]
    told += [f"{counts['broken']} broken"] if counts["broken"] else []
    return view.joined(told) if any(counts.values()) else "none attached"
