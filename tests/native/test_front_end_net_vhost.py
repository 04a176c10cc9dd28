"""The front-end with a back-end that is neither ours nor OVS: DPDK's net_vhost, in memory without hugepages."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.lab.peers.peer_programs import OWN, PeerPrograms, peers
from tests.lab.switch.switch import wait_until
from userspace_cni.fastpath.fastpath_errors import SocketRefused
from userspace_cni.fastpath.vhost.front_end import FrontEnd, FrontEndListener, FrontEndOptions
from userspace_cni.fastpath.vhost.vhost_messages import Feature

OPTIONS = {
    "one pair": FrontEndOptions(packed=None),
    "two pairs, merged, out of order": FrontEndOptions(
        queue_pairs=2, receive_room=256, mergeable=True, in_order=False, packed=None
    ),
    "split, merged": FrontEndOptions(receive_room=256, mergeable=True),
}


@dataclass(frozen=True)
class Vhost:
    """A vhost port of testpmd. `dials`: it connects to us; `extra`: further options of its device."""

    dials: bool
    of: PeerPrograms = OWN
    extra: str = ""


@contextmanager
def net_vhost(path: Path, pairs: int, kind: Vhost) -> Iterator[None]:
    """testpmd with one vhost port, which returns every frame on the queue on which it came."""
    device = f"net_vhost0,iface={path},queues={pairs}{',client=1' if kind.dials else ''}{kind.extra}"
    argv = [*kind.of.testpmd, "-l", "0,1", "--no-huge", "-m", "256", "--no-pci", "--file-prefix", path.parent.name]
    argv += ["--vdev", device, "--", "--auto-start", "--forward-mode=io", "--total-num-mbufs=8192"]
    argv += [f"--rxq={pairs}", f"--txq={pairs}"]
    with (path.parent / "log").open("w") as log:
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture
def path(place: Path) -> Path:
    return place / "s"


@contextmanager
def attached(path: Path, options: FrontEndOptions, kind: Vhost) -> Iterator[FrontEnd]:
    """A front-end at the vhost port; either of the two connects."""
    if kind.dials:
        with (
            FrontEndListener(str(path), options) as listener,
            net_vhost(path, options.queue_pairs, kind),
            listener.accept(60) as front_end,
        ):
            yield front_end
        return

    def connected() -> FrontEnd | None:
        try:
            return FrontEnd.connect(str(path), options)
        except SocketRefused:  # it has not got there yet
            return None

    with net_vhost(path, options.queue_pairs, kind), wait_until(connected, what="net_vhost's socket") as front_end:
        yield front_end


def comes_back(front_end: FrontEnd, frame: bytes) -> bool:
    """Whether a frame that is sent on each pair is received again."""

    def once() -> bool:
        for pair in front_end.pairs:
            pair.send_frames([frame])
        return any(frame in pair.receive_frames() for pair in front_end.pairs if pair.wait(0.05))

    return bool(wait_until(once, what=f"a frame of {len(frame)} bytes"))


def carries(path: Path, options: FrontEndOptions, kind: Vhost) -> None:
    """Frames come back unchanged, and again after a second attachment; the requested features were negotiated."""
    with attached(path, options, kind) as front_end:
        assert (Feature.IN_ORDER in front_end.features) == options.in_order
        assert (Feature.NET_MRG_RXBUF in front_end.features) == options.mergeable
        assert (Feature.RING_PACKED in front_end.features) == (options.packed is None)
        for _ in range(3):
            for length in (14, 60, 64, 300, 1500):
                assert comes_back(front_end, bytes(number % 251 for number in range(length)))
            front_end.reattach(60)
            assert front_end.is_alive()


@pytest.mark.parametrize("dials", [False, True], ids=["it listens", "it connects"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_frames_come_back(path: Path, options: FrontEndOptions, dials: bool) -> None:
    """Frames come back unchanged, and again after a second attachment; the requested features were negotiated."""
    carries(path, options, Vhost(dials))


@pytest.mark.parametrize(
    "extra", [",tso=1,linear-buffer=1", ",tso=1,iommu-support=1,ext-buffer=1"], ids=["linear", "external, iommu"]
)
def test_newer_dpdk(path: Path, extra: str) -> None:
    """A newer release's DPDK that offers more than is asked for, and receives in buffers of other kinds, carries the same."""
    carries(path, OPTIONS["two pairs, merged, out of order"], Vhost("iommu" in extra, peers(), extra))
