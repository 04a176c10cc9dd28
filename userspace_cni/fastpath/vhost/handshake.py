"""What a front-end says to a back-end, in order: what both can do, where the memory is, where each ring is; and the farewell.

Messages that need no answer to go on are sent in as few calls as their descriptors allow, each with the wish for an
acknowledgement, and the acknowledgements are read afterwards, in order: a thread of the switch is woken a few times instead of
twenty. The refused message is named all the same.

Must not touch rings or memory: whoever calls has them ready before `start`, and does not use them after `stop`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from userspace_cni.fastpath.errors import Closed, Disconnected, NegotiationFailed, PeerError, Reason, TimedOut
from userspace_cni.fastpath.sys.deadline import Deadline
from userspace_cni.fastpath.vhost.channel import Channel
from userspace_cni.fastpath.vhost.messages import (
    Feature,
    Flag,
    Message,
    ProtocolFeature,
    Region,
    Request,
    VringAddress,
    VringFd,
    VringState,
    encode,
    pack_table,
    pack_u64,
    require_reply,
    unpack_u64,
)

_LOG: Final = "ovs-vswitchd.log, and Interface.status and error of the port"
_UNREAD_MAX: Final = 64
"""Answers that may wait to be read. A socket holds some hundreds; who can not send more of them reads no more of our messages."""
_SLOW: Final = f"whether ovs-vswitchd runs and is not stopped (the first attachment after its start takes seconds); {_LOG}"


@dataclass(frozen=True)
class Wishes:
    """What is asked of the other side: `mergeable` and more than one pair must be offered, `in_order` is taken if it is."""

    queue_pairs: int = 1
    mergeable: bool = False
    in_order: bool = True


class Agreed(NamedTuple):
    """What both sides can do."""

    features: Feature
    protocol: ProtocolFeature


class Vring(NamedTuple):
    """A virtqueue: `size` descriptors; addresses of descriptors, avail and used ring; eventfds, -1 for none."""

    size: int
    descriptors: int
    available: int
    used: int
    kick: int
    call: int


class Handshake:
    """One conversation on a fresh connection: `hello`, `negotiate`, `start`. Ends early with Closed when `wake` is readable."""

    def __init__(self, channel: Channel, deadline: Deadline, wake: int = -1) -> None:
        self._channel = channel
        self._deadline = deadline
        self._wake = wake
        self._acknowledged = False
        self._batch = bytearray()
        self._fds: Sequence[int] = ()
        self._awaited: list[Request] = []

    def hello(self) -> None:
        """Ask for the features; the answer is fetched by `negotiate`, and there is time for something else until then."""
        self._say(Request.SET_OWNER)
        self._say(Request.GET_FEATURES)
        self._flush()

    def negotiate(self, wishes: Wishes) -> Agreed:
        """What both sides can do. Raises NegotiationFailed when that is not enough."""
        offered = Feature(self._number(Request.GET_FEATURES))
        features = _chosen(offered, wishes)
        protocol = ProtocolFeature(0)
        if features & Feature.PROTOCOL_FEATURES:
            protocol = self._protocol(wishes)
        if wishes.queue_pairs > 1:
            self._require_queues(wishes.queue_pairs, protocol)
        return Agreed(features, protocol)

    def start(self, agreed: Agreed, region: Region, memory: int, vrings: Sequence[Vring]) -> None:
        """Share the memory `memory` and start the rings in it; in order rx 0, tx 0, rx 1, tx 1 …

        When it returns the other side has taken all of it; only a frame proves that its data path is there.
        """
        for index, vring in enumerate(vrings):
            self._say_fd(Request.SET_VRING_CALL, index, vring.call)
        self._say(Request.SET_FEATURES, pack_u64(agreed.features))
        self._say(Request.SET_MEM_TABLE, pack_table([region]), (memory,))
        for index, vring in enumerate(vrings):
            self._say(Request.SET_VRING_NUM, VringState(index, vring.size).pack())
            self._say(Request.SET_VRING_BASE, VringState(index, 0).pack())
            self._say(Request.SET_VRING_ADDR, VringAddress(index, 0, vring.descriptors, vring.used, vring.available).pack())
        for index, vring in enumerate(vrings):
            self._say_fd(Request.SET_VRING_KICK, index, vring.kick)
        if agreed.features & Feature.PROTOCOL_FEATURES:
            self._enable(len(vrings), 1)
        self._say(Request.GET_FEATURES)  # answered when all before it is done: acknowledged or not
        self._flush()
        self._read_acknowledgements()
        self._number(Request.GET_FEATURES)

    def stop(self, agreed: Agreed, count: int) -> list[int]:
        """Take `count` rings from the other side; the avail index up to which it has come in each."""
        self._acknowledged = bool(agreed.protocol & ProtocolFeature.REPLY_ACK)
        if agreed.features & Feature.PROTOCOL_FEATURES:
            self._enable(count, 0)
        bases: list[int] = []
        for first in range(0, count, _UNREAD_MAX):
            some = range(first, min(first + _UNREAD_MAX, count))
            for index in some:
                self._say(Request.GET_VRING_BASE, VringState(index, 0).pack())
            self._flush()
            self._read_acknowledgements()
            bases += [self._base(index) for index in some]
        return bases

    def _protocol(self, wishes: Wishes) -> ProtocolFeature:
        self._say(Request.GET_PROTOCOL_FEATURES)
        self._flush()
        wanted = ProtocolFeature.REPLY_ACK | (ProtocolFeature.MQ if wishes.queue_pairs > 1 else 0)
        protocol = ProtocolFeature(self._number(Request.GET_PROTOCOL_FEATURES)) & wanted
        self._say(Request.SET_PROTOCOL_FEATURES, pack_u64(protocol))
        self._acknowledged = bool(protocol & ProtocolFeature.REPLY_ACK)
        return protocol

    def _require_queues(self, pairs: int, protocol: ProtocolFeature) -> None:
        if not protocol & ProtocolFeature.MQ:
            raise NegotiationFailed("GET_PROTOCOL_FEATURES", f"{pairs} pairs of queues wanted, but MQ is not offered", _LOG)
        self._say(Request.GET_QUEUE_NUM)
        self._flush()
        most = self._number(Request.GET_QUEUE_NUM)
        if most < pairs:
            raise NegotiationFailed("GET_QUEUE_NUM", f"{pairs} pairs of queues wanted, at most {most} are offered", _LOG)

    def _enable(self, count: int, value: int) -> None:
        for index in range(count):
            self._say(Request.SET_VRING_ENABLE, VringState(index, value).pack())

    def _say_fd(self, request: Request, index: int, fd: int) -> None:
        attached = fd >= 0
        self._say(request, VringFd(index, attached).pack(), (fd,) if attached else ())

    def _say(self, request: Request, payload: bytes = b"", fds: Sequence[int] = ()) -> None:
        """Put a message into the batch. Descriptors go with the first message of a batch, so one with some begins the next."""
        if fds:
            self._flush()
            self._fds = fds
        if len(self._awaited) >= _UNREAD_MAX:
            self._flush()
            self._read_acknowledgements()
        wish = self._acknowledged and request not in _ANSWERED
        if wish:
            self._awaited.append(request)
        self._batch += encode(request, payload, Flag.NEED_REPLY if wish else 0)

    def _flush(self) -> None:
        if not self._batch:
            return
        batch, fds = bytes(self._batch), self._fds
        self._batch.clear()
        self._fds = ()
        try:
            self._channel.send(batch, fds, self._deadline)
        except Disconnected as lost:
            self._read_acknowledgements()  # one of them may say what was refused
            raise Disconnected(lost.step, lost.what, _LOG) from lost
        except TimedOut as late:
            raise TimedOut(late.step, "the other side takes no messages", _SLOW) from late

    def _read_acknowledgements(self) -> None:
        awaited, self._awaited = self._awaited, []
        for request in awaited:
            result = unpack_u64(self._reply(request))
            if result:
                raise NegotiationFailed(request.name, f"the other side refused it (acknowledged with {result})", _LOG)

    def _number(self, request: Request) -> int:
        return unpack_u64(self._reply(request))

    def _base(self, index: int) -> int:
        state = VringState.unpack(self._reply(Request.GET_VRING_BASE))
        if state.vring != index:
            raise PeerError(Reason.BAD_VALUE, "GET_VRING_BASE", f"vring {state.vring} instead of {index}", _LOG)
        return state.value

    def _reply(self, request: Request) -> Message:
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


_ANSWERED: Final = frozenset(
    {
        Request.SET_OWNER,  # which needs none: there is no way to refuse it
        Request.GET_FEATURES,
        Request.GET_PROTOCOL_FEATURES,
        Request.SET_PROTOCOL_FEATURES,  # acknowledgements are agreed by it
        Request.GET_QUEUE_NUM,
        Request.GET_VRING_BASE,
    }
)
"""Requests that are sent without the wish for an acknowledgement."""


def _chosen(offered: Feature, wishes: Wishes) -> Feature:
    """The features to take of those that are offered."""
    needed = Feature.VERSION_1
    if wishes.mergeable:
        needed |= Feature.NET_MRG_RXBUF
    if wishes.queue_pairs > 1:
        needed |= Feature.NET_MQ | Feature.PROTOCOL_FEATURES
    missing = int(needed) & ~int(offered)
    if missing:
        names = " ".join(str(feature.name) for feature in Feature if feature & missing)
        raise NegotiationFailed("GET_FEATURES", f"not offered: {names} (offered {int(offered):#x})", _LOG)
    taken = offered & (Feature.IN_ORDER if wishes.in_order else Feature(0))
    return needed | taken | (offered & Feature.PROTOCOL_FEATURES)
