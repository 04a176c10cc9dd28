"""`tap`: a kernel link in this namespace whose wire is a vhost-user socket, for programs that know nothing of DPDK.

Composition root of the fast path and of the host's links: makes the tap, sets it up, attaches to the switch, carries frames, and
attaches again whenever the switch comes back. It must never touch a link or socket that it has not made, nor leave one behind:
the tap goes with this process however that ends; only a killed one leaves a socket, which nobody has and the next run replaces.

The link has carrier exactly while frames get somewhere, so that whoever watches it (routing daemons, IPv6's address detection)
sees what a cable would show.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from typing import Final

from userspace_cni.errors import BadRequest, Unavailable, UserspaceError
from userspace_cni.fastpath.errors import FastPathError, SocketRefused
from userspace_cni.fastpath.front_end import FrontEnd, FrontEndOptions, Listener
from userspace_cni.fastpath.sockets import is_alive
from userspace_cni.fastpath.tap import ETHERNET, Carried, End, Flow, Pump, Tap
from userspace_cni.host.link import LinkSettings, set_up
from userspace_cni.pod.interface import Interface
from userspace_cni.pod.source import Found, Sources, own_sandbox_ids

DEFAULT_MTU: Final = 1500
POLL_S: Final = 0.2
"""Between two looks at the pod's own document."""
_ATTACH_S: Final = 15.0
"""The first attach after a start of the switch can take half of it: it makes memory pools."""
_BACK_OFF_S: Final = (0.05, 2.0)
_SLICE_S: Final = 10.0
_NOTHING: Final = Carried(Flow(0, 0, 0), Flow(0, 0, 0), 0)


Attach = Callable[[], FrontEnd | None]
"""Makes the next connection; None when it was stopped before there was one."""


class Mode(Enum):
    """Who makes the socket: `server` we, `client` the switch, `auto` the switch if it has."""

    AUTO = "auto"
    CLIENT = "client"
    SERVER = "server"


@dataclass(frozen=True)
class Wanted:
    """A tap to be. `name` "" lets the kernel choose, `mac` "" too; `mtu` in bytes; `addresses` with prefix length."""

    socket: str
    mode: Mode = Mode.AUTO
    name: str = ""
    mac: str = ""
    mtu: int | None = None
    addresses: tuple[str, ...] = ()

    def overriding(self, other: Wanted) -> Wanted:
        """What is given here, and the rest from `other`."""
        return replace(
            other,
            mode=other.mode if self.mode is Mode.AUTO else self.mode,
            name=self.name or other.name,
            mac=self.mac or other.mac,
            mtu=self.mtu or other.mtu,
            addresses=self.addresses or other.addresses,
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


def of_pod(ifname: str, wait_s: float, sources: Sources) -> Wanted:
    """What the pod's own document says of the interface `ifname`, "" for the only one; waits so long for it to appear.

    Raises Unavailable when it is not there in time, BadRequest when several are and none is named.
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
        time.sleep(POLL_S)


def _absence(found: Found, ifname: str) -> str:
    if found.interfaces:
        return f"{found.source}: no interface {ifname}"
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
    """One tap and its socket; `run` works until `stop`, and tells `told` of what changes, on its own thread."""

    wanted: Wanted
    told: Callable[[News], None] = lambda _: None
    name: str = ""
    mode: Mode = Mode.AUTO
    _pump: Pump | None = None
    _listener: Listener | None = None
    _stop: threading.Event = field(default_factory=threading.Event)

    @property
    def carried(self) -> Carried:
        """What went through so far."""
        return self._pump.carried if self._pump is not None else _NOTHING

    def run(self) -> None:
        """Make the tap and carry frames until `stop`; then everything that was made is gone.

        Raises FastPathError for a tap or a socket that can not be made, UserspaceError for a setting that the kernel refuses and
        for a tap that somebody deletes.
        """
        wanted = self.wanted
        mtu = wanted.mtu or DEFAULT_MTU
        options = FrontEndOptions(room=mtu + ETHERNET, mergeable=True, queue_size=_queue_size(mtu))
        self.mode = self._decided()
        with ExitStack() as stack:
            tap = stack.enter_context(Tap(wanted.name))
            self.name = tap.name
            pump = self._pump = stack.enter_context(Pump(tap, mtu))
            attach: Attach = partial(FrontEnd.connect, wanted.socket, options, _ATTACH_S)
            if self.mode is Mode.SERVER:
                listener = self._listener = stack.enter_context(Listener(wanted.socket, options, replace_dead=True))
                attach = partial(_accepted, listener, pump.stop_fd)
            set_up(tap.name, LinkSettings(wanted.mac, wanted.mtu, wanted.addresses))
            self._serve(tap, pump, attach)

    def stop(self) -> None:
        """End `run` soon, from any thread; before it as well."""
        self._stop.set()
        if self._pump is not None:
            self._pump.stop()

    def abandon(self) -> None:
        """Before the process ends although `run` has not: when an attach that is under way outlasts the patience after `stop`."""
        if self._listener is not None:
            self._listener.close()

    def _decided(self) -> Mode:
        """Who makes the socket, decided once: a switch that is away for a moment does not make a server of us."""
        if self.wanted.mode is not Mode.AUTO:
            return self.wanted.mode
        try:
            return Mode.CLIENT if is_alive(self.wanted.socket) else Mode.SERVER
        except SocketRefused:
            return Mode.SERVER

    def _serve(self, tap: Tap, pump: Pump, attach: Attach) -> None:
        """Attach and carry in turns."""
        wait_s, trouble = _BACK_OFF_S[0], ""
        while not self._stop.is_set():
            try:
                front = attach()
            except FastPathError as error:
                if str(error) != trouble:
                    trouble = str(error)
                    self.told(News(State.WAITING, trouble))
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


def _accepted(listener: Listener, stop_fd: int) -> FrontEnd | None:
    """The switch's next connection, attached; None when we are stopped before there is one."""
    poller = select.poll()
    poller.register(listener.fileno(), select.POLLIN)
    poller.register(stop_fd, select.POLLIN)
    if stop_fd in dict(poller.poll()):
        return None
    return listener.accept(_ATTACH_S)
