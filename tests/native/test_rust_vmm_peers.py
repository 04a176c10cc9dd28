"""rust-vmm's crates at both ends: `vhost-user-backend` serves our front-end, and `vhost`'s front-end drives our back-end.

Cloud Hypervisor, Firecracker and virtiofsd are made of them.
"""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.lab.peers.rust_reflector import reflector
from tests.lab.switch.switch import listens, wait_until
from userspace_cni.fastpath import BackEndListener, BackEndOptions, FrontEnd, FrontEndOptions
from userspace_cni.fastpath._native import lib
from userspace_cni.fastpath.fastpath_errors import Disconnected, NegotiationFailed, SocketRefused
from userspace_cni.fastpath.vhost.vhost_messages import Feature, ProtocolFeature
from userspace_cni.fastpath.vhost.vhost_port import VhostPort

LENGTHS = (*range(14, 1515, 7), 1514)
SECONDS = 60.0


@contextmanager
def reflecting(side: str, path: Path) -> Iterator[subprocess.Popen[str]]:
    """The program of these crates that sends every frame back; killed at the end if it still runs."""
    argv = [str(reflector()), side, str(path)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def served(place: Path) -> Iterator[Path]:
    """The socket of a back-end of `vhost-user-backend`."""
    path = place / "s"
    with reflecting("back-end", path):
        wait_until(lambda: listens(path), what="its socket")
        yield path


def come_back(port: VhostPort) -> None:
    """Frames of many lengths come back one by one, and then many at once in order."""
    for length in LENGTHS:
        frame = random.randbytes(length)
        assert port.send([frame]) == 1
        assert port.receive(SECONDS) == [frame]
    frames = [random.randbytes(64) for _ in range(32)]
    assert port.send(frames) == len(frames)
    seen: list[bytes] = []
    while len(seen) < len(frames):
        got = port.receive(SECONDS)
        assert got
        seen += got
    assert seen == frames


def test_its_back_end(served: Path) -> None:
    """It has no IN_ORDER and no mergeable buffers; frames come back, and again after each of three attachments."""
    with FrontEnd.connect(served, FrontEndOptions(queue_size=64)) as front_end:
        assert front_end.features == Feature.VERSION_1 | Feature.PROTOCOL_FEATURES
        assert front_end.protocol_features == ProtocolFeature.REPLY_ACK
        for _ in range(3):
            come_back(front_end)
            front_end.reattach(SECONDS)

    def refuse() -> NegotiationFailed | None:
        try:
            FrontEnd.connect(served, FrontEndOptions(mergeable=True)).close()
        except SocketRefused:  # it removes its socket, and makes the next one, when it has noticed that we hung up
            return None
        except NegotiationFailed as error:
            return error
        pytest.fail("it was attached to")

    assert "GET_FEATURES: not offered: NET_MRG_RXBUF" in str(wait_until(refuse, what="its next socket"))


@pytest.mark.parametrize("pairs", [1, 2])
def test_its_front_end(place: Path, pairs: int) -> None:
    """It finds both queues of the first pair, stops them where they are, and is refused by name what is not offered."""
    with (
        BackEndListener(place / "s", BackEndOptions(queue_pairs=pairs)) as listener,
        reflecting("front-end", place / "s") as process,
        listener.accept(SECONDS) as back_end,
    ):
        back_end.wait_started(SECONDS)
        assert back_end.features == Feature.VERSION_1 | Feature.PROTOCOL_FEATURES | Feature.IN_ORDER
        come_back(back_end)
        said, _ = process.communicate(timeout=SECONDS)
        assert process.returncode == 0
        wait_until(lambda: isinstance(back_end.why_failed(), Disconnected), what="the hang-up")
        count = len(LENGTHS) + 32
        assert said.splitlines()[1:] == [
            "started",
            f"base 0 {count}",
            f"base 1 {count}",
            "reset",
            "slots refused: vhost-user: inactive protocol operation: 32768",
        ]
    assert lib.fp_guard_count() == 0


def test_its_front_end_is_killed(place: Path) -> None:
    """A front-end that dies is a hang-up by name, and another one at the same socket is served."""
    with BackEndListener(place / "s") as listener:
        for _ in range(2):
            with reflecting("front-end", place / "s") as process, listener.accept(SECONDS) as back_end:
                back_end.wait_started(SECONDS)
                come_back(back_end)
                process.kill()
                with pytest.raises(Disconnected):
                    back_end.receive(SECONDS)
    assert lib.fp_guard_count() == 0
