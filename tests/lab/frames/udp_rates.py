"""UDP of several pods at once, as fast as it is offered, and how much of it arrives: what a limit lets pass."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tests.lab.frames.taps import socket_in

_DATAGRAM: Final = 1200
_HEADERS: Final = 42
"""Bytes of Ethernet, IPv4 and UDP before a datagram: meters count frames."""
_PORT: Final = 5300
_TICK_S: Final = 0.01


@dataclass(frozen=True)
class UdpFlow:
    """From a pod's namespace to the address of another one's. `offered`: bit/s."""

    source: str
    target: str
    address: str
    offered: int


@dataclass(frozen=True)
class Arrived:
    """What came of a flow: bits of frames a second, sent and received, after the first `settle_s`."""

    sent: float
    received: float


def offer(flows: Sequence[UdpFlow], seconds: float = 3.0, settle_s: float = 1.0) -> list[Arrived]:
    """Offer all of them at the same time; what a burst lets pass at the start is not counted."""
    began = time.monotonic()
    counts = [[0, 0] for _ in flows]
    bounds = (began + settle_s, began + settle_s + seconds)
    threads = [
        threading.Thread(target=work, args=(flow, _PORT + number, bounds, counts[number]))
        for number, flow in enumerate(flows)
        for work in (_receive, _send)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return [Arrived(*(count * (_DATAGRAM + _HEADERS) * 8 / seconds for count in pair)) for pair in counts]


def _send(flow: UdpFlow, port: int, bounds: tuple[float, float], counts: list[int]) -> None:
    every = flow.offered * _TICK_S / 8 / (_DATAGRAM + _HEADERS)
    data, due, told, paced = bytes(_DATAGRAM), 0.0, time.monotonic(), threading.Event()
    with socket_in(flow.source, socket.AF_INET, socket.SOCK_DGRAM) as one:
        while (now := time.monotonic()) < bounds[1]:
            due, told = due + every * (now - told) / _TICK_S, now
            while due >= 1:
                one.sendto(data, (flow.address, port))
                due -= 1
                counts[0] += now >= bounds[0]
            paced.wait(_TICK_S)


def _receive(flow: UdpFlow, port: int, bounds: tuple[float, float], counts: list[int]) -> None:
    with socket_in(flow.target, socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind((flow.address, port))
        other.settimeout(_TICK_S)
        while (now := time.monotonic()) < bounds[1]:
            try:
                other.recv(_DATAGRAM)
            except TimeoutError:
                continue
            counts[1] += now >= bounds[0]
