"""Whatever a front-end sends or has in its memory, we raise an error by name, in time, and leave nothing behind.

`HYPOTHESIS_PROFILE=fuzz pytest tests/native/test_fuzz_back_end.py` searches long; FUZZ_EXAMPLES says how long.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

from tests.lab.frames.lender import BYTES, FEATURES, GUEST, NEXT, USER, WRITE, Buffer, Lender
from tests.lab.frames.packed_lender import AVAIL, PACKED, USED, PackedLender
from tests.lab.switch.switch import wait_until
from userspace_cni.fastpath._native import lib
from userspace_cni.fastpath.fastpath_errors import Disconnected, FrameRefused, PeerError
from userspace_cni.fastpath.rings.queue_pair import QueuePair
from userspace_cni.fastpath.vhost.back_end import BackEnd, BackEndOptions
from userspace_cni.fastpath.vhost.vhost_messages import (
    Feature,
    Flag,
    Region,
    VhostRequest,
    VringAddress,
    VringFd,
    VringState,
    encode,
    pack_table,
    pack_u64,
)

LONG = os.environ.get("HYPOTHESIS_PROFILE") == "fuzz"
PROFILE = settings(
    max_examples=int(os.environ.get("FUZZ_EXAMPLES", "20000")) if LONG else 150,
    suppress_health_check=list(HealthCheck),
)
pytestmark = pytest.mark.timeout(0 if LONG else 120)

EDGES = [0, 1, 2, 3, 255, 256, 257, 4096, 32768, 65535, 65536, 2**31, 2**32 - 1, 2**32, 2**40, 2**63, 2**64 - 4096, 2**64 - 1]
NUMBERS = st.sampled_from(EDGES) | st.integers(0, 2**64 - 1)
SMALL = st.integers(0, 5) | NUMBERS.map(lambda number: number & 0xFFFF_FFFF)
USERS = st.sampled_from([USER + offset for offset in (0, 1, 8, 4096, 8192, 0x4000, 0x5000, 0x6000, BYTES - 4096)]) | NUMBERS
GUESTS = st.sampled_from([GUEST + offset for offset in (0, 1, 0x10000, BYTES - 100, BYTES)]) | NUMBERS
SIZES = st.sampled_from([4096, BYTES // 2, BYTES, BYTES + 1]) | NUMBERS

STATES = st.builds(VringState, SMALL, SMALL).map(VringState.pack)
FD_PAYLOADS = st.builds(VringFd, st.integers(0, 3), st.booleans()).map(VringFd.pack) | NUMBERS.map(pack_u64)
ADDRESSES = st.builds(VringAddress, st.integers(0, 3), st.sampled_from([0, 0, 0, 1]), USERS, USERS, USERS, st.just(0)).map(
    VringAddress.pack
)
REGIONS = st.builds(Region, GUESTS, SIZES, USERS, st.sampled_from([0, 0, 4096]) | NUMBERS)
PAYLOADS: dict[int, st.SearchStrategy[bytes]] = {
    VhostRequest.SET_FEATURES: st.sampled_from([FEATURES, PACKED, Feature.VERSION_1, 0]).map(pack_u64) | NUMBERS.map(pack_u64),
    VhostRequest.SET_MEM_TABLE: st.lists(REGIONS, min_size=1, max_size=8).map(pack_table),
    VhostRequest.SET_VRING_NUM: STATES,
    VhostRequest.SET_VRING_BASE: STATES,
    VhostRequest.GET_VRING_BASE: STATES,
    VhostRequest.SET_VRING_ENABLE: STATES,
    VhostRequest.SET_VRING_ADDR: ADDRESSES,
    VhostRequest.SET_VRING_KICK: FD_PAYLOADS,
    VhostRequest.SET_VRING_CALL: FD_PAYLOADS,
    VhostRequest.SET_VRING_ERR: FD_PAYLOADS,
    VhostRequest.SET_PROTOCOL_FEATURES: NUMBERS.map(pack_u64),
    VhostRequest.SET_STATUS: NUMBERS.map(pack_u64),
    VhostRequest.NET_SET_MTU: NUMBERS.map(pack_u64),
    VhostRequest.SEND_RARP: NUMBERS.map(pack_u64),
}
FLAG_BITS = st.sampled_from([0] * 10 + [Flag.NEED_REPLY] * 10 + [Flag.REPLY])
DESCRIPTORS = ["memory", "kick", "call", "socket", "root"]


Message = tuple[bytes, list[str]]
"""Bytes, and the descriptors that are sent with them."""


@st.composite
def message(draw: Any) -> Message:
    """A nearly valid message: bytes, and the descriptors that are sent with it."""
    request = draw(st.sampled_from([*VhostRequest, *PAYLOADS, *PAYLOADS, *PAYLOADS]))
    payload = draw(PAYLOADS.get(request, st.just(b"")) if draw(st.integers(0, 9)) else st.binary(max_size=80))
    wanted = {VhostRequest.SET_MEM_TABLE: ["memory"] * max(0, (len(payload) - 8) // 32), VhostRequest.SET_VRING_KICK: ["kick"]}
    wanted |= {VhostRequest.SET_VRING_CALL: ["call"], VhostRequest.SET_VRING_ERR: ["call"]}
    good = wanted.get(request, [])
    fds = good if draw(st.integers(0, 9)) else draw(st.lists(st.sampled_from(DESCRIPTORS), max_size=12))
    content = encode(request, payload, draw(FLAG_BITS))
    if not draw(st.integers(0, 19)):
        content = content[: draw(st.integers(0, len(content)))]
    return content, fds


NOISE: st.SearchStrategy[Message] = st.tuples(st.binary(max_size=40), st.just([]))
ONE: st.SearchStrategy[Message] = st.integers(0, 19).flatmap(lambda number: message() if number else NOISE)
MESSAGES = st.lists(ONE, min_size=1, max_size=12)
FLAGS = st.sampled_from([0, WRITE, NEXT, WRITE | NEXT, 4, 0xFFFF])
BUFFERS = st.builds(Buffer, GUESTS, st.sampled_from([0, 11, 12, 72, 2048]) | SMALL, FLAGS, st.integers(0, 3) | st.just(65535))
CHAINS = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 3), BUFFERS), max_size=8)
PIECES = st.lists(st.tuples(st.integers(0, 1), BUFFERS), min_size=1, max_size=12)
STATES_OF = st.sampled_from([0, AVAIL, USED, AVAIL | USED])
"""Of a descriptor in a packed ring: one that is written as it is, whatever that makes of it."""
STRAY = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 12), BUFFERS, STATES_OF), max_size=6)
HEADS = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 3) | st.sampled_from([255, 256, 65535])), max_size=8)


def _held() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def _carry(back_end: BackEnd) -> None:
    """Send and receive once; the fault of a broken front-end may be raised here."""
    with suppress(PeerError, Disconnected):
        back_end.pairs[0].receive_frames()
        with suppress(FrameRefused):
            back_end.pairs[0].send_frames([bytes(60), bytes(3000)])


def _send(lender: Lender, messages: list[Message], root: int) -> None:
    numbers = {"memory": lender.memfd, "kick": lender.kick[1], "call": lender.call[0], "root": root}
    numbers["socket"] = lender.sock.fileno()
    lender.sock.setblocking(False)
    for content, fds in messages:
        with suppress(BlockingIOError, OSError):
            while lender.sock.recv(65536):
                pass
        with suppress(BlockingIOError):
            lender.send_bytes(content, [numbers[name] for name in fds])


def _end(lender: Lender, back_end: BackEnd) -> None:
    with suppress(OSError):
        lender.sock.shutdown(socket.SHUT_RDWR)
    failure = wait_until(back_end.why_failed)
    with suppress(InvalidArgument):  # outside of a trial of hypothesis
        event(f"{type(failure).__name__} {getattr(failure, 'reason', '')}")
    assert isinstance(failure, PeerError | Disconnected), repr(failure)
    back_end._thread.join(60)
    assert not back_end._thread.is_alive()


def _trial(messages: list[Message], *, attached: bool) -> None:
    """One connection from its beginning to its end, while we carry frames all the time."""
    ours, theirs = socket.socketpair()
    root = os.open("/", os.O_PATH)
    with Lender(theirs) as lender, BackEnd(ours, BackEndOptions(patience_s=0.02)) as back_end:
        if attached:
            lender.attach()
            for vring, flags in ((0, WRITE), (1, 0)):
                lender.describe(vring, 0, Buffer(GUEST + 0x10000, 2048, flags))
                lender.offer(vring, *[0] * 200)
        _carry(back_end)
        _send(lender, messages, root)
        _carry(back_end)
        _end(lender, back_end)
    os.close(root)
    assert lib.fp_guard_count() == 0


@PROFILE
@given(MESSAGES)
def test_messages_from_the_beginning(messages: list[Message]) -> None:
    """Any messages in any order, from a front-end that has sent nothing yet."""
    _trial(messages, attached=False)


@PROFILE
@given(MESSAGES)
def test_messages_while_running(messages: list[Message]) -> None:
    """The same from a front-end whose rings carry frames."""
    _trial(messages, attached=True)


@PROFILE
@given(CHAINS, HEADS, st.lists(st.tuples(st.integers(0, 0x7FFF), st.binary(min_size=1, max_size=8)), max_size=6))
def test_rings_with_anything_in_them(
    chains: list[tuple[int, int, Buffer]], heads: list[tuple[int, int]], scribbles: list[tuple[int, bytes]]
) -> None:
    """Any descriptors, heads and stray writes: frames or a fault, and the rest of the process is unchanged."""
    ours, theirs = socket.socketpair()
    with Lender(theirs) as lender, BackEnd(ours) as back_end:
        lender.attach()
        for vring, index, buffer in chains:
            lender.describe(vring, index, buffer)
        for vring, head in heads:
            lender.offer(vring, head)
            _carry(back_end)
        for offset, content in scribbles:
            lender.memory[offset : offset + len(content)] = content
            _carry(back_end)
        _end(lender, back_end)
    assert lib.fp_guard_count() == 0


@PROFILE
@given(PIECES, STRAY, st.booleans(), st.sampled_from([1, 3, 8, 256]))
def test_packed_rings_with_anything_in_them(
    pieces: list[tuple[int, Buffer]], stray: list[tuple[int, int, Buffer, int]], in_order: bool, ring: int
) -> None:
    """The same of packed rings: descriptors that are made available in turn, and others that are only there."""
    ours, theirs = socket.socketpair()
    with PackedLender(theirs, ring) as lender, BackEnd(ours) as back_end:
        lender.attach(PACKED if in_order else PACKED & ~Feature.IN_ORDER)
        for vring, slot, buffer, state in stray:
            lender.describe(vring, slot % ring, buffer._replace(flags=buffer.flags & 7 | state))
            _carry(back_end)
        for vring, buffer in pieces:
            lender.supply(vring, buffer._replace(flags=buffer.flags & 7))
            _carry(back_end)
        _end(lender, back_end)
    assert lib.fp_guard_count() == 0


@pytest.mark.parametrize("kind", [Lender, PackedLender])
def test_scribbling_while_it_is_polled(kind: type[Lender]) -> None:
    """Another thread writes over all of both rings while ours polls: every connection ends with a fault of that front-end."""
    faults = set()
    for turn in range(60):
        ours, theirs = socket.socketpair()
        with kind(theirs) as lender, BackEnd(ours) as back_end:
            lender.attach()
            for vring, flags in ((0, WRITE), (1, 0)):
                for index in range(256):
                    lender.describe(vring, index, Buffer(GUEST + 0x10000, 256, flags))
            stop = threading.Event()
            scribbler = threading.Thread(target=_scribble, args=(lender, turn, stop))
            scribbler.start()
            with pytest.raises(PeerError) as caught:
                wait_until(lambda poll=back_end.pairs[0]: _poll(poll), what="fault")  # type: ignore[misc]
            faults.add(caught.value.reason)
            stop.set()
            scribbler.join()
    assert len(faults) >= 2, faults


def _poll(pair: QueuePair) -> None:
    pair.receive_frames()
    pair.send_frames([bytes(60)])


def _scribble(lender: Lender, seed: int, stop: threading.Event) -> None:
    state = seed + 1
    while not stop.is_set():
        state = state * 6364136223846793005 + 1442695040888963407 & 2**64 - 1
        vring, where = state >> 63, state >> 40
        if isinstance(lender, PackedLender) and where % 3:
            lender.memory[vring * 0x4000 + where % 256 * 16 + 14 + (where >> 8) % 2] = state >> 32 & 0xFF
        elif where % 3:
            struct.pack_into("=H", lender.memory, vring * 0x4000 + 0x1002, where >> 8 & 0x7F)
        else:
            lender.memory[vring * 0x4000 + where % 4096] = state >> 32 & 0xFF


def test_nothing_is_left_open() -> None:
    """After a hundred connections of all kinds as many descriptors are open as before."""
    messages: list[list[Message]] = [
        [(encode(VhostRequest.SET_MEM_TABLE, pack_table([Region(GUEST, BYTES, USER, 0)])), ["memory", "kick"])],
        [(encode(VhostRequest.SET_VRING_KICK, VringFd(0).pack()), ["memory"])],
        [(encode(VhostRequest.GET_FEATURES), ["memory"] * 12)],
        [(encode(VhostRequest.SET_VRING_CALL, VringFd(9).pack()), ["call"])],
        [(encode(VhostRequest.SET_VRING_NUM, bytes(8))[:-3], ["call", "kick"])],
    ]
    _trial(messages[0], attached=True)
    before = _held()
    for turn in range(100):
        _trial(messages[turn % len(messages)], attached=bool(turn & 1))
    assert _held() <= before
