"""The front-end before back-ends of every kind: good, poor, slow, refusing, lying, gone."""

from __future__ import annotations

import re
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lab.frames.backend import FEATURES, Act, Answer, ScriptedBackEnd, back_end, dialling_back_end, good
from tests.lab.node.belongings import nothing_left
from tests.lab.switch.switch import wait_until
from userspace_cni.fastpath.fastpath_errors import (
    BreachReason,
    Closed,
    Disconnected,
    FastPathError,
    MemoryShort,
    MessageRefused,
    NegotiationFailed,
    PeerError,
    SocketRefused,
    TimedOut,
)
from userspace_cni.fastpath.memory.hugepages import HugepagePool
from userspace_cni.fastpath.vhost.front_end import FrontEnd, FrontEndListener, FrontEndOptions
from userspace_cni.fastpath.vhost.socket_paths import connect
from userspace_cni.fastpath.vhost.vhost_messages import (
    Feature,
    ProtocolFeature,
    Region,
    VhostRequest,
    VringAddress,
    VringState,
    unpack_table,
)
from userspace_cni.linux.instant import Instant

SMALL = FrontEndOptions(queue_size=8, room=128)
FLAGS_REPLY = 5

ATTACHMENT = [
    "SET_OWNER",
    "GET_FEATURES",
    "GET_PROTOCOL_FEATURES",
    "SET_PROTOCOL_FEATURES",
    "SET_VRING_CALL",
    "SET_VRING_CALL",
    "SET_FEATURES",
    "SET_MEM_TABLE",
    "SET_VRING_NUM",
    "SET_VRING_BASE",
    "SET_VRING_ADDR",
    "SET_VRING_NUM",
    "SET_VRING_BASE",
    "SET_VRING_ADDR",
    "SET_VRING_KICK",
    "SET_VRING_KICK",
    "SET_VRING_ENABLE",
    "SET_VRING_ENABLE",
]
"""The messages that a front-end with one pair of queues sends."""
FAREWELL = ["SET_VRING_ENABLE", "SET_VRING_ENABLE", "GET_VRING_BASE", "GET_VRING_BASE"]
ANSWERED = [1, 2, *range(4, 18)]


@pytest.fixture
def path(place: Path) -> Path:
    return place / "s"


def at(step: int, answer: bytes | Act) -> Answer:
    """Answers well, but for one message."""
    return lambda number, message: answer if number == step else Act.GOOD


def attach(path: Path, options: FrontEndOptions = SMALL, seconds: float = 60.0) -> FrontEnd:
    return FrontEnd.connect(str(path), options, seconds)


@contextmanager
def awaited(path: Path, answer: Answer = good, options: FrontEndOptions = SMALL, **offers: int) -> Iterator[ScriptedBackEnd]:
    """A back-end, as that of a dpdkvhostuserclient port, to which a front-end was attached that is closed by now."""
    with FrontEndListener(str(path), options) as listener, dialling_back_end(path, answer, **offers) as peer:
        listener.accept(60).close()
        yield peer


def failure(path: Path, answer: Answer, seconds: float = 60.0) -> FastPathError:
    """The error with which an attachment to such a back-end ends; nothing is left of it."""
    with nothing_left(), back_end(path, answer), pytest.raises(FastPathError) as caught:
        attach(path, seconds=seconds)
    path.unlink()
    return caught.value


def test_the_order_of_messages(path: Path) -> None:
    """An attachment sends the messages that back-ends need, in their order, and leaves nothing behind."""
    with nothing_left(), back_end(path) as peer:
        with attach(path) as front_end:
            assert peer.names == ATTACHMENT
            assert front_end.is_alive()
            assert front_end.features == Feature.VERSION_1 | Feature.PROTOCOL_FEATURES | Feature.IN_ORDER
            assert front_end.protocol_features == ProtocolFeature.REPLY_ACK
        assert [len(message.fds) for message in peer.heard[4:8]] == [1, 0, 0, 1]


def test_a_listeners_back_end_is_asked_for_the_rings(path: Path) -> None:
    """A back-end that connected to our listener is asked for the rings before we hang up."""
    with nothing_left(), awaited(path) as peer:
        wait_until(lambda: peer.names == ATTACHMENT + FAREWELL)


def test_a_listening_back_end_is_not_asked_for_the_rings(path: Path) -> None:
    """We send nothing more to a back-end to which we connected: OVS would stop the rings of the newest connection."""
    with nothing_left(), back_end(path) as peer:
        attach(path).close()
        wait_until(lambda: peer.errors)
        assert peer.names == ATTACHMENT


def test_what_is_acknowledged(path: Path) -> None:
    """Each message that can be refused asks for an acknowledgement, once that was agreed."""
    with back_end(path) as peer, attach(path):
        desired = [message.name for message in peer.heard if message.need_reply]
    assert desired == [name for name in ATTACHMENT[4:] if not name.startswith("GET_")]


def test_memory_and_rings(path: Path) -> None:
    """The table is one region whose guest and user addresses are ours, and all rings are in it, aligned."""
    with back_end(path) as peer, attach(path):
        (region,) = unpack_table(peer.heard[7])
        rings = [VringAddress.unpack(message) for message in peer.heard if message.request == VhostRequest.SET_VRING_ADDR]
    assert isinstance(region, Region)
    assert region.guest == region.user
    assert region.offset == 0
    for ring in rings:
        for address, alignment in ((ring.descriptors, 16), (ring.available, 2), (ring.used, 4)):
            assert region.user <= address < region.user + region.size
            assert address % alignment == 0
    assert [ring.vring for ring in rings] == [0, 1]


def test_a_listener_has_its_memory_first(path: Path) -> None:
    """A listener makes memory before a back-end connects: if there is too little, it is told without one."""
    options = FrontEndOptions(queue_pairs=128, queue_size=32768, room=65_000)
    with nothing_left(), FrontEndListener(str(path), options) as listener, pytest.raises(MemoryShort):
        listener.accept(60)


def test_a_poor_back_end(path: Path) -> None:
    """With VERSION_1 alone there are no acknowledgements, no enabling, and the last question is the barrier."""
    with nothing_left(), back_end(path, features=Feature.VERSION_1) as peer, attach(path) as front_end:
        assert front_end.features == Feature.VERSION_1
        expected = [name for name in ATTACHMENT if "PROTOCOL" not in name and "ENABLE" not in name] + ["GET_FEATURES"]
        assert peer.names == expected
        assert not any(message.need_reply for message in peer.heard)
    path.unlink()
    with awaited(path, features=Feature.VERSION_1) as peer:
        wait_until(lambda: peer.names == [*expected, "GET_VRING_BASE", "GET_VRING_BASE"])


def test_several_pairs_of_queues(path: Path) -> None:
    """Pairs beyond the first need MQ of both kinds, and each has its rings."""
    options = FrontEndOptions(queue_pairs=3, queue_size=8, room=128, mergeable=True)
    with nothing_left(), back_end(path) as peer, attach(path, options) as front_end:
        assert [pair.index for pair in front_end.pairs] == [0, 1, 2]
        assert Feature.NET_MQ | Feature.NET_MRG_RXBUF in front_end.features
        assert peer.names.count("SET_VRING_ADDR") == 6
        assert "GET_QUEUE_NUM" in peer.names
    path.unlink()
    with awaited(path, options=options) as peer:
        wait_until(lambda: peer.names.count("GET_VRING_BASE") == 6)


def test_as_many_queues_as_there_can_be(path: Path) -> None:
    """Messages for 256 rings do not fill both directions of the socket: answers are read in between."""
    options = FrontEndOptions(queue_pairs=128, queue_size=8, room=64)
    with nothing_left(), back_end(path, queues=128) as peer, attach(path, options) as front_end:
        assert len(front_end.pairs) == 128
        assert peer.names.count("SET_VRING_ENABLE") == 256
    path.unlink()
    with awaited(path, options=options, queues=128) as peer:
        wait_until(lambda: peer.names.count("GET_VRING_BASE") == 256)


@pytest.mark.parametrize(
    ("packed", "offered", "used"),
    [(None, True, True), (None, False, False), (True, True, True), (False, True, False), (False, False, False)],
)
def test_packed_rings(path: Path, packed: bool | None, offered: bool, used: bool) -> None:
    """Packed rings are used where both sides want them, at first and again; their base has both wrap counters."""
    options = FrontEndOptions(queue_size=8, room=128, packed=packed)
    offers = FEATURES | (Feature.RING_PACKED if offered else 0)
    with nothing_left(), back_end(path, features=offers) as peer, attach(path, options) as front_end:
        front_end.reattach(60)
        assert (Feature.RING_PACKED in front_end.features) == used
        bases = [VringState.unpack(message).value for message in peer.heard if message.request == VhostRequest.SET_VRING_BASE]
    assert bases == [0x80008000 if used else 0] * 4


def test_packed_rings_that_are_not_offered(path: Path) -> None:
    """Who requires packed rings is told that the other side has none."""
    with nothing_left(), back_end(path), pytest.raises(NegotiationFailed, match="RING_PACKED"):
        attach(path, FrontEndOptions(packed=True))


@pytest.mark.parametrize(
    ("offers", "step", "missing"),
    [
        ({"features": Feature.PROTOCOL_FEATURES}, "GET_FEATURES", "VERSION_1"),
        ({"features": 0}, "GET_FEATURES", "VERSION_1"),
        ({"features": Feature.VERSION_1 | Feature.NET_MQ | Feature.PROTOCOL_FEATURES}, "GET_FEATURES", "NET_MRG_RXBUF"),
        ({"features": Feature.VERSION_1 | Feature.NET_MRG_RXBUF}, "GET_FEATURES", "NET_MQ"),
        ({"protocol": ProtocolFeature.REPLY_ACK}, "GET_PROTOCOL_FEATURES", "MQ"),
        ({"queues": 1}, "GET_QUEUE_NUM", "at most 1"),
    ],
)
def test_what_is_not_offered(path: Path, offers: dict[str, int], step: str, missing: str) -> None:
    """When a back-end offers less than is needed the error names what is missing."""
    options = FrontEndOptions(queue_pairs=2, queue_size=8, room=128, mergeable=True)
    with nothing_left(), back_end(path, good, **offers), pytest.raises(NegotiationFailed, match=missing) as caught:
        attach(path, options)
    assert caught.value.step == step


def test_features_that_we_do_not_know(path: Path) -> None:
    """All bits at once are an offer like any other: only what we know is taken, and of the rings the split ones."""
    ours = Feature.VERSION_1 | Feature.PROTOCOL_FEATURES | Feature.IN_ORDER
    with nothing_left(), back_end(path, features=2**64 - 1, protocol=2**64 - 1) as peer, attach(path) as front_end:
        assert front_end.features == ours
        assert struct.unpack("=Q", peer.heard[3].payload) == (ProtocolFeature.REPLY_ACK,)


def test_each_message_refused(path: Path) -> None:
    """A refusal is an error with the name of the refused message and a place to look at."""
    for step, name in enumerate(ATTACHMENT):
        if step in ANSWERED and not name.startswith("GET_"):
            refusal = struct.pack("=IIIQ", VhostRequest[name], FLAGS_REPLY, 8, 1)
            error = failure(path, at(step, refusal))
            assert isinstance(error, MessageRefused)
            assert (error.step, error.look_at) == (name, error.look_at)
            assert "ovs-vswitchd.log" in str(error)


def test_acknowledgements_that_come_together(path: Path) -> None:
    """Acknowledgements in one piece, as from a switch that is quicker than we are: each refusal among them is named."""
    steps = ANSWERED[2:]

    def together(refused: int | None) -> Answer:
        told = (struct.pack("=IIIQ", VhostRequest[ATTACHMENT[step]], FLAGS_REPLY, 8, step == refused) for step in steps)
        last = b"".join(told)
        return lambda number, _: Act.GOOD if number < steps[0] else Act.SILENT if number < steps[-1] else last

    with nothing_left(), back_end(path, together(None)), attach(path) as front_end:
        assert front_end.is_alive()
    path.unlink()
    for step in steps:
        error = failure(path, together(step))
        assert isinstance(error, MessageRefused)
        assert error.step == ATTACHMENT[step]


NO_MEMORY = at(ATTACHMENT.index("SET_VRING_NUM"), struct.pack("=IIIQ", VhostRequest.SET_VRING_NUM, FLAGS_REPLY, 8, 1))
"""A back-end that has no memory for a ring."""


def test_a_refusal_that_passes(path: Path) -> None:
    """A listener awaits the back-end that refused a message once more; the refusal is the error if it does not come."""
    with nothing_left(), FrontEndListener(str(path), SMALL) as listener, ThreadPoolExecutor(1) as pool:
        accepted = pool.submit(listener.accept, 60)
        with dialling_back_end(path, NO_MEMORY) as refusing:
            wait_until(lambda: refusing.errors, what="the front-end to hang up")
        with dialling_back_end(path), accepted.result(60) as front_end:
            assert front_end.is_alive()
        with dialling_back_end(path, NO_MEMORY), pytest.raises(MessageRefused, match="SET_VRING_NUM"):
            listener.accept(1)


def test_a_refusal_of_a_reattachment_that_passes(path: Path) -> None:
    """A back-end to which we attach again is asked again, too."""
    with back_end(path) as peer, attach(path) as front_end:
        refusals = [NO_MEMORY, NO_MEMORY]
        peer.answer = lambda number, message: (refusals.pop() if number == 8 and refusals else good)(number, message)
        front_end.reattach(60)
        assert (front_end.is_alive(), refusals) == (True, [])


def test_each_message_left_unanswered(path: Path) -> None:
    """Silence ends with the deadline, and the error names the message without an answer."""
    for step in ANSWERED:
        named = step in (1, 2, ANSWERED[-1])
        error = failure(path, at(step, Act.SILENT), 1 if named else 0.03)  # all messages before it have to fit in
        assert isinstance(error, TimedOut | PeerError)
        if named:
            assert isinstance(error, TimedOut)
            assert error.step == ATTACHMENT[step]
            assert "ovs-vswitchd" in error.look_at


def test_a_hang_up_at_each_message(path: Path) -> None:
    """A hang-up at any message is an error that names the first message without an answer."""
    for step in range(len(ATTACHMENT)):
        error = failure(path, at(step, Act.HANG_UP))
        assert isinstance(error, Disconnected), error
        assert "ovs-vswitchd.log" in error.look_at
        if step in ANSWERED:
            assert error.step == ATTACHMENT[step]


def header(request: int, flags: int, size: int, payload: bytes = b"") -> bytes:
    return struct.pack("=III", request, flags, size) + payload


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (lambda message: header(message.request, 5, 4, bytes(4)), BreachReason.BAD_SIZE),
        (lambda message: header(message.request, 5, 16, bytes(16)), BreachReason.BAD_SIZE),
        (lambda message: header(message.request, 5, 0), BreachReason.BAD_SIZE),
        (lambda message: header(message.request + 1, 5, 8, bytes(8)), BreachReason.WRONG_REPLY),
        (lambda message: header(4711, 5, 8, bytes(8)), BreachReason.WRONG_REPLY),
        (lambda message: header(message.request, 1, 8, bytes(8)), BreachReason.NOT_A_REPLY),
        (lambda message: header(message.request, 6, 8, bytes(8)), BreachReason.BAD_VERSION),
        (lambda message: header(message.request, 0x85, 8, bytes(8)), BreachReason.BAD_FLAGS),
        (lambda message: header(message.request, 5, 2**31), BreachReason.OVERSIZED),
    ],
)
def test_malformed_answers(path: Path, wrong: Any, reason: BreachReason) -> None:
    """A malformed answer to any message ends the attachment with the way in which it is malformed."""
    for step in ANSWERED:
        error = failure(path, lambda number, message, step=step: wrong(message) if number == step else Act.GOOD)  # type: ignore[misc]
        assert isinstance(error, PeerError), error
        assert error.reason is reason
        assert str(path) in error.look_at or "ovs-vswitchd.log" in error.look_at


def test_an_answer_that_is_cut_off(path: Path) -> None:
    """Half an answer and then the end is a truncated one."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(str(path))
        listening.listen()

        def serve() -> None:
            with listening.accept()[0] as sock:
                sock.sendall(header(1, 5, 8, bytes(3)))
                sock.shutdown(socket.SHUT_WR)
                sock.recv(4096)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(PeerError) as caught:
            attach(path)
        thread.join(60)
    assert caught.value.reason is BreachReason.TRUNCATED


@settings(max_examples=150)
@given(
    st.integers(0, len(ATTACHMENT)),
    st.one_of(
        st.binary(max_size=64),
        st.builds(header, st.integers(0, 45), st.integers(0, 31), st.integers(0, 80), st.binary(max_size=64)),
    ),
)
def test_random_answers(step: int, answer: bytes) -> None:
    """Random answers at any step give an attachment or a named error, and nothing is left of it."""
    with (
        TemporaryDirectory(prefix="uc-") as directory,
        nothing_left(),
        back_end(Path(directory) / "s", at(step, answer)),
        suppress(FastPathError),
    ):
        attach(Path(directory) / "s", seconds=0.05).close()


def test_close_of_a_back_end_that_fails(path: Path) -> None:
    """Close raises nothing when the back-end does not answer, refuses or hangs up."""
    refusal = struct.pack("=IIIQ", VhostRequest.SET_VRING_ENABLE, FLAGS_REPLY, 8, 1)
    for answer in (Act.HANG_UP, b"rubbish that is no message", refusal):
        for step in range(4):
            with nothing_left(), awaited(path, at(len(ATTACHMENT) + step, answer)):
                pass


def test_a_detach_that_fails(path: Path) -> None:
    """Detach raises the back-end's failure; the front-end is detached all the same, and can be attached again."""
    silent = at(len(ATTACHMENT) + 3, Act.SILENT)
    with (
        nothing_left(),
        FrontEndListener(str(path), SMALL) as listener,
        dialling_back_end(path, silent),
        listener.accept(60) as front_end,
    ):
        with pytest.raises(TimedOut, match="GET_VRING_BASE"):
            front_end.detach(0.03)
        assert not front_end.is_alive()
        front_end.detach()
        with dialling_back_end(path):
            front_end.reattach(60)
            assert front_end.is_alive()


def test_a_hang_up_is_noticed(path: Path) -> None:
    """When the back-end hangs up the front-end is not alive, a wait ends with Disconnected, and attaching again repairs it."""
    with nothing_left(), back_end(path) as peer, attach(path) as front_end:
        pairs, number = front_end.pairs, front_end.control_fd
        for _ in range(3):
            peer.hang_up()
            with pytest.raises(Disconnected, match="hung up"):
                front_end.pairs[0].wait(60)
            assert not front_end.is_alive()
            front_end.reattach(60)
            assert front_end.is_alive()
            assert front_end.pairs is pairs
            assert front_end.control_fd == number
        assert front_end.pairs[0].send_frames([bytes(64)]) == 1
        assert front_end.pairs[0].wait(0) is False


def test_reattach_of_one_that_is_alive(path: Path) -> None:
    """An attachment that is alive is ended in good order before the next."""
    with (
        nothing_left(),
        FrontEndListener(str(path), SMALL) as listener,
        dialling_back_end(path) as first,
        listener.accept(60) as front_end,
        dialling_back_end(path) as second,
    ):
        front_end.reattach(60)
        assert first.names == ATTACHMENT + FAREWELL
        assert second.names == ATTACHMENT


def test_rings_are_empty_after_reattach(path: Path) -> None:
    """After attaching again a ring that was full takes as many frames as at first."""
    with back_end(path) as peer, attach(path) as front_end:
        frames = [bytes(64)] * 100
        first = front_end.pairs[0].send_frames(frames)
        assert 0 < first <= SMALL.queue_size
        assert front_end.pairs[0].send_frames(frames) == 0
        peer.hang_up()
        front_end.reattach(60)
        assert front_end.pairs[0].send_frames(frames) == first


def test_nothing_is_carried_while_detached(path: Path) -> None:
    """A detached front-end takes no frames and has none, and says why it is not alive."""
    with back_end(path), attach(path) as front_end:
        front_end.detach()
        front_end.detach()
        assert front_end.pairs[0].send_frames([bytes(64)]) == 0
        assert front_end.pairs[0].receive_frames() == []
        assert isinstance(front_end.why_failed(), Disconnected)


def test_reattach_without_a_back_end(path: Path) -> None:
    """Attaching again is tried until its deadline, and the error names the cause."""
    with nothing_left():
        with back_end(path):
            front_end = attach(path)
        with front_end:
            with pytest.raises(SocketRefused, match="no process listens"):
                front_end.reattach(0.5)
            path.unlink()
            with pytest.raises(SocketRefused, match="nothing is there"):
                front_end.reattach(0.5)
            with back_end(path):
                front_end.reattach(60)
                assert front_end.is_alive()


def test_reattach_while_the_other_side_hangs_up(path: Path) -> None:
    """A back-end that accepts connections and ends them is tried again until the deadline."""
    with nothing_left(), back_end(path) as peer, attach(path) as front_end:
        peer.answer = at(3, Act.HANG_UP)
        peer.hang_up()
        for seconds in (0.1, 1.0, 10.0, 60.0):  # on a busy machine one connection may take longer than the shortest
            before = peer.names.count("SET_OWNER")
            with pytest.raises((Disconnected, TimedOut)):
                front_end.reattach(seconds)
            if peer.names.count("SET_OWNER") > before + 1:
                break
        assert peer.names.count("SET_OWNER") > before + 1
        assert not front_end.is_alive()


def test_close_while_others_wait(path: Path) -> None:
    """Closing ends waits and attachments of other threads with Closed; many may close at once; afterwards all say Closed."""
    with nothing_left(), back_end(path):
        front_end = attach(path)
        outcomes: list[Exception] = []
        ready = threading.Barrier(9)

        def wait() -> None:
            ready.wait()
            try:
                while True:
                    front_end.pairs[0].wait(60)
            except FastPathError as error:
                outcomes.append(error)

        def send() -> None:
            ready.wait()
            try:
                while True:
                    front_end.pairs[0].send_frames([bytes(64)])
            except FastPathError as error:
                outcomes.append(error)

        def close() -> None:
            ready.wait()
            front_end.close()

        threads = [threading.Thread(target=each) for each in (wait, wait, wait, send, close, close, close, close)]
        for thread in threads:
            thread.start()
        ready.wait()
        for thread in threads:
            thread.join(60)
        assert [type(outcome) for outcome in outcomes] == [Closed] * 4
        front_end.close()
        assert isinstance(front_end.why_failed(), Closed)
        for call in (front_end.reattach, lambda: front_end.peer, lambda: front_end.pairs[0].wait(1)):
            with pytest.raises(Closed):
                call()


def test_reattach_while_others_send_and_wait(path: Path) -> None:
    """Threads that send and wait go on over reattachments: they see frames refused or Disconnected, and nothing else."""
    with nothing_left(), back_end(path), attach(path) as front_end:
        (pair,) = front_end.pairs
        ending = threading.Event()
        unexpected: list[Exception] = []

        def use(call: Any) -> None:
            while not ending.is_set():
                try:
                    call()
                except Disconnected:
                    continue
                except Exception as error:
                    unexpected.append(error)
                    return

        calls = [lambda: pair.send_frames([bytes(64)] * 4), pair.receive_frames, lambda: pair.wait(0.01), lambda: pair.wait(0.01)]
        threads = [threading.Thread(target=use, args=(call,)) for call in calls]
        for thread in threads:
            thread.start()
        for _ in range(30):
            front_end.reattach(60)
        ending.set()
        for thread in threads:
            thread.join(60)
        assert unexpected == []


def test_reattach_to_one_that_is_stuck(path: Path) -> None:
    """A back-end that answers nothing is left within half of the time; the rest is for the next connection."""
    with nothing_left(), back_end(path, at(len(ATTACHMENT), Act.SILENT)) as peer, attach(path) as front_end:
        front_end.reattach(4)
        assert front_end.is_alive()
        assert peer.names.count("SET_OWNER") == 2


def test_close_ends_a_reattachment(path: Path) -> None:
    """A reattach that waits for a back-end ends with Closed when another thread closes."""
    with nothing_left(), FrontEndListener(str(path), SMALL) as listener:
        front_ends: list[FrontEnd] = []
        peer_thread = threading.Thread(target=lambda: front_ends.append(listener.accept(60)))
        peer_thread.start()
        with dialling_back_end(path):
            peer_thread.join(60)
        (front_end,) = front_ends
        outcome: list[Exception] = []

        def reattach() -> None:
            try:
                front_end.reattach(60)
            except FastPathError as error:
                outcome.append(error)

        thread = threading.Thread(target=reattach)
        thread.start()
        front_end.close()
        thread.join(60)
        assert isinstance(outcome[0], Closed)


def test_a_listener(path: Path) -> None:
    """A connection to a listener is a back-end, the next one too for the same front-end; close removes the socket."""
    with nothing_left(), FrontEndListener(str(path), SMALL) as listener:
        connect(str(path), Instant.after(1)).close()  # a connection that ended before it was accepted is ignored
        with dialling_back_end(path):
            front_end = listener.accept(60)
            assert front_end.is_alive()
        wait_until(lambda: not front_end.is_alive())
        with front_end, dialling_back_end(path):
            front_end.reattach(60)
            assert front_end.is_alive()
        with pytest.raises(TimedOut, match="no connection came"):
            listener.accept(0.01)
    assert not path.exists()


def test_a_listener_that_is_closed(path: Path) -> None:
    """A closed listener accepts no connection, and its front-ends cannot be attached again."""
    listener = FrontEndListener(str(path), SMALL)
    with dialling_back_end(path), listener.accept(60) as front_end:
        listener.close()
        assert front_end.is_alive()
        with pytest.raises(Closed):
            front_end.reattach(1)
    with pytest.raises(Closed):
        listener.accept(1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"queue_pairs": 0},
        {"queue_pairs": 129},
        {"queue_size": 100},
        {"queue_size": 0},
        {"queue_size": 1 << 16},
        {"room": 10},
        {"room": 65554},
        {"receive_room": 0},
        {"hugepage_bytes": 3},
        {"hugepage_bytes": 0},
        {"hugepage_bytes": -(2 << 20)},
        {"hugepage_bytes": 4096},
        {"hugepage_bytes": 1 << 45},
    ],
)
def test_impossible_options(wrong: dict[str, int]) -> None:
    """An option out of range is refused with its name, value and range."""
    (name,) = wrong
    with pytest.raises(ValueError, match=re.escape(f"{name}={wrong[name]}")):
        FrontEndOptions(**wrong)  # type: ignore[arg-type]


def test_sizes_of_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the kernel's sizes are accepted, and the error lists them; where none is known, any power of two is accepted."""
    has = tuple(HugepagePool(size, None, 0, 0, 0, 0) for size in (2 << 20, 1 << 30))
    monkeypatch.setattr("userspace_cni.fastpath.vhost.front_end.read_machine_pools", lambda: has)
    assert FrontEndOptions(hugepage_bytes=2 << 20).hugepage_bytes == 2 << 20
    with pytest.raises(ValueError, match=r"2097152 \(2 MiB\) or 1073741824 \(1 GiB\) bytes"):
        FrontEndOptions(hugepage_bytes=4 << 20)
    monkeypatch.setattr("userspace_cni.fastpath.vhost.front_end.read_machine_pools", tuple)
    assert FrontEndOptions(hugepage_bytes=4 << 20)
    with pytest.raises(ValueError, match="powers of two"):
        FrontEndOptions(hugepage_bytes=3 << 20)


def test_another_front_end(path: Path) -> None:
    """When two front-ends are connected, the error of each says that the other side is a front-end too."""
    raised: list[FastPathError] = []

    def accept(listener: FrontEndListener) -> None:
        try:
            listener.accept(60)
        except FastPathError as error:
            raised.append(error)

    with nothing_left(), FrontEndListener(str(path), SMALL) as listener:
        thread = threading.Thread(target=accept, args=(listener,))
        thread.start()
        with pytest.raises(PeerError, match="another tap, and no switch") as caught:
            attach(path)
        thread.join()
    assert caught.value.reason is BreachReason.NOT_A_REPLY
    assert "another tap, and no switch" in str(raised[0])


FEW_DESCRIPTORS = """
import os, resource, sys
from tests.lab.node.belongings import nothing_left
from userspace_cni.fastpath.fastpath_errors import MemoryShort
from userspace_cni.fastpath.vhost.front_end import FrontEnd, FrontEndOptions
FrontEnd.connect(sys.argv[1], FrontEndOptions(queue_size=8, room=128)).close()
lowest = os.open("/", os.O_RDONLY)
os.close(lowest)
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
short = 0
for spare in range(20):
    with nothing_left():
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + spare, hard))
        try:
            FrontEnd.connect(sys.argv[1], FrontEndOptions(queue_size=8, room=128)).close()
        except MemoryShort as error:
            assert "ulimit -n" in str(error), error
            short += 1
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
print(short)
"""


def test_with_few_descriptors(path: Path) -> None:
    """However few descriptors there are: an attachment, or an error that names the limit, and none is lost."""
    with back_end(path):
        argv = [sys.executable, "-c", FEW_DESCRIPTORS, str(path)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert 5 <= int(done.stdout) < 20
