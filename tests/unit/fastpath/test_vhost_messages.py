"""vhost-user messages as bytes: valid ones round-trip, every other one is refused by name."""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from userspace_cni.fastpath.fastpath_errors import BreachReason, PeerError
from userspace_cni.fastpath.vhost import vhost_messages
from userspace_cni.fastpath.vhost.vhost_messages import (
    Flag,
    Header,
    Region,
    VhostMessage,
    VhostRequest,
    VringAddress,
    VringFd,
    VringState,
    decode_header,
    encode,
)

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
REGION = st.builds(Region, U64, U64, U64, U64)


def message(request: int, payload: bytes = b"", flags: int = Flag.VERSION, fds: tuple[int, ...] = ()) -> VhostMessage:
    return VhostMessage(request, flags, payload, fds)


def refused(reason: BreachReason, call: Callable[[], object]) -> PeerError:
    """The PeerError that the call raises, which is for this reason."""
    with pytest.raises(PeerError) as caught:
        call()
    assert caught.value.reason is reason
    return caught.value


def test_a_header_on_the_wire() -> None:
    """Request, flags with version 1, and the payload's size are three words in the machine's order."""
    assert encode(VhostRequest.SET_VRING_KICK, b"12345678", Flag.NEED_REPLY) == struct.pack("=III", 12, 9, 8) + b"12345678"


@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 5, 9, 13]), st.binary(max_size=64))
def test_headers_round_trip(request_number: int, flags: int, payload: bytes) -> None:
    """An encoded header decodes to the same values, also for unknown requests."""
    data = encode(request_number, payload, flags)
    assert decode_header(data) == Header(request_number, flags, len(payload))


@given(U32, U32, U32)
def test_only_good_headers_are_decoded(request_number: int, flags: int, size: int) -> None:
    """Another version, an unknown flag and a size beyond any message are a PeerError each; no other error is raised."""
    data = struct.pack("=III", request_number, flags, size)
    good = flags & 3 == 1 and flags < 16 and size <= vhost_messages.PAYLOAD_MAX
    if good:
        assert decode_header(data) == Header(request_number, flags, size)
    else:
        with pytest.raises(PeerError):
            decode_header(data)


@pytest.mark.parametrize(
    ("flags", "size", "reason"),
    [
        (0, 0, BreachReason.BAD_VERSION),
        (2, 0, BreachReason.BAD_VERSION),
        (0x11, 0, BreachReason.BAD_FLAGS),
        (1, 4097, BreachReason.OVERSIZED),
    ],
)
def test_bad_headers_are_named(flags: int, size: int, reason: BreachReason) -> None:
    """The error says which message it was and what is wrong with it."""
    error = refused(reason, lambda: decode_header(struct.pack("=III", VhostRequest.SET_MEM_TABLE, flags, size)))
    assert error.step == "SET_MEM_TABLE"


@given(st.integers(0, 255), U32)
def test_vring_states_round_trip(vring: int, value: int) -> None:
    """Vring and value come back."""
    state = VringState(vring, value)
    assert VringState.unpack(message(VhostRequest.SET_VRING_NUM, state.pack())) == state


@given(st.builds(VringAddress, st.integers(0, 255), U32, U64, U64, U64, U64))
def test_vring_addresses_round_trip(address: VringAddress) -> None:
    """All six fields come back."""
    assert VringAddress.unpack(message(VhostRequest.SET_VRING_ADDR, address.pack())) == address


def test_vring_addresses_on_the_wire() -> None:
    """The order is descriptors, used, available: unlike anywhere else."""
    assert VringAddress(1, 0, 2, 3, 4, 5).pack() == struct.pack("=IIQQQQ", 1, 0, 2, 3, 4, 5)
    assert VringAddress._fields[2:5] == ("descriptors", "used", "available")


@given(st.integers(0, 255), st.booleans())
def test_vring_descriptors_round_trip(vring: int, attached: bool) -> None:
    """The vring's number, and whether a descriptor is there, are decoded as they were encoded."""
    assert VringFd.unpack(message(VhostRequest.SET_VRING_KICK, VringFd(vring, attached).pack())) == (vring, attached)


@given(st.lists(REGION, min_size=1, max_size=8))
def test_tables_round_trip(regions: list[Region]) -> None:
    """One to eight regions come back."""
    assert vhost_messages.unpack_table(message(VhostRequest.SET_MEM_TABLE, vhost_messages.pack_table(regions))) == regions


@pytest.mark.parametrize("vring", [256, 2**32 - 1])
def test_a_vring_beyond_the_protocol(vring: int) -> None:
    """A vring that eight bits cannot name is refused in a state and in addresses."""
    refused(BreachReason.BAD_VALUE, lambda: VringState.unpack(message(VhostRequest.SET_VRING_NUM, VringState(vring, 1).pack())))
    refused(
        BreachReason.BAD_VALUE,
        lambda: VringAddress.unpack(message(VhostRequest.SET_VRING_ADDR, VringAddress(vring, 0, 0, 0, 0).pack())),
    )


def test_unknown_bits_beside_a_vring() -> None:
    """SET_VRING_KICK with a bit that means nothing is refused."""
    refused(BreachReason.BAD_VALUE, lambda: VringFd.unpack(message(VhostRequest.SET_VRING_KICK, vhost_messages.pack_u64(1 << 9))))


@pytest.mark.parametrize("count", [0, 9, 2**32 - 1])
def test_a_table_of_no_or_too_many_regions(count: int) -> None:
    """An impossible count of regions is refused before any region is read."""
    payload = struct.pack("=II", count, 0) + bytes(32)
    refused(BreachReason.BAD_VALUE, lambda: vhost_messages.unpack_table(message(VhostRequest.SET_MEM_TABLE, payload)))


@given(st.binary(max_size=300))
def test_decoders_raise_nothing_else(payload: bytes) -> None:
    """For any payload a decoder returns a value, or raises PeerError."""
    decoders: list[tuple[VhostRequest, Callable[[VhostMessage], object]]] = [
        (VhostRequest.SET_VRING_NUM, VringState.unpack),
        (VhostRequest.SET_VRING_ADDR, VringAddress.unpack),
        (VhostRequest.SET_VRING_CALL, VringFd.unpack),
        (VhostRequest.SET_MEM_TABLE, vhost_messages.unpack_table),
        (VhostRequest.SET_FEATURES, vhost_messages.unpack_u64),
        (VhostRequest.SET_MEM_TABLE, vhost_messages.require_fds),
        (VhostRequest.SET_VRING_ERR, vhost_messages.require_fds),
        (VhostRequest.SET_OWNER, vhost_messages.require_empty),
    ]
    for request, decoder in decoders:
        with suppress(PeerError):
            decoder(message(request, payload))


@pytest.mark.parametrize("size", [0, 7, 9])
def test_sizes_are_exact(size: int) -> None:
    """A payload that is shorter or longer than the message's is refused, not cut or filled up."""
    for request, decoder in (
        (VhostRequest.SET_FEATURES, vhost_messages.unpack_u64),
        (VhostRequest.SET_VRING_NUM, VringState.unpack),
    ):
        refused(BreachReason.BAD_SIZE, lambda decoder=decoder, request=request: decoder(message(request, bytes(size))))  # type: ignore[misc]
    table = vhost_messages.pack_table([Region(0, 1, 0, 0)])
    refused(BreachReason.BAD_SIZE, lambda: vhost_messages.unpack_table(message(VhostRequest.SET_MEM_TABLE, table + bytes(1))))


def test_descriptors_that_a_message_needs() -> None:
    """One for each region, one for a kick unless it says none, none for a number: more or fewer is refused."""
    table = vhost_messages.pack_table([Region(0, 1, 0, 0), Region(1, 1, 1, 0)])
    good = [
        message(VhostRequest.SET_MEM_TABLE, table, fds=(3, 4)),
        message(VhostRequest.SET_VRING_KICK, VringFd(0).pack(), fds=(3,)),
        message(VhostRequest.SET_VRING_CALL, VringFd(0, attached=False).pack()),
        message(VhostRequest.SET_FEATURES, vhost_messages.pack_u64(0)),
        message(VhostRequest.SET_LOG_BASE, bytes(16), fds=(3,)),
    ]
    for each in good:
        vhost_messages.require_fds(each)
        refused(BreachReason.FDS_EXTRA, lambda each=each: vhost_messages.require_fds(each._replace(fds=(*each.fds, 9))))  # type: ignore[misc]
        if each.fds:
            refused(BreachReason.FDS_MISSING, lambda each=each: vhost_messages.require_fds(each._replace(fds=each.fds[1:])))  # type: ignore[misc]


def test_replies_for_a_front_end() -> None:
    """A front-end accepts the reply to its request; a request, or the reply to another request, is refused."""
    asked = message(VhostRequest.GET_FEATURES)
    header = decode_header(answer := vhost_messages.reply(asked, vhost_messages.pack_u64(7)))
    received = VhostMessage(header.request, header.flags, answer[12:])
    assert vhost_messages.require_reply(received, VhostRequest.GET_FEATURES) == vhost_messages.pack_u64(7)
    refused(BreachReason.WRONG_REPLY, lambda: vhost_messages.require_reply(received, VhostRequest.GET_QUEUE_NUM))
    refused(BreachReason.NOT_A_REPLY, lambda: vhost_messages.require_reply(asked, VhostRequest.GET_FEATURES))


def test_acknowledgements() -> None:
    """Zero acknowledges, one refuses; only a message with NEED_REPLY is acknowledged."""
    asked = message(VhostRequest.SET_FEATURES, flags=Flag.VERSION | Flag.NEED_REPLY)
    assert asked.need_reply
    assert not asked.is_reply
    assert vhost_messages.acknowledge(asked) == struct.pack("=IIIQ", 2, 5, 8, 0)
    assert vhost_messages.acknowledge(asked, refused=True) == struct.pack("=IIIQ", 2, 5, 8, 1)
