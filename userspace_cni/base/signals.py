"""Handlers of the signals that end a process: installed and put back, in one place.

Python runs a handler on the main thread, between two of its instructions. The plugin as a process handles signals before it knows
whether an agent serves the call, so this module must import nothing slow: not `signal` (it makes enums), nor `contextlib`.
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
    """Within this block `handle` handles the signals `numbers`; then their former handlers do again. For the main thread.

    `handle` may be SIG_IGN or SIG_DFL. A signal that is ignored already, as nohup(1) does, stays so unless `ignored_too`.
    """

    def __init__(self, handle: Handler, numbers: Iterable[int] = STOPPING, *, ignored_too: bool = False) -> None:
        self._handle = handle if callable(handle) else int(handle)  # `_signal` does not take the members of an enum
        self._numbers = tuple(numbers)
        self._ignored_too = ignored_too
        self.former: dict[int, Any] = {}
        """The former handler by signal, as signal(2) takes it."""

    def __enter__(self) -> Self:
        self.hear()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.restore()

    def hear(self) -> None:
        """Install the handler; again, also where another one was installed since."""
        for number in self._numbers:
            former = self.former.get(number, signal.getsignal(number))
            if former is not None and (self._ignored_too or former != signal.SIG_IGN):  # None: not installed by Python
                self.former[number] = former
                signal.signal(number, self._handle)

    def mute(self) -> None:
        """Make the handled signals have no effect. Not SIG_IGN: the interpreter complains of a signal that is pending then."""
        for number in self.former:
            signal.signal(number, lambda _number, _frame: None)

    def restore(self) -> None:
        """Put the former handlers back; a second call does nothing."""
        while self.former:
            number, former = self.former.popitem()
            signal.signal(number, former)


def waking() -> int:
    """A descriptor that becomes readable, by one byte, at each signal from now on: the main thread waits at it.

    The kernel may give a signal to any thread, but handlers run on the main thread, which would not wake.
    """
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    return woken
