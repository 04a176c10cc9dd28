"""A kernel tap, and the pump that carries frames between it and a queue pair.

Why it exists: an ordinary program (a shell, a web server, ping) cannot use a vhost-user socket; behind a tap it uses the pod's
interface like any other. The tap is not persistent unless `keep` makes it so: the kernel removes it with its descriptor, however
the process ends.

What it must never do: touch a link that it has not made. The caller sets the tap's addresses, by netlink, which is not spoken
here.

Source: Documentation/networking/tuntap.rst of the kernel, linux/if_tun.h.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import threading
import warnings
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from userspace_cni.fastpath._native import ffi, lib
from userspace_cni.fastpath.fastpath_errors import Closed, FastPathError, MemoryShort
from userspace_cni.fastpath.memory.owned import own
from userspace_cni.fastpath.vhost.offloads import NO_OFFLOADS, SEND_OFFLOADS, takes_large
from userspace_cni.fastpath.vhost.vhost_messages import Feature
from userspace_cni.linux.closing import Closing

if TYPE_CHECKING:
    from userspace_cni.fastpath.rings.queue_pair import QueuePair

DEVICE: Final = "/dev/net/tun"
NAME_MAX: Final = 15
"""Bytes of a link's name (IFNAMSIZ without the final NUL)."""
ETHERNET: Final = 14 + 2 * 4
"""Bytes of a frame that the MTU does not count: the header, and two VLAN tags."""

_TUNSETIFF: Final = 0x400454CA
_TUNSETPERSIST: Final = 0x400454CB
_TUNSETCARRIER: Final = 0x400454E2
_TUNSETOFFLOAD: Final = 0x400454D0
_TUNSETVNETHDRSZ: Final = 0x400454D8
_IFF_TAP: Final = 0x0002
_IFF_NO_PI: Final = 0x1000
_IFF_VNET_HDR: Final = 0x4000
_IFF_TUN_EXCL: Final = 0x8000
_IFREQ: Final = struct.Struct("16sH22x")
_TUN_OFFLOADS: Final = {
    Feature.NET_CSUM: 0x01,
    Feature.NET_HOST_TSO4: 0x02,
    Feature.NET_HOST_TSO6: 0x04,
    Feature.NET_HOST_ECN: 0x08,
}
"""TUN_F_*: what the kernel may leave to who reads the tap."""


class TapRefused(FastPathError):
    """The kernel does not let us have the tap."""


class TapGone(TapRefused):
    """The link was deleted while it was open here."""


class NoTapDevice(TapRefused):
    """This process cannot open the device of taps."""


class Tap(Closing):
    """A tap in the network namespace of the calling thread, down and without carrier; `close` removes it.

    `name`: as given; when that is empty or has a `%d` in it, the kernel chooses. `headers`: what is read and written begins with
    the 12 bytes of a virtio header, as offloads need.
    """

    _fd = -1

    def __init__(self, name: str = "", *, headers: bool = False) -> None:
        step = f"making the tap {name}" if name else "making a tap"
        if len(os.fsencode(name)) > NAME_MAX:
            raise TapRefused(step, f"the name is longer than {NAME_MAX} bytes")
        self.headers = headers
        self._fd = _device(step)
        try:
            flags = _IFF_TAP | _IFF_NO_PI | _IFF_TUN_EXCL | (_IFF_VNET_HDR if headers else 0)
            answer = fcntl.ioctl(self._fd, _TUNSETIFF, _IFREQ.pack(os.fsencode(name), flags))
            if headers:
                fcntl.ioctl(self._fd, _TUNSETVNETHDRSZ, struct.pack("i", lib.FP_HEADER))
        except OSError as error:
            fd, self._fd = self._fd, -1
            os.close(fd)
            raise TapRefused(step, *_reason(error, name)) from error
        self.name = os.fsdecode(answer[:16].rstrip(b"\0"))
        self.set_carrier(present=False)

    def __del__(self) -> None:
        if self._fd >= 0:
            warnings.warn(f"unclosed tap {self.name}: use `with`, or close()", ResourceWarning, 2, source=self)
            self.close()

    def fileno(self) -> int:
        """The descriptor, non-blocking: a read or a write is one frame. Raises Closed."""
        if self._fd < 0:
            raise Closed(f"tap {self.name}", "it is closed")
        return self._fd

    def set_carrier(self, *, present: bool) -> None:
        """Set the link's carrier: whether frames get anywhere. Does nothing on kernels before 5.0."""
        with suppress(OSError):
            fcntl.ioctl(self.fileno(), _TUNSETCARRIER, struct.pack("i", present))

    def set_offloads(self, features: Feature) -> None:
        """Have the kernel leave to us what these offloads let a front-end leave to the other side; the rest it does itself.

        For a tap with headers. Raises TapRefused; TapGone where the link was deleted meanwhile.
        """
        wanted = sum(bit for feature, bit in _TUN_OFFLOADS.items() if feature & features)
        try:
            fcntl.ioctl(self.fileno(), _TUNSETOFFLOAD, wanted)
        except OSError as error:
            raise self._refused("setting offloads of", error) from error

    def keep(self) -> None:
        """Have the kernel keep the link when this is closed: another program may open it by its name then.

        Raises TapRefused; TapGone where the link was deleted meanwhile.
        """
        try:
            fcntl.ioctl(self.fileno(), _TUNSETPERSIST, 1)
        except OSError as error:
            raise self._refused("keeping", error) from error

    def _refused(self, doing: str, error: OSError) -> TapRefused:
        refused = TapGone if error.errno == errno.EBADFD else TapRefused
        return refused(f"{doing} the tap {self.name}", error.strerror or str(error))

    def close(self) -> None:
        """Remove the tap, with its addresses and routes, unless it is kept. May be called again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _device(step: str) -> int:
    try:
        return os.open(DEVICE, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as error:
        what = "the container lacks the device: mknod /dev/net/tun c 10 200, or a hostPath of it"
        raise NoTapDevice(step, f"{DEVICE} is not there", what) from error
    except OSError as error:
        look_at = {
            errno.ENODEV: "the kernel has no tun driver: modprobe tun on the host",
            errno.EPERM: "the container may not use the device: its list of devices (10:200) decides",
            errno.EACCES: "the container may not use the device: its mode, or its list of devices (10:200), decides",
        }
        refused = NoTapDevice if error.errno in look_at else TapRefused
        raise refused(step, f"{DEVICE}: {error.strerror}", look_at.get(error.errno or 0, "")) from error


def _reason(error: OSError, name: str) -> tuple[str, str]:
    """What happened and what to look at."""
    if error.errno == errno.EPERM:
        return "not permitted", "it needs the capability NET_ADMIN in the network namespace's own user namespace"
    if error.errno == errno.EBUSY:
        return "a link of this name exists", f"ip link show {name}; --name chooses another"
    if error.errno == errno.EINVAL:
        return "the kernel does not take the name", "a link's name has no blank, slash or colon and is neither . nor .."
    return error.strerror or str(error), ""


class PumpEnd(Enum):
    """Why a run of the pump ended."""

    SLICE = lib.FP_PUMP_SLICE
    STOPPED = lib.FP_PUMP_STOPPED
    CLOSED = lib.FP_PUMP_CLOSED
    HANGUP = lib.FP_PUMP_HANGUP
    TAP_GONE = lib.FP_PUMP_TAP_GONE


@dataclass(frozen=True)
class DirectionCounts:
    """One direction: frames and bytes carried; `dropped`: frames that found no room at the receiver, or were too long."""

    frames: int
    bytes: int
    dropped: int


@dataclass(frozen=True)
class PumpCounts:
    """The counts of a pump since it was made; `sleeps`: how often it had nothing to do."""

    to_ring: DirectionCounts
    to_tap: DirectionCounts
    sleeps: int


class Pump(Closing):
    """Carries frames between `tap` and one queue pair after another. One thread runs it; any may stop it or read `carried`.

    `tap`: its descriptor has to be non-blocking, and a read or a write one frame. `mtu`: of the tap, bytes; longer frames are
    dropped. With a tap that has headers, the queue pairs must have them, too: TCP segments of the other side are merged for the
    kernel, and the kernel's large frames are cut unless the other side takes them.
    """

    def __init__(self, tap: Tap, mtu: int = 1500) -> None:
        self._tap = tap
        self._stop = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._running = threading.Lock()
        self._closing = threading.RLock()  # reentrant: a signal's handler may call stop() during a stop() of the same thread
        pump = lib.fp_pump_new(tap.fileno(), self._stop, mtu + ETHERNET, tap.headers)
        if pump == ffi.NULL:
            os.close(self._stop)
            raise MemoryShort("making a pump", f"no memory for frames of {mtu} bytes")
        self._pump: Any = own(pump, lib.fp_pump_free)

    def follow(self, features: Feature, *, large: bool = True) -> None:
        """Set the tap's offloads, and whether large frames are cut here, by what was agreed on; no run may be under way.

        `large`: whether the kernel is to send large frames, and segments are merged for it. Frames that the kernel gave for
        another agreement are dropped. Does nothing without headers. Raises TapRefused, TapGone.
        """
        if not self._tap.headers:
            return
        cuts = large and not takes_large(features)
        self._tap.set_offloads(SEND_OFFLOADS if cuts else features if large else NO_OFFLOADS)
        lib.fp_pump_offload(self._pump, cuts, large)

    def run(self, pair: QueuePair, slice_s: float = 0.5) -> PumpEnd:
        """Carry frames for `slice_s` seconds, without the GIL; returns why it ended.

        A signal ends it early, with SLICE, so that Python can handle it. Raises RingFault when the other side broke the ring, and
        FastPathError when another thread runs it.
        """
        if self._stop < 0:
            raise Closed("running the pump", "it is closed")
        tx, rx, owner = pair.tx, pair.rx, pair.owner
        if pair.headers != self._tap.headers:
            raise ValueError("tap and queue pair: frames of both have headers, or of neither")
        if not self._running.acquire(blocking=False):
            raise FastPathError("running the pump", "it runs already, in another thread", "a pump for each thread")
        try:
            found = lib.fp_pump_run(self._pump, tx, rx, owner.control_fd, owner.wake_fd, int(slice_s * 1_000_000_000))
        finally:
            self._running.release()
        if found < 0:
            raise pair.explain_failure(found, "send" if lib.fp_fault_of(tx) else "receive")
        return PumpEnd(found)

    def stop(self) -> None:
        """End the run that is under way, and all later ones."""
        with self._closing:
            if self._stop >= 0:
                os.eventfd_write(self._stop, 1)

    @property
    def stop_fd(self) -> int:
        """An eventfd that is readable after `stop`; -1 when closed."""
        return self._stop

    @property
    def carried(self) -> PumpCounts:
        """The counts; may be read at any time."""
        return PumpCounts(_flow(self._pump.to_ring), _flow(self._pump.to_tap), self._pump.sleeps)

    def close(self) -> None:
        """Free the descriptor; no run may be under way. The counts stay. May be called again."""
        with self._closing:
            stop, self._stop = self._stop, -1
        if stop >= 0:
            os.close(stop)


def _flow(flow: Any) -> DirectionCounts:
    return DirectionCounts(flow.frames, flow.bytes, flow.dropped)
