"""Frames with the header that offloads need, between our front-end and our back-end, and what becomes of headers that lie."""

from __future__ import annotations

import random
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.lab.frames.lender import GUEST, WRITE, Buffer, Lender
from userspace_cni.fastpath._native import lib
from userspace_cni.fastpath.fastpath_errors import BreachReason, FrameRefused, RingFault
from userspace_cni.fastpath.rings.burst import Burst
from userspace_cni.fastpath.rings.generator import Load, blast
from userspace_cni.fastpath.rings.queue_pair import QueuePair
from userspace_cni.fastpath.vhost.back_end import BackEnd, BackEndListener, BackEndOptions
from userspace_cni.fastpath.vhost.front_end import FrontEnd, FrontEndListener, FrontEndOptions
from userspace_cni.fastpath.vhost.offloads import LARGEST_FRAME, NO_OFFLOADS, OFFLOADS
from userspace_cni.fastpath.vhost.vhost_messages import Feature

HERE = Path(__file__).resolve().parent
RINGS = HERE.parents[1] / "userspace_cni" / "fastpath" / "rings"
SOURCES = (str(HERE / "net_header_trial.c"), str(RINGS / "net_header.c"))
STRICT = ("-std=c11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{RINGS}", "-fno-sanitize-recover=all")
HEADER = 12
NOISE = random.Random(7).randbytes(2 * LARGEST_FRAME)
HEADERS = bytes(range(1, 11))
BUFFERS = GUEST + 0x10000
WAYS = {"in order": True, "free list": False}
Attach = Callable[..., tuple[FrontEnd, BackEnd]]


@pytest.fixture
def attach(place: Path) -> Iterator[Attach]:
    """Make a front-end that wants all offloads, attached to a back-end that offers these."""
    with ExitStack() as stack:

        def make(offloads: Feature = OFFLOADS, *, in_order: bool = True, **options: int) -> tuple[FrontEnd, BackEnd]:
            listener = stack.enter_context(BackEndListener(place / "s", BackEndOptions(offloads=offloads, in_order=in_order)))
            accepted = stack.enter_context(ThreadPoolExecutor()).submit(listener.accept)
            wanted = FrontEndOptions(offloads=OFFLOADS, mergeable=True, packed=None, **options)  # type: ignore[arg-type]
            front = stack.enter_context(FrontEnd.connect(place / "s", wanted))
            back = stack.enter_context(accepted.result(60))
            back.wait_started(10)
            return front, back

        yield make
    assert lib.fp_guard_count() == 0


def carried(source: QueuePair, sink: QueuePair, frames: list[bytes]) -> list[bytes]:
    """Send all frames, and collect what arrives."""
    seen: list[bytes] = []
    sent = 0
    while len(seen) < len(frames):
        if sent < len(frames):
            sent += source.send_frames(frames[sent : sent + 4])
        seen += sink.receive_frames()
    return seen


@pytest.mark.parametrize("way", WAYS)
def test_frames_with_headers(attach: Attach, way: str) -> None:
    """Header and frame arrive as they were sent, up to the largest frame, both ways; counters know the frames alone."""
    front, back = attach(in_order=WAYS[way])
    ours, theirs = front.pairs[0], back.pairs[0]
    lengths = [*range(14, 200), *range(1400, 1600), 9018, 16384, 65535, LARGEST_FRAME]
    frames = [HEADERS + bytes(2) + NOISE[length : 2 * length] for length in lengths]
    assert ours.headers
    assert theirs.headers
    assert ours.longest == theirs.longest == LARGEST_FRAME + HEADER
    for source, sink in ((ours, theirs), (theirs, ours)):
        for sent, got in zip(frames, carried(source, sink, frames), strict=True):
            assert got[:10] == HEADERS  # behind them is the number of buffers, which is the ring's
            assert got[HEADER:] == sent[HEADER:]
        assert source.counters.tx_bytes == sink.counters.rx_bytes == sum(lengths)


def test_what_is_agreed(attach: Attach) -> None:
    """What is offered is agreed on; the buffers for large frames are there only where they may be sent."""
    small = Feature.NET_CSUM | Feature.NET_GUEST_CSUM
    front, back = attach(small | Feature.NET_GUEST_TSO4)
    assert front.features & OFFLOADS == back.features & OFFLOADS == small | Feature.NET_GUEST_TSO4
    assert front.memory_bytes < 2 << 20
    assert front.pairs[0].longest == 1536 + HEADER
    assert front.pairs[0].headers
    with pytest.raises(FrameRefused, match="26 to 1548"):
        front.send([bytes(1549)])
    with pytest.raises(FrameRefused):
        front.send([bytes(25)])


def test_memory_for_large_frames(attach: Attach) -> None:
    """A port that may send large frames has 9 MB, most of it for these."""
    front, _ = attach()
    assert front.features & OFFLOADS == OFFLOADS
    assert 128 * LARGEST_FRAME < front.memory_bytes < 128 * LARGEST_FRAME + (1 << 20)


def test_nobody_else_has_headers(place: Path) -> None:
    """A front-end that does not ask for offloads gets none, from a back-end that offers all; its frames have no headers."""
    options = BackEndOptions(offloads=OFFLOADS)
    with BackEndListener(place / "s", options) as listener, ThreadPoolExecutor() as pool:
        accepted = pool.submit(listener.accept)
        with FrontEnd.connect(place / "s", FrontEndOptions(mergeable=True)) as front, accepted.result(60) as back:
            back.wait_started(10)
            assert front.features & OFFLOADS == NO_OFFLOADS
            assert not front.pairs[0].headers
            assert carried(front.pairs[0], back.pairs[0], [NOISE[:60]]) == [bytes(HEADER) + NOISE[:60]]
            got = carried(back.pairs[0], front.pairs[0], [HEADERS + bytes(2) + NOISE[:60]])
            assert got == [NOISE[:60]]


def test_attached_anew_to_other_offers(place: Path) -> None:
    """A front-end whose queues have no room for large frames does not agree to them later; else it follows the offer."""
    with FrontEndListener(place / "s", FrontEndOptions(offloads=OFFLOADS, mergeable=True)) as listener, ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor())
        accepted = pool.submit(listener.accept)
        with BackEnd.connect(place / "s", BackEndOptions(offloads=NO_OFFLOADS)):
            front = stack.enter_context(accepted.result(60))
            assert front.features & OFFLOADS == NO_OFFLOADS
        again = pool.submit(front.reattach)
        with BackEnd.connect(place / "s", BackEndOptions(offloads=OFFLOADS)) as back:
            again.result(60)
            large = Feature.NET_HOST_TSO4 | Feature.NET_HOST_TSO6 | Feature.NET_HOST_ECN
            assert front.features & OFFLOADS == OFFLOADS & ~large
            assert carried(front.pairs[0], back.pairs[0], [HEADERS + bytes(2) + NOISE[:60]])


@pytest.mark.parametrize(
    ("options", "what"),
    [({"offloads": Feature.NET_MTU, "mergeable": True}, "not among"), ({"offloads": OFFLOADS}, "mergeable")],
)
def test_impossible_offloads(options: dict[str, Feature], what: str) -> None:
    """What is no offload is refused, and large frames without buffers that they can be spread over."""
    with pytest.raises(ValueError, match=what):
        FrontEndOptions(**options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=what):
        BackEndOptions(**{"mergeable": False, **options})  # type: ignore[arg-type]


def test_generators_want_frames_without_headers(attach: Attach) -> None:
    """A load is refused on a queue pair whose frames have headers: its frames have none."""
    front, back = attach()
    with pytest.raises(ValueError, match="headers"):
        blast(front.pairs[0], back.pairs[0], Load(bytes(60), seconds=0.01))


@pytest.mark.parametrize("length", [0, 5, 11])
def test_guest_without_a_whole_header(length: int) -> None:
    """A guest's buffer that is shorter than the header ends the connection; a header without a frame is no frame."""
    ours, theirs = socket.socketpair()
    with Lender(theirs) as lender, BackEnd(ours, BackEndOptions(offloads=OFFLOADS)) as back:
        lender.attach()
        lender.describe(1, 0, Buffer(BUFFERS, HEADER))
        lender.offer(1, 0)
        assert back.pairs[0].receive_frames() == []
        lender.describe(1, 0, Buffer(BUFFERS, length))
        lender.offer(1, 0)
        with pytest.raises(RingFault) as caught:
            back.pairs[0].receive_frames()
        assert caught.value.reason is BreachReason.BAD_LENGTH


def test_guests_buffers_of_any_size() -> None:
    """The header of a frame for a guest is whole, however small the buffers are into which it is written."""
    ours, theirs = socket.socketpair()
    with Lender(theirs) as lender, BackEnd(ours, BackEndOptions(offloads=OFFLOADS)) as back:
        lender.attach()
        sizes = [1, 4, 6, 2, 100]
        at = BUFFERS
        for number, size in enumerate(sizes):
            last = number == len(sizes) - 1
            lender.describe(0, number, Buffer(at, size, WRITE | (0 if last else 1), 0 if last else number + 1))
            at += size
        lender.offer(0, 0)
        burst = Burst(1, 128)
        burst.fill([HEADERS + b"\xff\xff" + NOISE[:60]])
        assert back.pairs[0].send(burst, 1) == 1
        start = BUFFERS - GUEST
        assert lender.memory[start : start + HEADER + 60] == HEADERS + b"\x01\x00" + NOISE[:60]


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("header") / "trial")
    subprocess.run(["gcc", *STRICT, "-fsanitize=address,undefined", "-o", path, *SOURCES], check=True)
    return path


@pytest.mark.parametrize("name", ["honest", "hostile", "checks", "fuzz"])
def test_judged_headers(trial: str, name: str) -> None:
    """What the kernel and switches write passes, each lie is refused, and no byte beyond the frame is read."""
    done = subprocess.run([trial, name], capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_headers_guided_fuzz(tmp_path: Path) -> None:
    """Headers that libFuzzer prefers because they reach new code are judged without a read beyond the frame."""
    path, corpus = str(tmp_path / "guided"), tmp_path / "corpus"
    corpus.mkdir()
    clang = shutil.which("clang-14") or "clang"
    subprocess.run([clang, *STRICT, "-DLIBFUZZER", "-fsanitize=fuzzer,address,undefined", "-o", path, *SOURCES], check=True)
    command = [path, "-runs=200000", "-max_len=300", "-seed=1", str(corpus)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
