"""Applies the messages of a front-end to a network device: each request of vhost-user that a back-end has to know.

No sockets: a message comes in with its descriptors, an answer goes out as bytes. A request that is not offered is refused; an
invalid one is a PeerError, after which the device is to be closed. Every received descriptor is in use or closed afterwards, also
after an error. One thread applies messages; other threads may read `list_started` and `why_broken`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final, NamedTuple

from userspace_cni.fastpath.fastpath_errors import BreachReason, FastPathError, PeerError
from userspace_cni.fastpath.vhost import vhost_messages
from userspace_cni.fastpath.vhost.lent_memory import LentMemory, require_eventfd
from userspace_cni.fastpath.vhost.offloads import NO_OFFLOADS
from userspace_cni.fastpath.vhost.vhost_messages import (
    Feature,
    ProtocolFeature,
    VhostMessage,
    VhostRequest,
    VringAddress,
    VringFd,
    VringState,
)
from userspace_cni.fastpath.vhost.vring import Vring

_PROTOCOL: Final = ProtocolFeature.RARP | ProtocolFeature.REPLY_ACK | ProtocolFeature.NET_MTU | ProtocolFeature.STATUS
_MTU_RANGE: Final = range(68, 65536)
_STATUS_MAX: Final = 0xFF


class Offer(NamedTuple):
    """What a device offers to a front-end."""

    queue_pairs: int
    mergeable: bool
    in_order: bool
    packed: bool
    offloads: Feature = NO_OFFLOADS

    def features(self) -> Feature:
        """The answer to GET_FEATURES."""
        offered = Feature.VERSION_1 | Feature.PROTOCOL_FEATURES | Feature.NET_MTU | self.offloads
        if self.queue_pairs > 1:
            offered |= Feature.NET_MQ
        if self.mergeable:
            offered |= Feature.NET_MRG_RXBUF
        if self.packed:
            offered |= Feature.RING_PACKED
        return offered | Feature.IN_ORDER if self.in_order else offered

    def protocol_features(self) -> ProtocolFeature:
        """The answer to GET_PROTOCOL_FEATURES.

        A device with one pair has no MQ, so that no front-end asks it GET_QUEUE_NUM: QEMU and DPDK count pairs in the answer, the
        rust-vmm crate single queues, which would forbid the second queue of the pair.
        """
        return _PROTOCOL | ProtocolFeature.MQ if self.queue_pairs > 1 else _PROTOCOL


class VhostDevice:
    """The device of one connection. `alarm`: an eventfd of ours that is written when a guest breaks its ring."""

    def __init__(self, offer: Offer, alarm: int) -> None:
        self._offer = offer
        self.rings = [Vring(index, alarm, headers=bool(offer.offloads)) for index in range(2 * offer.queue_pairs)]
        self.features = Feature(0)
        self.mtu: int | None = None
        self.last = "none"
        self._memory: LentMemory | None = None
        self._status = 0
        self._handlers: dict[VhostRequest, Callable[[VhostMessage], bytes | None]] = {
            VhostRequest.GET_FEATURES: lambda message: self._number(message, int(self._offer.features())),
            VhostRequest.SET_FEATURES: self._set_features,
            VhostRequest.GET_PROTOCOL_FEATURES: lambda message: self._number(message, int(self._offer.protocol_features())),
            VhostRequest.SET_PROTOCOL_FEATURES: self._set_protocol_features,
            VhostRequest.GET_QUEUE_NUM: lambda message: self._number(message, self._offer.queue_pairs),
            VhostRequest.SET_OWNER: vhost_messages.require_empty,
            VhostRequest.RESET_OWNER: self._reset_owner,
            VhostRequest.SET_MEM_TABLE: self._set_mem_table,
            VhostRequest.SET_VRING_NUM: self._set_vring_num,
            VhostRequest.SET_VRING_ADDR: self._set_vring_addr,
            VhostRequest.SET_VRING_BASE: self._set_vring_base,
            VhostRequest.GET_VRING_BASE: self._get_vring_base,
            VhostRequest.SET_VRING_KICK: self._set_vring_kick,
            VhostRequest.SET_VRING_CALL: lambda message: self._set_vring_fd(message, "call"),
            VhostRequest.SET_VRING_ERR: lambda message: self._set_vring_fd(message, "err"),
            VhostRequest.SET_VRING_ENABLE: self._set_vring_enable,
            VhostRequest.SEND_RARP: self._send_rarp,
            VhostRequest.NET_SET_MTU: self._set_mtu,
            VhostRequest.SET_STATUS: self._set_status,
            VhostRequest.GET_STATUS: lambda message: self._number(message, self._status),
        }

    def apply(self, message: VhostMessage) -> bytes | None:
        """Do what `message` asks for, and take over its descriptors; returns the answer, None when none is due.

        Raises PeerError, MemoryShort. A request that is not offered is refused when an answer is due, and is an error otherwise.
        """
        self.last = message.name
        left = list(message.fds)
        try:
            handler = self._handler(message)
            if handler is None:
                return vhost_messages.acknowledge(message, refused=True)
            vhost_messages.require_fds(message)
            if message.request in _KEEPS_FD:
                left.clear()  # the handler closes a descriptor that it does not keep
            answer = handler(message)
        finally:
            for fd in left:
                os.close(fd)
        if answer is None and message.need_reply:
            return vhost_messages.acknowledge(message)
        return answer

    def list_started(self) -> tuple[int, ...]:
        """Numbers of the queue pairs of which both rings run."""
        pairs = range(self._offer.queue_pairs)
        return tuple(pair for pair in pairs if self.rings[2 * pair].running and self.rings[2 * pair + 1].running)

    def why_broken(self) -> FastPathError | None:
        """How a guest broke a ring; None when no ring is broken."""
        return next((fault for ring in self.rings if (fault := ring.why_broken())), None)

    def close(self) -> None:
        """Stop for good, and free all that the front-end gave. The front-end is notified of each broken ring."""
        for ring in self.rings:
            if ring.why_broken():
                ring.report()
            ring.close()
        memory, self._memory = self._memory, None
        if memory:
            memory.release()

    def _handler(self, message: VhostMessage) -> Callable[[VhostMessage], bytes | None] | None:
        """The method that applies `message`; None when it is to be refused with an answer."""
        if message.is_reply:
            raise PeerError(BreachReason.NOT_A_REQUEST, message.name)
        handler = self._handlers.get(VhostRequest(message.request)) if vhost_messages.is_known(message.request) else None
        if handler is None and not message.need_reply:
            raise PeerError(BreachReason.UNKNOWN_REQUEST, message.name, "not offered, and no answer is wanted")
        return handler

    def _number(self, message: VhostMessage, value: int) -> bytes:
        vhost_messages.require_empty(message)
        return vhost_messages.reply(message, vhost_messages.pack_u64(value))

    def _set_features(self, message: VhostMessage) -> None:
        wanted, offered = vhost_messages.unpack_u64(message), int(self._offer.features())
        if wanted & ~offered:
            raise PeerError(
                BreachReason.BAD_FEATURES, message.name, f"{wanted:#x}, of which {wanted & ~offered:#x} was not offered"
            )
        if wanted != self.features and any(ring.started for ring in self.rings):
            raise PeerError(
                BreachReason.BAD_ORDER, message.name, f"{wanted:#x} instead of {int(self.features):#x} while rings are started"
            )
        self.features = Feature(wanted)
        if Feature.PROTOCOL_FEATURES not in self.features:  # then rings are never enabled by a message
            for ring in self.rings:
                ring.enable(True)

    def _set_protocol_features(self, message: VhostMessage) -> None:
        wanted = vhost_messages.unpack_u64(message)
        if extra := wanted & ~int(self._offer.protocol_features()):
            raise PeerError(BreachReason.BAD_FEATURES, message.name, f"{wanted:#x}, of which {extra:#x} was not offered")

    def _reset_owner(self, message: VhostMessage) -> None:
        """Disable all rings, and keep their state: the protocol recommends this for the deprecated request."""
        vhost_messages.require_empty(message)
        for ring in self.rings:
            ring.enable(False)

    def _set_mem_table(self, message: VhostMessage) -> None:
        """Replace the old regions by the new ones. Started rings go on: QEMU sends this whenever its memory changes."""
        memory = LentMemory(vhost_messages.unpack_table(message), message.fds, message.name)
        old, self._memory = self._memory, memory
        try:
            for ring in self.rings:
                if ring.started:
                    ring.place(memory, self.features, message.name)
        except FastPathError:
            for ring in self.rings:  # some may still be in the old memory
                ring.stop()
            raise
        finally:
            if old:
                old.release()

    def _set_vring_num(self, message: VhostMessage) -> None:
        state = VringState.unpack(message)
        self._ring(state.vring, message).set_size(state.value, self.features, message.name)

    def _set_vring_addr(self, message: VhostMessage) -> None:
        address = VringAddress.unpack(message)
        self._ring(address.vring, message).set_address(address, message.name)

    def _set_vring_base(self, message: VhostMessage) -> None:
        state = VringState.unpack(message)
        self._ring(state.vring, message).set_base(state.value, self.features, message.name)

    def _get_vring_base(self, message: VhostMessage) -> bytes:
        state = VringState.unpack(message)
        base = self._ring(state.vring, message).stop()
        return vhost_messages.reply(message, VringState(state.vring, base).pack())

    def _set_vring_kick(self, message: VhostMessage) -> None:
        ring, fd = self._ring_and_fd(message)
        if Feature.VERSION_1 not in self.features:
            if fd >= 0:
                os.close(fd)
            raise PeerError(BreachReason.BAD_FEATURES, message.name, f"{int(self.features):#x} has no VERSION_1, which is needed")
        ring.start(fd, self._memory, self.features)

    def _set_vring_fd(self, message: VhostMessage, kind: str) -> None:
        ring, fd = self._ring_and_fd(message)
        ring.set_fd(kind, fd, self._memory, self.features)

    def _ring_and_fd(self, message: VhostMessage) -> tuple[Vring, int]:
        """The ring of a message, and the eventfd that came with it, -1 for none. An error closes the eventfd."""
        fd = message.fds[0] if message.fds else -1
        try:
            ring = self._ring(VringFd.unpack(message).vring, message)
            if fd >= 0:
                require_eventfd(fd, message.name)
        except BaseException:
            if fd >= 0:
                os.close(fd)
            raise
        return ring, fd

    def _set_vring_enable(self, message: VhostMessage) -> None:
        state = VringState.unpack(message)
        if state.value > 1:
            raise PeerError(BreachReason.BAD_VALUE, message.name, f"{state.value} for vring {state.vring}")
        self._ring(state.vring, message).enable(bool(state.value))

    def _send_rarp(self, message: VhostMessage) -> None:
        """Ignore it: a guest has arrived by migration, and switches learn its new place from its next frames."""
        vhost_messages.unpack_u64(message)

    def _set_mtu(self, message: VhostMessage) -> None:
        mtu = vhost_messages.unpack_u64(message)
        if mtu not in _MTU_RANGE:
            raise PeerError(BreachReason.BAD_VALUE, message.name, f"MTU {mtu}")
        self.mtu = mtu

    def _set_status(self, message: VhostMessage) -> None:
        """The driver's progress; 0 is a reset, after which no frame passes until rings are started again."""
        status = vhost_messages.unpack_u64(message)
        if status > _STATUS_MAX:
            raise PeerError(BreachReason.BAD_VALUE, message.name, f"status {status:#x}")
        self._status = status
        if not status:
            for ring in self.rings:
                ring.stop()

    def _ring(self, index: int, message: VhostMessage) -> Vring:
        if index >= len(self.rings):
            raise PeerError(BreachReason.BAD_VALUE, message.name, f"vring {index} of {len(self.rings)}")
        return self.rings[index]


_KEEPS_FD: Final = frozenset({VhostRequest.SET_VRING_KICK, VhostRequest.SET_VRING_CALL, VhostRequest.SET_VRING_ERR})
