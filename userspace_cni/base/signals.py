"""The signals by which a process is told to end: heard, remembered and put back, in one place.

A handler is Python's: it runs on the main thread, between two steps of what runs there. The plugin as a process hears signals
before it knows whether an agent serves the call, so this module must import nothing that costs: not `signal` (enums), nor
`contextlib`.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Iterable
    from types import FrameType, TracebackType
    from typing import Any, Self

    Handler = Callable[[int, FrameType | None], object] | signal.Handlers
else:
    import _signal as signal

STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Signals:
    """While it is entered, `handle` hears the signals `numbers`; then who heard them before does. For the main thread.

    `handle` may be SIG_IGN or SIG_DFL. A signal that is ignored already, as nohup(1) has it, stays so unless `ignored_too`.
    """

    def __init__(self, handle: Handler, numbers: Iterable[int] = STOPPING, *, ignored_too: bool = False) -> None:
        self._handle = handle
        self._numbers = tuple(numbers)
        self._ignored_too = ignored_too
        self.former: dict[int, Any] = {}
        """Who heard each of them before, as signal(2) is told."""

    def __enter__(self) -> Self:
        self.hear()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.restore()

    def hear(self) -> None:
        """Hear them, also where something else that was entered since has them."""
        for number in self._numbers:
            former = self.former.get(number, signal.getsignal(number))
            if former is not None and (self._ignored_too or former != signal.SIG_IGN):  # None: it is not Python's
                self.former[number] = former
                signal.signal(number, self._handle)

    def mute(self) -> None:
        """Let those that are heard come and have no effect. Not SIG_IGN: the interpreter complains of one that is on its way."""
        for number in self.former:
            signal.signal(number, lambda _number, _frame: None)

    def restore(self) -> None:
        """Let who heard them before hear them again; once more does nothing."""
        while self.former:
            number, former = self.former.popitem()
            signal.signal(number, former)


def waking() -> int:
    """A descriptor with a byte to be read after each signal from now on, for the main thread to wait at.

    The kernel gives a signal to any thread, and one that has just started a program is likely to be it; handlers run on the main
    thread, which would not wake.
    """
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    return woken
