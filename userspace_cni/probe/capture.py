"""Sees the frames of one port: a mirror of it, for a moment, into a port of ours, which our own front-end reads.

The mirrored port and its pod notice nothing: no other mirror is touched, and where we read too slowly, the switch drops copies.
How many is told. This module must never attach to the pod's own socket, and shows nothing: what becomes of the frames is the
caller's `Sink`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from userspace_cni.attachment.listing import name_of
from userspace_cni.attachment.records import Record
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import UserspaceError
from userspace_cni.base.vlans import Vlan
from userspace_cni.probe.ending import EndingSignals
from userspace_cni.probe.endpoints import HEADER_BYTES, MTU, Unusable
from userspace_cni.probe.opening import ATTACH_S, SWITCH_S, ProbeSite, Tell, access_for_switch
from userspace_cni.probe.packet_filter import PacketFilter
from userspace_cni.probe.pcap import SNAPLEN_MAX, Frame

if TYPE_CHECKING:
    from userspace_cni.fastpath.rings.burst import Burst
    from userspace_cni.fastpath.rings.queue_pair import QueuePair
    from userspace_cni.fastpath.vhost.front_end import FrontEnd
    from userspace_cni.node.probes import ProbePort, ProbePorts

SLICE_S: Final = 0.2
"""Seconds between two looks at signals and at the output's reader, at most."""
LOOK_S: Final = 1.0
"""Seconds between two looks at the mirror."""
REST_S: Final = 0.0005
"""While frames are many they are read at this interval: to be woken for each burst would cost the switch's polling thread a
system call each time."""
_MANY: Final = 8
"""Frames of one read that are many."""
_QUEUE: Final = 8192
"""Descriptors of the ring: 40 ms at 200,000 frames per second, in which this process may not run."""
_BUFFER_BYTES: Final = 2048
"""Longer frames take several descriptors."""
_BATCH: Final = 256
_TAGS_BYTES: Final = 8
"""Of two VLANs."""
_LINE: Final = 64
End = Literal["count", "seconds", "signal", "reader", "problem"]


class ReaderGone(Exception):
    """The reader of the frames has ended."""


class Sink(Protocol):
    """Where the frames go."""

    def put(self, frames: Sequence[Frame]) -> None:
        """Pass them on, so that the reader sees them now. Raises ReaderGone."""
        ...

    def check(self) -> None:
        """Raise ReaderGone if the reader has ended."""
        ...


@dataclass(frozen=True)
class CapturedPort:
    """The port whose frames are seen. `vlan`: of the port; frames are seen as its pod sends and gets them."""

    name: str
    port: str
    bridge: str
    mtu: int
    vlan: Vlan

    @property
    def longest(self) -> int:
        return self.mtu + HEADER_BYTES + _TAGS_BYTES


@dataclass(frozen=True)
class CaptureOptions:
    """What to capture: `count` frames at most, within `seconds`, of each the first `snaplen` bytes, those that `keep` takes.

    None: without an end, all.
    """

    count: int | None = None
    seconds: float | None = None
    snaplen: int = SNAPLEN_MAX
    keep: PacketFilter | None = None


@dataclass
class CaptureFigures:
    """The figures so far. `frames` and `bytes` were passed on, of `seen` frames that came; `bytes` of them in the switch.

    `dropped`: frames of the port that the switch could not give us. `ended`: by what, "" while it runs; `problem`: why it ended
    early, or "".
    """

    source: CapturedPort
    frames: int = 0
    bytes: int = 0
    seen: int = 0
    dropped: int = 0
    seconds: float = 0.0
    ended: End | Literal[""] = ""
    problem: str = ""

    def to_json(self) -> dict[str, Any]:
        source = self.source
        return {
            "name": source.name,
            "port": source.port,
            "bridge": source.bridge,
            "frames": self.frames,
            "bytes": self.bytes,
            "seen": self.seen,
            "dropped": self.dropped,
            "seconds": round(self.seconds, 6),
            "ended": self.ended,
            "problem": self.problem,
        }


@dataclass(frozen=True)
class MirroredPort:
    """A port that is mirrored, and our end of the mirror."""

    source: CapturedPort
    front: FrontEnd
    ports: ProbePorts
    port: ProbePort
    dropped_before: int

    @property
    def queue(self) -> QueuePair:
        return self.front.pairs[0]

    def problem(self) -> str:
        """Why no frame can come any more, or ""."""
        if not self.front.is_alive():
            return "the switch hung up: ovs-vswitchd ended, or our port was removed"
        try:
            whole = self.ports.mirrors(self.port)
        except UserspaceError as error:
            return f"the mirror cannot be looked at: {error}"
        if whole:
            return ""
        return f"the mirror is gone: port {self.source.port} was removed or recreated, or another program removed the mirror"

    def dropped(self) -> int:
        """Frames that the switch could not give us since we attached, and those that were too long for us."""
        lost = self.ports.read_counters(self.port).get("tx_dropped", 0) - self.dropped_before
        return max(0, lost) + self.queue.counters.rx_oversize


@contextmanager
def mirror(site: ProbeSite, record: Record, tell: Tell, removed: Tell, ending: EndingSignals) -> Iterator[MirroredPort]:
    """Mirror the port of an attachment into one of ours; all of it is removed at the end.

    `removed` is called with each thing that killed runs had left. Raises Unusable, BadRequest, Unavailable, FastPathError, Ended.
    """
    from userspace_cni.fastpath.vhost.front_end import FrontEndListener, FrontEndOptions
    from userspace_cni.node.probes import CAPTURE

    with site.probe_ports(CAPTURE) as ports:
        ending.listen()  # `ports` installed its own handler; it handles signals again when it cleans up
        ports.connect()
        source = _source(site, record, ports)
        for leftover in ports.adopt():
            removed(leftover)
        tell(f"making a mirror of port {source.port} on bridge {source.bridge}")
        port = ports.reserve(source.bridge)
        options = FrontEndOptions(queue_size=_QUEUE, room=_LINE, receive_room=_BUFFER_BYTES, mergeable=True, packed=None)
        with FrontEndListener(port.socket, options, access_for_switch(site)) as listener:
            ports.plug(port, mtu=source.mtu if source.mtu > MTU else None, vlan=source.vlan, mirrored=source.port)
            tell("attaching to it")
            with listener.accept(ATTACH_S) as front:
                before = ports.read_counters(port).get("tx_dropped", 0)
                yield MirroredPort(source, front, ports, port, before)


def _source(site: ProbeSite, record: Record, ports: ProbePorts) -> CapturedPort:
    """The port of an attachment, which the switch has. Raises Unusable, BadRequest, Unavailable."""
    step, name = record.port, name_of(record)
    if step is None or record.state != "ready":
        raise Unusable(f"{name} is not attached: its state is {record.state}; userspace-cni gc finishes what died")
    if step.datapath != "netdev":
        seen_by = f"tcpdump -i {step.name}, on the node, shows them"
        raise Unusable(
            f"{name} is on bridge {step.bridge} of the kernel's datapath: a vhost-user port cannot get its frames; {seen_by}"
        )
    ports.require_bridge(step.bridge)
    if error := ports.state(step.name).error:
        raise Unusable(f"{name}: the switch says of port {step.name}: {error}; userspace-cni check tells more")
    mtus = site.node.switch.ports.read_settings(Deadline.after(SWITCH_S)).mtus
    mtu = max(MTU, step.interface.mtu or 0, mtus.get(step.name, 0))
    return CapturedPort(name, step.name, step.bridge, mtu, step.vlan)


def capture(
    mirror: MirroredPort,
    course: CaptureOptions,
    sink: Sink,
    taken: CaptureFigures,
    ending: EndingSignals,
    report: Callable[[], None],
) -> None:
    """Pass frames to `sink` until the course is over, and fill `taken`, also when this ends with an exception.

    Signals are only remembered meanwhile, so that no frame is passed on in part. Calls `report` each second. Raises what the sink
    raises but ReaderGone.
    """
    ending.settle()
    began = time.monotonic()
    try:
        taken.ended = _carry(mirror, course, sink, taken, (ending, report))
    finally:
        taken.seconds = time.monotonic() - began
        _count_dropped(mirror, taken)


def _carry(
    mirror: MirroredPort,
    course: CaptureOptions,
    sink: Sink,
    taken: CaptureFigures,
    watched: tuple[EndingSignals, Callable[[], None]],
) -> End:
    """Until the course is over; why it is."""
    from userspace_cni.fastpath.fastpath_errors import FastPathError
    from userspace_cni.fastpath.rings.burst import Burst

    ending, report = watched
    burst = Burst(_BATCH, -(-mirror.source.longest // _LINE) * _LINE)
    ends = time.monotonic() + course.seconds if course.seconds is not None else None
    looked = time.monotonic()
    over: End | None = None
    try:
        while taken.frames != course.count:
            count = mirror.queue.receive(burst)
            _pass_on(burst, count, course, sink, taken)
            now = time.monotonic()
            over = over or ("signal" if ending.asked else "seconds" if ends is not None and now >= ends else None)
            if over and count < _BATCH:
                return over  # what had come by then is passed on
            if now - looked >= LOOK_S:
                looked = now
                report()
                taken.problem = mirror.problem()
                if taken.problem:
                    return "problem"
            if not count:
                sink.check()
                mirror.queue.wait(SLICE_S if ends is None else max(0.0, min(SLICE_S, ends - now)))
            elif _MANY <= count < _BATCH:
                time.sleep(REST_S)
    except ReaderGone:
        return "signal" if ending.asked else "reader"
    except FastPathError as error:
        taken.problem = mirror.problem() or str(error)
        return "problem"
    return "count"


def _pass_on(burst: Burst, count: int, course: CaptureOptions, sink: Sink, taken: CaptureFigures) -> None:
    """Give the sink those of the burst's frames that are wanted."""
    if not count:
        return
    now, keep, snaplen = time.time_ns(), course.keep, course.snaplen
    wanted = [data for data in burst.frames(count) if keep is None or keep.matches(data)]
    if course.count is not None:
        del wanted[course.count - taken.frames :]
    taken.seen += count
    if wanted:
        sink.put([Frame(now, data[:snaplen], len(data)) for data in wanted])
        taken.frames += len(wanted)
        taken.bytes += sum(map(len, wanted))


def _count_dropped(mirror: MirroredPort, taken: CaptureFigures) -> None:
    """Ask the switch; a switch that is gone leaves what was asked last."""
    try:
        taken.dropped = mirror.dropped()
    except UserspaceError as error:
        taken.problem = taken.problem or f"how many frames were dropped is unknown: {error}"
