"""Steady traffic between two applications at the switch's ports, while a test looks at what is said of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from userspace_cni.fastpath.vhost.front_end import FrontEnd, FrontEndListener, FrontEndOptions

PAUSE_S = 0.01
SIZE = 200
"""Bytes of a frame."""


@dataclass
class SteadyTraffic:
    """Frames from the first application to the second, `burst` every PAUSE_S, until `stopped` is set; `sent`: how many."""

    first: FrontEnd
    second: FrontEnd
    burst: int = 10
    sent: int = 0
    stopped: threading.Event = field(default_factory=threading.Event)
    drained: bool = True

    def run(self) -> None:
        frame, back = _frame(1, 2), _frame(2, 1)
        self.second.pairs[0].send_frames([back])  # the bridge learns where it is
        while not self.stopped.wait(PAUSE_S):
            self.sent += self.first.pairs[0].send_frames([frame] * self.burst)
            if self.drained:
                self.second.pairs[0].receive_frames()


@contextmanager
def steady_traffic(first: Path, second: Path) -> Iterator[SteadyTraffic]:
    """Traffic between new applications that make these sockets."""
    with (
        closing(FrontEndListener(str(first), FrontEndOptions())) as one,
        closing(FrontEndListener(str(second), FrontEndOptions())) as other,
        closing(one.accept()) as a,
        closing(other.accept()) as b,
    ):
        traffic = SteadyTraffic(a, b)
        thread = threading.Thread(target=traffic.run)
        thread.start()
        try:
            yield traffic
        finally:
            traffic.stopped.set()
            thread.join()


def _frame(source: int, target: int) -> bytes:
    return bytes.fromhex(f"02000000{target:04x}02000000{source:04x}88b5") + bytes(SIZE - 14)
