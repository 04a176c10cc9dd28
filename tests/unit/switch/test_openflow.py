"""OpenFlow messages as in the specifications, and a client against switches that answer anything."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import SwitchRefused, Unavailable
from userspace_cni.switch.openflow import openflow_messages
from userspace_cni.switch.openflow.flows import Flows, forget
from userspace_cni.switch.openflow.openflow_messages import Flow, OpenflowMessage

COOKIE = openflow_messages.cookie_of(0x01020304, 5)
FLOW_MOD_13 = bytes.fromhex(
    "040e0058 00000007"  # version 1.3, FLOW_MOD, 88 bytes, transaction 7
    "55636e0102030405 0000000000000000"  # cookie, mask
    "00 00 003c 0e10 ffff"  # table, add, idle, hard, priority
    "ffffffff ffffffff ffffffff 0000 0000"  # buffer, output port, output group, flags
    "0001 000c 80000004 00000003 00000000"  # match: in_port 3
    "0004 0018 00000000"  # apply actions
    "0000 0010 fffffff8 0000 000000000000"  # output: IN_PORT
)
FLOW_MOD_10 = bytes.fromhex(
    "01040040 00000007 00002320 0000000d"  # version 1.0, vendor, 64 bytes; Nicira, FLOW_MOD
    "55636e0102030405 0000 003c 0e10 ffff"  # cookie, add, idle, hard, priority
    "ffffffff ffff 0000 0006 000000000000"  # buffer, output port, flags, length of the match
    "00000002 0003 0000"  # in_port 3
    "0000 0008 0004 0000"  # output: 4
)


def test_a_flow_of_version_1_3() -> None:
    """A flow back to its port has the bytes of the specification."""
    assert openflow_messages.add_flow(0x04, 7, Flow(3, None, COOKIE, 60, 3600)) == FLOW_MOD_13


def test_a_flow_to_the_connection() -> None:
    """Frames to one MAC go to the connections of our number, whole, and to no other; both versions match port and MAC."""
    flow = Flow(3, openflow_messages.CONTROLLER, COOKIE, hard_s=10, eth_dst=bytes.fromhex("020000000001"))
    assert openflow_messages.add_flow(0x04, 7, flow)[48:] == bytes.fromhex(
        "0001 0016 80000004 00000003 80000606 020000000001 0000"  # match: in_port 3, eth_dst, padding
        "0004 0018 00000000 ffff 0010 00002320 0014 ffff 5563 01 00"  # Nicira's controller: all bytes, our number, an action
    )
    assert openflow_messages.add_flow(0x01, 7, flow)[48:] == bytes.fromhex(
        "00000002 0003 00000206 020000000001 ffff 0010 00002320 0014 ffff 5563 01 00"  # in_port 3, eth_dst; the same action
    )
    assert openflow_messages.claim_frames(0x04, 7) == bytes.fromhex("04 04 0018 00000007 00002320 00000014 000000000000 5563")


def test_a_flow_of_version_1_0() -> None:
    """A flow to another port goes as an extended FLOW_MOD where only 1.0 is spoken."""
    assert openflow_messages.add_flow(0x01, 7, Flow(3, 4, COOKIE, 60, 3600)) == FLOW_MOD_10


@pytest.mark.parametrize("version", sorted(openflow_messages.VERSIONS))
def test_lengths(version: int) -> None:
    """Every message tells its own length, and its parts fill 8 bytes."""
    made = [
        openflow_messages.add_flow(version, 1, Flow(1, None, COOKIE)),
        openflow_messages.delete_flows(version, 2, COOKIE),
        openflow_messages.encode_barrier(version, 3),
        openflow_messages.encode_hello(4),
    ]
    for each in made:
        _, left = openflow_messages.decode_header(each[:8])
        assert len(each) == 8 + left
        assert len(each) % 8 == 0
    assert openflow_messages.decode_header(made[0][:8])[0].version == version


def test_cookies() -> None:
    """A run's cookies share all but the last eight bits."""
    assert COOKIE == 0x55636E0102030405
    assert openflow_messages.cookie_of(0x01020304) == 0x55636E0102030400


def test_flows_of_others_are_safe() -> None:
    """A deletion that would match flows of others is refused."""
    with pytest.raises(ValueError, match="flows of others"):
        openflow_messages.delete_flows(0x04, 1, 0x1234)


def hello(version: int, elements: bytes = b"") -> OpenflowMessage:
    return OpenflowMessage(version, openflow_messages.HELLO, 1, elements)


@pytest.mark.parametrize(
    ("theirs", "version"),
    [
        (hello(0x01), 0x01),
        (hello(0x04), 0x04),
        (hello(0x06), 0x06),
        (hello(0x0F), 0x06),
        (hello(0x04, struct.pack("!HHI", 1, 8, 1 << 1 | 1 << 4)), 0x04),
        (hello(0x06, struct.pack("!HHI", 1, 8, 1 << 1)), 0x01),
        (hello(0x05, struct.pack("!HH4x", 9, 5) + struct.pack("!HHI", 1, 8, 1 << 3)), 0x03),
        (hello(0x01, b"\0\1\0\0\0\0"), 0x01),
    ],
)
def test_agreeing_on_a_version(theirs: OpenflowMessage, version: int) -> None:
    """The highest version that both speak, by the bitmap where there is one, and by the header where there is none."""
    assert openflow_messages.negotiate_version(theirs) == version


def test_nothing_in_common() -> None:
    """A bridge restricted to a version that we do not speak is named with what it speaks."""
    with pytest.raises(SwitchRefused, match=r"the bridge speaks 1\.1, userspace-cni 1\.0, 1\.2"):
        openflow_messages.negotiate_version(hello(0x02, struct.pack("!HHI", 1, 8, 1 << 2)))


@pytest.mark.parametrize(
    ("version", "body", "text"),
    [
        (0x04, struct.pack("!HH", 5, 1), "x: flow refused, table full"),
        (0x01, struct.pack("!HH", 3, 2), "x: flow refused, not permitted"),
        (0x04, struct.pack("!HH", 99, 7), "x: error type 99, code 7"),
        (0x04, struct.pack("!HH", 0, 0) + b"no way", "x: HELLO failed, incompatible versions: no way"),
        (0x04, b"", "x: the switch answers with an error of 0 bytes"),
    ],
)
def test_errors_are_named(version: int, body: bytes, text: str) -> None:
    """Any ERROR message becomes an error in words."""
    assert openflow_messages.explain_refusal(OpenflowMessage(version, openflow_messages.ERROR, 1, body), "x").message == text


Answer = Callable[[socket.socket], None]


@pytest.fixture
def switch_saying(tmp_path: Path) -> Iterator[Callable[[Answer], str]]:
    """Starts a server on a management socket that passes its first connection to `answer`; returns the socket's path."""
    threads: list[threading.Thread] = []
    listeners: list[socket.socket] = []

    def start(answer: Answer) -> str:
        path = str(tmp_path / "b.mgmt")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen()
        listeners.append(listener)

        def serve() -> None:
            peer, _ = listener.accept()
            with peer:
                answer(peer)

        threads.append(threading.Thread(target=serve))
        threads[-1].start()
        return path

    yield start
    for thread in threads:
        thread.join(60)
    for listener in listeners:
        listener.close()


def read(peer: socket.socket) -> OpenflowMessage:
    """A message that the client sent."""
    head, left = openflow_messages.decode_header(peer.recv(8, socket.MSG_WAITALL))
    return OpenflowMessage(head.version, head.kind, head.xid, peer.recv(left, socket.MSG_WAITALL) if left else b"")


def until_closed(peer: socket.socket) -> None:
    """Read until the client closes, and send nothing."""
    while peer.recv(4096):
        pass


def soon() -> Deadline:
    """A deadline that leaves enough time for an answer."""
    return Deadline.after(60)


def test_a_flow_is_added_and_deleted(switch_saying: Callable[[Answer], str]) -> None:
    """The client shakes hands, answers echo requests meanwhile, and knows its barrier's answer by its number."""
    seen = []

    def answer(peer: socket.socket) -> None:
        read(peer)
        peer.sendall(openflow_messages.encode_message(0x04, openflow_messages.HELLO, 9))
        seen.append(read(peer))
        barrier = read(peer)
        peer.sendall(openflow_messages.encode_message(0x04, openflow_messages.ECHO_REQUEST, 77, b"alive?"))
        seen.append(read(peer))
        peer.sendall(
            openflow_messages.encode_message(0x04, 21, 12345) + openflow_messages.encode_message(0x04, 10, 0, b"a packet in")
        )
        peer.sendall(openflow_messages.encode_message(0x04, 21, barrier.xid))
        until_closed(peer)

    with Flows(switch_saying(answer), soon()) as flows:
        flows.add(Flow(3, None, COOKIE, 60, 3600), soon())
    assert openflow_messages.encode_message(0x04, 14, 7, seen[0].body) == FLOW_MOD_13
    assert (seen[1].kind, seen[1].xid, seen[1].body) == (openflow_messages.ECHO_REPLY, 77, b"alive?")


def test_a_flow_that_is_refused(switch_saying: Callable[[Answer], str]) -> None:
    """An error before the barrier's answer is raised, with the socket it came from."""

    def answer(peer: socket.socket) -> None:
        read(peer)
        peer.sendall(openflow_messages.encode_message(0x04, openflow_messages.HELLO, 9))
        peer.sendall(openflow_messages.encode_message(0x04, openflow_messages.ERROR, read(peer).xid, struct.pack("!HH", 5, 1)))
        until_closed(peer)

    path = switch_saying(answer)
    with Flows(path, soon()) as flows, pytest.raises(SwitchRefused, match=f"adding a flow from port 3 at {path}: .*table full"):
        flows.add(Flow(3, None, COOKIE), soon())


def saying(data: bytes) -> Answer:
    """Send this after the client's HELLO, and close."""

    def answer(peer: socket.socket) -> None:
        read(peer)
        peer.sendall(data)

    return answer


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (until_closed, "no answer in time"),
        (saying(b"SSH-2.0-OpenSSH"), "closed the connection"),
        (saying(b"\x04\x00\x00\x04aaaa"), "a message of 4 bytes"),
        (lambda peer: None, "closed the connection|reset|Broken pipe"),
    ],
)
def test_a_server_that_does_not_speak_openflow(switch_saying: Callable[[Answer], str], answer: Answer, text: str) -> None:
    """Silence, nonsense and a closed connection end before the deadline, and are named."""
    with pytest.raises(Unavailable, match=text):
        Flows(switch_saying(answer), Deadline.after(0.3) if answer is until_closed else soon())


def test_no_switch(tmp_path: Path) -> None:
    """The error names the path of a missing socket."""
    with pytest.raises(Unavailable, match=r"nothing\.mgmt: No such file"):
        Flows(str(tmp_path / "nothing.mgmt"), soon())


def test_flows_without_a_listener(tmp_path: Path) -> None:
    """A bridge or a process that is gone has no flows, however its socket was left and however long the path is."""
    directory = tmp_path / ("long" * 30)
    forget(str(directory / "b.mgmt"), COOKIE, soon())
    directory.mkdir()
    forget(str(directory / "b.mgmt"), COOKIE, soon())
    with contextlib.chdir(directory), socket.socket(socket.AF_UNIX) as listener:
        listener.bind("b.mgmt")
    forget(str(directory / "b.mgmt"), COOKIE, soon())


def test_flows_of_a_bridge_that_speaks_no_version_of_ours(switch_saying: Callable[[Answer], str]) -> None:
    """A bridge that could never get a flow of ours has none."""
    body = struct.pack("!HHI", 1, 8, 1 << 2)
    forget(switch_saying(saying(openflow_messages.encode_message(0x02, openflow_messages.HELLO, 1, body))), COOKIE, soon())


@pytest.mark.parametrize("said", [b"", openflow_messages.encode_message(0x04, openflow_messages.HELLO, 1)])
def test_flows_of_a_silent_switch(switch_saying: Callable[[Answer], str], said: bytes) -> None:
    """The deletion of flows counts as unconfirmed if the switch does not answer completely."""

    def answer(peer: socket.socket) -> None:
        peer.sendall(said)
        until_closed(peer)

    with pytest.raises(Unavailable, match="no answer in time"):
        forget(switch_saying(answer), COOKIE, Deadline.after(0.2))


def test_a_switch_that_accepts_no_connection(tmp_path: Path) -> None:
    """A stopped switch with a full queue is an error: it may still have its flows."""
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as other:
        listener.bind(str(tmp_path / "b.mgmt"))
        listener.listen(0)
        other.connect(str(tmp_path / "b.mgmt"))
        with pytest.raises(Unavailable, match=r"b\.mgmt: "):
            forget(str(tmp_path / "b.mgmt"), COOKIE, Deadline.after(0.2))


@pytest.mark.parametrize(
    ("version", "kind", "head", "layout"),
    [(0x01, 17, "!HH", "!H6x12Q"), (0x03, 19, "!HH4x", "!I4x12Q"), (0x04, 19, "!HH4x", "!I4x12Q8x")],
)
def test_counters_of_a_bridge(version: int, kind: int, head: str, layout: str) -> None:
    """Each port's counters by name, without those that it does not have; and whether more is to come."""
    numbers = [1, 2, 3, 4, 5, 2**64 - 1, 2**64 - 1, 2**63]
    body = struct.pack(head, 4, 1) + struct.pack(layout, 7, *numbers, 0, 0, 0, 0) + struct.pack(layout, 8, *[2**64 - 1] * 12)
    found, last = openflow_messages.read_counters(OpenflowMessage(version, kind, 1, body))
    counted = {"rx_packets": 1, "tx_packets": 2, "rx_bytes": 3, "tx_bytes": 4, "rx_dropped": 5, "tx_errors": 2**63}
    assert (found, last) == ({7: counted, 8: {}}, False)
    assert openflow_messages.read_counters(OpenflowMessage(version, kind, 1, struct.pack(head, 4, 0))) == ({}, True)


@pytest.mark.parametrize(
    "came",
    [
        OpenflowMessage(0x04, 19, 1, b""),
        OpenflowMessage(0x04, 19, 1, bytes(9)),
        OpenflowMessage(0x06, 19, 1, bytes(8)),
        OpenflowMessage(0x04, 10, 1, bytes(8)),
    ],
)
def test_what_is_no_counter(came: OpenflowMessage) -> None:
    """A message that is cut, of another kind or another version is refused, not misread."""
    with pytest.raises(Unavailable, match="instead of counters"):
        openflow_messages.read_counters(came)
