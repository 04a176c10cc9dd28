"""The peer of a guest: a port of the same bridge that answers ARP and ICMP and counts requests.

Frames get their time when they arrive, so that gaps are those of the network and not of the guest's script.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Self

from tests.lab.switch.switch import Switch, wait_until
from userspace_cni.fastpath.rings.queue_pair import QueuePair
from userspace_cni.fastpath.vhost.front_end import FrontEnd, FrontEndListener, FrontEndOptions

MAC = "52:54:00:00:0f:01"
ADDRESS = "10.9.0.1"
PORT = "peer0"
_IDENTIFIER = 0x9E37
_ARP, _IPV4 = b"\x08\x06", b"\x08\x00"
_ICMP_REQUEST, _ICMP_REPLY = 8, 0
_WAIT_S = 0.05
_ANSWER_S = 60.0


@dataclass
class Stream:
    """Echo requests at a steady pace, and when each was sent and answered in seconds of the monotonic clock."""

    sent: dict[int, float] = field(default_factory=dict)
    answered: dict[int, float] = field(default_factory=dict)

    @property
    def lost(self) -> int:
        """Requests without an answer."""
        return len(self.sent.keys() - self.answered.keys())

    @property
    def longest_gap(self) -> float:
        """The longest time between two answers, in seconds."""
        times = sorted(self.answered.values())
        return max((later - earlier for earlier, later in pairwise(times)), default=0.0)


class Peer:
    """ADDRESS at a port: answers in a thread of its own until the end of the `with`. `requests`: senders of those answered."""

    def __init__(self, pair: QueuePair) -> None:
        self._pair = pair
        self._mac, self._address = bytes.fromhex(MAC.replace(":", "")), socket.inet_aton(ADDRESS)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._target: tuple[bytes, bytes] | None = None
        self._stream = Stream()
        self._every = 0.0
        self._next = 0.0
        self.requests: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    @contextmanager
    def stream(self, mac: str, address: str, every: float = 0.001) -> Iterator[Stream]:
        """During the block, send requests to this neighbour every so many seconds; the block begins when it has answered one."""
        stream = Stream()
        self._stream, self._every, self._next = stream, every, time.monotonic()
        self._target = (bytes.fromhex(mac.replace(":", "")), socket.inet_aton(address))
        try:
            wait_until(lambda: stream.answered, _ANSWER_S, f"an answer of {address}")
            yield stream
        finally:
            self._target = None

    def _serve(self) -> None:
        while not self._ending.is_set():
            target = self._target
            if target and time.monotonic() >= self._next:
                self._ask(*target)
            self._pair.wait(max(0.0, min(_WAIT_S, self._next - time.monotonic())) if target else _WAIT_S)
            for frame in self._pair.receive_frames():
                self._take(frame, time.monotonic())

    def _ask(self, mac: bytes, address: bytes) -> None:
        number = len(self._stream.sent) + 1
        self._stream.sent[number] = time.monotonic()
        self._next += self._every
        head = struct.pack("!BBHHH", _ICMP_REQUEST, 0, 0, _IDENTIFIER, number & 0xFFFF)
        self._pair.send_frames([self._ip(mac, address, _summed(head + number.to_bytes(8, "big") + bytes(48), 2))])

    def _take(self, frame: bytes, when: float) -> None:
        if frame[12:14] == _ARP and frame[20:22] == b"\0\1" and frame[38:42] == self._address:
            answer = frame[6:12] + self._mac + frame[12:20] + b"\0\2" + self._mac + self._address + frame[22:32]
            self._pair.send_frames([answer])
        elif frame[12:14] == _IPV4 and frame[23] == socket.IPPROTO_ICMP and frame[30:34] == self._address:
            self._take_icmp(frame, frame[34 : 14 + int.from_bytes(frame[16:18], "big")], when)

    def _take_icmp(self, frame: bytes, message: bytes, when: float) -> None:
        if message[0] == _ICMP_REQUEST:
            self.requests.append(frame[6:12].hex(":"))
            self._pair.send_frames([self._ip(frame[6:12], frame[26:30], _summed(b"\0\0\0\0" + message[4:], 2))])
        elif message[0] == _ICMP_REPLY and message[4:6] == _IDENTIFIER.to_bytes(2, "big"):
            self._stream.answered.setdefault(int.from_bytes(message[8:16], "big"), when)

    def _ip(self, mac: bytes, address: bytes, message: bytes) -> bytes:
        head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(message), 0, 0, 64, socket.IPPROTO_ICMP, 0) + self._address + address
        return mac + self._mac + _IPV4 + _summed(head, 10) + message


@contextmanager
def peer_at(switch: Switch, bridge: str, directory: Path, mtu: int = 1500) -> Iterator[Peer]:
    """The peer at a port of its own, PORT, on an existing bridge, when the switch has its buffers for frames of this MTU.

    It makes them for the first connected port, with all the memory that it has, and then with half as much, until they fit. DPDK
    gives up a port whose application connects meanwhile: there is no memory for that connection, and no second try.
    """
    options = FrontEndOptions(room=mtu + 64)
    with FrontEndListener(f"{directory}/peer.sock", options) as listener:
        columns = ["type=dpdkvhostuserclient", f"options:vhost-server-path={listener.path}", f"mtu_request={mtu}"]
        switch.vsctl("add-port", bridge, PORT, "--", "set", "Interface", PORT, *columns)
        try:
            with listener.accept() as front_end, Peer(_only(front_end)) as peer:
                wait_until(lambda: switch.interface(PORT)["mtu"] == mtu, what="the switch's buffers")
                yield peer
        finally:
            switch.vsctl("--if-exists", "del-port", PORT)


def _only(front_end: FrontEnd) -> QueuePair:
    (pair,) = front_end.pairs
    return pair


def _summed(data: bytes, where: int) -> bytes:
    """The data with its Internet checksum (RFC 1071) put at an offset at which it has zeroes."""
    padded = data + bytes(len(data) % 2)
    total: int = sum(struct.unpack(f"!{len(padded) // 2}H", padded))
    total = (total & 0xFFFF) + (total >> 16)
    total = (total & 0xFFFF) + (total >> 16)
    return data[:where] + (~total & 0xFFFF).to_bytes(2, "big") + data[where + 2 :]
