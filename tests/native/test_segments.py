"""TCP segments merged and cut under ASan and UBSan (segments_trial.c, segments_fuzz.c), judged by a reference in Python."""

from __future__ import annotations

import shutil
import struct
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lab.frames.segments_trial import HERE, SOURCES, STRICT, SegmentsTrial
from tests.lab.frames.tcp_segments import (
    ACK,
    CWR,
    DATA_VALID,
    ECE,
    FIN,
    GSO_ECN,
    NEEDS_CSUM,
    NET_HEADER,
    PSH,
    RST,
    SYN,
    TIMESTAMPS,
    URG,
    Segment,
    cut,
    offloaded,
    train,
)

CLANG = shutil.which("clang-14") or "clang"
PLAIN = bytes(12)
INVALID, TOO_LONG = -22, -90
PROFILE = settings(max_examples=300)


def merged(trial: SegmentsTrial, segments: list[Segment]) -> list[int]:
    """Of how many frames each written one was made; that they stand for the same frames is checked."""
    frames = [segment.frame() for segment in segments]
    written = trial.merge(frames)
    assert sum(each.frames for each in written) == len(frames)
    assert sum(each.counted for each in written) == sum(map(len, frames))
    assert sorted(frame for each in written for frame in cut(each.content)) == sorted(frames)
    return [each.frames for each in written]


# -- merging ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("six", [False, True])
@pytest.mark.parametrize(("outer", "vlan"), [(0, 0), (0, 5), (6, 0), (6, 5)])
def test_train(trial: SegmentsTrial, six: bool, outer: int, vlan: int) -> None:
    """Consecutive segments become one frame that says how to cut it; the last may be shorter, and have FIN and PSH."""
    segments = train(Segment(six=six, vlan=vlan, outer=outer), 5, 1400)
    segments.append(segments[-1].next(b"end", flags=ACK | PSH | FIN))
    (written,) = trial.merge([segment.frame() for segment in segments])
    start = 14 + (4 if outer else 0) + (4 if vlan else 0) + (40 if six else 20)
    assert NET_HEADER.unpack_from(written.content) == (NEEDS_CSUM, 4 if six else 1, start + 32, 1400, start, 16, 0)
    assert cut(written.content) == [segment.frame() for segment in segments]
    assert trial.cut(written.content) == [segment.frame() for segment in segments]


FIRST = Segment()
OTHERS = {
    "the same segment again": FIRST,
    "one that lies before": replace(FIRST, sequence=FIRST.sequence - 100),
    "a gap": FIRST.next(sequence=FIRST.sequence + 101),
    "a longer one": FIRST.next(b"x" * 101),
    "nothing but an acknowledgement": FIRST.next(b""),
    "another acknowledgement": FIRST.next(acknowledged=78),
    "another window": FIRST.next(window=501),
    "another urgent pointer": FIRST.next(urgent=1),
    "SYN": FIRST.next(flags=ACK | SYN),
    "RST": FIRST.next(flags=ACK | RST),
    "URG": FIRST.next(flags=ACK | URG),
    "CWR": FIRST.next(flags=ACK | CWR),
    "ECE": FIRST.next(flags=ACK | ECE),
    "no ACK": FIRST.next(flags=0),
    "other options": FIRST.next(options=TIMESTAMPS[:-1] + b"\xff"),
    "no options": FIRST.next(options=b""),
    "another port": FIRST.next(ports=(40001, 80)),
    "another host": FIRST.next(hosts=(3, 2)),
    "another TTL": FIRST.next(hops=63),
    "another service": FIRST.next(service=3),
    "it may be fragmented": FIRST.next(fragment=0),
    "a fragment": FIRST.next(fragment=0x2000),
    "the last fragment": FIRST.next(fragment=0x4010),
    "an identification too high": FIRST.next(identification=9),
    "another MAC address": FIRST.next(macs=bytes.fromhex("020000000002 020000000009")),
    "a VLAN tag": FIRST.next(vlan=5),
    "a tag of 802.1ad": FIRST.next(outer=5),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_what_is_not_merged(trial: SegmentsTrial, other: Segment) -> None:
    """A segment that differs from the one before in more than its place goes alone, in its order, as it came."""
    frames = [FIRST.frame(), other.frame()]
    assert [each.content for each in trial.merge(frames)] == [PLAIN + frame for frame in frames]


@pytest.mark.parametrize(
    "changes",
    [{"label": 1}, {"service": 1}, {"hops": 1}, {"hosts": (1, 9)}, {"payload": b"x" * 101}, {"flags": ACK | SYN}],
    ids=str,
)
def test_what_is_not_merged_of_ipv6(trial: SegmentsTrial, changes: dict[str, Any]) -> None:
    """The same for what IPv6 has."""
    first = Segment(six=True)
    frames = [first.frame(), first.next(**changes).frame()]
    assert [each.content for each in trial.merge(frames)] == [PLAIN + frame for frame in frames]


def test_identification(trial: SegmentsTrial) -> None:
    """IPv4's identification counts up, around its end too, or is the same for all that may not be fragmented."""
    assert merged(trial, train(Segment(identification=65534), 4)) == [4]
    assert merged(trial, train(Segment(identification=65534, fragment=0), 4)) == [4]
    for fragment, expected in ((0x4000, [3]), (0, [1, 1, 1])):
        same = [replace(each, identification=0, fragment=fragment) for each in train(Segment(), 3)]
        written = trial.merge([each.frame() for each in same])
        assert [each.frames for each in written] == expected
    mixed = [replace(each, identification=number) for each, number in zip(train(Segment(), 4), (7, 7, 8, 9), strict=True)]
    assert [each.frames for each in trial.merge([each.frame() for each in mixed])] == [2, 2]


def test_sequence_numbers_around_their_end(trial: SegmentsTrial) -> None:
    """Sequence numbers are counted modulo 2^32."""
    assert merged(trial, train(Segment(sequence=2**32 - 150), 4)) == [4]


@pytest.mark.parametrize("flag", [PSH, FIN])
def test_flags_that_end_a_frame(trial: SegmentsTrial, flag: int) -> None:
    """PSH and FIN end a merged frame; the next segment begins another one."""
    segments = train(Segment(), 6)
    segments[2] = replace(segments[2], flags=ACK | flag)
    assert merged(trial, segments) == [3, 3]
    segments[0] = replace(segments[0], flags=ACK | flag)
    assert merged(trial, segments) == [1, 2, 3]


def test_short_segment_ends_a_frame(trial: SegmentsTrial) -> None:
    """Behind a segment that is shorter than the first none is appended."""
    segments = train(Segment(), 3)
    segments += [each := segments[-1].next(b"y" * 99), each.next(b"z" * 99)]
    assert merged(trial, segments) == [4, 1]


def test_wrong_checksums(trial: SegmentsTrial) -> None:
    """A segment whose check word is wrong, TCP's or IP's, goes alone and as it is, wherever it stands; the others are merged."""
    frames = [each.frame() for each in train(Segment(), 6)]
    for wrong in range(6):
        for at in (20, 24, 36, 50, 60, 165):
            broken = frames[wrong][:at] + bytes([frames[wrong][at] ^ 4]) + frames[wrong][at + 1 :]
            written = trial.merge([*frames[:wrong], broken, *frames[wrong + 1 :]])
            assert PLAIN + broken in [each.content for each in written]
            others = [each for each in written if each.content != PLAIN + broken]
            assert [frame for each in others for frame in cut(each.content)] == frames[:wrong] + frames[wrong + 1 :]
            assert len(others) == (1 if wrong in (0, 5) else 2)


def test_vouched_for(trial: SegmentsTrial) -> None:
    """A check word that the virtio header vouches for is not checked, but IPv4's own is; one that lies is passed on as it is."""
    segments = train(Segment(), 3)
    valid = [NET_HEADER.pack(DATA_VALID, 0, 0, 0, 0, 0, 1) + each.frame() for each in segments]
    partial = [offloaded(each.frame(), 0) for each in segments]
    for frames in (valid, partial):
        (written,) = trial.merge(frames, headers=True)
        assert cut(written.content) == [each.frame() for each in segments]
    broken = valid[1][:34] + b"\1" + valid[1][35:]
    assert [each.content for each in trial.merge([valid[0], broken], headers=True)] == [valid[0], broken]
    elsewhere = NET_HEADER.pack(NEEDS_CSUM, 0, 0, 0, 35, 16, 1) + partial[1][12:]
    assert [each.content for each in trial.merge([partial[0], elsewhere], headers=True)] == [partial[0], elsewhere]
    large = offloaded(segments[1].frame(), 50)
    assert [each.content for each in trial.merge([partial[0], large], headers=True)] == [partial[0], large]


def test_padding(trial: SegmentsTrial) -> None:
    """What Ethernet pads short frames with is no payload."""
    segments = train(Segment(options=b""), 2)
    segments.append(segments[-1].next(b"end"))
    (written,) = trial.merge([replace(each, padding=b"\0" * 3).frame() for each in segments])
    assert cut(written.content) == [each.frame() for each in segments]


def test_tiny_segments(trial: SegmentsTrial) -> None:
    """Segments of less than 8 bytes are not merged with each other: kernels refuse such frames."""
    assert merged(trial, train(Segment(), 4, 8)) == [4]
    assert merged(trial, train(Segment(), 4, 7)) == [1, 1, 1, 1]
    assert merged(trial, [*(first := train(Segment(), 2, 8)), first[-1].next(b"x")]) == [3]


def test_interleaved_flows(trial: SegmentsTrial) -> None:
    """Flows that come in turns are merged, each to one frame, up to 16 of them; of more, the last 16 are."""
    for flows, expected in ((1, [8]), (16, [8] * 16)):
        trains = [train(Segment(ports=(1000 + flow, 80), six=bool(flow % 2)), 8) for flow in range(flows)]
        assert merged(trial, [each for turn in zip(*trains, strict=True) for each in turn]) == expected
    trains = [train(Segment(ports=(1000 + flow, 80)), 4) for flow in range(32)]
    assert merged(trial, [each[0] for each in trains] + [each[1] for each in trains[16:]]) == [1] * 16 + [2] * 16
    assert sum(merged(trial, [each for turn in zip(*trains, strict=True) for each in turn])) == 128


def test_longest(trial: SegmentsTrial) -> None:
    """An IP packet of 65,535 bytes is the longest that is made."""
    segments = train(Segment(), 48, 1448)
    assert merged(trial, segments) == [45, 3]
    assert merged(trial, train(Segment(six=True), 128, 1428)) == [45, 45, 38]
    assert merged(trial, train(Segment(options=b""), 2, 65535 - 20 - 20 - 65000)) == [2]
    exact = [Segment(payload=bytes(32748), options=b"")]
    for size, expected in ((32747, [2]), (32748, [1, 1])):
        assert merged(trial, [exact[0], exact[0].next(bytes(size))]) == expected


def test_order_of_a_flow(trial: SegmentsTrial) -> None:
    """An acknowledgement between data stays there, and so does a fragment, whose flow is not known; others do not matter."""
    one, two, three, four = train(Segment(), 4)
    other = Segment(hosts=(5, 6))
    acknowledgement = two.next(b"", identification=50)
    assert merged(trial, [one, two, acknowledgement, other, three, four]) == [2, 1, 1, 2]
    fragment = Segment(hosts=(5, 6), fragment=0x2000)
    assert merged(trial, [one, two, fragment, three, four]) == [2, 1, 2]
    arp = bytes.fromhex("ffffffffffff 020000000001 0806") + bytes(28)
    udp = bytearray(Segment(hosts=(5, 6), fragment=0x2000).frame())
    udp[23] = 17
    frames = [one.frame(), arp, two.frame(), bytes(udp), three.frame()]
    assert [each.frames for each in trial.merge(frames)] == [3, 1, 1]


def hostile_bursts(count: int) -> dict[str, list[bytes]]:
    """Bursts of `count` frames that are meant to cost much."""
    flows = [Segment(ports=(1000 + number, 80), payload=b"x" * 8) for number in range(count)]
    segments = train(Segment(), count, 8)
    frames = [each.frame() for each in segments]
    ping = [each.next(b"x" * 8).frame() if number % 2 else each.frame() for number, each in enumerate(flows[: count // 2] * 2)]
    return {
        "one flow": frames,
        "each of its own flow": [each.frame() for each in flows],
        "32 flows in turns": [flows[number % 32].frame() for number in range(count)],
        "flows that come back": ping,
        "all wrong": [frame[:-1] + b"!" for frame in frames],
        "every second one wrong": [frame[:-1] + b"!" if number % 2 else frame for number, frame in enumerate(frames)],
        "the same again": frames[:1] * count,
        "backwards": frames[::-1],
        "fragments between": [Segment(fragment=0x2000).frame() if number % 2 else frame for number, frame in enumerate(frames)],
        "no frames": [bytes(14)] * count,
    }


@pytest.mark.parametrize("kind", hostile_bursts(32))
def test_cost(trial: SegmentsTrial, kind: str) -> None:
    """A burst's cost is in proportion to its frames, whatever is in it: it is counted in steps, not in time."""
    steps = []
    for count in (32, 64, 128):
        burst = hostile_bursts(count)[kind]
        trial.steps()
        trial.merge(burst)
        steps.append(trial.steps() / count)
    assert steps[2] < 1.1 * steps[1]
    assert max(steps) < 200


SIZES = st.sampled_from([0, 1, 3, 50, 100, 100, 100])
FLAGS = st.sampled_from([ACK] * 12 + [ACK | PSH, ACK | FIN, ACK | SYN, ACK | CWR, ACK | ECE])


@st.composite
def bursts(draw: Any) -> list[Segment]:
    """Up to 40 segments of up to four flows, mostly consecutive."""
    flows = [Segment(ports=(flow, 80), six=bool(flow & 1), vlan=flow & 2) for flow in range(1, 1 + draw(st.integers(1, 4)))]
    made: list[Segment] = []
    for _ in range(draw(st.integers(1, 40))):
        which = draw(st.integers(0, len(flows) - 1))
        segment = flows[which]
        if not draw(st.integers(0, 9)):
            segment = replace(segment, sequence=draw(st.integers(0, 2**32 - 1)), window=draw(st.integers(1, 2)))
        segment = replace(segment, payload=_random(draw(SIZES), len(made)), flags=draw(FLAGS))
        made.append(segment)
        flows[which] = replace(segment.next(), flags=ACK)
    return made


def _random(size: int, seed: int) -> bytes:
    return bytes((seed * 101 + at * 7) % 256 for at in range(size))


@PROFILE
@given(bursts(), st.sets(st.integers(0, 39)))
def test_any_burst(trial: SegmentsTrial, segments: list[Segment], wrong: set[int]) -> None:
    """What is written stands for the very frames that came, of each flow in their order; wrong ones go alone."""
    frames = [each.frame() for each in segments]
    for number in wrong & set(range(len(frames))):
        frames[number] = frames[number][:-1] + bytes([frames[number][-1] ^ 1])
    written = trial.merge(frames)
    again = [frame for each in written for frame in cut(each.content)]
    assert sorted(again) == sorted(frames)
    for ports in {each.ports for each in segments}:
        mark = struct.pack("!HH", *ports)
        assert [frame for frame in again if mark in frame[34:62]] == [frame for frame in frames if mark in frame[34:62]]
    for each in written:
        if each.frames > 1:
            assert trial.cut(each.content) == cut(each.content)


# -- cutting ---------------------------------------------------------------------------------------------------------------


@PROFILE
@given(
    st.booleans(),
    st.sampled_from([(0, 0), (0, 5), (6, 0), (6, 5)]),
    st.integers(0, 9000),
    st.sampled_from([1448, 1, 7, 536]),
    st.integers(0, 255).filter(lambda flags: not flags & (SYN | RST)),
    st.integers(1, 64),
)
def test_any_cut(
    trial: SegmentsTrial, six: bool, tags: tuple[int, int], length: int, size: int, flags: int, capacity: int
) -> None:
    """A large frame becomes the frames that the reference makes of it, whatever the room for a burst is."""
    payload, (outer, vlan) = _random(length, size), tags
    segment = Segment(payload, 2**32 - 3000, flags=flags, six=six, outer=outer, vlan=vlan, identification=65500, label=3)
    given = offloaded(segment.frame(), size, GSO_ECN if flags & CWR else 0)
    assert trial.cut(given, longest=4200, capacity=capacity) == cut(given)


def test_frames_that_are_not_cut(trial: SegmentsTrial) -> None:
    """A frame's check word is filled in, of TCP and of UDP, never with 0; a frame without a request is left as it is."""
    frame = Segment().frame()
    assert trial.cut(offloaded(frame, 0)) == [frame]
    assert trial.cut(NET_HEADER.pack(DATA_VALID, 0, 0, 0, 99, 99, 0) + b"x" * 14) == [b"x" * 14]
    zero = bytes(14) + b"\xff\xff" * 4
    assert trial.cut(NET_HEADER.pack(NEEDS_CSUM, 0, 0, 0, 14, 6, 0) + zero) == [zero]
    for length in range(100):
        assert trial.cut(given := offloaded(Segment(_random(length, length)).frame(), 0)) == cut(given)


def test_longest_that_is_cut(trial: SegmentsTrial) -> None:
    """The longest frame is cut, also into segments of a byte; a result that is too long is refused, and nothing comes out."""
    segment = Segment(_random(65535 - 52, 0), vlan=7)
    given = offloaded(segment.frame(), 1)
    assert trial.cut(given, capacity=500) == cut(given)
    given = offloaded(segment.frame(), 1448)
    assert trial.cut(given, longest=70 + 1448) == cut(given)
    assert trial.cut(given, longest=70 + 1447) == TOO_LONG
    assert trial.cut(PLAIN + bytes(100), longest=99) == TOO_LONG


def test_ip_options_and_extensions(trial: SegmentsTrial) -> None:
    """Options of IPv4 and extensions of IPv6 are in each segment."""
    frame = bytearray(Segment(_random(400, 1)).frame())
    frame[14], frame[34:34] = 0x46, bytes.fromhex("94040000")
    frame[16:18] = struct.pack("!H", len(frame) - 14)
    whole = offloaded(Segment(_random(400, 1)).frame(), 100)
    given = NET_HEADER.pack(NEEDS_CSUM, 1, 0, 100, 38, 16, 0) + bytes(frame[:38]) + whole[12 + 34 :]
    assert trial.cut(given) == cut(given)

    whole = offloaded(Segment(_random(400, 1), six=True).frame(), 100)[12:]
    extended = bytearray(whole[:54] + bytes.fromhex("0600010400000000") + whole[54:])
    extended[20], extended[18:20] = 60, struct.pack("!H", len(extended) - 54)
    given = NET_HEADER.pack(NEEDS_CSUM, 4, 0, 100, 62, 16, 0) + bytes(extended)
    assert trial.cut(given) == cut(given)


GOOD = NET_HEADER.unpack_from(offloaded(Segment().frame(), 50))
LIES: dict[str, dict[int, int]] = {
    "no size": {3: 0},
    "no request of a check word": {0: 0},
    "an unknown type": {1: 2},
    "UDP fragments": {1: 3},
    "UDP segments": {1: 5},
    "IPv6": {1: 4},
    "ECN alone": {1: GSO_ECN},
    "a start in Ethernet's header": {4: 13},
    "a start in IP's header": {4: 30},
    "a start in TCP's header": {4: 38},
    "a start behind the frame": {4: 165},
    "a start far behind the frame": {4: 65535},
    "an offset that is not TCP's": {5: 6},
    "an offset behind the frame": {5: 150},
    "an offset far behind the frame": {5: 65535},
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_headers_that_lie(trial: SegmentsTrial, lie: dict[int, int]) -> None:
    """A virtio header that does not fit its frame is refused."""
    header = NET_HEADER.pack(*(lie.get(index, value) for index, value in enumerate(GOOD)))
    assert trial.cut(header + offloaded(Segment().frame(), 50)[12:]) == INVALID


@pytest.mark.parametrize("length", [0, 1, 65535])
def test_hint(trial: SegmentsTrial, length: int) -> None:
    """hdr_len is a hint, which is not read."""
    given = offloaded(Segment().frame(), 50)
    assert trial.cut(given[:2] + struct.pack("<H", length) + given[4:]) == cut(given)


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (12, 0x81),
        (13, 6),
        (14, 0x46),
        (14, 0x55),
        (14, 0x44),
        (16, 1),
        (17, 9),
        (20, 0x20),
        (21, 1),
        (23, 17),
        (46, 0x40),
        (46, 0xF0),
        (46, 0),
    ],
)
def test_frames_that_lie(trial: SegmentsTrial, at: int, value: int) -> None:
    """A frame that is to be cut and is not what its virtio header says is refused."""
    frame = bytearray(Segment(options=b"", payload=b"x" * 39).frame())
    given = bytearray(offloaded(bytes(frame), 20))
    assert isinstance(trial.cut(bytes(given)), list)
    given[12 + at] = value
    assert trial.cut(bytes(given)) == INVALID


def test_no_frame_at_all(trial: SegmentsTrial) -> None:
    """What is shorter than a virtio header and Ethernet's, or longer than any packet, is refused, and merged with nothing."""
    for length in (0, 11, 12, 25, 12 + 65535 + 19):
        assert trial.cut(bytes(length), longest=100000) == INVALID
    for headers in (False, True):
        frames = [bytes(length) for length in (0, 1, 11, 12, 13, 14, 25, 26, 33, 60)]
        assert [each.frames for each in trial.merge(frames, headers=headers)] == [1] * len(frames)


def test_guided_fuzz(tmp_path: Path) -> None:
    """Bytes that libFuzzer prefers because they reach new code lead out of no buffer; what was merged can be cut again."""
    path, corpus = str(tmp_path / "guided"), tmp_path / "corpus"
    command = [CLANG, *STRICT, "-fsanitize=fuzzer,address,undefined", "-o", path, str(HERE / "segments_fuzz.c"), *SOURCES]
    subprocess.run(command, check=True)
    corpus.mkdir()
    for number, six in enumerate((False, True)):
        frames = [each.frame() for each in train(Segment(six=six), 6, 20)]
        (corpus / f"plain{number}").write_bytes(b"\0" + b"".join(bytes([len(each)]) + each for each in frames))
        headed = [NET_HEADER.pack(DATA_VALID, 0, 0, 0, 0, 0, 1) + each for each in frames]
        (corpus / f"headed{number}").write_bytes(b"\2" + b"".join(bytes([len(each)]) + each for each in headed))
        (corpus / f"cut{number}").write_bytes(b"\xff" + offloaded(Segment(six=six).frame(), 20))
    limits = ("-seed=1", "-runs=150000", "-max_len=2048", "-len_control=0", f"-artifact_prefix={tmp_path}/")
    done = subprocess.run([path, *limits, str(corpus)], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
