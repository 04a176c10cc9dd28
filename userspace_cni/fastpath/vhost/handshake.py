"""The messages of a front-end to a back-end, in order: features of both, where the memory is, where each ring is; and the stop.

Messages that do not depend on an answer are sent in as few calls as their descriptors allow, each with NEED_REPLY. The
acknowledgements are read afterwards, in order: so a thread of the switch wakes a few times instead of twenty, and an error still
names the refused message. Nothing is asked behind them: the last one says that all is applied. DPDK gives it before it tells its
application of the port.

Must not touch rings or memory: the caller has them ready before `start`, and does not use them after `stop`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from userspace_cni.fastpath.fastpath_errors import (
    BreachReason,
    Closed,
    Disconnected,
    MessageRefused,
    NegotiationFailed,
    PeerError,
    TimedOut,
)
from userspace_cni.fastpath.vhost.channel import Channel
from userspace_cni.fastpath.vhost.offloads import NO_OFFLOADS, agree_offloads
from userspace_cni.fastpath.vhost.vhost_messages import (
    Feature,
    Flag,
    ProtocolFeature,
    Region,
    VhostMessage,
    VhostRequest,
    VringAddress,
    VringFd,
    VringState,
    acknowledge,
    encode,
    pack_table,
    pack_u64,
    require_reply,
    unpack_u64,
)
from userspace_cni.linux.instant import Instant

_LOG: Final = "the log of the back-end; for Open vSwitch ovs-vswitchd.log, and Interface.status and error of the port"
_UNREAD_MAX: Final = 64
"""Answers that may wait to be read. A socket holds some hundreds; a back-end that cannot send another stops reading messages."""
PACKED_BASE: Final = 0x8000_8000
"""Where an empty packed ring begins: 15 bits of an index and a wrap counter, of the next available and the next used buffer."""
_GOOD: Final = {request: acknowledge(VhostMessage(request, 0, b"")) for request in VhostRequest}
"""What an acknowledgement is that tells of no error: so most need not be read into their parts."""
_NEED_REPLY: Final = int(Flag.NEED_REPLY)
_KNOWN: Final = sum(int(feature) for feature in Feature)
"""Bits that have a name. Python makes an enum's value anew each time when it has others."""
_SLOW: Final = f"whether it runs and is not stopped (the first attachment after a start of ovs-vswitchd takes seconds); {_LOG}"


@dataclass(frozen=True)
class WantedFeatures:
    """What the front-end wants: `mergeable` and more than one pair must be offered; the others are used if they are offered.

    `packed`: packed rings must be offered (True), are used if they are offered (None), are not used (False).
    """

    queue_pairs: int = 1
    mergeable: bool = False
    in_order: bool = True
    packed: bool | None = False
    offloads: Feature = NO_OFFLOADS


class AgreedFeatures(NamedTuple):
    """The features that both sides have."""

    features: Feature
    protocol: ProtocolFeature


class RingSetup(NamedTuple):
    """A virtqueue: `size` descriptors; addresses of its parts; eventfds, -1 for none.

    The parts are descriptors, avail ring and used ring, or those of a packed ring: descriptors, driver area, device area.
    """

    size: int
    descriptors: int
    available: int
    used: int
    kick: int
    call: int


class Handshake:
    """One handshake on a new connection: `ask_for_features`, `negotiate`, `start`. Raises Closed when `wake` becomes readable."""

    def __init__(self, channel: Channel, deadline: Instant, wake: int = -1) -> None:
        self._channel = channel
        self._deadline = deadline
        self._wake = wake
        self._acknowledged = False
        self._batch = bytearray()
        self._fds: Sequence[int] = ()
        self._awaited: list[VhostRequest] = []

    def ask_for_features(self) -> None:
        """Ask for the features; `negotiate` reads the answer, so that the caller can do something else meanwhile."""
        self._add(VhostRequest.SET_OWNER)
        self._add(VhostRequest.GET_FEATURES)
        self._flush()

    def negotiate(self, wanted: WantedFeatures) -> AgreedFeatures:
        """Agree on features. Raises NegotiationFailed when the other side lacks a needed one."""
        offered = self._number(VhostRequest.GET_FEATURES)
        features = _chosen(offered, wanted)
        protocol = ProtocolFeature(0)
        if features & Feature.PROTOCOL_FEATURES:
            protocol = self._protocol(wanted)
        if wanted.queue_pairs > 1:
            self._require_queues(wanted.queue_pairs, protocol)
        return AgreedFeatures(features, protocol)

    def start(self, agreed: AgreedFeatures, region: Region, memory: int, vrings: Sequence[RingSetup]) -> None:
        """Share the file `memory` and start the rings in it, in the order rx 0, tx 0, rx 1, tx 1 …

        When it returns the other side has applied all messages; only a received frame proves that its data path is there.
        """
        for index, vring in enumerate(vrings):
            self._add_fd(VhostRequest.SET_VRING_CALL, index, vring.call)
        self._add(VhostRequest.SET_FEATURES, pack_u64(agreed.features))
        self._add(VhostRequest.SET_MEM_TABLE, pack_table([region]), (memory,))
        base = PACKED_BASE if agreed.features & Feature.RING_PACKED else 0
        for index, vring in enumerate(vrings):
            self._add(VhostRequest.SET_VRING_NUM, VringState(index, vring.size).pack())
            self._add(VhostRequest.SET_VRING_BASE, VringState(index, base).pack())
            self._add(VhostRequest.SET_VRING_ADDR, VringAddress(index, 0, vring.descriptors, vring.used, vring.available).pack())
        for index, vring in enumerate(vrings):
            self._add_fd(VhostRequest.SET_VRING_KICK, index, vring.kick)
        if agreed.features & Feature.PROTOCOL_FEATURES:
            self._enable(len(vrings), 1)
        if not self._acknowledged:
            self._add(VhostRequest.GET_FEATURES)  # its answer proves that all messages before are applied
        self._flush()
        self._read_acknowledgements()
        if not self._acknowledged:
            self._number(VhostRequest.GET_FEATURES)

    def stop(self, agreed: AgreedFeatures, count: int) -> list[int]:
        """Stop `count` rings; returns what the other side has reached in each: the avail index, or as `PACKED_BASE`."""
        self._acknowledged = bool(agreed.protocol & ProtocolFeature.REPLY_ACK)
        if agreed.features & Feature.PROTOCOL_FEATURES:
            self._enable(count, 0)
        bases: list[int] = []
        for first in range(0, count, _UNREAD_MAX):
            some = range(first, min(first + _UNREAD_MAX, count))
            for index in some:
                self._add(VhostRequest.GET_VRING_BASE, VringState(index, 0).pack())
            self._flush()
            self._read_acknowledgements()
            bases += [self._base(index) for index in some]
        return bases

    def _protocol(self, wanted: WantedFeatures) -> ProtocolFeature:
        self._add(VhostRequest.GET_PROTOCOL_FEATURES)
        self._flush()
        useful = ProtocolFeature.REPLY_ACK | (ProtocolFeature.MQ if wanted.queue_pairs > 1 else 0)
        protocol = ProtocolFeature(self._number(VhostRequest.GET_PROTOCOL_FEATURES) & int(useful))
        self._add(VhostRequest.SET_PROTOCOL_FEATURES, pack_u64(protocol))
        self._acknowledged = bool(protocol & ProtocolFeature.REPLY_ACK)
        return protocol

    def _require_queues(self, pairs: int, protocol: ProtocolFeature) -> None:
        if not protocol & ProtocolFeature.MQ:
            raise NegotiationFailed("GET_PROTOCOL_FEATURES", f"{pairs} pairs of queues wanted, but MQ is not offered", _LOG)
        self._add(VhostRequest.GET_QUEUE_NUM)
        self._flush()
        most = self._number(VhostRequest.GET_QUEUE_NUM)
        if most < pairs:
            raise NegotiationFailed("GET_QUEUE_NUM", f"{pairs} pairs of queues wanted, at most {most} are offered", _LOG)

    def _enable(self, count: int, value: int) -> None:
        for index in range(count):
            self._add(VhostRequest.SET_VRING_ENABLE, VringState(index, value).pack())

    def _add_fd(self, request: VhostRequest, index: int, fd: int) -> None:
        attached = fd >= 0
        self._add(request, VringFd(index, attached).pack(), (fd,) if attached else ())

    def _add(self, request: VhostRequest, payload: bytes = b"", fds: Sequence[int] = ()) -> None:
        """Put a message into the batch. Descriptors go with a batch's first message, so such a message begins a new batch."""
        if fds:
            self._flush()
            self._fds = fds
        if len(self._awaited) >= _UNREAD_MAX:
            self._flush()
            self._read_acknowledgements()
        asks = self._acknowledged and request not in _UNACKNOWLEDGED
        if asks:
            self._awaited.append(request)
        self._batch += encode(request, payload, _NEED_REPLY if asks else 0)

    def _flush(self) -> None:
        if not self._batch:
            return
        batch, fds = bytes(self._batch), self._fds
        self._batch.clear()
        self._fds = ()
        try:
            self._channel.send(batch, fds, self._deadline)
        except Disconnected as lost:
            self._read_acknowledgements()  # one of them may name the refused message
            raise Disconnected(lost.step, lost.what, _LOG) from lost
        except TimedOut as late:
            raise TimedOut(late.step, "the other side takes no messages", _SLOW) from late

    def _read_acknowledgements(self) -> None:
        awaited, self._awaited = self._awaited, []
        for request in awaited:
            if self._channel.skip(_GOOD[request]):
                continue
            result = unpack_u64(self._reply(request))
            if result:
                raise MessageRefused(request.name, f"the other side refused it (acknowledged with {result})", _LOG)

    def _number(self, request: VhostRequest) -> int:
        return unpack_u64(self._reply(request))

    def _base(self, index: int) -> int:
        state = VringState.unpack(self._reply(VhostRequest.GET_VRING_BASE))
        if state.vring != index:
            raise PeerError(BreachReason.BAD_VALUE, "GET_VRING_BASE", f"vring {state.vring} instead of {index}", _LOG)
        return state.value

    def _reply(self, request: VhostRequest) -> VhostMessage:
        try:
            message = self._channel.receive(self._deadline, wake=self._wake, step=request.name)
        except TimedOut as late:
            raise TimedOut(request.name, "no answer before the deadline", _SLOW) from late
        except Disconnected as lost:
            raise Disconnected(request.name, "the other side hung up instead of answering", _LOG) from lost
        if message is None:
            raise Closed(request.name, "closed by us while the answer was awaited")
        require_reply(message, request)
        return message


_UNACKNOWLEDGED: Final = frozenset(
    {
        VhostRequest.SET_OWNER,  # cannot be refused
        VhostRequest.GET_FEATURES,
        VhostRequest.GET_PROTOCOL_FEATURES,
        VhostRequest.SET_PROTOCOL_FEATURES,  # it agrees on acknowledgements
        VhostRequest.GET_QUEUE_NUM,
        VhostRequest.GET_VRING_BASE,
    }
)
"""Requests that are sent without NEED_REPLY."""


def _chosen(told: int, wanted: WantedFeatures) -> Feature:
    needed = Feature.VERSION_1
    if wanted.mergeable:
        needed |= Feature.NET_MRG_RXBUF
    if wanted.packed:
        needed |= Feature.RING_PACKED
    if wanted.queue_pairs > 1:
        needed |= Feature.NET_MQ | Feature.PROTOCOL_FEATURES
    missing = int(needed) & ~told
    if missing:
        names = " ".join(str(feature.name) for feature in Feature if feature & missing)
        raise NegotiationFailed("GET_FEATURES", f"not offered: {names} (offered {told:#x})", _LOG)
    offered = Feature(told & _KNOWN)
    useful = Feature.PROTOCOL_FEATURES
    if wanted.in_order:
        useful |= Feature.IN_ORDER
    if wanted.packed is None:
        useful |= Feature.RING_PACKED
    return needed | (offered & useful) | agree_offloads(offered, wanted.offloads)
