"""An independent front-end at our back-end: DPDK's virtio_user in testpmd, which sends back each frame. Root, no hugepages.

Some of the tests run with a newer release's DPDK, too (`tests.lab.peers.peer_programs`).
"""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.lab.peers.peer_programs import OWN, PeerPrograms, peers
from tests.lab.switch.switch import listens, wait_until
from userspace_cni.fastpath._native import lib
from userspace_cni.fastpath.fastpath_errors import Disconnected
from userspace_cni.fastpath.rings.burst import Burst
from userspace_cni.fastpath.rings.queue_pair import QueuePair
from userspace_cni.fastpath.vhost.back_end import BackEnd, BackEndListener, BackEndOptions
from userspace_cni.fastpath.vhost.vhost_messages import Feature

NOISE = random.Random(5).randbytes(2 * 9018)
MARK = b"\xff" * 6 + b"are you there" + bytes(60)
DEVICES = [
    "in_order=1,mrg_rxbuf=1",
    "in_order=1,mrg_rxbuf=0",
    "in_order=0,mrg_rxbuf=1",
    "in_order=0,mrg_rxbuf=0",
    "in_order=1,mrg_rxbuf=1,server=1",
    "in_order=0,mrg_rxbuf=0,vectorized=1,queue_size=1024",
    "packed_vq=1,in_order=1,mrg_rxbuf=1",
    "packed_vq=1,in_order=1,mrg_rxbuf=0",
    "packed_vq=1,in_order=0,mrg_rxbuf=1",
    "packed_vq=1,in_order=0,mrg_rxbuf=0",
    "packed_vq=1,in_order=1,mrg_rxbuf=0,vectorized=1",
    "packed_vq=1,in_order=1,mrg_rxbuf=1,server=1,queue_size=300",
]
NEWER_DEVICES = [
    "in_order=1,mrg_rxbuf=1,server=1,queue_size=64,mac=02:00:00:00:00:05,speed=10000",
    "in_order=0,mrg_rxbuf=0,vectorized=1,queue_size=2048",
    "packed_vq=1,in_order=0,mrg_rxbuf=1,queue_size=112",
]
OFFERED = BackEndOptions(queue_pairs=2)


@contextmanager
def _testpmd(path: str, vdev: str, *options: str, of: PeerPrograms = OWN) -> Iterator[subprocess.Popen[bytes]]:
    """testpmd with one virtio_user port, both threads on one core; killed at the end if it still runs."""
    argv = [*of.testpmd, "--lcores=0@0,1@0", "--no-huge", "--no-pci", "-m", "128", "--no-telemetry", "--no-shconf"]
    argv += ["--vdev", f"net_virtio_user0,path={path},{vdev}"]
    argv += ["--", "--total-num-mbufs=8192", "--no-mlockall", "--forward-mode=io", "--auto-start", *options]
    output = Path(path).with_name("testpmd.log")
    with output.open("wb") as log, subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT) as process:
        try:
            yield process
        except BaseException:
            print(output.read_text())
            raise
        finally:
            process.kill()


def _finish(process: subprocess.Popen[bytes]) -> None:
    """End testpmd in good order."""
    process.communicate(b"\n", timeout=60)
    assert process.returncode == 0


@pytest.fixture
def place() -> Iterator[str]:
    with TemporaryDirectory(prefix="uc-") as directory:
        yield f"{directory}/socket"


@contextmanager
def _attached(path: str, vdev: str, *options: str, of: PeerPrograms = OWN) -> Iterator[tuple[subprocess.Popen[bytes], BackEnd]]:
    """Our back-end with a testpmd that forwards; frames that it gets before it forwards are lost."""
    if "server=1" in vdev:
        with _testpmd(path, vdev, *options, of=of) as process:
            wait_until(lambda: listens(path))
            with BackEnd.connect(path, OFFERED) as back_end:
                yield process, back_end
    else:
        with (
            BackEndListener(path, OFFERED) as listener,
            _testpmd(path, vdev, *options, of=of) as process,
            listener.accept(60) as back_end,
        ):
            yield process, back_end
    assert lib.fp_guard_count() == 0


def _echoes(pair: QueuePair) -> None:
    """Wait until frames come back, and until no more do."""
    wait_until(lambda: (pair.send_frames([MARK]), pair.wait(0.05))[1])
    time_is_up = time.monotonic() + 60
    while pair.wait(0.2):
        assert pair.receive_frames()[0] == MARK
        assert time.monotonic() < time_is_up


def _there_and_back(pair: QueuePair, frames: list[bytes], window: int = 64) -> list[bytes]:
    """Return the echoes of `frames`, at most `window` of which are under way: testpmd drops frames that its ring cannot take."""
    seen: list[bytes] = []
    sent = 0
    burst = Burst(32, 9216)
    end = time.monotonic() + 60
    while len(seen) < len(frames):
        assert time.monotonic() < end, f"{sent} sent, {len(seen)} of {len(frames)} seen"
        if room := min(window - (sent - len(seen)), len(frames) - sent, 32):
            sent += pair.send(burst, burst.fill(frames[sent : sent + room]))
        if not (received := pair.receive_frames()):
            pair.wait(0.1)
        seen += received
    return seen


def _carry_on(pair: QueuePair) -> None:
    """Send and receive until a call fails."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        pair.send_frames([MARK] * 8)
        pair.receive_frames()


@pytest.mark.parametrize(("vdev", "newer"), [*((vdev, False) for vdev in DEVICES), *((vdev, True) for vdev in NEWER_DEVICES)])
def test_frames_of_every_length(place: str, vdev: str, newer: bool) -> None:
    """Each length from 60 to 1518 comes back as it was sent, in order; after an end in good order nothing is left."""
    with _attached(place, vdev, of=peers() if newer else OWN) as (process, back_end):
        back_end.wait_started(30)
        assert bool(back_end.features & Feature.NET_MRG_RXBUF) == ("mrg_rxbuf=1" in vdev)
        assert bool(back_end.features & Feature.IN_ORDER) == ("in_order=1" in vdev)
        assert bool(back_end.features & Feature.RING_PACKED) == ("packed_vq=1" in vdev)
        _echoes(back_end.pairs[0])
        frames = [NOISE[length : 2 * length] for length in range(60, 1519)]
        assert _there_and_back(back_end.pairs[0], frames) == frames
        _finish(process)
        with pytest.raises(Disconnected):
            _carry_on(back_end.pairs[0])


@pytest.mark.parametrize("packed", [0, 1])
def test_jumbo_frames(place: str, packed: int) -> None:
    """Frames of up to 9018 bytes are spread over several of the guest's buffers, and come back in several parts."""
    options = ["--max-pkt-len=9018", "--enable-scatter", "--tx-offloads=0x8000"]
    with _attached(place, f"in_order=0,mrg_rxbuf=1,packed_vq={packed}", *options) as (process, back_end):
        back_end.wait_started(30)
        _echoes(back_end.pairs[0])
        frames = [NOISE[length : 2 * length] for length in [*range(1500, 9018, 13), 9018]]
        assert _there_and_back(back_end.pairs[0], frames, 16) == frames
        _finish(process)


@pytest.mark.parametrize("packed", [0, 1])
@pytest.mark.parametrize("of", [OWN, None], ids=["own", "newer"])
def test_two_queue_pairs(place: str, packed: int, of: PeerPrograms | None) -> None:
    """With two queue pairs both carry frames, each its own."""
    vdev = f"in_order=1,mrg_rxbuf=1,queues=2,packed_vq={packed}"
    with _attached(place, vdev, "--rxq=2", "--txq=2", of=of or peers()) as (process, back_end):
        back_end.wait_started(30, 2)
        for pair in back_end.pairs:
            _echoes(pair)
        for index, pair in enumerate(back_end.pairs):
            frames = [bytes([index]) * length for length in range(60, 1500, 10)]
            assert _there_and_back(pair, frames) == frames
        _finish(process)


@pytest.mark.parametrize("vdev", ["in_order=1,packed_vq=0", "in_order=1,packed_vq=1", "in_order=0,packed_vq=1"])
def test_the_back_end_comes_back(place: str, vdev: str) -> None:
    """A front-end that listens goes on with our next back-end when the last one has hung up.

    No frames are under way then: it waits a millisecond for its polling thread before it makes packed rings anew.
    """
    with _testpmd(place, f"{vdev},mrg_rxbuf=1,server=1"):
        wait_until(lambda: listens(place))
        for turn in range(3):
            with BackEnd.connect(place, OFFERED) as back_end:
                back_end.wait_started(30)
                _echoes(back_end.pairs[0])
                frames = [bytes([turn]) * length for length in range(60, 1500)]
                assert _there_and_back(back_end.pairs[0], frames) == frames
    assert lib.fp_guard_count() == 0


def test_front_end_is_killed(place: str) -> None:
    """A front-end that dies amid frames is a hang-up by name; another one that comes to the same socket is served."""
    with BackEndListener(place, OFFERED) as listener:
        for _ in range(2):
            with _testpmd(place, "in_order=1,mrg_rxbuf=1") as process, listener.accept(60) as back_end:
                back_end.wait_started(30)
                _echoes(back_end.pairs[0])
                process.kill()
                with pytest.raises(Disconnected):
                    _carry_on(back_end.pairs[0])
    assert lib.fp_guard_count() == 0
