"""A port whose other side sends every frame back, from our own back-end: no switch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from userspace_cni.fastpath import BackEnd, BackEndListener, Burst, FastPathError, FrontEnd, FrontEndOptions

PATIENCE_S = 60.0


class Echoing:
    """The other side. `arrived` is set with its first frame; `change` is applied to what it sends back."""

    def __init__(self, back: BackEnd, longest: int) -> None:
        self.back = back
        self._longest = longest
        self.arrived = threading.Event()
        self.change: Callable[[bytes], bytes] | None = None

    def send(self, frame: bytes) -> None:
        """Send a frame that it did not get."""
        assert self.back.send([frame]) == 1

    def call_at_arrival(self, action: Callable[[], None]) -> None:
        """Wait for the first frame, then call `action`."""
        assert self.arrived.wait(PATIENCE_S)
        action()

    def run(self) -> None:
        pair, burst = self.back.pairs[0], Burst(256, self._longest)
        try:
            while pair.wait():
                count = pair.receive(burst)
                self.arrived.set()
                if self.change:
                    burst.fill(map(self.change, burst.frames(count)))
                first = 0
                while first < count:
                    first += pair.send(burst, count - first, first)
        except FastPathError:
            return


@contextmanager
def echoing(path: Path, options: FrontEndOptions | None = None) -> Iterator[tuple[FrontEnd, Echoing]]:
    """A front-end that is connected to it."""
    options = options or FrontEndOptions(packed=None)
    with BackEndListener(path) as listener, ThreadPoolExecutor() as pool:
        accepted = pool.submit(listener.accept, PATIENCE_S)
        with FrontEnd.connect(path, options, PATIENCE_S) as front, accepted.result() as back:
            back.wait_started(PATIENCE_S)
            echo = Echoing(back, options.room)
            thread = threading.Thread(target=echo.run)
            thread.start()
            try:
                yield front, echo
            finally:
                back.close()
                thread.join()
