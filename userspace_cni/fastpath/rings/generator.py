"""Load and latency between queue pairs: bounded loops in C, without the GIL, that count what was sent and what came back.

Frames carry a mark of this run behind their Ethernet header, so that frames that a switch floods are not counted as ours. Nothing
here judges a figure or sends a lost frame again. Python handles a signal between two calls of C: ten times a second in an echo,
and at the end of a load's `seconds`.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from userspace_cni.fastpath._native import ffi, lib
from userspace_cni.fastpath.rings.queue_pair import QueuePair

MARK_AT = 14  # bytes: behind the Ethernet header
MARK_BYTES = 8
SHORTEST_MARKED = MARK_AT + MARK_BYTES
SHORTEST_ECHO: int = lib.FP_ECHO_BYTES
LARGEST_BATCH: int = lib.FP_LARGEST_BATCH
MOST_WAYS: int = lib.FP_WAYS
BUDGET_NS = 100_000_000
LOST_MAX = 5
SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Load:
    """What to send. `frame` has 14 bytes at least; 22 with `touch`, of which the last 8 are replaced by the mark of the run.

    `batch`: frames per burst. `copy`: copy each frame into its buffer; False: a front-end fills its buffers once. `touch`: look
    for the mark in each received frame; frames without it are `foreign`. `window_ns`: frames are counted in windows of this
    length. `back`: the frame of the second direction of `blast_both`, as long as `frame`; b"": the same frame.
    """

    frame: bytes
    batch: int = 32
    seconds: float = 0.1
    copy: bool = True
    touch: bool = False
    window_ns: int = 1_000_000
    back: bytes = b""


@dataclass(frozen=True, slots=True)
class Slice:
    """The result of a load. `windows`: frames received in each `window_ns`."""

    sent: int
    received: int
    seconds: float
    windows: list[int]
    foreign: int = 0


@dataclass(frozen=True, slots=True)
class Echoes:
    """Round trip times in the order of sending, without those of `lost` frames; `foreign` frames were not ours, or late."""

    nanoseconds: list[int]
    lost: int
    foreign: int = 0


def blast(source: QueuePair, sink: QueuePair, load: Load) -> Slice:
    """Send on `source`, receive on `sink`, for `load.seconds`, from one thread.

    Raises what `send` and `receive` of a pair raise.
    """
    return _blast([(source, sink)], load)


def blast_both(a: QueuePair, b: QueuePair, load: Load) -> Slice:
    """Send in both directions at the same time; the numbers are sums."""
    return _blast([(a, b), (b, a)], load)


def blast_ways(ways: Sequence[tuple[QueuePair, QueuePair]], load: Load) -> Slice:
    """As `blast_both`, on one to four ways, each from a source to a sink."""
    if not 0 < len(ways) <= MOST_WAYS:
        raise ValueError(f"a load on {len(ways)} ways: 1 to {MOST_WAYS} are possible")
    return _blast(ways, load)


def bounce(a: QueuePair, b: QueuePair, count: int, *, frame: bytes, sleep: bool = False, timeout_s: float = 1.0) -> Echoes:
    """Send `count` frames one after the other from `a`; `b` sends each back with its MAC addresses exchanged.

    `frame` has 30 bytes at least: bytes 14 to 30 are replaced by a mark and a number. `sleep`: wait on eventfds, else poll.
    Ends early when LOST_MAX frames in a row were lost: then there is no path.
    """
    return _echo(a, b, count, frame, _WaitOptions(sleep, timeout_s))


def echo(pair: QueuePair, count: int, *, frame: bytes, sleep: bool = False, timeout_s: float = 1.0) -> Echoes:
    """As `bounce`, with frames that the datapath sends back to the port from which they came."""
    return _echo(pair, None, count, frame, _WaitOptions(sleep, timeout_s))


@dataclass(frozen=True, slots=True)
class _WaitOptions:
    sleep: bool
    timeout_s: float


def _blast(ways: Sequence[tuple[QueuePair, QueuePair]], load: Load) -> Slice:
    shortest = SHORTEST_MARKED if load.touch else MARK_AT
    if len(load.frame) < shortest or not 0 < load.batch <= LARGEST_BATCH or load.seconds <= 0 or load.window_ns <= 0:
        raise ValueError(f"a load needs {shortest} bytes of frame, a batch of 1 to {LARGEST_BATCH}, and time: {load}")
    if len(load.back or load.frame) != len(load.frame):
        raise ValueError(f"frames of {len(load.frame)} bytes one way and {len(load.back)} back")
    for source, sink in ways:
        source.require_bare()
        sink.require_bare()
    mark = secrets.token_bytes(MARK_BYTES)
    frame, back = (_marked(each, mark) if load.touch else each for each in (load.frame, load.back or load.frame))
    windows: Any = ffi.new("uint64_t[]", int(load.seconds * SECOND / load.window_ns) + 1)
    held, held_back = ffi.from_buffer("uint8_t[]", frame), ffi.from_buffer("uint8_t[]", back)
    order: Any = ffi.new("struct fp_load *")
    order.frame, order.back, order.length = held, held_back, len(frame)
    order.batch, order.copy, order.touch = load.batch, load.copy, load.touch
    order.duration_ns, order.window_ns = math.ceil(load.seconds * SECOND), load.window_ns
    order.windows, order.window_count = windows, len(windows)
    sources = ffi.new("struct fp_queue *[]", [source.tx for source, _ in ways])
    sinks = ffi.new("struct fp_queue *[]", [sink.rx for _, sink in ways])
    result: int = lib.fp_blast(sources, sinks, len(ways), order)
    if result < 0:
        raise _first_failure([pair for way in ways for pair in way], result, "load", len(frame))
    for pair in {id(pair): pair for way in ways for pair in way}.values():
        pair.check()
    counted: list[int] = list(windows[0 : order.window_count])
    return Slice(order.sent, order.received, order.elapsed_ns / SECOND, counted, order.foreign)


def _echo(near: QueuePair, far: QueuePair | None, count: int, frame: bytes, patience: _WaitOptions) -> Echoes:
    if len(frame) < SHORTEST_ECHO:
        raise ValueError(f"an echo's frame has {SHORTEST_ECHO} bytes at least, not {len(frame)}")
    pairs = [near] if far is None else [near, far]
    for pair in pairs:
        pair.require_bare()
    ends = [ffi.new("struct fp_queue *[2]", [pair.tx, pair.rx]) for pair in pairs]
    template = bytearray(_marked(frame, secrets.token_bytes(MARK_BYTES)))
    held = ffi.from_buffer("uint8_t[]", template, require_writable=True)
    times: Any = ffi.new("int64_t[]", max(count, 1))
    order: Any = ffi.new("struct fp_echo *")
    order.frame, order.length, order.sleep = held, len(template), patience.sleep
    order.timeout_ns, order.budget_ns = int(patience.timeout_s * SECOND), BUDGET_NS
    done = foreign = 0
    while done < count:
        order.first, order.count, order.nanoseconds = done, count - done, times + done
        result: int = lib.fp_bounce(ends[0], ends[1] if far is not None else ffi.NULL, order)
        if result < 0:
            raise _first_failure(pairs, result, "echo", len(frame))
        done += result
        foreign += order.foreign
        for pair in pairs:
            pair.check()
        if done >= LOST_MAX and max(times[done - LOST_MAX : done]) < 0:
            break
    taken: list[int] = list(times[0:done])
    kept = [time for time in taken if time >= 0]
    return Echoes(kept, len(taken) - len(kept), foreign)


def _marked(frame: bytes, mark: bytes) -> bytes:
    return frame[:MARK_AT] + mark + frame[SHORTEST_MARKED:]


def _first_failure(pairs: list[QueuePair], code: int, step: str, length: int) -> Exception:
    """The failure of the first pair that has one: the result of C does not name the queue."""
    for pair in pairs:
        pair.check()
    return pairs[0].explain_failure(code, step, length)
