"""The kernel as a judge of merged and cut frames: a bridge between a tap that takes large frames and one that does not.

What is written to the first tap with a virtio header has to be cut by the kernel before the second one can read it.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.lab.frames.segments_trial import SegmentsTrial
from tests.lab.frames.taps import SECONDS, entered
from tests.lab.frames.tcp_segments import ACK, CWR, ECE, FIN, GSO_ECN, PSH, Segment, offloaded, train
from tests.lab.runtimes.runtime import netns

TUNSETIFF, TUNSETVNETHDRSZ = 0x400454CA, 0x400454D8
IFF_TAP, IFF_NO_PI, IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
BRIDGED = """
ip link add br0 type bridge mcast_snooping 0
for link in large plain; do
    sysctl -q -w net.ipv6.conf.$link.disable_ipv6=1
    ip link set $link mtu 9000 master br0 up
done
sysctl -q -w net.ipv6.conf.br0.disable_ipv6=1
ip link set br0 up
"""


class Judge:
    """The kernel between the two taps."""

    def __init__(self, large: int, plain: int) -> None:
        self._large, self._plain = large, plain

    def frames(self, written: bytes, count: int) -> list[bytes]:
        """What the kernel makes of a frame with its virtio header; so many frames are waited for."""
        assert os.write(self._large, written) == len(written)
        return [self._read() for _ in range(count)]

    def _read(self) -> bytes:
        assert select.select([self._plain], [], [], SECONDS)[0], "the kernel forwards nothing more"
        return os.read(self._plain, 65536)


def opened(name: str, flags: int) -> int:
    """A tap of the namespace of this thread."""
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI | flags))
    if flags:
        fcntl.ioctl(fd, TUNSETVNETHDRSZ, struct.pack("i", 12))
    return fd


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with netns() as namespace, ExitStack() as stack:
        taps = [entered(namespace, lambda: opened("large", IFF_VNET_HDR)), entered(namespace, lambda: opened("plain", 0))]
        for tap in taps:
            stack.callback(os.close, tap)
        subprocess.run(["nsenter", f"--net={namespace}", "sh", "-ec", BRIDGED], check=True)
        judge = Judge(*taps)
        greeting = Segment(hosts=(8, 9)).frame()
        while True:  # a port of a bridge forwards a moment after it is up
            os.write(taps[0], bytes(12) + greeting)
            if select.select([taps[1]], [], [], 0.1)[0]:
                break
        while select.select([taps[1]], [], [], 0.2)[0]:
            os.read(taps[1], 65536)
        yield judge


@pytest.mark.parametrize("six", [False, True])
@pytest.mark.parametrize("size", [20, 1448, 8000])
def test_merged_frames(trial: SegmentsTrial, judge: Judge, six: bool, size: int) -> None:
    """The kernel cuts a merged frame into the very frames that it was made of."""
    segments = train(Segment(six=six, sequence=2**32 - 3000, identification=65533), min(40, 60000 // size), size)
    segments.append(segments[-1].next(b"the end", flags=ACK | PSH | FIN))
    frames = [segment.frame() for segment in segments]
    (written,) = trial.merge(frames)
    assert written.frames == len(frames)
    assert judge.frames(written.content, len(frames)) == frames


@pytest.mark.parametrize("six", [False, True])
@pytest.mark.parametrize(("size", "flags"), [(1, ACK), (1448, ACK | PSH), (1448, ACK | FIN | ECE), (536, ACK | CWR), (8000, ACK)])
def test_cut_frames(trial: SegmentsTrial, judge: Judge, six: bool, size: int, flags: int) -> None:
    """We cut a large frame into the very frames that the kernel makes of it."""
    segment = Segment(os.urandom(min(size * 200 + 1, 60000)), 2**32 - 300, flags=flags, six=six, identification=65533)
    given = offloaded(segment.frame(), size, GSO_ECN if flags & CWR else 0)
    ours = trial.cut(given)
    assert isinstance(ours, list)
    assert judge.frames(given, len(ours)) == ours


@pytest.mark.parametrize("length", [1, 2, 1447, 1448])
def test_check_words(trial: SegmentsTrial, judge: Judge, length: int) -> None:
    """We fill in the same check word as the kernel does."""
    given = offloaded(Segment(os.urandom(length)).frame(), 0)
    assert trial.cut(given) == judge.frames(given, 1)
