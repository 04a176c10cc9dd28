"""A guest that is made of frames: ARP, DHCP, ICMP, UDP and one TCP connection by hand, at a port of the library.

It checks no checksum of UDP and TCP: a device may leave them out when it says so in a header that the library hides.
"""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Callable
from typing import Final

from tests.lab.frames.tcp_segments import checksum
from tests.lab.switch.switch import wait_until
from userspace_cni.fastpath.vhost.vhost_port import VhostPort

MAC: Final = bytes.fromhex("020000000009")
_ARP, _IPV4 = b"\x08\x06", b"\x08\x00"
_BROADCAST: Final = b"\xff" * 6
_COOKIE: Final = bytes.fromhex("63825363")
_FIN, _SYN, _PUSH, _ACK = 1, 2, 8, 16
_ANSWER_S: Final = 60.0
_WINDOW: Final = 8192


class FrameGuest:
    """The guest with this address, whose neighbour is `gateway`, with that MAC once `resolve` has asked for it."""

    def __init__(self, port: VhostPort, address: str, gateway: str) -> None:
        self._port = port
        self._address, self._gateway = socket.inet_aton(address), socket.inet_aton(gateway)
        self._neighbour = _BROADCAST

    def resolve(self) -> bytes:
        """The gateway's MAC, as its answer to ARP says."""
        head = bytes.fromhex("0001080006040001")
        self._send(_BROADCAST, _ARP, head + MAC + self._address + bytes(6) + self._gateway)
        answer = self._next(lambda frame: frame[12:14] == _ARP and frame[20:22] == b"\0\2" and frame[28:32] == self._gateway)
        self._neighbour = answer[22:28]
        return self._neighbour

    def lease(self) -> str:
        """The address that DHCP gives: DISCOVER, OFFER, REQUEST, ACK."""
        offer = self._dhcp(1, b"")
        granted = self._dhcp(3, bytes([50, 4]) + offer[16:20])
        assert granted[16:20] == offer[16:20]
        return socket.inet_ntoa(granted[16:20])

    def ping(self, size: int) -> None:
        """Wait for the answer to an echo request with so many bytes."""
        payload = random.randbytes(size)
        message = struct.pack("!BBHHH", 8, 0, 0, 7, 1) + payload
        self._send_ip(socket.IPPROTO_ICMP, message[:2] + checksum(message).to_bytes(2, "big") + message[4:])
        self._next(lambda frame: _is_ip(frame, socket.IPPROTO_ICMP) and frame[34] == 0 and _payload(frame)[8:] == payload)

    def datagram(self, port: int, payload: bytes) -> bytes:
        """Send a UDP datagram to the gateway's port; the payload of the answer."""
        self._send_ip(socket.IPPROTO_UDP, struct.pack("!HHHH", 40000, port, 8 + len(payload), 0) + payload)
        return _payload(self._next(lambda frame: _is_ip(frame, socket.IPPROTO_UDP) and frame[34:36] == port.to_bytes(2, "big")))[
            8:
        ]

    def converse(self, port: int, text: bytes, size: int = 1000) -> bytes:
        """Send text over a TCP connection, at most `size` bytes in a segment; what comes back until as much has come."""
        sequence, seen = random.randrange(1 << 31), b""
        self._segment(port, _SYN, sequence, 0, b"")
        answer = self._from_port(socket.IPPROTO_TCP, port)
        assert answer[13] & (_SYN | _ACK) == _SYN | _ACK, answer
        expected = int.from_bytes(answer[4:8], "big") + 1
        sequence += 1
        self._segment(port, _ACK, sequence, expected, b"")  # passt forgets text that comes with it
        for first in range(0, len(text), size):
            part = text[first : first + size]
            self._segment(port, _ACK | _PUSH, sequence, expected, part)
            sequence += len(part)
            while len(seen) < first + len(part):
                answer = self._from_port(socket.IPPROTO_TCP, port)
                if int.from_bytes(answer[4:8], "big") == expected & 0xFFFFFFFF:
                    data = answer[4 * (answer[12] >> 4) :]
                    seen, expected = seen + data, expected + len(data)
                self._segment(port, _ACK, sequence, expected, b"")
        self._segment(port, _ACK | _FIN, sequence, expected, b"")
        return seen

    def _from_port(self, protocol: int, port: int) -> bytes:
        """The next packet of the gateway's port, from the head of its protocol on."""
        return _payload(self._next(lambda frame: _is_ip(frame, protocol) and frame[34:36] == port.to_bytes(2, "big")))

    def _segment(self, port: int, flags: int, sequence: int, acknowledged: int, data: bytes) -> None:
        numbers = (sequence & 0xFFFFFFFF, acknowledged & 0xFFFFFFFF)
        head = struct.pack("!HHIIBBHHH", 40001, port, *numbers, 5 << 4, flags, _WINDOW, 0, 0)
        pseudo = self._address + self._gateway + struct.pack("!HH", socket.IPPROTO_TCP, len(head) + len(data))
        total = checksum(pseudo + head + data)
        self._send_ip(socket.IPPROTO_TCP, head[:16] + total.to_bytes(2, "big") + head[18:] + data)

    def _dhcp(self, kind: int, options: bytes) -> bytes:
        """The answer to a message of this kind."""
        message = bytes([1, 1, 6, 0]) + b"only" + bytes(20) + MAC + bytes(10 + 192) + _COOKIE + bytes([53, 1, kind]) + options
        message += b"\xff"
        udp = struct.pack("!HHHH", 68, 67, 8 + len(message), 0) + message
        self._send(_BROADCAST, _IPV4, _ip(socket.IPPROTO_UDP, bytes(4), b"\xff" * 4, udp))
        return _payload(self._next(lambda frame: _is_ip(frame, socket.IPPROTO_UDP) and frame[36:38] == b"\0\x44"))[8:]

    def _send_ip(self, protocol: int, payload: bytes) -> None:
        self._send(self._neighbour, _IPV4, _ip(protocol, self._address, self._gateway, payload))

    def _send(self, target: bytes, kind: bytes, payload: bytes) -> None:
        assert self._port.send([target + MAC + kind + payload]) == 1

    def _next(self, wanted: Callable[[bytes], bool]) -> bytes:
        """The next frame that is wanted; others are skipped."""
        found: list[bytes] = []

        def look() -> bool:
            found.extend(frame for frame in self._port.receive(0.2, 1) if wanted(frame))
            return bool(found)

        wait_until(look, _ANSWER_S, "a frame of the gateway")
        return found[0]


def _ip(protocol: int, source: bytes, target: bytes, payload: bytes) -> bytes:
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(payload), 0, 0, 64, protocol, 0) + source + target
    return head[:10] + checksum(head).to_bytes(2, "big") + head[12:] + payload


def _is_ip(frame: bytes, protocol: int) -> bool:
    return frame[12:14] == _IPV4 and frame[23] == protocol


def _payload(frame: bytes) -> bytes:
    """What the IP packet carries, without the padding of short frames."""
    return frame[34 : 14 + int.from_bytes(frame[16:18], "big")]
