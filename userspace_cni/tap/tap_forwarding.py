"""`tap`: a kernel link in this namespace whose wire is a vhost-user socket, for programs that do not use DPDK.

Composition root of the fast path and of the host's links: makes the tap, sets it up, attaches to the switch, carries frames, and
attaches again whenever the switch comes back. It must never touch a link or socket that it has not made, nor leave one behind.
The kernel removes the tap with this process. If it is killed, a dead socket stays, which the next run replaces. It must never
take a port from a connected application, unless `force` says so.

The link has carrier exactly while the switch is attached, so that programs that watch it (routing daemons, IPv6's address
detection) see what a cable would show.
"""

from __future__ import annotations

import select
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from userspace_cni.base.back_off import BackOff
from userspace_cni.base.errors import BadRequest, Unavailable, UserspaceError
from userspace_cni.fastpath.fastpath_errors import FastPathError, SocketRefused
from userspace_cni.fastpath.tap import ETHERNET, DirectionCounts, Pump, PumpCounts, PumpEnd, Tap, TapGone
from userspace_cni.fastpath.vhost.front_end import FrontEnd, FrontEndListener, FrontEndOptions
from userspace_cni.fastpath.vhost.offloads import NO_OFFLOADS, OFFLOADS, takes_large
from userspace_cni.fastpath.vhost.socket_paths import SocketAccess, is_alive
from userspace_cni.host.netlink.own_link import LinkSettings, set_up
from userspace_cni.linux.unix_sockets import connections_here
from userspace_cni.pod.interface import Interface
from userspace_cni.pod.source import SourceLook, Sources, own_sandbox_ids

DEFAULT_MTU: Final = 1500
POLL_S: Final = 0.2
"""Seconds between two looks at the pod's own document."""
_ATTACH_S: Final = 15.0
"""The first attach after a start of the switch can take half of it: it makes memory pools."""
_BACK_OFF: Final = BackOff(0.05, 2.0)
_QUIET_S: Final = 1.0
"""Seconds without an answer on a connection before that is reported."""
_LEAVING_S: Final = 2.0
"""Seconds that a connected program may take to leave the port: the kernel is still ending one that has just exited."""
_LOOK_S: Final = 1.0
"""Seconds between two checks that our socket is still where the switch looks for it."""
_SLICE_S: Final = 10.0
_RECEIVE_BYTES: Final = 4 << 20
"""Memory for received frames with offloads: 64 large ones. With room for 24 TCP, whose sender and receiver had one core, sent
20,000 segments again in two seconds, and with this none."""
_NOTHING: Final = PumpCounts(DirectionCounts(0, 0, 0), DirectionCounts(0, 0, 0), 0)


class TapMode(Enum):
    """Which side makes the socket: `server` we, `client` the switch, `auto` the switch if it listens there."""

    AUTO = "auto"
    CLIENT = "client"
    SERVER = "server"


@dataclass(frozen=True)
class DesiredTap:
    """The tap to make. `name` "" lets the kernel choose, `mac` "" too; `mtu` in bytes; `addresses` with prefix length.

    `socket_mode`: of a socket that we make; the switch's user must be able to write to it. `force`: take the port from a
    connected program, which is cut off then. `offloads`: have the kernel send and receive TCP in large frames.
    """

    socket: str
    mode: TapMode = TapMode.AUTO
    name: str = ""
    mac: str = ""
    mtu: int | None = None
    addresses: tuple[str, ...] = ()
    socket_mode: int = SocketAccess.mode
    force: bool = False
    offloads: bool = True

    def overriding(self, other: DesiredTap) -> DesiredTap:
        """Return the values that are given here, and the rest from `other`."""
        return replace(
            other,
            mode=other.mode if self.mode is TapMode.AUTO else self.mode,
            name=self.name or other.name,
            mac=self.mac or other.mac,
            mtu=self.mtu or other.mtu,
            addresses=self.addresses or other.addresses,
            socket_mode=self.socket_mode,
            force=self.force,
            offloads=self.offloads,
        )


class TapState(Enum):
    """The tap's state."""

    WAITING = "waiting"
    READY = "ready"
    LOST = "lost"


@dataclass(frozen=True)
class TapNews:
    """A change of the state; `text`: why, or with which process."""

    state: TapState
    text: str


def sources_of(annotations: str = "", directory: str = "") -> Sources:
    """Where this container finds its interfaces: in the file and directory given, else in the usual ones."""
    own = own_sandbox_ids()
    if not annotations and not directory:
        return Sources(own_ids=own)
    return Sources([annotations] if annotations else [], [directory] if directory else [], own_ids=own)


def of_pod(ifname: str, wait_s: float, sources: Sources, tell: Callable[[str], object] = lambda _: None) -> DesiredTap:
    """Read the interface `ifname`, "" for the only one, in the pod's own document; waits up to `wait_s` for it to appear.

    `tell` is called with what is missing, at each look. Raises Unavailable when it does not appear in time, BadRequest when there
    are several and none is named.
    """
    ends = time.monotonic() + wait_s
    while True:
        found = sources.look()
        chosen = [interface for interface in found.interfaces if ifname in ("", interface.ifname)]
        if len(chosen) > 1:
            names = ", ".join(interface.ifname for interface in chosen)
            raise BadRequest(f"{found.source} has several interfaces: {names}", "--interface names one")
        if chosen and (ifname or found.settled or time.monotonic() >= ends):
            return _wanted(chosen[0])
        if time.monotonic() >= ends:
            raise Unavailable(_absence(found, ifname), "the pod's annotations (downward API), or name the socket")
        tell(_absence(found, ifname))
        time.sleep(POLL_S)


def _absence(found: SourceLook, ifname: str) -> str:
    if found.interfaces:
        there = ifname in ("", *(interface.ifname for interface in found.interfaces))
        return f"{found.source}: {found.trouble if there else f'no interface {ifname}'}"
    return f"this container's vhost-user interfaces: {found.trouble}"


def _wanted(interface: Interface) -> DesiredTap:
    return DesiredTap(
        socket=interface.path,
        mode=TapMode(interface.mode),
        name=interface.ifname,
        mac=interface.mac,
        mtu=interface.mtu,
        addresses=tuple(str(ip["address"]) for ip in interface.ips),
    )


@dataclass
class TapBridge:
    """One tap and its socket. `run` works until `stop`, and calls `on_change` for each change, on its own thread."""

    wanted: DesiredTap
    on_change: Callable[[TapNews], None] = lambda _: None
    name: str = ""
    mode: TapMode = TapMode.AUTO
    _pump: Pump | None = None
    _attach: _Attach | None = None
    _stop: threading.Event = field(default_factory=threading.Event)

    @property
    def carried(self) -> PumpCounts:
        return self._pump.carried if self._pump is not None else _NOTHING

    def run(self) -> None:
        """Make the tap and carry frames until `stop`; then remove everything that was made.

        Raises FastPathError for a tap or a socket that cannot be made, UserspaceError for a setting that the kernel refuses, for
        a tap that another process deletes, and for a port to which another program is connected.
        """
        wanted = self.wanted
        mtu = wanted.mtu or DEFAULT_MTU
        offloads = OFFLOADS if wanted.offloads else NO_OFFLOADS
        size = _queue_size(mtu)
        receive_room = _RECEIVE_BYTES // size if wanted.offloads else None
        options = FrontEndOptions(
            room=mtu + ETHERNET,
            receive_room=receive_room,
            mergeable=True,
            queue_size=size,
            offloads=offloads,
            headers=True,
        )
        self.mode = self._decided()
        with ExitStack() as stack:
            tap = stack.enter_context(Tap(wanted.name, headers=True))
            self.name = tap.name
            pump = self._pump = stack.enter_context(Pump(tap, mtu))
            source = _AttachAsServer if self.mode is TapMode.SERVER else _AttachAsClient
            attach = self._attach = source(wanted, options, self._report_waiting, pump.stop_fd)
            stack.callback(attach.close)
            set_up(tap.name, LinkSettings(wanted.mac, wanted.mtu, wanted.addresses))
            attach.begin()
            self._serve(tap, pump, attach)

    def stop(self) -> None:
        """End `run` soon, or before it begins; from any thread."""
        self._stop.set()
        if self._pump is not None:
            self._pump.stop()

    def abandon(self) -> None:
        """Remove the socket before the process ends, when `run` has not ended because an attach takes too long."""
        if self._attach is not None:
            self._attach.close()

    def _decided(self) -> TapMode:
        """Decide once which side makes the socket: we do not become the server while the switch is away for a moment."""
        if self.wanted.mode is not TapMode.AUTO:
            return self.wanted.mode
        try:
            return TapMode.CLIENT if is_alive(self.wanted.socket) else TapMode.SERVER
        except SocketRefused:
            return TapMode.SERVER

    def _report_waiting(self, text: str) -> None:
        if not self._stop.is_set():
            self.on_change(TapNews(TapState.WAITING, text))

    def _serve(self, tap: Tap, pump: Pump, attach: _Attach) -> None:
        pause_s, trouble = 0.0, ""
        while not self._stop.is_set():
            try:
                front = attach.next()
            except FastPathError as error:
                if str(error) != trouble:
                    trouble = str(error)
                    self._report_waiting(trouble)
                pause_s = _BACK_OFF.after(pause_s)
                self._stop.wait(pause_s)
                continue
            if front is not None:
                pause_s, trouble = 0.0, ""
                with front:
                    self._carry(tap, pump, front)

    def _carry(self, tap: Tap, pump: Pump, front: FrontEnd) -> None:
        """Carry frames until the other side hangs up, or we stop. It may offer other offloads than the one before it."""
        try:
            pump.follow(front.features, large=self.wanted.offloads)
        except TapGone as error:
            raise _gone(tap) from error
        tap.set_carrier(present=True)
        self.on_change(TapNews(TapState.READY, f"process {front.peer.pid}{self._large_frames(front)}"))
        end, why = PumpEnd.SLICE, "the switch has hung up"
        try:
            while end is PumpEnd.SLICE:
                end = pump.run(front.pairs[0], _SLICE_S)
        except FastPathError as error:
            why = str(error)
        if end is PumpEnd.TAP_GONE:
            raise _gone(tap)
        tap.set_carrier(present=False)
        if not self._stop.is_set():
            self.on_change(TapNews(TapState.LOST, why))

    def _large_frames(self, front: FrontEnd) -> str:
        """What becomes of the kernel's large frames, to be told."""
        if not self.wanted.offloads:
            return ""
        return f"; it takes {'large frames' if takes_large(front.features) else 'no large frames: they are cut here'}"


def _gone(tap: Tap) -> UserspaceError:
    return UserspaceError(f"link {tap.name}: it is gone", "another process has deleted it: ip link")


def _queue_size(mtu: int) -> int:
    """Descriptors of a ring: the switch sends frames faster than a tap takes them, and drops those that do not fit the ring.

    With 1024, TCP in frames of 1500 bytes was 1.4 times as fast as with 256. Jumbo frames gained nothing, and take more memory.
    """
    return 1024 if mtu <= 2048 else 256


class _Attach(ABC):
    """Makes the connections with the switch. `tell` is called with what it waits for; `stop_fd` is readable to stop it."""

    def __init__(self, wanted: DesiredTap, options: FrontEndOptions, tell: Callable[[str], None], stop_fd: int) -> None:
        self._wanted = wanted
        self._options = options
        self._tell = tell
        self._poller = select.poll()
        self._poller.register(stop_fd, select.POLLIN)
        self._stop_fd = stop_fd
        self._said = ""

    def begin(self) -> None:  # noqa: B027 - not every source has something to do then
        """Prepare for `next`, once the link is there."""

    @abstractmethod
    def next(self) -> FrontEnd | None:
        """Return the next connection, attached; None when it is stopped. Raises FastPathError; it may be tried again then."""

    def close(self) -> None:  # noqa: B027 - nor something to remove
        """Remove what was made; may be called from any thread, and again."""

    def _ready(self, seconds: float) -> list[int]:
        """The polled descriptors that are ready within this time."""
        return [fd for fd, _ in self._poller.poll(int(seconds * 1000))]

    @contextmanager
    def _patience(self, who: str) -> Iterator[None]:
        """Report once when this block takes long; again only after a success."""
        suspects = "ovs-vswitchd is busy or stopped, or it is not a switch but another front-end (an application, another tap)"
        text = f"{self._wanted.socket}: {who} has not answered for {_QUIET_S:g} s: {suspects}"
        timer = threading.Timer(_QUIET_S, self._tell_once, [text])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
        self._said = ""

    def _tell_once(self, text: str) -> None:
        if text != self._said:
            self._said = text
            self._tell(text)


class _AttachAsClient(_Attach):
    """Connects to the switch's socket, unless another program is connected to it."""

    _before = False

    def next(self) -> FrontEnd | None:
        """See _Attach. Raises UserspaceError when another program has the port before we ever had it."""
        path = self._wanted.socket
        if not self._wanted.force and self._is_taken():
            if self._ready(0):
                return None
            words = "another program is connected to it, and would be cut off"
            if not self._before:
                raise UserspaceError(f"{path}: {words}", "ss -xp shows that program; --force takes its port from it")
            raise SocketRefused(f"connecting to {path}", words, "ss -xp: that program has taken the port meanwhile")
        with self._patience("the listener"):
            front = FrontEnd.connect(path, self._options, _ATTACH_S)
        self._before = True
        return front

    def _is_taken(self) -> bool:
        """Whether another program is connected to the port, and stays."""
        ends = time.monotonic() + (0.0 if self._before else _LEAVING_S)
        while connections_here(self._wanted.socket):
            if time.monotonic() >= ends or self._ready(_BACK_OFF.first_s):
                return True
            self._tell_once(f"{self._wanted.socket}: a program is connected to it, and has {_LEAVING_S:g} s to leave")
        return False


class _AttachAsServer(_Attach):
    """Listens for the switch at our socket, which is made again when another process has removed it."""

    def __init__(self, wanted: DesiredTap, options: FrontEndOptions, tell: Callable[[str], None], stop_fd: int) -> None:
        super().__init__(wanted, options, tell, stop_fd)
        self._listener = self._listen()

    def begin(self) -> None:
        """Report what it waits for: an hour may pass until there is a port."""
        self._tell(f"no switch has connected to {self._wanted.socket} yet")

    def next(self) -> FrontEnd | None:
        while True:
            if not self._listener.is_in_place():
                self._listen_again()
            ready = self._ready(_LOOK_S)
            if self._stop_fd in ready:
                return None
            if ready:
                with self._patience("the switch that has connected"):
                    return self._listener.accept(_ATTACH_S)

    def close(self) -> None:
        self._listener.close()

    def _listen(self) -> FrontEndListener:
        wanted = self._wanted
        listener = FrontEndListener(wanted.socket, self._options, SocketAccess(wanted.socket_mode), replace_dead=True)
        self._poller.register(listener.fileno(), select.POLLIN)
        return listener

    def _listen_again(self) -> None:
        fd = self._listener.fileno()
        if fd >= 0:
            self._poller.unregister(fd)
        self._listener.close()
        self._listener = self._listen()
        self._tell(f"{self._wanted.socket} had been removed and was made again; no switch has connected to it yet")
