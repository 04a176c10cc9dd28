"""`tap`: a kernel link in this namespace whose wire is a vhost-user socket, for programs that know nothing of DPDK.

Composition root of the fast path and of the host's links: makes the tap, sets it up, attaches to the switch, carries frames, and
attaches again whenever the switch comes back. It must never touch a link or socket that it has not made, nor leave one behind:
the tap goes with this process however that ends; only a killed one leaves a socket, which nobody has and the next run replaces.
Nor must it take a port from whoever is connected to it, unless it is told to.

The link has carrier exactly while frames get somewhere, so that whoever watches it (routing daemons, IPv6's address detection)
sees what a cable would show.
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

from userspace_cni.base.errors import BadRequest, Unavailable, UserspaceError
from userspace_cni.fastpath.errors import FastPathError, SocketRefused
from userspace_cni.fastpath.sys.unix_sockets import connections_here
from userspace_cni.fastpath.tap import ETHERNET, Carried, End, Flow, Pump, Tap
from userspace_cni.fastpath.vhost.front_end import FrontEnd, FrontEndOptions, Listener
from userspace_cni.fastpath.vhost.sockets import Access, is_alive
from userspace_cni.host.link import LinkSettings, set_up
from userspace_cni.pod.interface import Interface
from userspace_cni.pod.source import Found, Sources, own_sandbox_ids

DEFAULT_MTU: Final = 1500
POLL_S: Final = 0.2
"""Between two looks at the pod's own document."""
_ATTACH_S: Final = 15.0
"""The first attach after a start of the switch can take half of it: it makes memory pools."""
_BACK_OFF_S: Final = (0.05, 2.0)
_QUIET_S: Final = 1.0
"""A connection without an answer for so long is told of."""
_LEAVING_S: Final = 2.0
"""How long who has a port may take to leave it: a program that has just ended is still being taken down."""
_LOOK_S: Final = 1.0
"""Between two looks whether our socket is still where the switch looks for it."""
_SLICE_S: Final = 10.0
_NOTHING: Final = Carried(Flow(0, 0, 0), Flow(0, 0, 0), 0)


class Mode(Enum):
    """Who makes the socket: `server` we, `client` the switch, `auto` the switch if it has."""

    AUTO = "auto"
    CLIENT = "client"
    SERVER = "server"


@dataclass(frozen=True)
class Wanted:
    """A tap to be. `name` "" lets the kernel choose, `mac` "" too; `mtu` in bytes; `addresses` with prefix length.

    `socket_mode`: of a socket that we make; the switch's user must be able to write to it. `force`: take a port that somebody
    is connected to, who is cut off then.
    """

    socket: str
    mode: Mode = Mode.AUTO
    name: str = ""
    mac: str = ""
    mtu: int | None = None
    addresses: tuple[str, ...] = ()
    socket_mode: int = Access.mode
    force: bool = False

    def overriding(self, other: Wanted) -> Wanted:
        """What is given here, and the rest from `other`."""
        return replace(
            other,
            mode=other.mode if self.mode is Mode.AUTO else self.mode,
            name=self.name or other.name,
            mac=self.mac or other.mac,
            mtu=self.mtu or other.mtu,
            addresses=self.addresses or other.addresses,
            socket_mode=self.socket_mode,
            force=self.force,
        )


class State(Enum):
    """What has become of the tap."""

    WAITING = "waiting"
    READY = "ready"
    LOST = "lost"


@dataclass(frozen=True)
class News:
    """Something has changed: `state`, and in words why, or with whom."""

    state: State
    text: str


def sources_of(annotations: str = "", directory: str = "") -> Sources:
    """Where this container is told of its interfaces: in the file and directory given, else in the usual ones."""
    own = own_sandbox_ids()
    if not annotations and not directory:
        return Sources(own_ids=own)
    return Sources([annotations] if annotations else [], [directory] if directory else [], own_ids=own)


def of_pod(ifname: str, wait_s: float, sources: Sources, tell: Callable[[str], object] = lambda _: None) -> Wanted:
    """What the pod's own document says of the interface `ifname`, "" for the only one; waits so long for it to appear.

    `tell` is told what is missing, at each look. Raises Unavailable when it is not there in time, BadRequest when several are and
    none is named.
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


def _absence(found: Found, ifname: str) -> str:
    """What is missing."""
    if found.interfaces:
        there = ifname in ("", *(interface.ifname for interface in found.interfaces))
        return f"{found.source}: {found.trouble if there else f'no interface {ifname}'}"
    return f"this container's vhost-user interfaces: {found.trouble}"


def _wanted(interface: Interface) -> Wanted:
    return Wanted(
        socket=interface.path,
        mode=Mode(interface.mode),
        name=interface.ifname,
        mac=interface.mac,
        mtu=interface.mtu,
        addresses=tuple(str(ip["address"]) for ip in interface.ips),
    )


@dataclass
class TapBridge:
    """One tap and its socket; `run` works until `stop`, and tells `told` of what changes, on a thread of its own."""

    wanted: Wanted
    told: Callable[[News], None] = lambda _: None
    name: str = ""
    mode: Mode = Mode.AUTO
    _pump: Pump | None = None
    _attach: _Attach | None = None
    _stop: threading.Event = field(default_factory=threading.Event)

    @property
    def carried(self) -> Carried:
        """What went through so far."""
        return self._pump.carried if self._pump is not None else _NOTHING

    def run(self) -> None:
        """Make the tap and carry frames until `stop`; then everything that was made is gone.

        Raises FastPathError for a tap or a socket that can not be made, UserspaceError for a setting that the kernel refuses, for
        a tap that somebody deletes, and for a port that somebody else has.
        """
        wanted = self.wanted
        mtu = wanted.mtu or DEFAULT_MTU
        options = FrontEndOptions(room=mtu + ETHERNET, mergeable=True, queue_size=_queue_size(mtu))
        self.mode = self._decided()
        with ExitStack() as stack:
            tap = stack.enter_context(Tap(wanted.name))
            self.name = tap.name
            pump = self._pump = stack.enter_context(Pump(tap, mtu))
            made = _Called if self.mode is Mode.SERVER else _Calling
            attach = self._attach = made(wanted, options, self._tell_waiting, pump.stop_fd)
            stack.callback(attach.close)
            set_up(tap.name, LinkSettings(wanted.mac, wanted.mtu, wanted.addresses))
            attach.begin()
            self._serve(tap, pump, attach)

    def stop(self) -> None:
        """End `run` soon, from any thread; before it as well."""
        self._stop.set()
        if self._pump is not None:
            self._pump.stop()

    def abandon(self) -> None:
        """Before the process ends although `run` has not: when an attach that is under way outlasts the patience after `stop`."""
        if self._attach is not None:
            self._attach.close()

    def _decided(self) -> Mode:
        """Who makes the socket, decided once: a switch that is away for a moment does not make a server of us."""
        if self.wanted.mode is not Mode.AUTO:
            return self.wanted.mode
        try:
            return Mode.CLIENT if is_alive(self.wanted.socket) else Mode.SERVER
        except SocketRefused:
            return Mode.SERVER

    def _tell_waiting(self, text: str) -> None:
        if not self._stop.is_set():
            self.told(News(State.WAITING, text))

    def _serve(self, tap: Tap, pump: Pump, attach: _Attach) -> None:
        """Attach and carry in turns."""
        wait_s, trouble = _BACK_OFF_S[0], ""
        while not self._stop.is_set():
            try:
                front = attach.next()
            except FastPathError as error:
                if str(error) != trouble:
                    trouble = str(error)
                    self._tell_waiting(trouble)
                self._stop.wait(wait_s)
                wait_s = min(2 * wait_s, _BACK_OFF_S[1])
                continue
            if front is not None:
                wait_s, trouble = _BACK_OFF_S[0], ""
                with front:
                    self._carry(tap, pump, front)

    def _carry(self, tap: Tap, pump: Pump, front: FrontEnd) -> None:
        """Until the other side hangs up, or we stop."""
        tap.set_carrier(present=True)
        self.told(News(State.READY, f"process {front.peer.pid}"))
        end, why = End.SLICE, "the switch has hung up"
        try:
            while end is End.SLICE:
                end = pump.run(front.pairs[0], _SLICE_S)
        except FastPathError as error:
            why = str(error)
        if end is End.TAP_GONE:
            raise UserspaceError(f"link {tap.name}: it is gone", "somebody has deleted it: ip link")
        tap.set_carrier(present=False)
        if not self._stop.is_set():
            self.told(News(State.LOST, why))


def _queue_size(mtu: int) -> int:
    """Descriptors of a ring: the switch gives frames faster than a tap takes them, and drops what the ring has no room for.

    With 1024 TCP in frames of 1500 bytes was 1.4 times as fast as with 256; jumbo frames gained nothing, and take more memory.
    """
    return 1024 if mtu <= 2048 else 256


class _Attach(ABC):
    """Where the next connection comes from. `tell` is told what it waits for; `stop_fd` is readable when it shall stop."""

    def __init__(self, wanted: Wanted, options: FrontEndOptions, tell: Callable[[str], None], stop_fd: int) -> None:
        self._wanted = wanted
        self._options = options
        self._tell = tell
        self._poller = select.poll()
        self._poller.register(stop_fd, select.POLLIN)
        self._stop_fd = stop_fd
        self._said = ""

    def begin(self) -> None:  # noqa: B027 - not every source has something to do then
        """The link is there, and `next` comes."""

    @abstractmethod
    def next(self) -> FrontEnd | None:
        """The next connection, attached; None when it was stopped before. Raises FastPathError; it may be tried anew then."""

    def close(self) -> None:  # noqa: B027 - nor then
        """Leave nothing behind; in any thread, and again, is fine."""

    def _ready(self, seconds: float) -> list[int]:
        """The descriptors of those polled that are ready within this time."""
        return [fd for fd, _ in self._poller.poll(int(seconds * 1000))]

    @contextmanager
    def _patience(self, who: str) -> Iterator[None]:
        """Tell of it when what is done inside takes long; once, until it has gone well."""
        suspects = "ovs-vswitchd is busy or stopped, or it is no switch but another front-end (an application, another tap)"
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


class _Calling(_Attach):
    """We connect to the switch's socket, unless somebody else is connected to it."""

    _before = False

    def next(self) -> FrontEnd | None:
        """See _Attach. Raises UserspaceError when somebody has the port before we ever had it."""
        path = self._wanted.socket
        if not self._wanted.force and self._is_taken():
            if self._ready(0):
                return None
            words = "somebody is connected to it, and would be cut off"
            if not self._before:
                raise UserspaceError(f"{path}: {words}", "ss -xp: stop that program, or --force takes its port")
            raise SocketRefused(f"connecting to {path}", words, "ss -xp: that program has taken the port meanwhile")
        with self._patience("who listens there"):
            front = FrontEnd.connect(path, self._options, _ATTACH_S)
        self._before = True
        return front

    def _is_taken(self) -> bool:
        """Whether somebody has the port, and goes on having it."""
        ends = time.monotonic() + (0.0 if self._before else _LEAVING_S)
        while connections_here(self._wanted.socket):
            if time.monotonic() >= ends or self._ready(_BACK_OFF_S[0]):
                return True
            self._tell_once(f"{self._wanted.socket}: a program is connected to it, and has {_LEAVING_S:g} s to leave")
        return False


class _Called(_Attach):
    """The switch connects to our socket, which is made again when somebody has removed it."""

    def __init__(self, wanted: Wanted, options: FrontEndOptions, tell: Callable[[str], None], stop_fd: int) -> None:
        super().__init__(wanted, options, tell, stop_fd)
        self._listener = self._listen()

    def begin(self) -> None:
        """Say what it waits for: an hour may pass until there is a port."""
        self._tell(f"nobody has connected to {self._wanted.socket} yet")

    def next(self) -> FrontEnd | None:
        """See _Attach."""
        while True:
            if not self._listener.in_place():
                self._listen_again()
            ready = self._ready(_LOOK_S)
            if self._stop_fd in ready:
                return None
            if ready:
                with self._patience("who has connected"):
                    return self._listener.accept(_ATTACH_S)

    def close(self) -> None:
        """Listen no more."""
        self._listener.close()

    def _listen(self) -> Listener:
        wanted = self._wanted
        listener = Listener(wanted.socket, self._options, Access(wanted.socket_mode), replace_dead=True)
        self._poller.register(listener.fileno(), select.POLLIN)
        return listener

    def _listen_again(self) -> None:
        fd = self._listener.fileno()
        if fd >= 0:
            self._poller.unregister(fd)
        self._listener.close()
        self._listener = self._listen()
        self._tell(f"{self._wanted.socket} had been removed and was made again; nobody has connected to it yet")
