"""A generator at one port: rates, sizes, flows, stamps, what comes back, and how it ends. The other side is our back-end."""

from __future__ import annotations

import signal
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.lab.frames.echoing import Echoing, echoing
from userspace_cni.fastpath import (
    IMIX,
    Closed,
    Disconnected,
    FastPathError,
    FrameRefused,
    FrameStream,
    FrontEnd,
    FrontEndOptions,
    Generator,
    UdpFlows,
)

MACS = ("02:00:00:00:00:01", "02:00:00:00:00:02")
LONG = 60.0  # seconds: more than anything here takes


@pytest.fixture
def port(place: Path) -> Iterator[tuple[FrontEnd, Echoing]]:
    """A port whose other side sends every frame back."""
    with ExitStack() as stack:
        yield stack.enter_context(echoing(place / "s"))


def flows(**options: Any) -> UdpFlows:
    return UdpFlows(*MACS, **options)


def test_a_count_of_frames_comes_back(port: tuple[FrontEnd, Echoing]) -> None:
    """All frames of a count are sent, come back, are known by their stamp, and are timed."""
    front, _ = port
    made = flows(sizes=IMIX, sources=2, target_ports=3)
    generator = Generator(front.pairs[0], FrameStream(made.frames(), frames_per_s=20_000, burst=5, stamp_at=made.stamp_at))
    generator.run(count=1_003)
    while (figures := generator.collect(0.01)).received < 1_003:
        pass
    assert (figures.sent, figures.received, figures.foreign, figures.lost) == (1_003, 1_003, 0, 0)
    assert figures.sent_bytes == figures.received_bytes == sum((IMIX * 84)[:1_003])
    assert figures.latency is not None
    assert figures.latency.count == 1_003
    times = figures.latency
    assert 0 < times.min_ns <= times.p50_ns <= times.p90_ns <= times.p99_ns <= times.max_ns


@pytest.mark.parametrize("rate", [{"frames_per_s": 50_000.0}, {"bits_per_s": 50_000 * 8 * 298.5}, {"frames_per_s": 700.0}])
def test_the_rate_is_exact(port: tuple[FrontEnd, Echoing], rate: dict[str, Any]) -> None:
    """What is sent in a time is the rate's share of it, less what the stream says that it was behind, to a burst."""
    front, _ = port
    made = flows(sizes=(64, 533))
    generator = Generator(front.pairs[0], FrameStream(made.frames(), burst=7, **rate))
    figures = generator.run(seconds=0.3)
    done, each = (figures.sent_bytes * 8, 533 * 8) if "bits_per_s" in rate else (figures.sent, 1)
    (per_second,) = rate.values()
    on_time = figures.seconds - figures.behind_s
    assert abs(per_second * on_time - done) <= 7 * each
    assert figures.frames_per_s == pytest.approx(figures.sent / figures.seconds)


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (FrameStream([bytes(60)]), 32),
        (FrameStream([bytes(60)], frames_per_s=19_000), 1),
        (FrameStream([bytes(60)], frames_per_s=200_000), 10),
        (FrameStream([bytes(60)], frames_per_s=2e6), 32),
        (FrameStream([bytes(50), bytes(150)], bits_per_s=48e6), 3),
        (FrameStream([bytes(60)], frames_per_s=2e6, burst=256), 256),
    ],
)
def test_how_many_are_sent_together(stream: FrameStream, expected: int) -> None:
    """Slow streams are even, fast ones cheap, and who says a burst gets it."""
    assert stream.frames_together() == expected


def test_without_a_rate(port: tuple[FrontEnd, Echoing]) -> None:
    """It sends what the queue takes, again and again, and its figures are of all runs."""
    front, _ = port
    generator = Generator(front.pairs[0], FrameStream(flows().frames(), burst=256))
    first = generator.run(count=1_000)
    both = generator.run(count=2_000)
    assert (first.sent, both.sent) == (1_000, 3_000)
    assert 0 < first.seconds < both.seconds
    assert both.latency is None
    assert both.behind_s == 0
    assert generator.run(seconds=0.01).seconds >= both.seconds + 0.01


def test_frames_of_others_are_foreign(port: tuple[FrontEnd, Echoing]) -> None:
    """A frame without this run's mark, or too short for one, is counted apart."""
    front, echo = port
    made = flows()
    generator = Generator(front.pairs[0], FrameStream(made.frames(), stamp_at=made.stamp_at))
    for strange in (made.frames()[0], bytes(14)):
        echo.send(strange)
    while (figures := generator.collect(0.01)).foreign < 2:
        pass
    assert (figures.received, figures.latency) == (0, None)


@pytest.mark.parametrize("stamped", [True, False])
@pytest.mark.parametrize("mergeable", [True, False])
def test_long_frames_are_counted_whole(place: Path, stamped: bool, mergeable: bool) -> None:
    """Frames come back over one buffer or many, longer than `receive` takes, and their bytes are those that were sent."""
    options = FrontEndOptions(room=20_000, receive_room=2_048 if mergeable else None, mergeable=mergeable, packed=None)
    with echoing(place / "long", options) as (front, _):
        made = flows(sizes=(64, 9_000, 15_000), vlan=7)
        longest = [*made.frames(), made.frames()[2] + bytes(5_000)]
        stream = FrameStream(longest, frames_per_s=2_000, stamp_at=made.stamp_at if stamped else None)
        generator = Generator(front.pairs[0], stream)
        generator.run(count=40)
        while (figures := generator.collect(0.01)).received < 40:
            pass
        assert (figures.foreign, figures.received_bytes) == (0, figures.sent_bytes)
        assert figures.received_bytes == 10 * (64 + 9_000 + 15_000 + 20_000)
        assert front.pairs[0].counters.rx_bytes == figures.received_bytes
        assert figures.latency is None or figures.latency.count == 40


def test_what_flows_are() -> None:
    """Addresses, ports and sizes are those that were asked for, each flow once for each size in turn, with right checksums."""
    made = flows(sources=2, targets=3, source_ports=2, target_ports=2, sizes=(100, 200, 300), vlan=7)
    frames = made.frames()
    assert len(frames) == made.count == 24
    assert made.stamp_at == 46
    assert Counter(map(len, frames)) == {100: 8, 200: 8, 300: 8}
    seen = set()
    for frame in frames:
        target, source, tag = frame[:6], frame[6:12], frame[12:18]
        assert (source.hex(":"), target.hex(":"), tag.hex()) == (*MACS, "810000070800")
        header = frame[18:38]
        total = sum(struct.unpack("!10H", header))
        assert (total & 0xFFFF) + (total >> 16) == 0xFFFF
        assert struct.unpack_from("!H", header, 2)[0] == len(frame) - 18
        assert struct.unpack_from("!H", frame, 42)[0] == len(frame) - 38
        seen.add(frame[30:42])
    assert len(seen) == made.flows == 24


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda: flows(sizes=(57,)), "frames of 58 to"),
        (lambda: flows(source_port=65535, source_ports=2), "ports are 0 to 65535"),
        (lambda: flows(sources=300, targets=300), "90000 frames; 65536 frames"),
        (lambda: flows(source_ip="255.255.255.255", sources=2), "beyond 255.255.255.255"),
        (lambda: flows(vlan=0), "1 to 4094"),
        (lambda: flows(targets=0), "targets=0: 1 or more"),
        (lambda: UdpFlows("02:00", MACS[0]), "'02:00' is no MAC address"),
        (lambda: FrameStream([]), "frames of 14 bytes or more"),
        (lambda: FrameStream([bytes(57)], stamp_at=42), "frames of 58 bytes or more"),
        (lambda: FrameStream([bytes(60)], stamp_at=3), "14 or more is possible"),
        (lambda: FrameStream([bytes(60)], burst=257), "1 to 256"),
        (lambda: FrameStream([bytes(60)], frames_per_s=0), "a number above 0"),
        (lambda: FrameStream([bytes(60)], frames_per_s=float("nan")), "a number above 0"),
        (lambda: FrameStream([bytes(60)], frames_per_s=1e-9), "too slow"),
        (lambda: FrameStream([bytes(60)], frames_per_s=1, bits_per_s=1), "one rate"),
    ],
)
def test_what_cannot_be(wrong: Callable[[], object], told: str) -> None:
    """Each is refused before anything is sent, with what is possible."""
    with pytest.raises(ValueError, match=told):
        wrong()


def test_a_frame_that_is_too_long(port: tuple[FrontEnd, Echoing]) -> None:
    """It is refused by name when it is its turn; the figures have what was sent before."""
    front, _ = port
    generator = Generator(front.pairs[0], FrameStream([bytes(60), bytes(1537)], frames_per_s=1e6, burst=2))
    with pytest.raises(FrameRefused, match="1537 bytes, which must have 14 to 1536"):
        generator.run(count=10)
    assert generator.figures.sent == 1


def test_a_signal_ends_it(port: tuple[FrontEnd, Echoing]) -> None:
    """Ctrl-C ends a run without an end, and its figures are there."""
    front, echo = port
    generator = Generator(front.pairs[0], FrameStream(flows().frames(), frames_per_s=1_000))
    main = threading.main_thread().ident
    assert main is not None
    interrupting = threading.Thread(target=echo.call_at_arrival, args=(partial(signal.pthread_kill, main, signal.SIGINT),))
    interrupting.start()
    with pytest.raises(KeyboardInterrupt):
        generator.run()
    interrupting.join()
    assert generator.figures.sent > 0
    with pytest.raises(ValueError, match="more than 0 is possible"):
        generator.run(seconds=0)


@pytest.mark.parametrize("rate", [None, 10.0])
def test_the_other_side_goes(port: tuple[FrontEnd, Echoing], rate: float | None) -> None:
    """A run ends with what happened, whether it polls or sleeps at that moment."""
    front, echo = port
    generator = Generator(front.pairs[0], FrameStream(flows().frames(), frames_per_s=rate, burst=1))
    closing = threading.Thread(target=echo.call_at_arrival, args=(echo.back.close,))
    closing.start()
    with pytest.raises(Disconnected, match="the back-end hung up"):
        generator.run()
    closing.join()
    assert generator.figures.sent > 0
    front.close()
    with pytest.raises(Closed):
        generator.run()


def test_one_thread_runs_it(port: tuple[FrontEnd, Echoing]) -> None:
    """A second thread that runs the same generator is told so; the first one goes on."""
    front, echo = port
    generator = Generator(front.pairs[0], FrameStream(flows().frames(), frames_per_s=1_000))
    with ThreadPoolExecutor() as pool:
        first = pool.submit(generator.run)
        assert echo.arrived.wait(LONG)
        with pytest.raises(FastPathError, match="runs already, in another thread; a generator for each thread"):
            generator.collect(0.1)
        front.close()
        with pytest.raises(Closed):
            first.result()


def test_a_time_that_was_changed_is_not_counted(port: tuple[FrontEnd, Echoing]) -> None:
    """A frame that comes back with a time of the future, or before the run, is received and not timed."""
    front, echo = port
    made = flows()
    generator = Generator(front.pairs[0], FrameStream(made.frames(), stamp_at=made.stamp_at))
    at = made.stamp_at + 8
    echo.change = lambda frame: frame[:at] + bytes(8) + frame[at + 8 :]
    generator.run(count=1)
    echo.change = lambda frame: frame[:at] + b"\xff" * 7 + b"\x7f" + frame[at + 8 :]
    while generator.collect(0.01).received < 1:
        pass
    generator.run(count=1)
    while generator.collect(0.01).received < 2:
        pass
    assert generator.figures.latency is None


def test_it_may_be_closed_in_another_thread(port: tuple[FrontEnd, Echoing]) -> None:
    """The run ends with Closed, and nothing that C uses is freed under it."""
    front, echo = port
    generator = Generator(front.pairs[0], FrameStream(flows().frames(), frames_per_s=100_000))
    closing = threading.Thread(target=echo.call_at_arrival, args=(front.close,))
    closing.start()
    with pytest.raises(Closed):
        generator.run()
    closing.join()
