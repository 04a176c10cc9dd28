"""Bursts: frames side by side in one buffer."""

from __future__ import annotations

import gc
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from userspace_cni.fastpath._frames import cut, lay
from userspace_cni.fastpath._native import ffi
from userspace_cni.fastpath.rings.burst import Burst


@given(st.lists(st.binary(max_size=70), max_size=9))
def test_fill(frames: list[bytes]) -> None:
    """The frames that were filled in can be read again, as many as there is room for."""
    burst = Burst(5, 70)
    count = burst.fill(frames)
    assert count == min(5, len(frames))
    assert burst.frames(count) == burst.frames(count) == frames[:5]
    assert [bytes(view) for view in burst.views(count)] == frames[:5]
    assert [bytes(burst.frame(index)) for index in range(count)] == frames[:5]
    assert list(burst.lengths[:count]) == [len(frame) for frame in frames[:5]]


def test_own_buffer() -> None:
    """A caller's buffer is used in place."""
    room = bytearray(1000)
    burst = Burst(4, 250, room)
    burst.fill([b"a" * 14, b"b" * 250])
    assert room[:14] == b"a" * 14
    assert room[250:500] == b"b" * 250
    burst.frame(1)[0] = 0
    assert room[250] == 0


@pytest.mark.parametrize(("capacity", "stride"), [(0, 64), (-1, 64), (4, 0), (1 << 31, 1), (1, 1 << 32)])
def test_sizes(capacity: int, stride: int) -> None:
    """Impossible sizes are refused before any memory is taken."""
    with pytest.raises(ValueError, match="burst"):
        Burst(capacity, stride)


def test_refused() -> None:
    """Refused are a small or constant buffer, a frame that does not fit, and a number beyond the capacity."""
    with pytest.raises(ValueError, match="no room"):
        Burst(4, 250, bytearray(999))
    with pytest.raises((BufferError, TypeError, ValueError)):
        Burst(4, 250, bytes(1000))
    burst = Burst(4, 250)
    burst.fill([b"a" * 60] * 4)
    with pytest.raises(ValueError, match="251"):
        burst.fill([bytes(14), bytes(251)])
    with pytest.raises(ValueError, match="60 bytes in 120"):
        burst.fill([memoryview(bytes(120)).cast("H")])
    assert burst.frames(4) == [b"a" * 60] * 4  # unchanged
    for count in (-1, 5):
        with pytest.raises(ValueError, match=f"{count} frames of a burst of 4"):
            burst.frames(count)
        with pytest.raises(ValueError, match=f"{count} frames of a burst of 4"):
            burst.views(count)
    for lengths in ([251] * 4, [251, 60, 60, 60]):
        burst.lengths[:] = memoryview(array("I", lengths))
        with pytest.raises(ValueError, match="251 bytes, the burst's stride is 250"):
            burst.frames(4)
    for index in (-1, 4):
        with pytest.raises(IndexError):
            burst.frame(index)


def test_the_collector_does_not_mind() -> None:
    """A burst in a cycle of references is collected without a warning, whichever of its parts goes first."""
    for buffer in (None, bytearray(4 * 64)):
        ring: list[object] = [Burst(4, 64, buffer)]
        ring.append(ring)
        del ring
    gc.collect()  # a complaint is a warning, which is an error here


def test_frames_outlive_their_burst() -> None:
    """A view of a frame keeps its memory alive, which begins on a cache line."""
    burst = Burst(2, 64)
    assert int(ffi.cast("uintptr_t", burst.pointer)) % 64 == 0
    burst.fill([b"a" * 64, b"b" * 64])
    frame, views = burst.frame(1), burst.views(2)
    del burst
    gc.collect()
    views[1][0] = 1
    assert bytes(frame) == b"\x01" + b"b" * 63


def test_a_view_that_was_released() -> None:
    """Who releases a burst's own view loses the view alone: what C copies stays in memory of the burst (sanitizers)."""
    burst = Burst(2, 64)
    with burst.buffer:
        pass
    burst.put(b"a" * 64 + b"b" * 14, [64, 14])
    assert burst.frames(2) == [b"a" * 64, b"b" * 14]
    with pytest.raises(ValueError, match="released memoryview"):
        burst.frame(0)


def test_views_are_the_frames_in_place() -> None:
    """What is written to a view is what the burst holds, a view shows what the burst is filled with next, and fills it, too."""
    burst = Burst(4, 128)
    for frames in ([b"a" * 64, b"b" * 64, b"c" * 64], [b"a" * 64, b"b" * 128, b"c" * 14]):
        burst.fill(frames)
        views = burst.views(3)
        views[1][:2] = b"zz"
        assert burst.frames(3) == [frames[0], b"zz" + frames[1][2:], frames[2]]
        burst.fill([b"d" * 64] * 3)
        assert [bytes(view) for view in views][::2] == [b"d" * len(frames[0]), b"d" * len(frames[2])]
        assert burst.fill(reversed(burst.views(2))) == 2
    burst.fill([b"a" * 64, b"b" * 60])
    burst.fill(burst.views(2)[::-1])
    assert burst.frames(2) == [b"b" * 60, b"a" * 64]


def test_lengths_of_many_kinds() -> None:
    """What a burst remembers of the lengths that it has had is bounded, and never makes a frame longer or shorter."""
    burst = Burst(8, 2048)
    for length in (*range(14, 514), 64, 14):
        frames = [bytes([length % 256]) * length] * (length % 8 + 1)
        assert burst.frames(burst.fill(frames)) == frames


def test_addresses_are_judged() -> None:
    """What copies frames refuses what is no address, and copies nothing that has no room or that is no list of bytes."""
    burst = Burst(4, 64)
    where = burst.address, burst.size, burst.lengths_address
    for wrong in ((0, 64, burst.lengths_address, 1), (burst.address, 64, 0, 1), (burst.address, -1, burst.lengths_address, 1)):
        with pytest.raises((ValueError, OverflowError)):
            cut(*wrong, [])
    with pytest.raises(ValueError, match="address 0"):
        lay([b"a"], 0, burst.size, burst.lengths_address, 1)
    burst.fill([b"a" * 64] * 4)
    four: list[object] = [b"b" * 64] * 4
    for frames, count in ((four, 3), ([*four, b"c"], 5), ([b"b" * 257], 1), ([bytearray(64)], 1), (b"bb", 2), ("bb", 2)):
        assert lay(frames, *where, count) == -1
        assert burst.frames(4) == [b"a" * 64] * 4
    assert lay(tuple(four), *where, 4) == 64
    assert burst.frames(4) == four
    assert lay([b"", b"c" * 65], *where, 2) == 128
    assert (list(burst.lengths[:2]), bytes(burst.buffer[128:193])) == ([0, 65], b"c" * 65)


def test_bytes_are_copies() -> None:
    """What is written to a burst later changes no bytes that were made of its frames."""
    burst = Burst(32, 64)
    burst.fill([b"a" * 64] * 32)
    frames = burst.frames(32)
    burst.fill([b"b" * 64] * 32)
    assert frames == [b"a" * 64] * 32


KEPT = (479, 480, 512, 1514, 2048, 2049)
"""Lengths about the shortest and the longest of which a burst keeps the bytes, and two between."""


@pytest.mark.parametrize("length", KEPT)
def test_bytes_of_long_frames_are_copies(length: int) -> None:
    """Bytes that are still there, as themselves, in a view or as a key, are not written to by the bursts that follow."""
    burst = Burst(4, 4096)
    burst.fill([bytes([number]) * length for number in range(4)])
    frame, other, key, _ = burst.frames(4)
    view, known = memoryview(other), {key: "known"}
    del other, key
    for number in range(10, 14):
        burst.fill([bytes([number]) * length] * 4)
        assert burst.frames(4) == [bytes([number]) * length] * 4
    assert (frame, bytes(view), known[b"\2" * length]) == (b"\0" * length, b"\1" * length, "known")


@given(st.lists(st.tuples(st.sampled_from(KEPT), st.integers(0, 255), st.booleans()), max_size=60), st.integers(1, 4))
def test_bytes_that_nobody_has_any_more(frames: list[tuple[int, int, bool]], count: int) -> None:
    """Whichever bytes a program keeps or drops, and of whatever lengths: each are the frame's, also as the key of a dict."""
    burst = Burst(4, 4096)
    held: list[tuple[bytes, bytes]] = []
    for start in range(0, len(frames), count):
        some = frames[start : start + count]
        wanted = [bytes([value]) * length for length, value, _ in some]
        burst.fill(wanted)
        made = burst.frames(len(some))
        assert made == wanted
        assert {frame: index for index, frame in enumerate(made)} == {frame: index for index, frame in enumerate(wanted)}
        held += [(frame, right) for frame, right, (_, _, keeps) in zip(made, wanted, some, strict=True) if keeps]
        del made
        assert all(frame == right for frame, right in held)


@pytest.mark.parametrize(("length", "kept"), [(479, False), (480, True), (2048, True), (2049, False)])
def test_bytes_of_long_frames_are_used_again(length: int, kept: bool) -> None:
    """Bytes that a program has dropped are those of the next burst's frame, if they are long; those that it has are not."""
    burst = Burst(2, 4096)
    burst.fill([b"a" * length] * 2)
    made = burst.frames(2)
    assert [frame is other for frame, other in zip(made, burst.kept, strict=True)] == [kept, kept]
    dropped, had = id(made[0]), made[1]
    del made
    made = burst.frames(2)
    assert made[1] is not had
    assert id(made[0]) == dropped or not kept


def test_a_burst_that_keeps_nothing() -> None:
    """Frames for which there is no place are made anew."""
    burst = Burst(3, 512)
    burst.kept.clear()
    burst.fill([b"a" * 512] * 3)
    assert burst.frames(3) == burst.frames(3) == [b"a" * 512] * 3
